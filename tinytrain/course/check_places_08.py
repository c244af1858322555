"""The check of exercise 08.3: the batches with which a run goes on, from many places of an epoch."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tinytrain.course.exercises import Report

Order = Callable[[int], list[int]]


def check_next_batches(answer: Callable[..., list[list[int]]], report: Report) -> None:
    """Stop at many places, with and without a short batch; then the smallest and largest batches, and counts."""
    for case in ("at the very beginning", "in the middle of an epoch", "at the end of an epoch", "across an end"):
        for tail in (True, False):
            size, full = random.randint(3, 6), random.randint(4, 7)  # rows in a batch, full batches in an epoch
            per_epoch, epoch = full + tail, random.randint(1, 3)
            inside = epoch * per_epoch + random.randint(2, per_epoch - 2)
            across = epoch * per_epoch - random.randint(1, 2)
            done = {"very": 0, "in": inside, "at": epoch * per_epoch, "across": across}[
                "very" if "very" in case else case.split()[0]
            ]
            count = random.randint(per_epoch, per_epoch + 2)  # so that a short batch is always among them
            named = f"{case}, {'a short' if tail else 'no short'} last batch"
            rows = size * full + (random.randint(1, size - 1) if tail else 0)
            _check_position(answer, report, named, rows, size, done, count)
    rows, size = random.randint(11, 14), random.randint(4, 5)  # three batches
    batches = -(-rows // size)
    done = batches * random.randint(20, 40) + random.randint(0, 2)
    _check_position(answer, report, "far into the run", rows, size, done, batches)
    _check_position(answer, report, "more than two epochs", rows, size, batches + 1, 2 * batches + 1)
    _check_position(answer, report, "no batch at all", rows, size, random.randint(0, 9), 0)
    _check_position(answer, report, "a single batch", rows, size, random.randint(1, 9), 1)
    _check_position(answer, report, "batches of one row", rows, 1, random.randint(1, 2 * rows), rows + 2)
    _check_position(answer, report, "a batch holds an epoch", rows, rows, random.randint(1, 4), 3)
    _check_position(answer, report, "a batch holds more than an epoch", rows, rows + 3, random.randint(1, 4), 3)


def _check_position(
    answer: Callable[..., list[list[int]]], report: Report, case: str, n_rows: int, size: int, done: int, count: int
) -> None:
    seed = random.random()

    @cache
    def order(epoch: int) -> list[int]:
        return random.Random(f"{seed} {epoch}").sample(range(n_rows), n_rows)

    value = answer(lambda epoch: list(order(epoch)), n_rows, size, done, count)
    kind = f"It returned a {_kind(value)}; plain numbers in lists are wanted."
    report.need(f"{case}: a list of lists of numbers", _is_batches(value), "" if _is_batches(value) else kind)
    value = [[int(row) for row in batch] for batch in value]
    wanted = _batches(order, n_rows, size, done + count)[done : done + count]
    right = bool(value == wanted)
    likely = "" if right else _likely_place(value, order, n_rows, size, done, count)
    report.need(f"{case}: the next batches", right, likely)


def _kind(value: Any) -> str:
    kind = type(value).__name__
    while isinstance(value, list) and value:
        value = value[0]
        kind += f" of {type(value).__name__}"
    return kind


def _is_batches(value: Any) -> bool:
    rows = isinstance(value, list) and all(isinstance(batch, list) for batch in value)
    return rows and all(isinstance(row, (int, np.integer)) for batch in value for row in batch)


def _batches(order: Order, n_rows: int, size: int, wanted: int) -> list[list[int]]:
    """All batches from the run's first on, whole epochs of them, and more than two epochs beyond ``wanted``."""
    epochs = wanted // -(-n_rows // size) + 3
    return [order(e)[i : i + size] for e in range(epochs) for i in range(0, n_rows, size)]


def _likely_place(value: list[list[int]], order: Order, n_rows: int, size: int, done: int, count: int) -> str:
    if len(value) != count:
        return f"{count} batches were asked for, and {len(value)} came."
    per_epoch = -(-n_rows // size)
    epoch, place = divmod(done, per_epoch)
    whole = _batches(order, n_rows, size, done + count)
    row_stream = [row for e in range((done + count) // per_epoch + 3) for row in order(e)]
    dropped = [batch for batch in whole if len(batch) == size]
    mistakes = {
        "The epoch begins again: rows that it has had come a second time.": whole[epoch * per_epoch :],
        "It jumps to the next epoch: the rest of this one is never read.": whole[(epoch + 1) * per_epoch :],
        "The run begins again from its first batch.": whole,
        "`done` batches have been read; one more was passed over, or one comes twice.": whole[done + 1 :],
        "The batch before was done already: it comes twice.": whole[max(0, done - 1) :],
        "The short batch at the end of an epoch is left out, and the places after it are wrong.": dropped[done:],
        "A batch holds rows of two epochs: each epoch is cut from its own beginning.": [
            row_stream[i : i + size] for i in range(done * size, (done + count) * size, size)
        ],
        "The order is that of epoch 0: each epoch has its own.": _batches(
            lambda _: order(0), n_rows, size, done + count
        )[done:],
        "It stays in one epoch's order: at its end, the next one's begins.": [
            order(epoch)[i : i + size] for i in range(place * size, (place + count) * size, size)
        ],
    }
    return next((hint for hint, batches in mistakes.items() if value == batches[:count]), "")
