"""The GPU benchmark goes its whole road on a CPU, so that a lent hour of a GPU is not spent on a typing error."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


def run(*options):
    command = [sys.executable, "-W", "ignore", str(PROGRAM), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_dry_run_fills_every_table():
    done = run("--dry-run", "--no-compile", "--no-tests")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    for name in ("float32", "TF32", "BF16", "BF16, compiled", "fp32", "bf16", "fp16", "plain", "in the background"):
        assert sum(row.startswith(f"| {name} |") for row in rows) == 1, name
    assert "these numbers mean nothing" in done.stdout and "All of it took" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so():
    done = run()
    assert done.returncode == 1 and "there is no CUDA device here" in done.stderr
