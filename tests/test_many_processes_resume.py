"""What several processes save and agree on; and a run that goes on, in as many processes or in others."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from process_runs import NO_EVALUATION, curve, largest_difference, nano, some_data, train

from tinytrain.checkpoint import Checkpointer, CheckpointError
from tinytrain.distributed import LaunchError, launch, replicate, shard
from tinytrain.distributed.group import gathered, on_first
from tinytrain.generators import all_states
from tinytrain.resume import generators_of
from tinytrain.runlog import read_run
from tinytrain.train import TrainConfig, Trainer

TIMES = {"tokens_per_second", "seconds_data", "seconds_step", "seconds_communication", "memory_bytes", "processes"}
LONG = TrainConfig(total_steps=64, max_lr=3e-3, warmup_steps=20, eval_every=25)


def stored(folder, **changes):
    return replace(LONG, out=folder, checkpoint_every=7, **changes)


@pytest.mark.parametrize("wrapped", [None, "sharded"])
def test_resumed_in_as_many_processes_is_uninterrupted_bit_for_bit(tmp_path, wrapped):
    config = stored(tmp_path / "whole", total_steps=20)
    whole = launch(train_dropped, 2, config, wrapped)[0]
    config = replace(config, out=tmp_path / "parts")
    launch(train_dropped, 2, config, wrapped, False, 9)
    launch(train_dropped, 2, config, wrapped, True, 12)
    launch(train_dropped, 2, config, wrapped, True)
    assert without_times(tmp_path / "parts") == without_times(tmp_path / "whole")
    assert whole["report"].steps == 20


def train_dropped(rank, config, wrapped, resume=False, stop_at=None):
    return train(rank, config, dropout=0.1, wrapped=wrapped, resume=resume, stop_at=stop_at)


def without_times(folder):
    return [{name: value for name, value in record.items() if name not in TIMES} for record in read_run(folder)]


def train_on(rank, config, wrapped, resume, stop_at=None):
    return train(rank, config, wrapped=wrapped, resume=resume, stop_at=stop_at)


def in_processes(processes, *arguments):
    return launch(train_on, processes, *arguments)[0] if processes > 1 else train_on(0, *arguments)


@pytest.fixture(scope="module")
def long_run():
    return train(0, LONG)


@pytest.mark.parametrize(
    ("before", "after"),
    [((1, None), (2, None)), ((2, None), (1, None)), ((2, None), (3, None)), ((2, "sharded"), (1, None)),
     ((1, None), (2, "sharded")), ((2, "sharded"), (2, None)), ((2, "sharded"), (3, "sharded"))],
)  # fmt: skip
def test_the_number_of_processes_and_the_wrapping_may_change(tmp_path, long_run, before, after):
    config = stored(tmp_path)
    in_processes(before[0], config, before[1], False, 13)
    rest = in_processes(after[0], config, after[1], True)
    wanted = {name: curve(long_run, name)[13:] for name in ("loss", "grad_norm", "tokens", "batch")}
    assert curve(rest, "batch") == wanted["batch"] and curve(rest, "tokens") == wanted["tokens"]
    assert abs(curve(rest, "grad_norm")[0] / wanted["grad_norm"][0] - 1) < 1e-6
    assert largest_difference(curve(rest)[:50], wanted["loss"][:50]) < 1e-5
    assert [record["batch"] for record in read_run(tmp_path)] == list(range(1, 65))


def save_that_fails(rank, folder):
    class FullDisk(Checkpointer):
        def _finish(self, *arguments):
            raise OSError(28, "No space left on device")

    class NotMine(Checkpointer):
        def _finish(self, *arguments):
            raise AssertionError("process 1 writes nothing")

    trainer = Trainer(nano(), some_data(), replace(NO_EVALUATION, out=folder, checkpoint_every=3))
    trainer._saver.store.__class__ = FullDisk if rank == 0 else NotMine
    try:
        trainer.fit()
    except CheckpointError as error:
        return trainer.step, str(error)
    return trainer.step, "nothing happened"


def test_a_save_that_fails_stops_all_processes(tmp_path):
    (step_0, told_0), (step_1, told_1) = launch(save_that_fails, 2, str(tmp_path))
    assert (step_0, step_1) == (3, 3)
    assert told_0 == told_1 and "No space left on device" in told_0


def resume_elsewhere(rank, folder, other):
    """Process 1 sees another disk."""
    trainer = Trainer(nano(), some_data(), stored(folder))
    if rank == 1:
        trainer._saver.store.folder = Path(other)
    on_disk = sorted(Path(folder, "checkpoints").glob("step_*"))[-1]
    original = type(trainer._saver.store).load
    if rank == 0:
        trainer._saver.store.load = lambda **options: move_away(original(trainer._saver.store, **options), on_disk)
    trainer.resume()


def move_away(found, folder):
    folder.rename(folder.with_name("hidden"))
    return found


def test_a_checkpoint_that_one_process_cannot_read_is_refused_by_all(tmp_path):
    train_on(0, stored(tmp_path), None, False, 8)
    with pytest.raises(
        LaunchError,
        match=r"CheckpointError: every process reads the checkpoint, from a disk that all can see.*process 1: ",
    ):
        launch(resume_elsewhere, 2, str(tmp_path), str(tmp_path / "other"))


def test_a_folder_of_another_run_is_refused_in_all_processes(tmp_path):
    train_on(0, stored(tmp_path), None, False, 8)
    with pytest.raises(LaunchError, match=r"CheckpointError: .* holds checkpoints of an earlier run"):
        launch(train_on, 2, stored(tmp_path), None, False)


def test_a_process_that_a_run_did_not_have_gets_generators_of_its_own():
    torch.manual_seed(3)
    state = {"generators": [all_states()]}
    first, second, third = (generators_of(rank, state) for rank in range(3))
    draws = {bytes(each["torch"]["cpu"].tolist()) for each in (first, second, third)}
    assert len(draws) == 3
    assert first["python"] == second["python"]
    again = generators_of(2, state)["torch"]["cpu"]
    assert torch.equal(again, third["torch"]["cpu"])
    assert torch.equal(torch.get_rng_state(), first["torch"]["cpu"])  # asking has moved nothing here


def train_with_sgd(rank, folder, resume, stop_at=None):
    """Plain SGD has nothing to remember, so its state leaves no trace in the shards."""
    model, losses = shard(nano()), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def look(record):
        losses.append(record["loss"])
        return record["batch"] != stop_at

    config = replace(NO_EVALUATION, max_lr=0.1, out=folder, checkpoint_every=4)
    trainer = Trainer(model, some_data(), config, [look], optimizer=optimizer)
    if resume:
        trainer.resume()
    trainer.fit()
    return losses


def test_a_sharded_run_whose_optimizer_remembers_nothing_goes_on(tmp_path):
    whole = launch(train_with_sgd, 2, str(tmp_path / "whole"), False)[0]
    launch(train_with_sgd, 2, str(tmp_path / "run"), False, 6)
    assert launch(train_with_sgd, 2, str(tmp_path / "run"), True)[0] == whole[6:]


def saved_in_the_background(rank, folder):
    config = replace(NO_EVALUATION, out=folder, checkpoint_every=4, save_in_background=True)
    Trainer(nano(), some_data(), config).fit()
    return sorted(path.name for path in Path(folder, "checkpoints").iterdir())


def test_no_process_ends_while_a_checkpoint_is_still_written(tmp_path):
    wanted = ["step_00000008", "step_00000012"]
    assert launch(saved_in_the_background, 2, str(tmp_path)) == [wanted, wanted]


def agreements(rank):
    def only_here():
        if rank != 0:
            raise AssertionError("this is done in process 0 only")
        return "done"

    def fails():
        raise KeyError("not there")

    told = None
    try:
        on_first(fails)
    except KeyError as error:
        told = error.args
    return on_first(only_here), told, gathered(rank * 2)


def test_what_process_0_does_all_get_and_what_it_fails_in_all_fail_in():
    assert launch(agreements, 2) == [("done", ("not there",), [0, 2])] * 2


def test_without_a_group_agreements_are_those_of_one_process():
    assert on_first(lambda: 3) == 3 and gathered("x") == ["x"]
    with pytest.raises(RuntimeError, match="replicate needs a process group"):
        replicate(nano())
    with pytest.raises(RuntimeError, match="shard needs a process group"):
        shard(nano())
