"""Curve: the history of one logged value, in memory that does not grow with the run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class Bin:
    """What is kept of some consecutive points: steps, extremes, sum, and how many were finite or not."""

    first: float
    last: float
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    count: int = 0
    bad: int = 0

    @property
    def middle(self) -> float:
        """The step halfway through the bin."""
        return (self.first + self.last) / 2

    @property
    def mean(self) -> float:
        """The mean of the finite points (kept between the extremes when the sum overflows)."""
        return min(max(self.total / self.count, self.low), self.high)

    def add(self, step: float, value: float) -> None:
        """Take in one more point."""
        self.last = step
        if not math.isfinite(value):
            self.bad += 1
            return
        self.count += 1
        self.total += value
        self.low, self.high = min(self.low, value), max(self.high, value)

    @classmethod
    def join(cls, bins: Sequence["Bin"]) -> "Bin":
        """One bin for several that follow each other."""
        low, high = min(b.low for b in bins), max(b.high for b in bins)
        total, count, bad = sum(b.total for b in bins), sum(b.count for b in bins), sum(b.bad for b in bins)
        return cls(bins[0].first, bins[-1].last, low, high, total, count, bad)


class Curve:
    """A named series of (step, value) points, thinned as it grows so that no extreme and no NaN is ever lost.

    Consecutive points share a bin. When all `max_bins` bins are full, neighbours are joined and each bin
    holds twice as many points from then on. A bin keeps its lowest and highest value and counts its
    non-finite points: dropping every k-th point instead would drop spikes.

    >>> curve = Curve("loss", max_bins=4)
    >>> for step in range(1000):
    ...     curve.add(step, 99.0 if step == 321 else 1.0)
    >>> len(curve.bins) <= 4, max(b.high for b in curve.bins)
    (True, 99.0)
    """

    def __init__(self, name: str, max_bins: int = 160):
        if max_bins < 2 or max_bins % 2:
            raise ValueError(f"max_bins={max_bins} must be even and 2 or more: bins are joined in pairs")
        self.name = name
        self.max_bins = max_bins
        self.width = 1  # points in a full bin
        self.bins: list[Bin] = []
        self.first_value: float | None = None
        self.last: tuple[float, float] | None = None  # (step, value), finite or not
        self.lowest: tuple[float, float] | None = None
        self.highest: tuple[float, float] | None = None
        self.first_bad: tuple[float, float] | None = None
        self.first_not_positive: float | None = None  # the step: such a value has no place on a log axis
        self.bad = 0

    def add(self, step: float, value: float) -> None:
        """Record `value` at `step`. NaN and infinities are kept as what they are, not as numbers."""
        if not self.bins or self.bins[-1].count + self.bins[-1].bad >= self.width:
            if len(self.bins) == self.max_bins:
                self.bins = self.joined(2)  # all are full here, so all stay alike
                self.width *= 2
            self.bins.append(Bin(step, step))
        self.bins[-1].add(step, value)
        self._note(step, value)

    def joined(self, by: int) -> list[Bin]:
        """The bins, each `by` neighbours as one; the curve itself stays as it is."""
        return [Bin.join(self.bins[i : i + by]) for i in range(0, len(self.bins), by)]

    def _note(self, step: float, value: float) -> None:
        """Keep the single points that are named in words."""
        self.last = (step, value)
        if self.first_value is None:
            self.first_value = value
        if not math.isfinite(value):
            self.bad += 1
            self.first_bad = self.first_bad or (step, value)
            return
        if self.lowest is None or value < self.lowest[1]:
            self.lowest = (step, value)
        if self.highest is None or value > self.highest[1]:
            self.highest = (step, value)
        if value <= 0 and self.first_not_positive is None:
            self.first_not_positive = step

    def warning(self) -> str:
        """`"NaN first at step 7 (2 in all)"`, or an empty string while every value was finite."""
        if self.first_bad is None:
            return ""
        step, value = self.first_bad
        in_all = f" ({self.bad:,} in all)" if self.bad > 1 else ""
        return f"{number(value)} first at step {number(step)}{in_all}"

    def brief(self) -> str:
        """The latest value with its step, and what was not finite."""
        if self.last is None:
            return f"{self.name}: no values"
        text = f"{self.name}: {number(self.last[1])} at step {number(self.last[0])}"
        return f"{text}; {self.warning()}" if self.bad else text

    def describe(self) -> str:
        """The same, with the first value and the extremes."""
        if not (self.lowest and self.highest) or self.first_value is None:
            return self.brief()
        (low_step, low), (high_step, high) = self.lowest, self.highest
        text = f"first {number(self.first_value)}, lowest {number(low)} at step {number(low_step)}"
        return f"{self.brief()} ({text}, highest {number(high)} at step {number(high_step)})"

    def sparkline(self, width: int = 32) -> str:
        """The curve in block characters, at most `width` of them; `x` where a value was not finite."""
        size = max(1, -(-len(self.bins) // width))
        groups = [self.bins[i : i + size] for i in range(0, len(self.bins), size)]
        heights = [None if any(b.bad for b in g) else sum(b.mean / len(g) for b in g) for g in groups]
        shown = [h for h in heights if h is not None]
        low, high = min(shown, default=0.0), max(shown, default=0.0)
        span = (high / 2 - low / 2) or 1.0  # halves, so that a range from -1e308 to 1e308 does not overflow
        marks = [None if h is None else int(8 * ((h / 2 - low / 2) / span)) for h in heights]
        return "".join("x" if m is None else SPARKS[min(7, m)] for m in marks)


def number(value: float) -> str:
    """A number as people write it, to four digits, or three where zeros or an exponent take the room.

    >>> [number(v) for v in (2.5, 2.30259, 0.0123456, 20000, 3e-05, float("nan"), float("-inf"))]
    ['2.500', '2.303', '0.0123', '20,000', '3e-5', 'NaN', '-inf']
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    if 1e4 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    if 1 <= abs(value) < 1e4:
        return f"{value:#.4g}"
    mantissa, e, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa
