"""What a NanHunt costs while it is on: forward and backward of one step, plain, hunted, and hunted by lines.

The three ways take turns; medians over the turns.

    python benchmarks/hunting.py
"""

import statistics
import time
from functools import partial

import torch

from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, PRESETS
from tinytrain.watch.nan_hunt import NanHunt

TURNS = 7
SIZES = (("nano", 16, 64), ("tiny", 8, 128), ("27m", 2, 128))  # preset, rows, positions


def step(model, ids):
    model.zero_grad()
    cross_entropy(model(ids[:, :-1]), ids[:, 1:]).backward()


def hunted(model, ids, lines):
    with NanHunt(model, lines=lines):
        step(model, ids)


def main():
    torch.set_num_threads(1)
    print("| model | rows of positions | plain | hunted | by lines |")
    print("|---|---|---|---|---|")
    for preset, rows, positions in SIZES:
        model = GPT(PRESETS[preset])
        ids = torch.randint(0, model.config.vocab_size, (rows, positions + 1))
        ways = [partial(step, model, ids), partial(hunted, model, ids, False), partial(hunted, model, ids, True)]
        times = [[] for _ in ways]
        for _ in range(TURNS):
            for way, its_times in zip(ways, times, strict=True):
                start = time.perf_counter()
                way()
                its_times.append(time.perf_counter() - start)
        plain, *others = map(statistics.median, times)
        ratios = " | ".join(f"{other / plain:.1f} times" for other in others)
        print(f"| {preset} | {rows} of {positions} | {1e3 * plain:.0f} ms | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
