"""Group H: saving, loading and going on.

The kind of fault: something is not saved, or is saved where it can be lost, or goes back to the wrong place. The run
goes on without an error, and it is another run. Each test shows what the usual way does, and what happens here.
"""

import copy
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from paper import OnPaper, costs
from torch import nn
from torch.utils.data import DataLoader

import tinytrain.checkpoint
from tinytrain.checkpoint import Checkpointer, CheckpointError
from tinytrain.data import RowBatches, TokenRows
from tinytrain.generators import all_states, restore_all
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw, load_optimizer_state, optimizer_state
from tinytrain.runlog import read_run
from tinytrain.step import evaluate
from tinytrain.train import TrainConfig, Trainer
from tinytrain.weights import load_model_state, unwrap

ROWS = TokenRows(torch.randint(0, 256, (16 * 20,), generator=torch.Generator().manual_seed(1)), 16, vocab_size=256)
DATA = RowBatches(rows=ROWS, batch_size=4)  # 5 updates an epoch


def nano(seed=0, dropout=0.1):
    torch.manual_seed(seed)
    return GPT(replace(PRESETS["nano"], d_model=32, dropout=dropout))


def run_in(folder, *, stop=None, total_steps=15, data=DATA, model=None, resume=False, **options):
    config = TrainConfig(total_steps=total_steps, max_lr=1e-2, out=folder, checkpoint_every=5)
    trainer = Trainer(
        nano() if model is None else model, data, config, [lambda record: record["batch"] != stop], **options
    )
    if resume:
        trainer.resume()
    trainer.fit()
    return trainer


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def five_draws():
    return [(random.random(), np.random.random(), torch.rand(1).item()) for _ in range(5)]


def test_H01_the_states_of_all_generators_are_loaded_again_without_trusting_the_file(tmp_path):
    """huggingface/transformers#40500: NumPy's own state is refused by a load that runs no code."""
    torch.save(np.random.get_state(), tmp_path / "numpy.pt")
    with pytest.raises(Exception, match=r"(?s)Weights only load failed.*numpy\._core\.multiarray\._reconstruct"):
        torch.load(tmp_path / "numpy.pt", weights_only=True)

    store = Checkpointer(tmp_path)
    store.save({"generators": all_states()}, step=1)
    expected = five_draws()
    restore_all(store.load()[1]["generators"])
    assert five_draws() == expected


def naive_remaining(stopped_after, batch):
    """The usual way: a shuffling loader made anew, and as many batches skipped as were seen."""

    def order():
        return [index for part in DataLoader(range(64), batch_size=batch, shuffle=True) for index in part.tolist()]

    torch.manual_seed(0)
    seen = order()[: stopped_after * batch]
    return seen, order()[stopped_after * batch :]


def test_H02_after_a_stop_in_mid_epoch_every_row_is_seen_exactly_once():
    """huggingface/accelerate#2823: the rest of an epoch in another order is another set of rows."""
    seen, rest = naive_remaining(stopped_after=5, batch=4)
    assert len(set(seen) & set(rest)) > 0 and len(set(seen) | set(rest)) < 64

    rows = TokenRows(torch.arange(64 * 2 + 1) % 256, 2, vocab_size=256)

    def batches(numbers):
        data = RowBatches(rows=rows, batch_size=4, seed=3)
        return [row for n in numbers for row in data.rows_of(n)]

    seen, rest = batches(range(5)), batches(range(5, 16))
    assert len(rest) == 44 and sorted(seen + rest) == list(range(64))
    assert seen + rest == batches(range(16))


def test_H03_the_generators_are_those_of_the_moment_whatever_was_drawn_on_the_way(tmp_path):
    """huggingface/transformers#11582: making an iterator draws from the generator that was just restored."""
    torch.manual_seed(0)
    expected = torch.rand(1).item()
    torch.manual_seed(0)
    iter(DataLoader(range(4), shuffle=True))
    assert torch.rand(1).item() != expected

    losses = [record["loss"] for record in read_run(whole_run(tmp_path / "whole"))]
    for k in range(1, 6):
        run_in(tmp_path / str(k), stop=k, total_steps=6)
        config = TrainConfig(total_steps=6, max_lr=1e-2, out=tmp_path / str(k), checkpoint_every=5)
        resumed = Trainer(nano(seed=k), DATA, config)
        resumed.resume()
        iter(DataLoader(range(4), shuffle=True))  # between resuming and going on
        resumed.fit()
        assert [record["loss"] for record in read_run(tmp_path / str(k))] == losses


