"""The check of exercise 07.1: rounding to BF16, ties, carries and the ends of the range included."""

import math
import numbers
import random
import struct
from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tinytrain.course.exercises import Report


def check_to_bf16(answer: Callable[[float], float], report: Report) -> None:
    """Numbers of all sizes and both signs, ties, carries into the next power of two, and 0."""
    ties = [(k + 0.5) * 2.0 ** random.randint(-9, 9) for k in [*_both_parities(), 255]]
    ends = [random.uniform(*between) for between in ((1.05e-30, 2e-30), (5e29, 9.5e29)) for _ in range(5)]
    cases = {
        "numbers near 1": [random.uniform(1, 2) for _ in range(20)],
        "numbers of all sizes": [random.uniform(1, 2) * 2.0 ** random.randint(-90, 90) for _ in range(20)],
        "negative numbers": [-random.uniform(1, 2) * 2.0 ** random.randint(-9, 9) for _ in range(20)],
        "a carry into the next power of two": [random.uniform(1.9975, 1.9999) * 2.0 ** random.randint(-9, 9)],
        "ties": ties,
        "ties below 0": [-tie for tie in ties],
        "the smallest and the largest that were promised": [sign * end for sign in (1, -1) for end in ends],
        "BF16 numbers already": [random.randint(128, 255) * 2.0 ** random.randint(-9, 9) for _ in range(5)],
        "zero": [0.0],
    }
    with _SeesBF16() as seen:
        for case, xs in cases.items():
            xs = [struct.unpack("f", struct.pack("f", x))[0] for x in xs]  # what FP32 holds, so that all ways agree
            values = [answer(x) for x in xs]
            strange = next((value for value in values if not is_number(value)), 0.0)
            report.need(
                f"{case}: a number", is_number(strange), f"It returned {type(strange).__name__}; a number is wanted."
            )
            agree = all(bool(value == _nearest(x)) for x, value in zip(xs, values, strict=True))
            report.need(f"{case}: the nearest BF16 number", agree, "" if agree else _likely_rounding(xs, values))
    report.need("by arithmetic", not seen.bf16, "It lets torch round. Do it with the gap between BF16 numbers.")


class _SeesBF16(TorchFunctionMode):
    """Notes whether a tensor in BF16 is made."""

    bf16 = False

    def __torch_function__(self, func, _types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.bf16 |= isinstance(result, Tensor) and result.dtype == torch.bfloat16
        return result


def is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _both_parities() -> list[int]:
    return [random.choice(range(first, 255, 2)) for first in (128, 129) for _ in range(6)]


def _nearest(x: float) -> float:
    """The truth, by the bits of FP32: half of what is dropped is added, less one where the kept part is even."""
    (bits,) = struct.unpack("I", struct.pack("f", x))
    return struct.unpack("f", struct.pack("I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0]


def _likely_rounding(xs: list[float], values: list[float]) -> str:
    def with_bits(bits: int, rounding: Callable[[float], float]) -> Callable[[float], float]:
        def way(x: float) -> float:
            gap = 2.0 ** (math.frexp(x)[1] - 1 - bits) if x else 1.0
            return rounding(x / gap) * gap

        return way

    def away(x: float) -> float:
        return math.copysign(math.floor(abs(x) + 0.5), x)

    def towards(x: float) -> float:
        return math.copysign(math.ceil(abs(x) - 0.5), x)

    ways = [
        (with_bits(7, away), "Ties go away from 0, or all up: take the even multiple of the gap."),
        (with_bits(7, lambda x: math.floor(x + 0.5)), "Ties all go up: take the even multiple of the gap."),
        (with_bits(7, towards), "Ties go towards 0, or all down: take the even multiple of the gap."),
        (with_bits(7, math.trunc), "It cuts the extra digits off. Round to the nearer neighbour."),
        (with_bits(7, math.floor), "It always rounds down. Round to the nearer neighbour."),
        (with_bits(7, math.ceil), "It always rounds up. Round to the nearer neighbour."),
        (with_bits(8, round), "The gap is half of what it should be: 7 bits of mantissa, below 2^(exponent - 1)."),
        (with_bits(6, round), "The gap is twice what it should be: the 1 before the point is not stored."),
        (with_bits(10, round), "Ten bits of mantissa are FP16's. BF16 has seven."),
        (lambda x: round(x * 128) / 128, "The gap is 1/128 only between 1 and 2: it doubles with each power of two."),
        (lambda x: x, "Nothing was rounded."),
    ]
    for way, words in ways:
        if all(value == way(x) for x, value in zip(xs, values, strict=True)):
            return words
    return next(
        (
            f"For {x!r} it returned {value!r}; the nearest is {_nearest(x)!r}."
            for x, value in zip(xs, values, strict=True)
            if value != _nearest(x)
        ),
        "",
    )
