"""Law 5. A resumed run is the uninterrupted one, bit for bit.

Wherever it is stopped, in the middle of an epoch, several times, by a stop or by ``kill -9``: weights, moments,
learning rate, loss scale and every line of the log are those of the run that nobody disturbed. Only times, throughput
and memory may differ.

The run here has all that could go wrong: dropout, three epochs of batches whose micro-batches do not come out even, an
evaluation, and two batches without any target, which are skipped. In float16 one batch overflows as well, so that the
loss scale is halved.
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import interrupted_run
import pytest
import torch
from interrupted_run import BATCHES, SKIPPED, fit, lines_of, trainer_in

import tinytrain.precision
import tinytrain.resume
import tinytrain.saving
import tinytrain.train
from tinytrain.checkpoint import Checkpointer
from tinytrain.data import TokenRows

HELPER = Path(__file__).with_name("interrupted_run.py")


pytestmark = pytest.mark.usefixtures("any_format_is_fast")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """{precision: (weights, moments, log lines, ...) of a run without a stop}."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tinytrain.precision, "cpu_supports", lambda dtype: True)
        folders = {precision: tmp_path_factory.mktemp(precision) for precision in ("fp32", "fp16")}
        return {precision: result(fit(folder, precision), folder) for precision, folder in folders.items()}


def result(trainer, folder):
    """Everything about a finished run that has to be the same, by name."""
    named = {f"weight {name}": p.detach().clone() for name, p in trainer.model.named_parameters()}
    for name, p in trainer.model.named_parameters():
        named |= {f"{part} {name}": value.clone() for part, value in trainer.optimizer.state[p].items()}
    return named | {
        "lr": trainer.optimizer.param_groups[0]["lr"],
        "precision": trainer.precision.state_dict(),
        "log": lines_of(folder),
        "next draw": torch.rand(1),
    }


def differences(a, b):
    """The names under which two runs are not bit for bit the same."""
    return [name for name in a | b if not same(a.get(name), b.get(name))]


def same(a, b):
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else repr(a) == repr(b)  # by its text NaN is NaN


def stopped_at(folder, precision, *stops):
    """A run that is stopped after each of these batches, and resumed by a new Trainer each time."""
    for stop in stops:
        fit(folder, precision, stop=stop, resume=stop != stops[0])
    return result(fit(folder, precision, resume=True), folder)


def stops(seed, count):
    return sorted(random.Random(seed).sample(range(1, BATCHES), count))


def test_the_run_has_all_that_could_go_wrong(undisturbed):
    for precision, (skipped, scales) in {"fp32": (SKIPPED[:2], {None}), "fp16": (SKIPPED, {65536.0, 32768.0})}.items():
        log = undisturbed[precision]["log"]
        assert [record["epoch"] for record in log] == sorted(record["epoch"] for record in log)
        assert {record["epoch"] for record in log} == {0, 1, 2}
        assert [record["batch"] - 1 for record in log if record["skipped"]] == list(skipped)
        assert {record.get("loss_scale") for record in log} == scales
        assert len(log) == BATCHES and sum("eval_loss" in record for record in log) > 3
    assert differences(undisturbed["fp32"], undisturbed["fp16"])


@pytest.mark.parametrize("stop", stops(seed=5, count=4))
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_stopped_anywhere_and_resumed_it_is_the_uninterrupted_run(undisturbed, tmp_path, precision, stop):
    assert differences(stopped_at(tmp_path, precision, stop), undisturbed[precision]) == []


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_stopped_twice_in_one_epoch_and_once_between_two_it_is_still_the_same(undisturbed, tmp_path, precision):
    per_epoch = trainer_in(tmp_path / "unused", precision).data.batches_per_epoch
    assert differences(stopped_at(tmp_path, precision, 2, 4, per_epoch), undisturbed[precision]) == []


@pytest.mark.parametrize("batch", SKIPPED)
def test_stopped_right_after_a_skipped_batch_it_is_still_the_same(undisturbed, tmp_path, batch):
    """The checkpoint has the same step as the one before it, and another batch, loss scale and count of skips."""
    assert differences(stopped_at(tmp_path, "fp16", batch, batch + 1), undisturbed["fp16"]) == []


@pytest.mark.parametrize("batch", [7, 14])
def test_what_came_after_the_last_checkpoint_before_a_crash_is_made_again(undisturbed, tmp_path, batch):
    def crashes(record):
        if record["batch"] == batch:
            raise RuntimeError("the cable")

    trainer = trainer_in(tmp_path, "fp16")
    trainer.callbacks = (crashes,)
    with pytest.raises(RuntimeError, match="the cable"):
        trainer.fit()
    assert len(lines_of(tmp_path)) == batch > Checkpointer(tmp_path / "checkpoints").latest().manifest["batch"]
    assert differences(result(fit(tmp_path, "fp16", resume=True), tmp_path), undisturbed["fp16"]) == []


def test_how_it_was_saved_does_not_matter(undisturbed, tmp_path):
    fit(tmp_path, "fp32", stop=5, save_in_background=True)
    assert differences(result(fit(tmp_path, "fp32", resume=True), tmp_path), undisturbed["fp32"]) == []


# Pulling the plug


def killed(folder, precision, kills, seed, processes=1):
    """Start a child that saves after every batch, kill it at a random moment, and again, then let it end.

    Returns (how often it was killed while alive, what was found in the folder of the checkpoints after each kill).
    """
    chance, alive, found = random.Random(seed), 0, []
    command = [sys.executable, str(HELPER), str(folder), precision, str(processes)]
    while alive < kills:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "begins\n"
        time.sleep(chance.uniform(0.0, 0.35))
        child.send_signal(signal.SIGKILL)
        child.wait(30)
        child.stdout.close()
        alive += child.returncode == -signal.SIGKILL
        found.append(sorted(path.name for path in (folder / "checkpoints").glob("*")))
        if child.returncode == 0:  # it was through already: begin anew
            folder = folder.with_name(f"{folder.name}_")
            command[2] = str(folder)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder, found


