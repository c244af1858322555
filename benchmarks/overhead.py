"""What a step of tinytrain costs over a bare PyTorch loop.

Three ways to train the same model on the same batches take turns in blocks of 50 steps; the table shows the median
block, per step, and the difference to the bare loop. Turns and medians, because other programs share the machine.

    python benchmarks/overhead.py            the overhead configuration: 1 layer, d 32, 4 rows of 16 positions
    python benchmarks/overhead.py --tokens   the 0.8 M configuration: 4 layers, d 128, 12 rows of 64 positions
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from tinytrain.model import GPT, PRESETS, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.step import train_step
from tinytrain.train import TrainConfig, Trainer

MAX_GRAD_NORM = 1.0


@dataclass(frozen=True)
class Case:
    model: ModelConfig
    rows: int
    length: int
    block: int
    blocks: int


OVERHEAD = Case(ModelConfig(vocab_size=256, d_model=32, n_layers=1, n_heads=2, max_positions=16), 4, 16, 50, 40)
TOKENS = Case(replace(PRESETS["tiny"], max_positions=64), 12, 64, 5, 15)


def bare_loop(case, batches):
    """The least that trains: forward, loss, backward, clip, step, zero."""
    model = make_model(case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def block():
        for i in range(case.block):
            batch = batches[i]
            logits = model(batch["input_ids"])
            F.cross_entropy(logits.view(-1, logits.shape[-1]), batch["labels"].view(-1)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return block


def our_step(case, batches):
    """``train_step`` alone."""
    model = make_model(case)
    optimizer = build_adamw(model, lr=1e-3)

    def block():
        for i in range(case.block):
            train_step(model, [batches[i]], optimizer, lr=1e-3, max_grad_norm=MAX_GRAD_NORM)

    return block


def our_trainer(case, batches, folder):
    """The whole ``Trainer``, with schedule, counters and a log on disk."""
    model, runs = make_model(case), iter(range(10**9))

    def block():
        config = TrainConfig(total_steps=case.block, max_lr=1e-3, warmup_steps=5, out=folder / str(next(runs)))
        Trainer(model, lambda n: [batches[n]], config).fit()

    return block


def make_model(case):
    torch.manual_seed(0)
    return GPT(case.model)


def make_batches(case):
    ids = torch.randint(0, 256, (case.block, case.rows, case.length + 1), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row[:, :-1].contiguous(), "labels": row[:, 1:].contiguous()} for row in ids]


def measure(case):
    """Milliseconds per step: {name: [one number per block]}, the blocks of all names taking turns."""
    batches = make_batches(case)
    with tempfile.TemporaryDirectory() as folder:
        ways = {
            "bare loop": bare_loop(case, batches),
            "train_step": our_step(case, batches),
            "Trainer, log on": our_trainer(case, batches, Path(folder)),
        }
        times = {name: [] for name in ways}
        for turn in range(case.blocks + 2):
            for name, block in ways.items():
                start = time.perf_counter()
                block()
                if turn >= 2:  # the first two turns warm up
                    times[name].append((time.perf_counter() - start) / case.block * 1000)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", action="store_true", help="the 0.8 M configuration instead")
    case = TOKENS if parser.parse_args().tokens else OVERHEAD
    torch.set_num_threads(1)
    medians = {name: statistics.median(blocks) for name, blocks in measure(case).items()}
    bare = medians["bare loop"]
    print(f"torch {torch.__version__}, one thread, {case.rows} rows of {case.length} positions, d {case.model.d_model}")
    for name, ms in medians.items():
        rate = case.rows * case.length / ms * 1000
        print(f"{name:16} {ms:8.3f} ms a step   {ms - bare:+7.3f} ms   {rate:9,.0f} tokens/s   {bare / ms:.2f} x bare")


if __name__ == "__main__":
    main()
