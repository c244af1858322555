"""A log as columns of numbers, for the checks: what is there, where a line is, medians and spreads."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tinytrain.watch.doctor.catalogue import CATALOGUE
from tinytrain.watch.doctor.finding import Finding

HISTORY = 50
"""updates before one with which it is compared: two or three times what AdamW's beta2 of 0.95 remembers (1/0.05)"""
LEAST = 10
"""of them that must be there: a median and a spread of fewer mean little"""
WINDOWS = 40
"""points of the smoothed curve, each a median: 5 updates of a run of 200, enough that one batch moves none"""
SPREAD = 1.4826
"""from the median absolute deviation to the standard deviation of a normal distribution"""
LARGEST_LN_V = 12.6
"""nats: ln 300,000, more tokens than today's vocabularies have. A model that knows nothing starts at ln V"""
SMALLEST_LN_V = 3.5
"""nats: ln 33. Vocabularies of text have more symbols than that; pretrained models start lower on text like theirs"""
BAND = 0.5
"""nats around ln V in which a fresh model starts; torch's default initialisation lies up to 0.4 above"""

MAY_BE_INFINITE = {"loss", "grad_norm", "eval_loss", "lr"}
"""fields in which NaN and infinity tell something; in any other they are no number"""


class NotSeenError(Exception):
    """Raised by a check whose fields are there, but do not hold what it needs; its text says what is missing."""


