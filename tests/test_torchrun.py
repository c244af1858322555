"""The command line in several processes: by itself, under torchrun, and over two machines (this one stands in)."""

import json
import shutil
import socket
import subprocess
import sys

import pytest
import torch

import tinytrain.commands.run
from tinytrain.checkpoint import Checkpointer
from tinytrain.commands.main import main
from tinytrain.commands.run import ProgressBar

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
OPTIONS = ["--steps", "12", "--batch-size", "5", "--eval-rows", "7", "--eval-every", "4", "--checkpoint-every", "3"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "poem.txt"
    words = torch.randint(97, 123, (12_000,), generator=torch.Generator().manual_seed(0)).tolist()
    file.write_text("".join(chr(c) if n % 6 else " " for n, c in enumerate(words)), encoding="utf-8")
    return ["--corpus", str(file)]


class StopsAfterSix(ProgressBar):
    def __call__(self, record):
        super().__call__(record)
        return record["batch"] != 6


@pytest.fixture(scope="module")
def runs(text, tmp_path_factory):
    """(a run in one process that nobody disturbed, the same run stopped after 6 of its 12 updates)."""
    folder = tmp_path_factory.mktemp("runs")
    assert main(["train", *OPTIONS, *text, "--out", str(folder / "whole")]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tinytrain.commands.run, "ProgressBar", StopsAfterSix)
        assert main(["train", *OPTIONS, *text, "--out", str(folder / "part")]) == 0
    return folder / "whole", folder / "part"


@pytest.fixture
def begun(runs, tmp_path):
    shutil.copytree(runs[1], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def alone(runs):
    return runs[0]


def log_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def is_the_same_run(folder, alone, processes):
    found, wanted = log_of(folder), log_of(alone)
    assert [line["batch"] for line in found] == list(range(1, 13))
    assert [line["processes"] for line in found][-1] == processes
    for a, b in zip(found, wanted, strict=True):
        assert (a["tokens"], a["lr"], a["epoch"]) == (b["tokens"], b["lr"], b["epoch"])
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    assert [line["eval_loss"] for line in found if "eval_loss" in line] == pytest.approx(
        [line["eval_loss"] for line in wanted if "eval_loss" in line], rel=1e-5
    )
    return True


def ran(*commands):
    """Run commands side by side; their outputs, all having ended well."""
    running = [
        subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        for c in commands
    ]
    try:
        said = [process.communicate(timeout=150)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    for process, text in zip(running, said, strict=True):
        assert process.returncode == 0, text[-3000:]
    return said


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("options", [[], ["--shard"]])
def test_several_processes_do_the_run_of_one(tmp_path, text, alone, options):
    options = ["train", *OPTIONS, *text, "--processes", "2", *options, "--out", str(tmp_path / "run")]
    (said,) = ran([sys.executable, "-m", "tinytrain", *options])
    assert is_the_same_run(tmp_path / "run", alone, processes=2)
    assert said.count("120,576 parameters") == said.count("ROMEO") == said.count("The log is") == 1
    latest = Checkpointer(tmp_path / "run" / "checkpoints").latest()
    assert latest.step == 12 and bool(latest.shards) == ("--shard" in options)


def test_a_run_goes_on_in_more_processes_and_in_one_again(begun, alone):
    assert main(["resume", str(begun), "--processes", "3"]) == 0
    assert is_the_same_run(begun, alone, processes=3)


def test_torchrun_goes_on_with_what_one_process_began(begun, alone):
    (said,) = ran([*TORCHRUN, "--standalone", "--nproc-per-node", "2", "-m", "tinytrain", "resume", str(begun)])
    assert said.count("Going on after update 6 of 12") == said.count("The log is") == 1
    assert is_the_same_run(begun, alone, processes=2)


def test_torchrun_trains_from_the_beginning(tmp_path, text, alone):
    out = tmp_path / "run"
    ran(
        [
            *TORCHRUN,
            "--standalone",
            "--nproc-per-node",
            "2",
            "-m",
            "tinytrain",
            "train",
            *OPTIONS,
            *text,
            "--out",
            str(out),
        ]
    )
    assert is_the_same_run(out, alone, processes=2)
    assert main(["resume", str(out)]) == 0  # one process reads it, and finds it finished


def test_two_machines_go_on_with_what_one_process_began(begun, alone):
    node = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    first, second = ran(
        *([*TORCHRUN, *node, "--node-rank", str(number), "-m", "tinytrain", "resume", str(begun)] for number in (0, 1))
    )
    assert first.count("The log is") == 1 and "The log is" not in second
    assert is_the_same_run(begun, alone, processes=2)


def test_what_a_process_refuses_takes_one_line(tmp_path, text, capsys):
    assert (
        main(["train", *OPTIONS, *text, "--processes", "2", "--preset", "giant", "--out", str(tmp_path / "run")]) == 1
    )
    error = capsys.readouterr().err
    assert "failed: ValueError: preset 'giant' is not one of nano" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--processes", "0"], "processes=0 must be at least 1"), (["--shard"], "there is one: say --processes 2")],
)
def test_processes_that_cannot_be_are_refused(tmp_path, text, capsys, options, words):
    assert main(["train", *OPTIONS, *text, *options, "--out", str(tmp_path / "run")]) == 1
    assert words in capsys.readouterr().err
