import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tinytrain.runlog import RunLog, read_run


def test_what_is_written_is_read_again(tmp_path):
    records = [{"batch": 1, "step": 1, "loss": 2.5, "skipped": False}, {"batch": 2, "step": 1, "loss": 2.25}]
    with RunLog(tmp_path / "run") as log:
        for record in records:
            log.write(record)
    assert list(read_run(tmp_path / "run")) == records


def test_a_nan_is_valid_json_with_a_flag_and_comes_back_as_nan(tmp_path):
    with RunLog(tmp_path) as log:
        log.write({"batch": 1, "loss": math.nan, "grad_norm": math.inf, "lr": 0.1})

    def refuse(constant):
        pytest.fail(f"{constant} is not JSON")

    line = json.loads((tmp_path / "log.jsonl").read_text(), parse_constant=refuse)
    assert line == {
        "batch": 1, "loss": None, "grad_norm": None, "lr": 0.1, "nonfinite": {"loss": "nan", "grad_norm": "inf"}
    }  # fmt: skip
    (record,) = read_run(tmp_path)
    assert math.isnan(record["loss"]) and record["grad_norm"] == math.inf


@pytest.mark.parametrize("batch", [1, 0, None, 1.5])
def test_batch_must_grow(tmp_path, batch):
    with RunLog(tmp_path) as log:
        log.write({"batch": 1})
        with pytest.raises(ValueError, match=rf"batch={batch} must be a whole number above 1"):
            log.write({"batch": batch})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_is_told_with_the_logs_name(tmp_path):
    with pytest.raises(OSError, match=r"No space left on device: '.*log\.jsonl'"), RunLog(tmp_path) as log:
        log._file.close()
        log._file = open("/dev/full", "w")  # noqa: SIM115
        log.write({"batch": 1})


def test_a_line_is_on_disk_when_write_returns(tmp_path):
    with RunLog(tmp_path) as log:
        log.write({"batch": 1, "loss": 1.0})
        assert len(read_run(tmp_path)) == 1


def test_a_second_run_in_the_same_folder_is_refused_and_the_first_is_kept(tmp_path):
    with RunLog(tmp_path) as log:
        log.write({"batch": 1})
    with pytest.raises(FileExistsError, match=r"is the log of an earlier run\. Resume that run, choose another folder"):
        RunLog(tmp_path)
    assert len(read_run(tmp_path)) == 1


def test_a_resumed_log_goes_on_after_its_last_whole_line(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"batch": 1}\n{"batch": 2, "lo')
    with RunLog(tmp_path, after=1) as log:
        with pytest.raises(ValueError, match="batch=1 must be a whole number above 1"):
            log.write({"batch": 1})
        log.write({"batch": 2})
    assert [record["batch"] for record in read_run(tmp_path)] == [1, 2]


def test_a_last_line_that_a_kill_cut_off_is_left_out(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"batch": 1}\n{"batch": 2, "lo')
    assert [record["batch"] for record in read_run(tmp_path)] == [1]


def test_any_other_bad_line_is_named(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"batch": 1}\nrubbish\n{"batch": 2}\n')
    with pytest.raises(ValueError, match=r"log.jsonl, line 2: not a line of this log"):
        read_run(tmp_path)


def test_a_folder_without_a_log_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"log.jsonl: no log there"):
        read_run(tmp_path)


def test_a_closed_log_says_so(tmp_path):
    with RunLog(tmp_path) as log:
        pass
    with pytest.raises(ValueError, match="is closed"):
        log.write({"batch": 1})


def test_a_series_takes_the_lines_that_have_it(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"batch": 1, "step": 1}\n{"batch": 2, "step": 2, "eval_loss": 3.0}\n')
    run = read_run(tmp_path)
    assert run.series("eval_loss") == ([2], [3.0])
    with pytest.raises(KeyError, match="no line has both 'nothing' and 'step'"):
        run.series("nothing")


def test_numbers_of_numpy_and_torch_become_plain_ones(tmp_path):
    with RunLog(tmp_path) as log:
        log.write({"batch": np.int64(1), "loss": np.float32(2.5), "skipped": np.bool_(True), "norm": torch.tensor(1.5)})
    assert list(read_run(tmp_path)) == [{"batch": 1, "loss": 2.5, "skipped": True, "norm": 1.5}]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"loss": [1.0]}, r"record\['loss'\] is a list"),
        ({"loss": torch.ones(2)}, r"record\['loss'\] is a Tensor"),
        ({"nonfinite": {}}, "is written by the log itself"),
    ],
)
def test_what_no_line_can_hold_is_named_and_leaves_the_log_whole(tmp_path, extra, words):
    with RunLog(tmp_path) as log:
        with pytest.raises(TypeError, match=words):
            log.write({"batch": 1, **extra})
        log.write({"batch": 1})
    assert len(read_run(tmp_path)) == 1


@pytest.mark.parametrize(
    "line",
    [b"[1]", b'{"step": 1}', b'{"batch": 2, "nonfinite": {"x": "abc"}}', b'{"batch": 2, "t": "\xff"}', b'{"batch": 1}'],
)
def test_a_line_that_is_no_record_is_named_by_file_and_number(tmp_path, line):
    (tmp_path / "log.jsonl").write_bytes(b'{"batch": 1}\n' + line + b"\n")
    with pytest.raises(ValueError, match=r"log\.jsonl, line 2: "):
        read_run(tmp_path)


@pytest.mark.parametrize("after", [None, 0])
def test_a_log_that_is_open_is_refused_to_others_and_keeps_its_lines(tmp_path, after):
    with RunLog(tmp_path) as log:
        log.write({"batch": 1})
        with pytest.raises(BlockingIOError, match="being written by another run"):
            RunLog(tmp_path, after=after)
        log.write({"batch": 2})
    assert [record["batch"] for record in read_run(tmp_path)] == [1, 2]
    with pytest.raises(FileExistsError):
        RunLog(tmp_path)
    RunLog(tmp_path, after=2).close()  # the refusal holds nothing
