import pytest

import tinytrain.durable
from tinytrain.durable import replace_file


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