def ends_as(undisturbed, folder):
    """The run in ``folder`` has the log and the final weights of the undisturbed one."""
    assert same(lines_of(folder), undisturbed["log"]), folder
    _, state = Checkpointer(folder / "checkpoints").load()
    weights = {name.removeprefix("weight "): t for name, t in undisturbed.items() if name.startswith("weight ")}
    assert weights
    for name, tensor in weights.items():
        assert torch.equal(state["model"][name], tensor), f"{folder}: {name}"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_killed_at_random_moments_while_it_saves_it_is_still_the_same(undisturbed, tmp_path):
    folder, found = killed(tmp_path / "run", "fp16", kills=5, seed=1)
    print("in the folder after each kill:", *found, sep="\n  ")
    ends_as(undisturbed["fp16"], folder)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_two_processes_killed_at_random_moments_are_still_the_same(tmp_path):
    subprocess.run([sys.executable, str(HELPER), str(tmp_path / "whole"), "fp16", "2"], check=True, timeout=120)
    folder, _ = killed(tmp_path / "run", "fp16", kills=2, seed=2, processes=2)
    assert same(lines_of(folder), lines_of(tmp_path / "whole"))
    states = [Checkpointer(run / "checkpoints").load()[1] for run in (folder, tmp_path / "whole")]
    assert len(states[0]["generators"]) == 2
    for name, tensor in states[1]["model"].items():
        assert torch.equal(states[0]["model"][name], tensor), name


# What a checkpoint needs: without any of its parts the run takes another course


def without_optimizer(monkeypatch):
    monkeypatch.setattr(tinytrain.resume, "load_optimizer_state", lambda *_: None)


def without_generators(monkeypatch):
    for module in (tinytrain.resume, tinytrain.train):
        monkeypatch.setattr(module, "restore_all", lambda _: torch.manual_seed(1))


def without_scale(monkeypatch):
    monkeypatch.setattr(tinytrain.precision.Precision, "load_state_dict", lambda *_: None)


@pytest.mark.parametrize("stop", stops(seed=6, count=2))
@pytest.mark.parametrize("before", ["in memory", "on disk"])
def test_on_ids_from_a_file_it_is_the_same_run_wherever_they_were_before(
    undisturbed, tmp_path, monkeypatch, on_disk, before, stop
):
    in_memory = interrupted_run.ROWS
    from_file = TokenRows(on_disk(in_memory.ids), in_memory.row_length, in_memory.vocab_size)
    for rows, resume in ((in_memory if before == "in memory" else from_file, False), (from_file, True)):
        monkeypatch.setattr(interrupted_run, "ROWS", rows)
        trainer = fit(tmp_path / "run", "fp32", stop=None if resume else stop, resume=resume)
    assert differences(result(trainer, tmp_path / "run"), undisturbed["fp32"]) == []


def without_weights(monkeypatch):
    monkeypatch.setattr(tinytrain.resume, "load_model_state", lambda *_: None)


def without_step(monkeypatch):
    monkeypatch.setattr(tinytrain.resume, "COUNTERS", tuple(set(tinytrain.resume.COUNTERS) - {"step"}))


def without_batch(monkeypatch):
    """The data begin again: the log is refused, for two lines of one batch cannot stand in it."""
    monkeypatch.setattr(tinytrain.resume, "COUNTERS", tuple(set(tinytrain.resume.COUNTERS) - {"batch"}))
    monkeypatch.setattr(tinytrain.saving.Saver, "refuse_another_run", lambda self: None)


@pytest.mark.parametrize(
    ("leave_out", "forks"),
    [
        (without_weights, "weight"),
        (without_optimizer, "weight"),
        (without_generators, "weight"),
        (without_scale, "precision"),
        (without_step, "weight"),
        (without_batch, FileExistsError),
    ],
)
def test_leaving_out_one_thing_makes_the_run_fork(undisturbed, tmp_path, monkeypatch, leave_out, forks):
    fit(tmp_path, "fp16", stop=12)
    leave_out(monkeypatch)
    if isinstance(forks, type):
        with pytest.raises(forks):
            fit(tmp_path, "fp16", resume=True)
        return
    found = differences(result(fit(tmp_path, "fp16", resume=True), tmp_path), undisturbed["fp16"])
    assert any(name.startswith(forks) for name in found) and "log" in found


# The long version


@pytest.mark.soak
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_twenty_random_stops_change_nothing(undisturbed, tmp_path, precision):
    chosen = [stops(seed, 1) for seed in range(100, 110)] + [stops(seed, 3) for seed in range(110, 120)]
    for number, these in enumerate(chosen):
        found = differences(stopped_at(tmp_path / str(number), precision, *these), undisturbed[precision])
        print(f"{precision}, stopped after batch {', '.join(map(str, these))}: differs in {found or 'nothing'}")
        assert found == []


@pytest.mark.soak
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_fifty_kills_change_nothing(undisturbed, tmp_path):
    half_written = 0
    for number in range(10):
        folder, found = killed(tmp_path / str(number), "fp16", kills=5, seed=200 + number)
        half_written += sum(any(name.startswith(("unfinished", "replaced")) for name in names) for names in found)
        ends_as(undisturbed["fp16"], folder)
    print(f"50 kills, {half_written} of them in the middle of a save; every run ended as the undisturbed one")
    assert half_written
