import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tinytrain.__main__ import main

QUICK = ["train", "--steps", "4", "--batch-size", "2", "--eval-rows", "4"]


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "poem.txt"
    file.write_text("Shall I compare thee to a summer's day?\n" * 200, encoding="utf-8")
    return ["--corpus", str(file)]


def test_it_trains_and_says_where_the_log_is(tmp_path, text, capsys):
    assert main([*QUICK, *text, "--out", str(tmp_path / "run")]) == 0
    log = tmp_path / "run" / "log.jsonl"
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1, 2, 3, 4]
    out = capsys.readouterr().out
    assert f"The log is {log}" in out
    assert "120,576 parameters" in out and "ROMEO" in out


def test_the_same_seed_trains_the_same_model_and_another_one_does_not(tmp_path, text):
    losses = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        main([*QUICK, *text, "--seed", str(seed), "--out", str(tmp_path / name)])
        losses[name] = [json.loads(line)["loss"] for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
    assert losses["a"] == losses["b"] != losses["c"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--preset", "giant"], "preset 'giant' is not one of nano, tiny"),
        (["--corpus", "nowhere.txt"], "nowhere.txt: no such file or folder"),
        (["--row-length", "65"], "row_length=65 is longer than preset nano's 64"),
        (["--warmup-steps", "5"], "warmup_steps=5 is more than total_steps=4"),
        (["--steps", "0"], "total_steps=0"),
        (["--batch-size", "0"], "batch_size=0"),
    ],
)
def test_what_a_user_can_mend_is_told_in_one_line_without_a_traceback(tmp_path, text, capsys, options, words):
    assert main([*QUICK, *text, "--out", str(tmp_path / "run"), *options]) == 1
    error = capsys.readouterr().err
    assert words in error and error.startswith("tinytrain: ") and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_refused_and_the_run_is_kept(tmp_path, text, capsys):
    out = ["--out", str(tmp_path / "run")]
    main([*QUICK, *text, *out])
    before = (tmp_path / "run" / "log.jsonl").read_text()
    assert main([*QUICK, *text, *out]) == 1
    assert "is the log of an earlier run" in capsys.readouterr().err
    assert (tmp_path / "run" / "log.jsonl").read_text() == before


@pytest.mark.skipif(os.name == "nt", reason="os.kill sends no SIGINT on Windows")
def test_an_interrupt_ends_the_run_between_two_updates(tmp_path, text):
    command = [
        sys.executable,
        "-m",
        "tinytrain",
        "train",
        *text,
        "--steps",
        "100000",
        "--out",
        str(tmp_path / "run"),
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "run" / "log.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") > 3):
        assert child.poll() is None and time.monotonic() < deadline, child.communicate()
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert child.returncode == 130
    assert f"Interrupted after update {steps[-1]}." in out
    assert "Traceback" not in err