def whole_run(folder):
    run_in(folder, total_steps=6)
    return folder


@pytest.mark.parametrize(("stop", "next_place"), [(5, (1, 0)), (7, (1, 2))])
def test_H05_no_epoch_is_begun_again_or_left_early(tmp_path, stop, next_place):
    """Lightning-AI/pytorch-lightning#850: at the end of an epoch the same one again, within one the next."""
    asked = []

    class Noting(RowBatches):
        def __getitem__(self, batch):
            asked.append(self.place(batch))
            return super().__getitem__(batch)

    data = Noting(rows=ROWS, batch_size=4)
    run_in(tmp_path, stop=stop, data=data)
    before = len(asked)
    assert run_in(tmp_path, data=data, resume=True).step == 15
    assert asked[before] == next_place
    assert asked == [(epoch, within) for epoch in range(3) for within in range(5)]


def test_H07_a_truncated_checkpoint_is_passed_over_and_a_failed_save_spoils_nothing(tmp_path, monkeypatch):
    """Lightning-AI/pytorch-lightning#688: the only checkpoint is written over, and the machine goes off."""
    store = Checkpointer(tmp_path)
    for step in (1, 2):
        store.save({"weight": torch.full((1000,), float(step))}, step=step)
    newest = tmp_path / "step_00000002" / "state.pt"
    whole = newest.read_bytes()
    kinds = {}
    for length in (len(whole) // 2, len(whole) - 1, 0):
        newest.write_bytes(whole[:length])
        with pytest.raises((RuntimeError, OSError, EOFError)) as caught:
            torch.load(newest, weights_only=True)
        kinds[caught.type] = length
        with pytest.warns(UserWarning, match=r"step_00000002.state\.pt is damaged"):
            checkpoint, state = store.load()
        assert checkpoint.step == 1 and state["weight"][0].item() == 1.0
    assert len(kinds) == 3, "three kinds of error for one kind of accident"

    newest.write_bytes(whole)
    save = torch.save

    def goes_off(state, file):
        save(state, file)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(tinytrain.checkpoint.torch, "save", goes_off)
    with pytest.raises(CheckpointError, match="step_00000003 could not be written"):
        store.save({"weight": torch.zeros(1000)}, step=3)
    assert store.load()[1]["weight"][0].item() == 2.0
    assert {path.name for path in tmp_path.iterdir()} == {"step_00000001", "step_00000002"}


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module."])
def test_H08_names_are_saved_bare_and_loaded_with_any_wrappers_prefix(tmp_path, prefix):
    """karpathy/nanoGPT#325: weights of a compiled model do not fit the model."""
    saved, model = nano(seed=1), nano(seed=2)
    state = {prefix + name: tensor for name, tensor in saved.state_dict().items()}
    loose = nano(seed=2)
    loose.load_state_dict(state, strict=False)
    assert torch.equal(weights_of(loose), weights_of(model)), "strict=False is silent, and loads nothing"
    load_model_state(model, state)
    assert torch.equal(weights_of(model), weights_of(saved))

    compiled = torch.compile(nano(), backend="eager")
    assert all(name.startswith("_orig_mod.") for name in compiled.state_dict())
    with torch.compiler.set_stance("force_eager"):
        trainer = run_in(tmp_path, model=compiled, total_steps=5)
    state = Checkpointer(tmp_path / "checkpoints").load()[1]
    bare = dict(unwrap(trainer.model).named_parameters())
    assert set(state["optimizer"]) == set(bare) <= set(state["model"])


def test_H10_the_best_weights_are_those_of_their_moment_and_nan_is_never_best(tmp_path, monkeypatch):
    """pytorch/tutorials#188: the best weights kept as a reference, which goes on training."""
    model = nn.Linear(1, 1)
    best = model.state_dict()
    before = best["weight"].item()
    with torch.no_grad():
        model.weight.add_(1.0)
    assert best["weight"].item() == before + 1.0
    assert min(math.nan, math.inf) is not min(math.inf, math.nan), "what is least depends on the order"

    losses = iter([math.nan, 3.0, 2.0, math.nan, 2.5])
    monkeypatch.setattr(
        "tinytrain.validation.evaluate", lambda *_, **__: type("Evaluation", (), {"loss": next(losses)})
    )
    config = TrainConfig(
        total_steps=5, max_lr=1.0, out=tmp_path, checkpoint_every=5, eval_every=1, max_grad_norm=math.inf
    )
    model, seen = OnPaper(start=30.0, dtype=torch.float32), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    note = [lambda record: seen.append(model.weight.item())]
    Trainer(model, lambda n: [costs(1)], config, note, validation=lambda: [costs(1)], optimizer=optimizer).fit()
    best = Checkpointer(tmp_path / "checkpoints").best()
    assert (best.step, best.manifest["eval_loss"], best.full) == (3, 2.0, False)
    assert best.read()["model"]["weight"].item() == seen[2] != seen[-1]


def once_updated(step):
    layer = nn.Linear(1, 1, bias=False)
    optimizer = build_adamw(layer, lr=0.1)
    layer.weight.grad = torch.ones(1, 1)
    optimizer.step()
    states = copy.deepcopy(optimizer_state(optimizer, layer))
    states["weight"]["step"] = step
    return states


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("step", [1, torch.tensor(1.0)])
def test_H11_the_count_of_updates_goes_on_and_moments_are_not_rounded(step, fused):
    """pytorch/pytorch#103256: the count as an int of an older version, and moments cast to the weight's width."""
    layer = nn.Linear(1, 1, bias=False)
    optimizer = build_adamw(layer, lr=0.1, fused=fused)
    load_optimizer_state(optimizer, layer, once_updated(step))
    layer.weight.grad = torch.ones(1, 1)
    optimizer.step()
    count = optimizer.state[layer.weight]["step"]
    assert (count.item(), count.dtype, count.device.type) == (2.0, torch.float32, "cpu")

    narrow = nn.Linear(1, 1, bias=False).bfloat16()
    with pytest.raises(ValueError, match=r"exp_avg of weight is torch\.float32; weight is torch\.bfloat16"):
        load_optimizer_state(build_adamw(narrow, lr=0.1, fused=fused), narrow, once_updated(step))
    assert torch.tensor(1.001).bfloat16().item() == 1.0
    with pytest.raises(ValueError, match=r"weight: torch\.float32 in the file, torch\.bfloat16 in the model"):
        load_model_state(narrow, nn.Linear(1, 1, bias=False).state_dict())


class Parabola(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.ones(1))


def descend(model, optimizer, numbers):
    for i in numbers:
        optimizer.zero_grad()
        (model.p * i).square().sum().backward()
        optimizer.step()
    return model.p.item()


def test_H12_without_its_moments_a_run_takes_another_course(tmp_path):
    """pytorch/pytorch#5627: loss (p*i)², AdamW, stopped after 2 of 4 updates."""

    def built():
        model = Parabola()
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)

    whole = descend(*built(), (1, 2, 3, 4))
    assert whole == pytest.approx(0.632631, abs=5e-6)
    model, optimizer = built()
    descend(model, optimizer, (1, 2))
    store = Checkpointer(tmp_path)
    store.save({"model": model.state_dict(), "optimizer": optimizer_state(optimizer, model)}, step=2)
    ends = []
    for with_moments in (True, False):
        (model, optimizer), state = built(), store.load()[1]
        load_model_state(model, state["model"])
        if with_moments:
            load_optimizer_state(optimizer, model, state["optimizer"])
        ends.append(descend(model, optimizer, (3, 4)))
    assert ends[0] == whole
    assert ends[1] == pytest.approx(0.611561, abs=5e-6)


def modes(model):
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("breaks", [False, True])
def test_H15_an_evaluation_leaves_every_part_in_the_mode_it_was_in(tmp_path, breaks):
    """joeynmt/joeynmt#184: dropout stays off after the first evaluation."""
    model = nano()
    model.blocks[0].eval()  # a part that was frozen on purpose
    before = modes(model)
    assert set(before) == {True, False}
    batches = [DATA[0][0], {"input_ids": torch.tensor([[999]]), "labels": torch.tensor([[1]])}]
    if breaks:
        with pytest.raises(ValueError, match="999"):
            evaluate(model, batches)
    else:
        evaluate(model, batches[:1])
    assert modes(model) == before
    trainer = run_in(tmp_path, model=model, stop=5, validation=batches[:1])
    assert modes(trainer.model) == before
    config = TrainConfig(total_steps=15, max_lr=1e-2, out=tmp_path, checkpoint_every=5)
    resumed = Trainer(model, DATA, config)
    resumed.resume()
    assert modes(model) == before
