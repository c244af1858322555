"""Everything that only a GPU can show, in one command of less than six minutes; the result is a Markdown table.

    python benchmarks/gpu.py > gpu.md          on a machine with a CUDA device
    python benchmarks/gpu.py --dry-run         the same road on a CPU with a tiny model; its numbers mean nothing

The `gpu` tests; tokens/s and MFU of the 120M preset at 32 rows x 8 micro-batches of 512 tokens, in float32, TF32 and
BF16, with and without torch.compile; peak memory beside the plan; FP16 beside BF16; how long a checkpoint blocks.
"""

import argparse
import datetime
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tinytrain.ahead import Ahead
from tinytrain.checkpoint import Checkpointer
from tinytrain.compiled import compile_blocks
from tinytrain.generators import all_states
from tinytrain.model import GPT, PRESETS, ModelConfig
from tinytrain.optimizer import build_adamw, optimizer_state
from tinytrain.precision import Precision
from tinytrain.step import train_step
from tinytrain.watch.planner import PEAK_TFLOPS, GiB, flops_per_token, memory_of

ROOT = Path(__file__).parents[1]
TESTS_S = 150  # of the six minutes


@dataclass(frozen=True)
class Case:
    """What is trained, and for how long each way is timed."""

    config: ModelConfig
    rows: int
    micro_batches: int
    seconds: float
    device: str


FULL = Case(replace(PRESETS["120m"], vocab_size=30_016), 32, 8, 8.0, "cuda")  # padded to a multiple of 64
DRY = Case(replace(PRESETS["nano"], max_positions=16), 2, 2, 0.1, "cpu")

WAYS = {  # name: (precision, TF32, what is compiled)
    "float32": ("fp32", False, ""),
    "TF32": ("fp32", True, ""),
    "BF16": ("bf16", False, ""),
    "BF16, compiled": ("bf16", False, "blocks"),  # as train --compile does
    "BF16, compiled whole": ("bf16", False, "whole"),
}


