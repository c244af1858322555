"""What a run's log and folder tell beside its curves."""

import math
from pathlib import Path

import numpy as np
import pytest

from tinytrain.checkpoint import Checkpointer
from tinytrain.runlog import Run, RunLog
from tinytrain.watch.history import History

NOWHERE = Path("no such folder")


def run_of(*records):
    return Run(NOWHERE, [{"batch": i, **record} for i, record in enumerate(records, 1)])


def test_seconds_add_up_what_each_batch_took():
    run = run_of({"seconds_data": 0.5, "seconds_step": 1.0}, {}, {"seconds_data": 0.0, "seconds_step": 2.0})
    assert History("a", run, "seconds").xs.tolist() == pytest.approx([1.5, math.nan, 3.5], nan_ok=True)


def test_values_are_those_of_lines_that_have_both():
    run = run_of({"step": 1, "loss": 2.0}, {"step": 2}, {"loss": 3.0}, {"step": 3, "loss": math.nan})
    xs, ys = History("a", run).values("loss")
    assert xs.tolist() == [1, 3] and ys[0] == 2.0 and np.isnan(ys[1])
    assert [len(part) for part in History("a", run).values("lr")] == [0, 0]


def test_text_is_refused_by_name():
    with pytest.raises(ValueError, match=r"mine: 'reason' holds text \('inf'\)"):
        History("mine", run_of({"step": 1, "reason": "inf"})).values("reason")


def test_an_unknown_axis_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"over='time' is not known: .* step, tokens_seen, seconds"):
        History("a", run_of(), "time")


def test_skipped_updates_are_counted_also_at_the_end():
    run = run_of({"step": 1, "skipped": False}, {"step": 1, "skipped": True}, {"step": 2}, {"step": 2, "skipped": True})
    history = History("a", run)
    assert history.skipped.tolist() == [1, 2] and history.skipped_at_end == 1 and history.end == 2


def test_an_empty_log_has_no_end():
    history = History("a", run_of())
    assert math.isnan(history.end) and history.skipped_at_end == 0 and history.checkpoints == []


def test_a_folder_without_a_log_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"log.jsonl: no log there"):
        History("a", tmp_path)


def test_checkpoints_are_those_that_are_whole_and_in_the_log(tmp_path):
    with RunLog(tmp_path) as log:
        for step in range(1, 7):
            log.write({"batch": step, "step": step, "tokens_seen": 10 * step})
    store = Checkpointer(tmp_path / "checkpoints", keep=5)
    for step, settings in ((2, {}), (3, {"full": False}), (4, {}), (9, {}), (5, {"full": False, "best": True})):
        store.save({}, step=step, **settings)
    (tmp_path / "checkpoints" / "step_00000004" / "manifest.json").unlink()  # a damaged one
    (tmp_path / "checkpoints" / "step_00000006").mkdir()  # one that never was
    assert History("a", tmp_path, "tokens_seen").checkpoints == [(20, True), (30, False), (50, False)]


def test_looking_makes_no_folder(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"batch": 1, "step": 1}\n')
    assert History("a", tmp_path).checkpoints == []
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
