"""What the checks of notebook 14 draw: batches cut unevenly, with a mask, with several documents in a row."""

import random

import torch

from tinytrain.course.laws.probe import Batch, Noting, ProbeModel, T, cut, rows_of
from tinytrain.course.laws.tape import same


def uneven() -> list[Batch]:
    lengths = random.sample(range(2, T + 1), 6)
    return cut(rows_of(random.randrange(10**6), lengths), random.choice([(1, 3, 2), (2, 1, 3), (3, 2, 1)]))


def masked() -> list[Batch]:
    parts = cut(rows_of(random.randrange(10**6), [T] * 5), (2, 3))
    for part in parts:
        part["attention_mask"] = torch.ones_like(part["input_ids"])
        part["attention_mask"][:, : random.randint(3, 6)] = 0
        part["labels"] = part["labels"].masked_fill(part["attention_mask"] == 0, -100)
    return parts


def packed() -> list[Batch]:
    parts = cut(rows_of(random.randrange(10**6), [T] * 5), (2, 3))
    for part in parts:
        part["doc_ids"] = (torch.arange(T) >= random.randint(3, 8)).long().expand_as(part["input_ids"]).clone()
    return parts


def fresh_model(dropout: float = 0.0) -> ProbeModel:
    return ProbeModel(Noting(), dropout=dropout)


def copies(batches: list[Batch]) -> list[Batch]:
    return [{name: value.clone() for name, value in batch.items()} for batch in batches]


def unchanged(batches: list[Batch], given: list[Batch]) -> bool:
    pairs = zip(batches, given, strict=True)
    return len(batches) == len(given) and all(a.keys() == b.keys() and same(a, b) for a, b in pairs)
