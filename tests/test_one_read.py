"""What an update costs on a GPU besides computing: how often the host waits to be told a number."""

from collections import Counter

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tinytrain.ahead import Ahead
from tinytrain.data import RowBatches
from tinytrain.model import GPT, PRESETS
from tinytrain.recompute import recompute_activations
from tinytrain.train import TrainConfig, Trainer

READS = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__")


class Reads(TorchFunctionMode):
    """Counts the calls that bring numbers to the host, by name and kind of number."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_function__(self, function, types, arguments=(), named=None):
        name = getattr(function, "__name__", "")
        if name in READS and isinstance(arguments[0], torch.Tensor):
            self.seen[name, arguments[0].dtype] += 1
        return function(*arguments, **(named or {}))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("at_size", [False, True])
def test_an_update_reads_the_device_once(rows, tmp_path, any_format_is_fast, precision, at_size):
    """Loss, norm and scale together. The other numbers, such as its targets, are counted where the batch is made."""
    model = GPT(PRESETS["nano"])
    if at_size:
        model.loss_chunk = 20
        recompute_activations(model)
    updates, reads = [], Reads()

    def count(record):
        updates.append(dict(reads.seen))
        reads.seen.clear()

    config = TrainConfig(total_steps=5, max_lr=1e-3, warmup_steps=1, precision=precision, out=tmp_path)
    with Ahead(RowBatches(rows=rows, batch_size=8, micro_batch_size=3), pin=False) as data, reads:
        Trainer(model, data, config, [count]).fit()
    assert len(updates) == 5
    for update in updates[1:]:
        host = {key: number for key, number in update.items() if not key[1].is_floating_point}
        assert {key: number for key, number in update.items() if key not in host} == {("tolist", torch.float32): 1}
        assert host.get(("tolist", torch.int64)) == 1
