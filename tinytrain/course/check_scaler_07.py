"""The check of exercise 07.2: the loss scale and the learning rate of each batch, through skips and doublings."""

import math
import random
from collections.abc import Callable

from tinytrain.course.check_rounding_07 import is_number
from tinytrain.course.exercises import Report


def check_life(answer: Callable[..., list[tuple[float, float]]], report: Report) -> None:
    """Runs without an overflow, with many, that begin with some, far down, far up, and a growth interval of 1."""
    interval = random.randint(3, 5)
    cases = {
        "no overflow": ([False] * random.randint(3 * interval, 20), interval),
        "overflows at the start": ([True] * random.randint(2, 4) + [False] * (2 * interval + 1), interval),
        "overflows in between": (_mixed(interval), interval),
        "doubling after each good update": ([random.random() < 0.5 for _ in range(12)] + [False, True, False], 1),
        "down from a scale of 1": ([True] * random.randint(3, 5) + [False] * (interval + 1), interval),
        "up from 2^23": ([False] * random.randint(20, 25), 1),
    }
    starts = {"down from a scale of 1": 1.0, "up from 2^23": 2.0**23}
    top, fall = random.uniform(0.5, 2), random.uniform(0.5, 0.95)

    def lr_at(n: int) -> float:
        return top * fall**n

    for case, (overflows, interval) in cases.items():
        scale = starts.get(case, 2.0 ** random.randint(8, 20))
        given = list(overflows)
        found = answer(given, scale, interval, lr_at)
        kind = type(found).__name__
        report.need(f"{case}: a list", isinstance(found, list), f"It returned {kind}; a list of pairs is wanted.")
        odd = [each for each in found if not (isinstance(each, tuple | list) and len(each) == 2)]
        inside = f"a list of {type(odd[0]).__name__}" if odd else ""
        report.need(f"{case}: a list of pairs", not odd, f"It returned {inside}; a list of pairs is wanted.")
        odd = [value for pair in found for value in pair if not is_number(value)]
        inside = f"A value in it is {type(odd[0]).__name__}; a plain number is wanted." if odd else ""
        report.need(f"{case}: numbers in it", not odd, inside)
        report.need(
            f"{case}: one pair for each batch",
            len(found) == len(overflows),
            "A skipped batch was tried too: it has its pair.",
        )
        right = _life(overflows, scale, interval, lr_at)
        for column, name in enumerate(("scale", "learning rate")):
            mine, truth = ([pair[column] for pair in pairs] for pairs in (found, right))
            agree = all(_same(a, b) for a, b in zip(mine, truth, strict=True))
            likely = "" if agree else _likely_life(column, mine, overflows, scale, interval, lr_at)
            report.need(f"{case}: the {name} of each batch", agree, likely)
        report.need(f"{case}: the list is as before", given == overflows, "What was handed in belongs to the caller.")


def _mixed(interval: int) -> list[bool]:
    """Streaks of good updates of many lengths, so that each way of counting them shows."""
    streaks = [interval - 1, interval - 1, 2 * interval, interval, interval + 1]
    random.shuffle(streaks)
    return [flag for n in streaks for flag in [False] * n + [True] * random.randint(1, 2)] + [False]


def _same(a: object, b: float) -> bool:
    return is_number(a) and bool(abs(a - b) <= 1e-6 * abs(b))


def _life(
    overflows: list[bool],
    scale: float,
    interval: int,
    lr_at: Callable[[int], float],
    *,
    slip: str = "",
    top: float = math.inf,
) -> list[tuple[float, float]]:
    """The truth, or what a usual slip makes of it."""
    tried, good, updates = [], 0, 0
    for overflowed in overflows:
        if slip == "early" and overflowed:
            scale, good = scale / 2, 0
        tried.append((scale, lr_at(updates)))
        updates += slip == "batches" or not overflowed
        if overflowed:
            scale = scale if slip == "early" else scale // 2 if slip == "whole" else scale / 2
            scale = max(scale, 1.0) if slip == "floor" else scale
            good = good if slip == "no reset by a skip" else 0
        else:
            good += 1
        if not overflowed and good >= interval + (slip == "late"):
            scale, good = min(scale * 2, top), good if slip == "no reset by growth" else 0
    if slip == "next rate":
        made = [sum(not flag for flag in overflows[: i + 1]) for i in range(len(overflows))]
        return [(pair[0], lr_at(n)) for pair, n in zip(tried, made, strict=True)]
    if slip == "next scale":
        return [*tried[1:], (scale, 0.0)]
    if slip == "same rate":
        return [(pair[0], lr_at(0)) for pair in tried]
    if slip == "same scale":
        return [(tried[0][0], pair[1]) for pair in tried]
    return tried


def _likely_life(column: int, mine: list[float], overflows: list[bool], scale: float, interval: int, lr_at) -> str:
    slips = {
        "batches": "The schedule moved on although the update was skipped.",
        "next rate": "It gives the rate after the batch. Wanted is the one with which it is tried.",
        "next scale": "It gives the scale after the batch. Wanted is the one with which it is tried.",
        "early": "The scale is halved for the batch that overflowed itself. It counts from the next one on.",
        "no reset by a skip": "A skip did not set the count of good updates back to 0.",
        "no reset by growth": "After doubling, counting did not begin anew.",
        "late": "It doubles one update late: after `growth_interval` good ones, not one more.",
        "same rate": "The learning rate never moves.",
        "same scale": "The scale never moves.",
        "floor": "The scale stops at 1. It has no lower limit.",
        "whole": "`//` cuts off what is under 1; `/` halves.",
        "top": "The scale stops growing at a limit. It has none.",
    }
    fits = []
    for slip, words in slips.items():
        top = max(mine) if slip == "top" else math.inf
        values = [pair[column] for pair in _life(overflows, scale, interval, lr_at, slip=slip, top=top)]
        if all(_same(a, b) for a, b in zip(mine, values, strict=True)):
            fits.append(words)
    return fits[0] if len(fits) == 1 else ""
