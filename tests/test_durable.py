import subprocess
import sys

import pytest

import tinytrain.durable
from tinytrain.durable import hold, release, replace_file


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path):
    for data in (b"old", b"new"):
        replace_file(tmp_path / "a", data)
        assert (tmp_path / "a").read_bytes() == data and len(list(tmp_path.iterdir())) == 1


def test_if_writing_fails_the_old_file_stays(tmp_path, monkeypatch):
    replace_file(tmp_path / "a", b"old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tinytrain.durable.os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.unfinished_\d+'"):
        replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_one_writer_holds_a_folder_at_a_time(tmp_path):
    held = hold(tmp_path)
    with pytest.raises(BlockingIOError, match=r"being written by another run.*choose another folder"):
        hold(tmp_path)
    release(held)
    release(hold(tmp_path))


def test_a_process_that_is_killed_lets_go(tmp_path):
    code = f"from pathlib import Path; from tinytrain.durable import hold; hold(Path({str(tmp_path)!r}))"
    holder = subprocess.Popen([sys.executable, "-c", f"{code}; print(1, flush=True); input()"], stdin=-1, stdout=-1)
    holder.stdout.readline()
    with pytest.raises(BlockingIOError):
        hold(tmp_path)
    holder.kill()
    holder.communicate()
    release(hold(tmp_path))


def test_what_is_released_is_free_though_a_child_has_inherited_it(tmp_path):
    held = hold(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, stderr=-3, pass_fds=(held,))
    release(held)
    release(hold(tmp_path))
    child.communicate()


def test_a_disk_without_locks_holds_nothing(tmp_path, monkeypatch):
    def cannot(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(tinytrain.durable.fcntl, "flock", cannot)
    assert hold(tmp_path) is None
    release(None)
