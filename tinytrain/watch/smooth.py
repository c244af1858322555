"""Smoothing that hides nothing: what is not finite stays a gap, and the two sides of a gap do not touch."""

import math
from collections.abc import Sequence


def smooth(ys: Sequence[float], half_life: float) -> list[float]:
    """The exponential average of ``ys`` so far, one number for each: a point ``half_life`` points back counts half.

    It is divided by the weights it has so far (the bias correction of Adam's moments), so that the first value is
    itself and no start at 0 pulls the curve down. NaN and infinities give NaN at their own place and nowhere else,
    and the average begins anew behind them: what follows is neither spoilt nor drawn towards what was before.

    Each number depends on what was logged up to it, so a curve does not change behind its end while a run goes on.
    That is why this is no centred window. It is no running median, either: that would take single spikes away without
    a trace, where an average leaves a step. Its price: on a falling curve it lies above, by about 1.4 half-lives.

    Raises ``ValueError`` for a ``half_life`` that is not a finite number above 0.

    >>> smooth([8.0, 2.0, float("nan"), 1.0, 1.0], half_life=1)
    [8.0, 4.0, nan, 1.0, 1.0]
    """
    check_half_life(half_life)
    decay = 0.5 ** (1 / half_life)
    averages, average, weights = [], 0.0, 0.0
    for y in ys:
        if not math.isfinite(y):
            average = weights = 0.0
            averages.append(math.nan)
            continue
        weights = 1 + decay * weights
        share = 1 / weights
        average = (1 - share) * average + share * y  # in shares, so that no sum of huge values overflows
        averages.append(average)
    return averages


def check_half_life(half_life: float) -> None:
    """Raise ``ValueError`` for what is no number of points."""
    if isinstance(half_life, bool) or not isinstance(half_life, (int, float)) or not 0 < half_life < math.inf:
        raise ValueError(f"half_life={half_life!r} must be a number of points above 0, or None for no smoothing")