class Reading:
    """The columns of a log. ``made`` are the lines of updates that were made and have a finite loss."""

    def __init__(self, records: Sequence[Mapping[str, Any]], vocab_size: int | None = None) -> None:
        self.records, self.n = records, len(records)
        self._columns: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # name: numbers, where there are any
        self.unit = next((u for u, name in (("update", "step"), ("batch", "batch")) if self.has(name)), "line")
        self.skipped = np.array([record.get("skipped") is True for record in records], dtype=bool)
        loss = self.column("loss")
        self.made = np.flatnonzero(~self.skipped & np.isfinite(loss))
        self.loss = loss[self.made]
        self.first_loss = float(self.loss[0]) if len(self.loss) else math.nan  # the second may be far away already
        if vocab_size is not None and vocab_size < 1:
            raise ValueError(f"vocab_size={vocab_size} must be at least 1 token")
        self.ln_v = None if vocab_size is None else math.log(vocab_size)
        self.width = max(3, -(-len(self.loss) // WINDOWS))
        self.starts = window_starts(len(self.loss), self.width)
        self.smooth = medians(self.loss, self.width)
        self.level = float(self.smooth[-1]) if len(self.smooth) else math.nan
        self.noise = spread(np.diff(self.loss))
        """of one loss against the next: 1.4 times their standard deviation"""

    def has(self, name: str) -> bool:
        """Whether any line has a number under this name; of ``skipped``, True or False."""
        if name == "skipped":
            return any(isinstance(record.get(name), bool) for record in self.records)
        return bool(self.present(name).any())

    def column(self, name: str) -> np.ndarray:
        """``[n]`` numbers, NaN where a line has none."""
        return self._column(name)[0]

    def present(self, name: str) -> np.ndarray:
        """``[n]``: the lines that have a number under this name, NaN being one."""
        return self._column(name)[1]

    def not_finite(self, name: str) -> np.ndarray:
        """``[n]``: the lines whose number is NaN or infinite."""
        return self.present(name) & ~np.isfinite(self.column(name))

    def _column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        if name not in self._columns:
            values = [record.get(name) for record in self.records]
            counts = is_number if name in MAY_BE_INFINITE else is_finite
            present = np.array([counts(value) for value in values], dtype=bool)
            numbers = [float(value) if there else np.nan for value, there in zip(values, present, strict=True)]
            self._columns[name] = np.array(numbers, dtype=float), present
        return self._columns[name]

    def at(self, line: int) -> int:
        """What ``since`` says of a line: its update, counted from 1; a skipped one is that which was tried."""
        if self.unit == "line":
            return line + 1
        value = self.records[line].get("step" if self.unit == "update" else "batch")
        if not is_finite(value):
            return line + 1
        return int(value) + (self.unit == "update" and bool(self.skipped[line]))

    def place(self, line: int) -> str:
        return f"{self.unit} {self.at(line)}"

    def finding(self, line: int, name: str, evidence: str, **told: Any) -> Finding:
        """The finding ``name`` in the words of the catalogue; ``told`` replaces parts of them."""
        words = asdict(CATALOGUE[name]) | told
        return Finding(name=name, since=self.at(line), unit=self.unit, evidence=evidence, **words)

    def line_of(self, window: int) -> int:
        """The line at which a point of the smoothed curve begins; the last one behind its end."""
        return int(self.made[self.starts[window] if window < len(self.starts) else -1])

    def rising(self) -> int:
        """Lines at the start over which the learning rate rises; 0 where it is not known or starts at its top."""
        lr = self.column("lr")
        known = np.flatnonzero(np.isfinite(lr))
        if not len(known):
            return 0
        top = int(lr[known].argmax())
        rises = top and (np.diff(lr[known][: top + 1]) >= 0).all()  # a rate written with two digits stands still, too
        return int(known[top]) + 1 if rises else 0

    def is_sweep(self) -> bool:
        """A learning rate that is multiplied by the same number at every update, to find out where training breaks."""
        lr = self.column("lr")[~self.skipped]
        if len(lr) < 10 or not (np.isfinite(lr) & (lr > 0)).all():
            return False
        steps = np.diff(np.log(lr))
        return bool(lr[-1] > 10 * lr[0] and (steps > -1e-9).all() and np.ptp(steps[:-1]) < 0.05 * np.median(steps))

    def from_start(self) -> bool:
        """Whether the first loss is that of the first update, or of the first that a log of every so many holds."""
        if not len(self.made):
            return False
        every = self.at(1) - self.at(0) if self.n > 1 else 1
        return self.at(int(self.made[0])) <= max(1, every)

    def knew_nothing(self) -> bool:
        """Whether the run began with a model that knew nothing, as far as its first loss tells."""
        lowest = SMALLEST_LN_V if self.ln_v is None else self.ln_v - BAND
        return self.from_start() and self.first_loss >= lowest

    def ignorance(self) -> float:
        """Loss of a model that knows nothing: ln V if it was told, else the first loss; NaN if that is none."""
        if self.ln_v is not None:
            return self.ln_v
        return self.first_loss if 0 <= self.first_loss <= LARGEST_LN_V else math.nan


def is_number(value: Any) -> bool:
    """Of Python or of NumPy."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    return is_number(value) and bool(np.isfinite(value))


def medians(values: np.ndarray, width: int) -> np.ndarray:
    """The median of each ``width`` values, or of a few more where they do not come out even."""
    starts = window_starts(len(values), width)
    return np.array([np.median(part) for part in np.split(values, starts[1:])]) if len(values) else values


def window_starts(n: int, width: int) -> np.ndarray:
    """Where each window of ``medians`` begins.

    >>> window_starts(8, width=3).tolist()
    [0, 4]
    """
    windows = max(1, n // width)
    return np.arange(windows) * (n // windows) + np.minimum(np.arange(windows), n % windows)


def spread(values: np.ndarray) -> float:
    """Standard deviation, as the median absolute deviation tells it: outliers do not count."""
    return SPREAD * float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def history(values: np.ndarray, i: int) -> np.ndarray:
    """The finite values before position i, ``HISTORY`` of them; empty if there are fewer than ``LEAST``."""
    before = values[max(0, i - HISTORY) : i]
    before = before[np.isfinite(before)]
    return before if len(before) >= LEAST else before[:0]


def change_point(values: np.ndarray) -> int:
    """Where a row of numbers is best cut into two levels, by least squares.

    >>> change_point(np.array([1.0, 1.1, 0.9, 4.0, 4.2]))
    3
    """
    n, cut = len(values), np.arange(1, len(values))
    if n < 2:
        return 0
    left = np.cumsum(values)[:-1]
    gap = left / cut - (values.sum() - left) / (n - cut)
    return int(np.argmax(gap**2 * cut * (n - cut))) + 1
