"""The runs of notebook 08: what they keep, what the children do, and what is left of them."""

import json
import sys
import warnings
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from tinytrain.checkpoint import Checkpointer, CheckpointError
from tinytrain.course import lesson_08
from tinytrain.course.lesson_08 import (
    DAMAGES,
    WAYS,
    Training,
    count_lines,
    flip,
    furthest,
    killed_child,
    kills,
    lines_of,
    plot_forks,
    resume_in_four_ways,
    save_aside,
    small_model,
    survives,
    tamper,
    tens,
    timed,
    train_child,
    trainer_in,
    unfinished_in,
    update_and_save_seconds,
)

PARTS = list(Training().state())


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """As the children have, or the last digits would differ."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run's file after 12 updates, and the losses and the model of the 12 updates that follow."""
    path, run = tmp_path_factory.mktemp("stopped") / "state.pt", Training()
    for _ in range(12):
        run.update()
    torch.save(run.state(), path)
    return path, [run.update() for _ in range(12)], run.model


def resume(path, without=(), **settings):
    state = torch.load(path, weights_only=True)
    run = Training(**settings)
    run.load({part: value for part, value in state.items() if part not in without})
    return run


def test_with_every_part_the_resumed_run_is_the_one_that_did_not_stop(stopped):
    path, losses, model = stopped
    run = resume(path)
    assert [run.update() for _ in range(12)] == losses
    assert furthest(run.model, model) == 0


@pytest.mark.parametrize("part", [part for part in PARTS if part not in ("epoch", "scaler")])
def test_without_a_part_it_is_another(stopped, part):
    path, losses, _ = stopped
    run = resume(path, without=[part])
    assert [run.update() for _ in range(12)] != losses


def test_a_forgotten_scaler_begins_at_another_scale_and_a_forgotten_epoch_at_the_first():
    run = Training()
    for _ in range(40):
        run.update()
    assert (run.epoch, run.place) == (1, 0) and run.step + len(run.skipped) == 40
    assert run.skipped and all(1 <= number <= 40 for number in run.skipped)
    assert run.scaler.get_scale() != Training().scaler.get_scale()
    later = run.batch()
    first = Training()
    first.load({part: value for part, value in run.state().items() if part != "epoch"})
    assert not torch.equal(first.batch()[0], later[0])


def test_an_epoch_has_every_row_once():
    run = Training(draws=())
    rows = torch.cat([run.batch()[0] for _ in range(lesson_08.BATCHES_PER_EPOCH)])
    wanted = lesson_08.text()[: rows.numel()].view(-1, lesson_08.T)
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, wanted.tolist()))


@pytest.mark.parametrize(("draws", "moved"), [((), []), (("Python",), [0]), (("NumPy",), [1]), (("torch",), [2])])
def test_each_library_draws_only_where_it_is_asked(draws, moved):
    run = Training(fp16=False, draws=draws)
    before = [run.state()[name] for name in PARTS[-3:]]
    run.update()
    after = [run.state()[name] for name in PARTS[-3:]]
    changed = [i for i in range(2) if before[i] != after[i]] + [2] * (not torch.equal(before[2], after[2]))
    assert changed == moved


def test_a_trainer_stops_and_the_child_goes_on_to_the_same_end(tmp_path, monkeypatch, capsys):
    short = {"total_steps": 24}
    trainer_in(tmp_path / "whole", **short).fit()
    trainer_in(tmp_path / "stopped", stop=7, **short).fit()
    monkeypatch.setattr(lesson_08, "trainer_in", lambda folder: trainer_in(folder, **short))
    train_child(str(tmp_path / "stopped"))
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "log.jsonl").write_text("{}\n")  # killed before its first checkpoint
    train_child(str(tmp_path / "begun"))
    assert capsys.readouterr().out == "goes on after update 7\nbegins after update 0\n"
    assert lines_of(tmp_path / "whole") == lines_of(tmp_path / "stopped") == lines_of(tmp_path / "begun")
    assert count_lines(tmp_path / "whole") == 24 and count_lines(tmp_path / "nowhere") == 0
    assert "seconds_step" not in lines_of(tmp_path / "whole")[0]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_kills_say_what_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(lesson_08.random, "uniform", lambda low, high: high)  # well into the saving
    found = kills(str(tmp_path), 2)
    assert json.loads(json.dumps(found)) == found and list(found) == list(WAYS)
    assert all(each["whole"] for way in list(WAYS)[1:] for each in found[way])
    for each in found["straight onto the file"]:
        assert each["whole"] or (each["midway"] and each["error"] in ("EOFError", "RuntimeError", "OSError"))


def test_what_is_left_tells_whole_from_broken(tmp_path):
    path = tmp_path / "state.pt"
    save_aside(lesson_08._numbered(1), path)
    data = path.read_bytes()
    assert lesson_08._what_is_left(path) == {"whole": True, "error": "", "bytes": len(data)}
    path.write_bytes(data[:-100])
    assert lesson_08._what_is_left(path) == {"whole": False, "error": "RuntimeError", "bytes": len(data) - 100}
    half = len(data) // 2
    path.write_bytes(data[:half] + bytes(4096) + data[half + 4096 :])  # the right size, with a hole
    assert lesson_08._what_is_left(path) == {"whole": False, "error": "other weights", "bytes": len(data)}
    path.unlink()
    WAYS["Checkpointer"](lesson_08._numbered(2), path)
    assert lesson_08._what_is_left(path) == {"whole": True, "error": "", "bytes": 0}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_child_is_killed_inside_of_a_save_and_at_a_random_moment(tmp_path):
    began, ended = killed_child(tmp_path / "run", "at a random moment")
    assert began == "begins after update 0" and ended == -9 and 10 <= count_lines(tmp_path / "run") < 240
    began, ended = killed_child(tmp_path / "run", "inside of a save")
    assert began.startswith("goes on after update ") and ended == -9


