"""A log as columns of numbers, for the checks: what is there, where a line is, medians and spreads."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tinytrain.watch.doctor.finding import Finding

HISTORY = 50
"""updates before one with which it is compared: two or three times what AdamW's beta2 of 0.95 remembers (1/0.05)"""
WINDOWS = 40
"""points of the smoothed curve, each a median: 5 updates of a run of 200, enough that one batch moves none"""
SPREAD = 1.4826
"""from the median absolute deviation to the standard deviation of a normal distribution"""


class Reading:
    """The columns of a log. ``made`` are the lines of updates that were made and have a finite loss."""

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.records, self.n = records, len(records)
        self.unit = next((u for u, name in (("update", "step"), ("batch", "batch")) if self.has(name)), "line")
        self.skipped = self.flags("skipped")
        loss = self.column("loss")
        self.made = np.flatnonzero(~self.skipped & np.isfinite(loss))
        self.loss = loss[self.made]
        self.first_loss = float(self.loss[0]) if len(self.loss) else float("nan")  # the second may be far away already
        self.width = max(3, -(-len(self.loss) // WINDOWS))
        self.smooth = medians(self.loss, self.width)
        self.level = float(self.smooth[-1]) if len(self.smooth) else float("nan")

    def has(self, name: str) -> bool:
        """Whether any line has a number under this name."""
        return any(is_number(record.get(name)) for record in self.records)

    def column(self, name: str) -> np.ndarray:
        """``[n]`` numbers, NaN where a line has none."""
        values = (record.get(name) for record in self.records)
        return np.array([float(value) if is_number(value) else np.nan for value in values], dtype=float)

    def flags(self, name: str) -> np.ndarray:
        return np.array([record.get(name) is True for record in self.records], dtype=bool)

    def present(self, name: str) -> np.ndarray:
        """``[n]``: the lines that have a number under this name, NaN being one."""
        return np.array([is_number(record.get(name)) for record in self.records], dtype=bool)

    def at(self, line: int) -> int:
        """What ``since`` says of a line: its update, counted from 1; a skipped one is that which was tried."""
        if self.unit == "line":
            return line + 1
        value = self.records[line].get("step" if self.unit == "update" else "batch")
        if not is_number(value):
            return line + 1
        return int(value) + (self.unit == "update" and bool(self.skipped[line]))

    def place(self, line: int) -> str:
        return f"{self.unit} {self.at(line)}"

    def finding(self, line: int, **parts: Any) -> Finding:
        return Finding(since=self.at(line), unit=self.unit, **parts)

    def lines_of(self, window: int) -> int:
        """The line at which a point of the smoothed curve begins."""
        return int(self.made[min(window * self.width, len(self.made) - 1)])

    def rising(self) -> int:
        """Lines at the start over which the learning rate rises; 0 where it is not known or starts at its top."""
        lr = self.column("lr")
        if self.n < 2 or not np.isfinite(lr).all():
            return 0
        down = np.flatnonzero(np.diff(lr) <= 0)
        return int(down[0]) + 1 if len(down) else self.n

    def is_sweep(self) -> bool:
        """A learning rate that is multiplied by the same number at every update, to find out where training breaks."""
        lr = self.column("lr")[~self.skipped]
        if len(lr) < 10 or not (lr > 0).all():
            return False
        steps = np.diff(np.log(lr))
        return bool(lr[-1] > 10 * lr[0] and (steps > -1e-9).all() and np.ptp(steps[:-1]) < 0.05 * np.median(steps))


def is_number(value: Any) -> bool:
    """Of Python or of NumPy."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def medians(values: np.ndarray, width: int) -> np.ndarray:
    """The median of each ``width`` values; fewer at the end go with those before them."""
    whole = max(1, len(values) // width)
    return np.array([np.median(part) for part in np.array_split(values, whole)]) if len(values) else values


def spread(values: np.ndarray) -> float:
    """Standard deviation, as the median absolute deviation tells it: outliers do not count."""
    return SPREAD * float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def history(values: np.ndarray, i: int, least: int = 10) -> np.ndarray:
    """The finite values before position i, ``HISTORY`` of them; empty if there are fewer than ``least``."""
    before = values[max(0, i - HISTORY) : i]
    before = before[np.isfinite(before)]
    return before if len(before) >= least else before[:0]
