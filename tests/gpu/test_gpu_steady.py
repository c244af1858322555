"""Steady training on a GPU: nothing waits for it, but for the one read of an update."""

import pytest
import torch

import tinytrain.step
from tinytrain.ahead import Ahead
from tinytrain.compiled import CompilerMissingError, compile_blocks
from tinytrain.data import RowBatches, TokenRows
from tinytrain.model import GPT, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.recompute import recompute_activations
from tinytrain.step import train_step
from tinytrain.train import TrainConfig, Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

CONFIG = ModelConfig(vocab_size=320, d_model=128, n_layers=2, n_heads=4, max_positions=64)
SETTLED = 4
"""updates after which memory is allocated, code is made and moments exist"""


def rows_of():
    ids = torch.randint(0, 300, (20_000,), generator=torch.Generator().manual_seed(0))
    return RowBatches(rows=TokenRows(ids, 64, 300), batch_size=8, micro_batch_size=4)


def model_of(compiled=False):
    torch.manual_seed(0)
    model = GPT(CONFIG).cuda()
    if compiled:
        try:
            compile_blocks(model)
        except CompilerMissingError as error:
            pytest.skip(str(error))
    return model


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("way", ["plain", "chunks and recomputing", "compiled"])
def test_a_settled_run_waits_for_the_device_once_an_update(monkeypatch, tmp_path, precision, way):
    """The Trainer's whole update: its data, its step, its log and its callbacks."""
    model = model_of(compiled=way == "compiled")
    if way == "chunks and recomputing":
        model.loss_chunk = 100
        recompute_activations(model)
    read, reads = tinytrain.step._read, []

    def one_read(*numbers):
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        try:
            return read(*numbers)
        finally:
            reads.append(mode)
            torch.cuda.set_sync_debug_mode(mode)

    def settled(record):
        if record["batch"] == SETTLED:
            torch.cuda.set_sync_debug_mode("error")  # from here on, waiting for the device is an error

    monkeypatch.setattr(tinytrain.step, "_read", one_read)
    config = TrainConfig(total_steps=20, max_lr=1e-3, warmup_steps=2, precision=precision, out=tmp_path)
    try:
        with Ahead(rows_of()) as data:
            assert all(tensor.is_pinned() for part in data[0] for tensor in part.values())
            report = Trainer(model, data, config, [settled]).fit()
        with pytest.raises(RuntimeError, match="synchronizing"):  # the mode was on until the end
            next(model.parameters()).sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert report.steps == 20 and [bool(mode) for mode in reads[-16:]] == [True] * 16


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_compiled_updates_are_the_plain_ones_up_to_rounding():
    losses = {}
    for compiled in (False, True):
        model, data = model_of(compiled), rows_of()
        optimizer = build_adamw(model, lr=1e-3)
        losses[compiled] = [train_step(model, data[n], optimizer, lr=1e-3).loss for n in range(5)]
    assert losses[True] == pytest.approx(losses[False], rel=1e-4)
