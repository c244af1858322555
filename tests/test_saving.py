"""When a run's checkpoints are saved, what they say of it, and when callbacks are told; updates are only counted."""

import json
import math

import pytest
import torch
from checkpoint_states import names

import tinytrain.saving
from tinytrain.checkpoint import Checkpointer, CheckpointError
from tinytrain.resume import FULL_STATE
from tinytrain.saving import Saver
from tinytrain.train import TrainConfig, Trainer


class Told:
    """Keeps of each checkpoint of which it is told: its step, whether full, the batch at which, what is on disk."""

    def __init__(self, folder):
        self.folder, self.told = folder, []

    def __call__(self, record):
        return None

    def checkpoint_saved(self, step, full):
        there = (self.folder / f"step_{step:08d}").exists()
        self.told.append((step, full, self.trainer.batch, there))


def run_in(folder, *, background=False, keep=9, data=lambda n: [], **settings):
    """A saver, and the callback that is told; beside it is one that wants to hear nothing."""
    told = Told(folder)
    config = TrainConfig(total_steps=9, max_lr=1e-3, out=folder.parent, keep=keep, **settings)
    told.trainer = Trainer(torch.nn.Linear(2, 2), data, config, [lambda record: None, told])
    return Saver(told.trainer, Checkpointer(folder, keep=keep, background=background)), told


def make(saver, updates, *, skipped=(), losses=None):
    """Counts updates as a run does, with the loss of an evaluation where there is one."""
    for n in updates:
        saver.trainer.batch += 1
        saver.trainer.step += n not in skipped
        saver.save_if_due({"skipped": n in skipped} | ({"eval_loss": losses[n]} if losses else {}))


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("background", "batches"),
    [(False, [2, 3, 4, 6, 7]), (True, [3, 4, 6, 7, 7])],  # a save waits for the one before it, and the end for the last
)
def test_callbacks_are_told_of_each_checkpoint_once_and_when_it_is_in_its_place(tmp_path, background, batches):
    saver, told = run_in(tmp_path / "c", background=background, checkpoint_every=3, weights_every=2)
    make(saver, range(1, 8))
    saver.finish()
    saver.finish()
    steps, fulls, at, there = zip(*told.told, strict=True)
    assert steps == (2, 3, 4, 6, 7) and fulls == (False, True, False, True, True)
    assert list(at) == batches and all(there)
    assert [(found.step, found.full) for found in saver.store.all()] == list(zip(steps, fulls, strict=True))


@pytest.mark.parametrize("background", [False, True])
def test_of_a_checkpoint_that_could_not_be_written_nobody_is_told(tmp_path, monkeypatch, background):
    saver, told = run_in(tmp_path / "c", background=background, checkpoint_every=1)
    make(saver, [1])
    saver.store.wait()
    write = tinytrain.checkpoint.torch.save

    def full_disk(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tinytrain.checkpoint.torch, "save", full_disk)
    with pytest.raises(CheckpointError, match="No space left on device"):
        make(saver, [2])
        saver.finish()
    monkeypatch.setattr(tinytrain.checkpoint.torch, "save", write)
    make(saver, [3])
    saver.finish()
    assert [step for step, *_ in told.told] == [1, 3]


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_the_end_of_a_run_is_saved_where_its_last_batch_is_not(tmp_path, updates):
    saver, told = run_in(tmp_path / "c", checkpoint_every=2)
    saver.finish()
    assert saver.store.is_empty()  # no update, nothing to save
    make(saver, range(1, updates + 1))
    saver.finish()
    assert told.told[-1][:2] == (updates, True) and len(told.told) == (updates + 1) // 2


def test_a_run_that_is_to_save_weights_alone_saves_nothing_else_at_its_end(tmp_path):
    saver, _ = run_in(tmp_path / "c", weights_every=2)
    make(saver, range(1, 6))
    saver.finish()
    assert [(found.step, found.full) for found in saver.store.all()] == [(2, False), (4, False)]
    assert set(saver.store.all()[0].read()) == {"model", "counters"}


