"""Compiled blocks train the same model, under the same names, and nobody who looks sees a difference."""

import copy
from dataclasses import replace

import pytest
import torch

from tinytrain.ahead import Ahead
from tinytrain.checkpoint import Checkpointer
from tinytrain.compiled import CompilerMissingError, compile_blocks, require_compiler
from tinytrain.data import RowBatches, TokenRows
from tinytrain.model import GPT, ModelConfig
from tinytrain.recompute import recompute_activations
from tinytrain.step import evaluate
from tinytrain.train import TrainConfig, Trainer

SMALL = ModelConfig(vocab_size=16, d_model=8, n_layers=1, n_heads=1, max_positions=8)
IDS = torch.randint(0, 16, (200,), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def told(monkeypatch):
    """The blocks' forwards that ran compiled, by a compiler that takes no time and makes nothing."""
    calls = []

    def compiled(function, **_options):
        def run(*arguments, **named):
            calls.append(function)
            return function(*arguments, **named)

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr("tinytrain.compiled.require_compiler", lambda _device: None)
    return calls


def model_of(n_layers=1):
    torch.manual_seed(0)
    return GPT(replace(SMALL, n_layers=n_layers))


def trained(out, compiled, stop=6, resumed=False):
    """(losses by update, the trainer)"""
    model, losses = model_of(), {}
    if compiled:
        compile_blocks(model)
    config = TrainConfig(total_steps=6, max_lr=1e-2, warmup_steps=1, eval_every=2, out=out, checkpoint_every=3)
    rows = TokenRows(IDS, 8, 16)

    def note(record):
        losses[record["step"]] = (record["loss"], record.get("eval_loss"))
        return record["step"] < stop

    with Ahead(RowBatches(rows=rows, batch_size=4)) as data:
        trainer = Trainer(model, data, config, [note], validation=list(rows.batches(4, limit=4)))
        if resumed:
            trainer.resume()
        trainer.fit()
    return losses, trainer


# Warnings inside torch's compiler: from its imports, and one that it hides, which does not help where it is an error.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning")
def test_a_compiled_run_is_the_plain_run_up_to_rounding_and_each_goes_on_as_the_other(tmp_path):
    try:
        require_compiler(torch.device("cpu"))
    except CompilerMissingError as error:
        pytest.skip(str(error))
    plain, trainer = trained(tmp_path / "plain", compiled=False)
    ours, compiled = trained(tmp_path / "compiled", compiled=True)
    for name, begun, ended in (("a", True, False), ("b", False, True)):
        first, _ = trained(tmp_path / name, compiled=begun, stop=3)
        rest, _ = trained(tmp_path / name, compiled=ended, resumed=True)
        assert list(first) == [1, 2, 3] and list(rest) == [4, 5, 6]
        for step, (loss, held_out) in (first | rest).items():
            assert loss == pytest.approx(plain[step][0], rel=1e-5)
            assert held_out == (None if plain[step][1] is None else pytest.approx(plain[step][1], rel=1e-5))
    assert [loss for loss, _ in ours.values()] == pytest.approx([loss for loss, _ in plain.values()], rel=1e-5)
    _, state = Checkpointer(tmp_path / "compiled" / "checkpoints").load()
    assert list(state["model"]) == list(trainer.model.state_dict())
    assert isinstance(compiled.model, GPT)


def test_training_runs_compiled_and_evaluation_as_written(told, tmp_path):
    _, trainer = trained(tmp_path, compiled=True)
    assert len(told) == 6
    evaluate(trainer.model, [{"input_ids": IDS[None, :8], "labels": IDS[None, 1:9]}])
    assert len(told) == 6


def test_a_block_that_is_watched_inside_runs_as_written(told):
    model = model_of(n_layers=2)
    compile_blocks(model)
    handles = [
        model.blocks[1].register_forward_hook(lambda *_: None),
        model.blocks[0].attention.out.register_forward_hook(lambda *_: None),
    ]
    model(IDS[None, :8])
    assert [function.__self__ for function in told] == [model.blocks[1]]
    for handle in handles:
        handle.remove()
    model(IDS[None, :8])
    assert [function.__self__ for function in told[1:]] == list(model.blocks)


def test_a_copy_of_the_model_computes_with_its_own_weights(told):
    model = model_of()
    compile_blocks(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.blocks[0].feed_forward.out.weight.zero_()
    twin(IDS[None, :8]).sum().backward()
    assert told[-1].__self__ is twin.blocks[0]
    assert model.blocks[0].attention.qkv.weight.grad is None and twin.blocks[0].attention.qkv.weight.grad is not None


def test_recomputing_goes_around_what_is_compiled_and_the_other_order_is_refused(told):
    model = model_of()
    compile_blocks(model)
    recompute_activations(model)
    model(IDS[None, :8]).sum().backward()
    assert len(told) == 2
    with pytest.raises(ValueError, match="call compile_blocks once, and before recompute_activations"):
        compile_blocks(model)


@pytest.mark.parametrize(
    ("device", "triton", "words"),
    [
        ("cpu", None, "does not work on cpu here: it needs a C++ compiler; on Debian and Ubuntu: apt install g++"),
        ("cuda", None, "does not work on cuda here: Triton is not installed"),
        ("cuda", "found", "compute capability 7.0 or more, a C compiler and Python's header files"),
    ],
)
def test_what_is_missing_is_named_with_the_cure(monkeypatch, device, triton, words):
    def broken(*_arguments, **_options):
        raise RuntimeError("\nInvalidCxxCompiler: none found\nand much more")

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr("tinytrain.compiled.find_spec", lambda _name: triton)
    with pytest.raises(CompilerMissingError) as raised:
        require_compiler(torch.device(device))
    assert words in str(raised.value)
    assert str(raised.value).endswith("Or train without --compile. Torch says: InvalidCxxCompiler: none found")