def test_what_a_save_has_not_finished_is_named(tmp_path):
    for name in ("step_00000005", "unfinished_1_step_00000010", "unfinished_1_old_step_00000005"):
        (tmp_path / name).mkdir()
    assert unfinished_in(tmp_path) == ["unfinished_1_step_00000010"]


def test_a_run_survives_damage_if_a_whole_checkpoint_is_left(tmp_path):
    trainer_in(tmp_path / "whole", total_steps=40).fit()
    trainer_in(tmp_path / "keep_2", total_steps=40, stop=30).fit()
    for damage in DAMAGES:
        said, well = survives(tmp_path, damage, keep=2, damaged=1)
        assert well and said.endswith("goes on after update 25") and "step_00000030" in said
        said, well = survives(tmp_path, damage, keep=2, damaged=2)
        assert not well and "no whole checkpoint" in said


def test_a_run_that_ends_elsewhere_has_not_survived(tmp_path):
    trainer_in(tmp_path / "whole", total_steps=40, stop=35).fit()
    trainer_in(tmp_path / "keep_2", total_steps=40, stop=30).fit()
    assert survives(tmp_path, "gone", keep=2, damaged=1)[1] is False


def test_a_flip_changes_one_bit():
    data = bytes(range(256)) * 4
    changed = [(a, b) for a, b in zip(data, flip(data), strict=True) if a != b]
    assert len(changed) == 1 and (changed[0][0] ^ changed[0][1]).bit_count() == 1


def test_times_are_the_shortest_and_more_than_nothing(tmp_path):
    assert timed(lambda n: lesson_08.time.sleep(0.02 if n else 0.001), times=3) < 0.02
    assert all(0 < seconds < 60 for seconds in update_and_save_seconds(tmp_path))


def test_a_save_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "state.pt"
    save_aside({"number": 1}, path)
    with pytest.raises((AttributeError, TypeError)):  # which one depends on the version of Python
        save_aside({"number": lambda: None}, path)
    assert torch.load(path) == {"number": 1}


class Builds:
    """Would create a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_tampered_file_has_a_right_checksum_and_is_refused_for_what_it_holds(tmp_path):
    folder = Checkpointer(tmp_path).save({"n": 1}, step=3)
    tamper(folder, {"n": 2})
    assert Checkpointer(tmp_path).load()[1] == {"n": 2}
    tamper(folder, {"n": Builds(tmp_path / "ran")})
    with warnings.catch_warnings(record=True), pytest.raises(CheckpointError, match="step_00000003"):
        warnings.simplefilter("always")
        Checkpointer(tmp_path).load()
    assert not (tmp_path / "ran").exists()


def test_a_resume_in_four_ways_differs_in_the_first_steps_length():
    found = resume_in_four_ways(0, stop=15, after=3)
    arms = ("full", "weights", "warmup", "full warmup")
    assert len({found[arm][0] for arm in arms}) == 1  # before any of them has moved
    assert len({found[arm][1] for arm in arms}) == 4
    lengths = {arm: found[f"{arm} length"][0] for arm in arms}
    assert 0.9 < lengths["weights"] < 1.1 and lengths["full"] < 0.8
    for short, long in (("warmup", "weights"), ("full warmup", "full")):
        assert lengths[short] == pytest.approx(lengths[long] / lesson_08.WARMUP, rel=0.05)
    assert found == resume_in_four_ways(0, stop=15, after=3) != resume_in_four_ways(1, stop=15, after=3)


def test_the_model_has_the_size_that_its_docstring_says():
    assert f"{small_model().num_parameters():,} parameters" in small_model.__doc__
    assert tens(range(25)) == [4.5, 14.5]


def test_an_unknown_command_is_refused(capsys, monkeypatch):
    with pytest.raises(SystemExit, match="none of the commands"):
        lesson_08.main(["tarin", "folder"])
    monkeypatch.setattr(lesson_08, "kills", lambda folder, how_many: {folder: how_many})
    lesson_08.main(["kills", "here", "3"])
    assert json.loads(capsys.readouterr().out) == {"here": 3}


def test_a_fork_is_drawn_where_it_begins_and_exactly_0_is_white():
    figure = Figure()
    ax = figure.subplots()
    plot_forks(ax, {"late": [0.0, 0.0, 0.5, 1e-3], "at once": [0.1] * 4, "complete": [0.0] * 4}, first=51)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [
        "late: from 53",
        "at once: from 51",
        "complete: never",
    ]
    assert ax.collections[0].get_array().mask.sum() == 2 + 4
    assert [line.get_xdata()[0] for line in ax.lines] == [52.5, 50.5]