def test_after_an_update_that_was_skipped_nothing_is_saved_again(tmp_path):
    saver, told = run_in(tmp_path / "c", checkpoint_every=2)
    make(saver, range(1, 5), skipped={3})
    assert [(step, batch) for step, _, batch, _ in told.told] == [(2, 2)]


def test_the_best_is_the_first_with_the_lowest_loss_and_not_a_number_is_never_best(tmp_path):
    saver, _ = run_in(tmp_path / "c", checkpoint_every=9)
    make(saver, range(1, 7), losses=dict(zip(range(1, 7), (math.nan, 3.0, 2.0, math.nan, 2.0, 2.5), strict=True)))
    assert names(tmp_path / "c") == ["best_00000003"] and saver.trainer.best_loss == 2.0
    best = saver.store.best()
    assert (best.full, best.manifest["eval_loss"]) == (False, 2.0)


class Placed:
    """Data that knows where in which epoch a batch stands."""

    def __getitem__(self, batch):
        return []

    def place(self, batch):
        return divmod(batch, 4)


def test_a_checkpoint_says_where_in_the_run_it_was_made(tmp_path):
    for name, data, place in (("placed", Placed(), (1, 1)), ("a function", lambda n: [], (None, None))):
        saver, _ = run_in(tmp_path / name, data=data, checkpoint_every=5)
        make(saver, range(1, 6), losses=dict.fromkeys(range(1, 6), 2.0))
        told = manifest(tmp_path / name / "step_00000005")
        assert (told["step"], told["batch"], told["epoch"], told["batch_in_epoch"]) == (5, 5, *place)
        assert told["settings"]["max_lr"] == 1e-3 and told["full"] is True
        assert set(saver.store.load()[1]) == set(FULL_STATE)
        assert told["eval_loss"] is None  # the best one's is that of its own weights
        assert manifest(tmp_path / name / "best_00000001")["eval_loss"] == 2.0


@pytest.mark.parametrize("steps", [[2], [2, 4, 6]])
def test_a_run_that_begins_is_refused_among_checkpoints_of_another_and_one_that_goes_on_is_not(tmp_path, steps):
    saver, _ = run_in(tmp_path / "c", checkpoint_every=2)
    saver.refuse_another_run()
    make(saver, range(1, steps[-1] + 1))
    saver.refuse_another_run()
    other, _ = run_in(tmp_path / "c", checkpoint_every=2)
    with pytest.raises(CheckpointError) as caught:
        other.refuse_another_run()
    assert str(caught.value) == (
        f"{tmp_path / 'c'} holds checkpoints of an earlier run, the newest of update {steps[-1]}. "
        f"Resume that run, choose another folder, or move them away"
    )
    other.trainer.batch = 1
    other.refuse_another_run()


class Noting:
    """In the place of a store: keeps what it is given, and writes nothing."""

    background = True

    def __init__(self):
        self.saved = []

    def save(self, state, **given):
        self.saved.append((given["step"], given["full"], given["shards"]))


@pytest.mark.parametrize("sharded", [True, False])
def test_all_processes_save_what_is_shared_out_and_the_first_alone_what_is_not(tmp_path, monkeypatch, sharded):
    """A save of shards is done when it returns, also where the others are written in the background."""
    first = []
    monkeypatch.setattr(tinytrain.saving, "on_first", lambda function: first.append(1) or function())
    if sharded:
        monkeypatch.setattr(tinytrain.saving, "shards_of", lambda trainer, *, full: {"with moments": full})
    saver, told = run_in(tmp_path / "c", checkpoint_every=2, weights_every=1)
    saver.store = Noting()
    make(saver, [1, 2])
    shards = [{"with moments": False}, {"with moments": True}] if sharded else [None, None]
    assert saver.store.saved == [(1, False, shards[0]), (2, True, shards[1])]
    assert len(first) == (0 if sharded else 2)
    assert [told[:3] for told in told.told] == ([(1, False, 1), (2, True, 2)] if sharded else [(1, False, 2)])
