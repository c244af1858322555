"""Axis: where a value lies on the page, and which round values are written beside it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


def padded(low: float, high: float, *, log: bool = False) -> tuple[float, float]:
    """Widen a range by 5 % at both ends; a flat range gets room around its one value.

    >>> padded(0.0, 1.0)
    (-0.05, 1.05)
    >>> padded(2.0, 2.0)
    (1.8, 2.2)
    """
    if log:
        low, high = max(low, 1e-300), max(high, 1e-300)
        room = max(0.05 * (math.log10(high) - math.log10(low)), 0.05)
        return max(low / 10**room, 1e-307), min(high * 10**room, 1.79e308)
    size = max(abs(low), abs(high))
    if high / 2 - low / 2 <= 1e-9 * size or size < 1e-290:
        room = 0.1 * size if size > 1e-290 else 1.0
    else:
        room = high / 20 - low / 20
    return max(low - room, -1.7e308), min(high + room, 1.7e308)


@dataclass(frozen=True, slots=True)
class Axis:
    """The range `low..high` laid over the pixels `start..end`, evenly or by powers of ten (`log`)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False  # only whole numbers are marked, as for steps

    def place(self, value: float) -> float:
        """The pixel of a value. On a log axis, 0 and less sit on its lower end.

        >>> Axis(0, 10, start=100, end=200).place(5)
        150.0
        """
        return self.places([value])[0]

    def places(self, values: Iterable[float]) -> list[float]:
        """The pixels of many values."""
        start, length, low = self.start, self.end - self.start, self.low
        if self.log:
            bottom = math.log10(low)
            scale = length / (math.log10(self.high) - bottom)
            return [start + (math.log10(v) - bottom) * scale if v > low else start for v in values]
        scale = length / (self.high / 2 - low / 2)  # halves, so that -1e308 to 1e308 does not overflow
        return [start + (v / 2 - low / 2) * scale for v in values]

    def ticks(self, at_most: int = 5) -> list[tuple[float, str]]:
        """Round values inside the range, at most this many, each with the text to write beside it.

        >>> Axis(0.4, 3.1, 0, 1).ticks()
        [(1.0, '1'), (2.0, '2'), (3.0, '3')]
        >>> Axis(0.02, 300, 0, 1, log=True).ticks()
        [(0.1, '0.1'), (1.0, '1'), (10.0, '10'), (100.0, '100')]
        """
        values = self._powers(at_most) if self.log else []
        if len(values) < 2:
            values, step = self._multiples(at_most)
            return [(v, _label(v, step, max(abs(self.low), abs(self.high)))) for v in values]
        return [(v, _label(v, v, v)) for v in values]

    def _multiples(self, at_most: int) -> tuple[list[float], float]:
        rough = self.high / at_most - self.low / at_most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
        step = max(step, 1.0) if self.whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)], step

    def _powers(self, at_most: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for marks in ((1, 2, 5), (1, 3), (1,)):
            values = [m * 10.0**p for p in range(max(first, -307), min(last, 307) + 1) for m in marks]
            values = [v for v in values if self.low <= v <= self.high]
            if len(values) <= at_most:
                return values
        return values[:: -(-len(values) // at_most)]


def _label(value: float, step: float, size: float) -> str:
    """As many digits as tell neighbours apart, without an exponent where that is short."""
    if value == 0:
        return "0"
    place = math.floor(math.log10(step) + 1e-9)
    if place >= -4 and size < 1e6:
        return f"{value:,.{max(0, -place)}f}"
    digits = max(0, math.floor(math.log10(abs(value)) + 1e-9) - place)
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
