"""Damaged checkpoints: a run survives if a whole one is left, and a file that would run code is refused."""

import warnings
from pathlib import Path

import pytest
import torch

from tinytrain.checkpoint import Checkpointer, CheckpointError
from tinytrain.course.damaged_08 import DAMAGES, flip, survives, tamper
from tinytrain.course.killed_08 import trainer_in


@pytest.fixture(autouse=True)
def _one_thread():
    """As the children have, or the last digits would differ."""
    torch.set_num_threads(1)


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
