"""Means over neighbouring updates, for pictures: the noise of single batches goes, and the course stays."""

import math
from collections.abc import Sequence


def running_mean(values: Sequence[float], width: int = 10) -> list[float]:
    """The mean of each value and those before it, ``width`` in all; where the value itself is not finite, NaN.

    >>> running_mean([1.0, 3.0, 5.0, 7.0], width=2)
    [1.0, 2.0, 4.0, 6.0]
    """
    means = []
    for n, value in enumerate(values):
        near = [v for v in values[max(0, n - width + 1) : n + 1] if math.isfinite(v)]
        means.append(sum(near) / len(near) if math.isfinite(value) else math.nan)
    return means


def block_means(values: Sequence[float], width: int = 10) -> tuple[Sequence[int], list[float]]:
    """The means of ``width`` values each, and how many values there are up to the end of each block.

    >>> block_means([1.0, 3.0, 5.0, 7.0, 9.0], width=2)
    (range(2, 6, 2), [2.0, 6.0])
    """
    ends = range(width, len(values) + 1, width)
    return ends, [sum(values[end - width : end]) / width for end in ends]