def random_rows(case: Case, seed: int) -> list[dict[str, torch.Tensor]]:
    """The micro-batches of one update: random ids, which cost what text costs."""
    generator, parts = torch.Generator().manual_seed(seed), []
    for _ in range(case.micro_batches):
        shape = (case.rows, case.config.max_positions + 1)
        ids = torch.randint(0, case.config.vocab_size, shape, generator=generator)
        parts.append({"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()})
    return parts


def wait(case: Case) -> None:
    if case.device == "cuda":
        torch.cuda.synchronize()


def fresh(case: Case) -> GPT:
    gc.collect()
    if case.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    with torch.device(case.device):
        return GPT(case.config)


def peak_of_device(case: Case) -> float:
    """Operations per second that the device could reach in 16 bits; NaN if the card is not in the planner's list."""
    name = torch.cuda.get_device_name().lower().replace(" ", "") if case.device == "cuda" else ""
    return next((1e12 * value for key, value in PEAK_TFLOPS.items() if key in name), float("nan"))


def time_way(case: Case, mode: str, tf32: bool, compiled: str) -> dict[str, float]:
    """Median seconds of an update and its spread, the first update's seconds, and the most bytes held."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    model = fresh(case)
    optimizer, precision = build_adamw(model, lr=1e-4), Precision(mode)
    if compiled == "blocks":
        compile_blocks(model)
    trained = torch.compile(model) if compiled == "whole" else model
    times = []
    with Ahead(lambda n: random_rows(case, n)) as data:
        for number in range(10_000):
            micro_batches = data[number]
            wait(case)
            start = time.perf_counter()
            train_step(trained, micro_batches, optimizer, lr=1e-4, precision=precision)
            wait(case)
            times.append(time.perf_counter() - start)
            if number >= 3 and sum(times[2:]) > case.seconds:
                break
    peak = torch.cuda.max_memory_allocated() if case.device == "cuda" else float("nan")
    steady = times[2:]
    return {"s": statistics.median(steady), "first": times[0], "peak": peak, "spread": statistics.pstdev(steady)}


def speed(case: Case, compile_too: bool) -> None:
    tokens = case.rows * case.micro_batches * case.config.max_positions
    operations, peak = flops_per_token(case.config), peak_of_device(case)
    print(f"\n## Tokens per second: {case.rows} rows of {case.config.max_positions} x {case.micro_batches}\n")
    print("| way | tokens/s | spread | MFU of the 16-bit peak | first update | peak memory | planned |")
    print("|---|---|---|---|---|---|---|")
    for name, (mode, tf32, compiled) in WAYS.items():
        if compiled and not compile_too:
            print(f"| {name} | left out: no compiler was asked for | | | | | |")
            continue
        found = time_way(case, mode, tf32, compiled)
        rate = tokens / found["s"]
        planned = memory_of(case.config, micro_batch_size=case.rows, precision=mode, accumulate=case.micro_batches > 1)
        print(
            f"| {name} | {rate:,.0f} | {found['spread'] / found['s']:.1%} | {rate * operations / peak:.1%} "
            f"| {found['first']:.1f} s | {found['peak'] / GiB:.2f} GiB | {planned.total / GiB:.2f} GiB |",
            flush=True,
        )
    torch.backends.cuda.matmul.allow_tf32 = False


def stability(case: Case, updates: int) -> None:
    """The same rows again and again, in three precisions: does the loss fall alike, and what does the scaler do?"""
    print(f"\n## FP16 beside BF16: {updates} updates on one batch of {case.rows} rows\n")
    print("| precision | first loss | last loss | largest norm | skipped | scale at the end |")
    print("|---|---|---|---|---|---|")
    batch = random_rows(replace(case, micro_batches=1), seed=0)
    for mode in ("fp32", "bf16", "fp16"):
        model, precision = fresh(case), Precision(mode)
        optimizer = build_adamw(model, lr=3e-4)
        reports = [train_step(model, batch, optimizer, lr=3e-4, precision=precision) for _ in range(updates)]
        made = [report for report in reports if not report.skipped]
        print(
            f"| {mode} | {made[0].loss:.3f} | {made[-1].loss:.3f} | {max(r.grad_norm for r in made):.2f} "
            f"| {len(reports) - len(made)} | {reports[-1].scale:g} |",
            flush=True,
        )


def saving(case: Case) -> None:
    """How long training stands still for a checkpoint of weights and moments."""
    print("\n## How long a checkpoint blocks training\n\n| way | the first | the third |\n|---|---|---|")
    model = fresh(case)
    optimizer = build_adamw(model, lr=1e-4)
    train_step(model, random_rows(replace(case, rows=1, micro_batches=1), 0), optimizer, lr=1e-4)
    for way in ("plain", "in the background"):
        blocked = []
        with tempfile.TemporaryDirectory() as folder:
            store = Checkpointer(Path(folder), background=way != "plain")
            for step in range(1, 4):
                wait(case)
                start = time.perf_counter()
                moments = optimizer_state(optimizer, model)
                store.save({"model": model.state_dict(), "optimizer": moments, "generators": all_states()}, step=step)
                blocked.append(time.perf_counter() - start)
                store.wait()
        print(f"| {way} | {blocked[0] * 1e3:.0f} ms | {blocked[2] * 1e3:.0f} ms |", flush=True)


def tests() -> None:
    """The tests that are skipped elsewhere; their last line goes into the table."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TESTS_S)
    except subprocess.TimeoutExpired:
        print(f"\n`pytest -m gpu`: not done within {TESTS_S} s; run it by itself", flush=True)
        return
    last = (done.stdout.strip().splitlines() or ["no output"])[-1].strip("= ")
    print(f"\n`pytest -m gpu`: {last}", flush=True)
    if done.returncode:
        print(f"\n```text\n{done.stdout[-3000:]}\n```")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on the CPU, to see that it runs")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-tests", action="store_true", help="leave the gpu tests out")
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        parser.exit(1, "there is no CUDA device here; --dry-run goes the same road on a CPU\n")
    case = DRY if options.dry_run else FULL
    where = torch.cuda.get_device_name() if case.device == "cuda" else "CPU, dry run: these numbers mean nothing"
    began = time.perf_counter()
    print(f"# On a GPU ({where})\n\n{datetime.date.today()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    if not options.no_tests:
        tests()
    speed(case, compile_too=not options.no_compile)
    stability(case, updates=3 if options.dry_run else 60)
    saving(case)
    print(f"\nAll of it took {time.perf_counter() - began:.0f} s.")


if __name__ == "__main__":
    main()
