"""Real tokens per second with documents of mixed lengths: padded at random, bucketed by length, packed.

Forward and backward of a 4-layer model, d 128, on the same documents, the three ways taking turns; medians over the
turns. Padding is computed and thrown away, so only targets count.

    python benchmarks/batches.py
"""

import statistics
import time
from dataclasses import dataclass, replace

import torch

from tinytrain.batches import bucket, collate, pack, padding_waste
from tinytrain.model import GPT, PRESETS
from tinytrain.precision import Precision
from tinytrain.seeds import generator_for
from tinytrain.step import loss_sum

MAX_TOKENS = 1000
DOCUMENTS = 96
BATCH_ROWS = 8
TURNS = 3


@dataclass(frozen=True)
class Mix:
    """Lengths drawn from a log-normal distribution, cut to a range."""

    name: str
    median: int
    spread: float
    shortest: int


MIXES = (
    Mix("median 350", 350, 0.7, 32),
    Mix("short, median 80", 80, 0.9, 8),
    Mix("long, median 800", 800, 0.2, 400),
)


def documents_of(mix):
    generator = generator_for(mix.name)
    lengths = (mix.median * torch.exp(mix.spread * torch.randn(DOCUMENTS, generator=generator))).round().long()
    lengths = lengths.clamp(mix.shortest, MAX_TOKENS).tolist()
    return [torch.randint(0, 256, (n,), generator=generator) for n in lengths]


def ways(documents):
    """{name: (batches, share of padding)}; each way holds every document."""
    lengths = [len(document) - 1 for document in documents]
    random = [list(range(i, min(i + BATCH_ROWS, DOCUMENTS))) for i in range(0, DOCUMENTS, BATCH_ROWS)]
    alike = bucket(lengths, BATCH_ROWS, window_batches=12)
    rows = pack(documents, 1024)
    packed = [rows.batch(range(i, min(i + BATCH_ROWS // 2, len(rows)))) for i in range(0, len(rows), BATCH_ROWS // 2)]
    padded = {
        name: ([collate([documents[i] for i in batch], pad_id=0) for batch in batches], padding_waste(lengths, batches))
        for name, batches in (("random", random), ("bucketed", alike))
    }
    return padded | {"packed": (packed, rows.statistics.waste)}


def tokens_per_second(model, batches):
    start, precision = time.perf_counter(), Precision()
    for batch in batches:
        (loss_sum(model, batch, precision) / 1000).backward()
    seconds = time.perf_counter() - start
    return sum(int((batch["labels"] != -100).sum()) for batch in batches) / seconds


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT(replace(PRESETS["tiny"], max_positions=1024))
    print(
        f"| lengths of {DOCUMENTS} documents | way, {BATCH_ROWS} rows a batch | padding | real tokens/s | over random |"
    )
    print("|---|---|---|---|---|")
    for mix in MIXES:
        candidates = ways(documents_of(mix))
        rates = {name: [] for name in candidates}
        for _ in range(TURNS):
            for name, (batches, _) in candidates.items():
                rates[name].append(tokens_per_second(model, batches))
        medians = {name: statistics.median(values) for name, values in rates.items()}
        for name, rate in medians.items():
            waste, ratio = candidates[name][1], rate / medians["random"]
            print(f"| {mix.name} | {name} | {waste:.1%} | {rate:,.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
