"""The loss scale of FP16, and gradients that are 0."""

import numpy as np

from tinytrain.watch.doctor.finding import Finding
from tinytrain.watch.doctor.reading import NotSeenError, Reading

SETTLING = 20
"""batches at the start of an FP16 run in which the scale may fall without harm. It starts at 65,536 and is halved until
gradients fit: 0 to 3 times in the healthy runs, and that within 5 batches"""
IN_A_ROW = 6
"""overflows in a row. One gradient that is too large is made good by as many halvings as it is too large by: healthy
runs have rows of up to 4, a factor of 16, and six are a factor of 64"""
NEAR, TIMES, HALVINGS = 100, 3, 2
"""batches in which overflows come so many times, a row being one, and bring the scale so many halvings under where it
had settled: at that rate no growth (PyTorch doubles it after 2,000 good updates) makes it good. An overflow every few
hundred updates is how the scale finds its height"""
DOUBLINGS = 8
"""of the loss scale, net, over its start: a gradient 256 times smaller than at first, and usually 0"""
VANISHED = 1e-6
"""a norm below this, or this share of the median of those before: no gradient. Healthy norms end at a tenth or more"""


def scale(reading: Reading) -> Finding | None:
    """A scale that falls again and again, or grows without end."""
    values = reading.column("loss_scale")
    known = np.flatnonzero(np.isfinite(values) & (values > 0))
    if len(known) < 2:
        raise NotSeenError("fewer than 2 lines with loss_scale")
    first, lowest = values[known[0]], values[known].min()
    if (line := _collapse(reading, values)) is not None:
        overflows = np.flatnonzero(overflowed(reading)).tolist()
        evidence = f"from {first:.6g} down to {lowest:.6g}; {len(overflows)} updates skipped, up to "
        evidence += f"{longest_row(overflows)} in a row{_vanished_words(reading)}{where(reading, line)}"
        return reading.finding(line, "loss scale collapses", evidence)
    if np.log2(values[known].max() / first) >= DOUBLINGS:
        line = int(known[np.flatnonzero(values[known] > first)[0]])
        evidence = f"from {first:.6g} up to {values[known].max():.6g}{_vanished_words(reading)}"
        return reading.finding(line, "loss scale soars", evidence)
    return None


def _collapse(reading: Reading, values: np.ndarray) -> int | None:
    """The line at which a collapse begins."""
    rows = _rows(np.flatnonzero(overflowed(reading)).tolist())
    for row in rows:
        if len(row) >= IN_A_ROW:
            return row[0]
    if rows and np.nanmin(values) < 1:  # what overflows unscaled is not helped by a scale
        return rows[0][0]
    late = [row for row in rows if row[0] >= SETTLING]
    settled = values[min(SETTLING, len(values)) - 1]
    for first, last in zip(late, late[TIMES - 1 :], strict=False):
        lowest = np.nanmin(values[first[0] : last[-1] + 2])
        if last[-1] - first[0] < NEAR and lowest <= settled / 2**HALVINGS:
            return first[0]
    return None


def overflowed(reading: Reading) -> np.ndarray:
    """``[n]``: the updates that were not made because the gradient was not finite.

    Where its norm is not logged, the next line's lower scale tells. Where the loss itself is NaN, a falling scale is
    what follows, and no cause.
    """
    scales = reading.column("loss_scale")
    falls = np.append(scales[1:] < scales[:-1], False)
    of_gradient = reading.not_finite("grad_norm") | (~reading.present("grad_norm") & falls)
    return reading.skipped & np.isfinite(reading.column("loss")) & of_gradient


def _vanished_words(reading: Reading) -> str:
    line, count = _vanished(reading)
    return f"; the norm is 0 or nearly so in {count} updates, since {reading.place(line)}" if count else ""


def _vanished(reading: Reading) -> tuple[int, int]:
    """(first line, number) of updates with hardly any gradient."""
    norm = reading.column("grad_norm")[reading.made]
    usual = float(np.median(norm[norm > 0])) if (norm > 0).any() else 1.0
    gone = np.flatnonzero(norm <= VANISHED * min(usual, 1.0))
    return (int(reading.made[gone[0]]), len(gone)) if len(gone) else (0, 0)


def vanished(reading: Reading) -> Finding | None:
    """A norm of 0, where no loss scale says it already."""
    line, count = _vanished(reading)
    if count < 3 or (reading.has("loss_scale") and scale(reading)):
        return None
    return reading.finding(line, "no gradient", f"in {count} of {len(reading.made)} updates")


def where(reading: Reading, line: int) -> str:
    """What the log says of the place of a number that is not finite."""
    place = reading.records[line].get("where")
    return f"; first in: {place}" if place else ""


def _rows(lines: list[int]) -> list[list[int]]:
    """Lines that follow each other, together.

    >>> _rows([1, 2, 5, 6, 7])
    [[1, 2], [5, 6, 7]]
    """
    rows: list[list[int]] = []
    for line in lines:
        if rows and line == rows[-1][-1] + 1:
            rows[-1].append(line)
        else:
            rows.append([line])
    return rows


def longest_row(lines: list[int]) -> int:
    """The most lines that follow each other.

    >>> longest_row([1, 2, 5, 6, 7])
    3
    """
    return max(map(len, _rows(lines)), default=0)
