"""For the checks of notebook 05: packed rows drawn, and made by hand with plain lists; the form of a batch."""

import random

import torch
from torch import Tensor

from tinytrain.course.exercises import Report

Batch = dict[str, Tensor]
IGNORE = -100


def random_ids(T: int, padding: int) -> list[int]:
    """The ``doc_ids`` of a packed row of ``T`` positions, ``padding`` of them -1 at its end."""
    ids: list[int] = []
    numbers = iter(random.sample(range(30), 30))
    while len(ids) < T - padding:
        ids += [next(numbers)] * random.randint(1, 5)
    return ids[: T - padding] + [-1] * padding


def positions_by_hand(line: list[int]) -> list[int]:
    """The positions of a row with these ``doc_ids``, counted one by one."""
    counts: list[int] = []
    for t, number in enumerate(line):
        goes_on = t > 0 and line[t - 1] == number
        counts.append(0 if number < 0 else counts[-1] + 1 if goes_on else 0)
    return counts


def packed_by_hand(documents: list[list[int]], T: int) -> dict[str, list[list[int]]]:
    """The four tensors of documents packed in order into rows of ``T`` positions, as lists."""
    groups: list[list[list[int]]] = []
    for document in documents:
        used = sum(len(member) - 1 for member in groups[-1]) if groups else T
        if used + len(document) - 1 > T:
            groups.append([])
        groups[-1].append(document)
    columns = {"input_ids": 0, "labels": IGNORE, "doc_ids": -1, "positions": 0}
    cells = {
        "input_ids": lambda _number, document: document[:-1],
        "labels": lambda _number, document: document[1:],
        "doc_ids": lambda number, document: [number] * (len(document) - 1),
        "positions": lambda _number, document: list(range(len(document) - 1)),
    }
    rows = {}
    for name, filler in columns.items():
        lines = [[cell for k, d in enumerate(group) for cell in cells[name](k, d)] for group in groups]
        rows[name] = [line + [filler] * (T - len(line)) for line in lines]
    return rows


def need_tensors(report: Report, name: str, batch: Batch, keys: tuple[str, ...], shape: tuple[int | None, int]) -> None:
    """End the check unless ``batch`` is a dict with these keys, each an int64 tensor of ``shape``; None fits any size.

    The type of ``attention_mask`` is left to the check itself.
    """
    report.need(
        f"{name}: a dict with {', '.join(keys)}",
        isinstance(batch, dict) and set(keys) <= set(batch),
        f"It returned {sorted(batch) if isinstance(batch, dict) else type(batch).__name__}.",
    )
    shown = f"[{', '.join('rows' if size is None else str(size) for size in shape)}]"
    for key in keys:
        value = batch[key]
        fits = isinstance(value, Tensor) and value.dim() == 2
        fits = fits and all(want in (None, size) for want, size in zip(shape, value.shape, strict=True))
        likely = f"{key} is {what(value)}. n ids give n - 1 positions: the last id has nothing after it."
        report.need(f"{name}: {key} is {shown}", fits, likely)
        if key != "attention_mask":
            likely = f"{key} is {what(value)}; torch.int64 is what embeddings and losses take."
            report.need(f"{name}: {key} is int64", value.dtype == torch.int64, likely)


def what(value: object) -> str:
    """A tensor's type and shape, or what else it is."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
