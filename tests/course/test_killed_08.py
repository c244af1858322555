"""The processes that notebook 08 kills: what they do, and what is left of them."""

import json
import sys

import pytest
import torch

from tinytrain.course import killed_08
from tinytrain.course.killed_08 import (
    WAYS,
    count_lines,
    killed_child,
    kills,
    lines_of,
    save_aside,
    train_child,
    trainer_in,
    unfinished_in,
)


@pytest.fixture(autouse=True)
def _one_thread():
    """As the children have, or the last digits would differ."""
    torch.set_num_threads(1)


def test_a_trainer_stops_and_the_child_goes_on_to_the_same_end(tmp_path, monkeypatch, capsys):
    short = {"total_steps": 24}
    trainer_in(tmp_path / "whole", **short).fit()
    trainer_in(tmp_path / "stopped", stop=7, **short).fit()
    monkeypatch.setattr(killed_08, "trainer_in", lambda folder: trainer_in(folder, **short))
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
    monkeypatch.setattr(killed_08.random, "uniform", lambda low, high: high)  # well into the saving
    found = kills(str(tmp_path), 2)
    assert json.loads(json.dumps(found)) == found and list(found) == list(WAYS)
    assert all(each["whole"] for way in list(WAYS)[1:] for each in found[way])
    for each in found["straight onto the file"]:
        assert each["whole"] or (each["midway"] and each["error"] in ("EOFError", "RuntimeError", "OSError"))


def test_what_is_left_tells_whole_from_broken(tmp_path):
    path = tmp_path / "state.pt"
    save_aside(killed_08._numbered(1), path)
    data = path.read_bytes()
    assert killed_08._what_is_left(path) == {"whole": True, "error": "", "bytes": len(data)}
    path.write_bytes(data[:-100])
    assert killed_08._what_is_left(path) == {"whole": False, "error": "RuntimeError", "bytes": len(data) - 100}
    half = len(data) // 2
    path.write_bytes(data[:half] + bytes(4096) + data[half + 4096 :])  # the right size, with a hole
    assert killed_08._what_is_left(path) == {"whole": False, "error": "other weights", "bytes": len(data)}
    path.unlink()
    WAYS["Checkpointer"](killed_08._numbered(2), path)
    assert killed_08._what_is_left(path) == {"whole": True, "error": "", "bytes": 0}


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


def test_a_save_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "state.pt"
    save_aside({"number": 1}, path)
    with pytest.raises((AttributeError, TypeError)):  # which one depends on the version of Python
        save_aside({"number": lambda: None}, path)
    assert torch.load(path) == {"number": 1}


def test_an_unknown_command_is_refused(capsys, monkeypatch):
    with pytest.raises(SystemExit, match="none of the commands"):
        killed_08.main(["tarin", "folder"])
    monkeypatch.setattr(killed_08, "kills", lambda folder, how_many: {folder: how_many})
    killed_08.main(["kills", "here", "3"])
    assert json.loads(capsys.readouterr().out) == {"here": 3}
