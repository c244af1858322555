"""Thinning: as few points as a picture can show, without losing an extreme or what is not finite."""

import numpy as np
from numpy.typing import ArrayLike

BINS = 300
"""stretches that a curve is cut into: about one for each pixel of a panel's width in a notebook, or two"""


def thin(ys: ArrayLike, bins: int = BINS) -> np.ndarray:
    """Which points of ``ys`` to draw: their places, in order.

    Up to ``4 * bins`` points are all drawn. Of more, the curve is cut into ``bins`` stretches of equally many points,
    and each keeps its first and last point, its lowest and its highest, and its first one that is not finite:
    picking every k-th point instead would lose spikes, and gaps.

    >>> ys = [0.0] * 10_000
    >>> ys[1234], ys[5678] = 99.0, float("nan")
    >>> kept = thin(ys, bins=10)
    >>> len(kept) <= 50, 1234 in kept, 5678 in kept
    (True, True, True)
    """
    values = np.asarray(ys, dtype=float)
    if len(values) <= 4 * bins:
        return np.arange(len(values))
    finite = np.isfinite(values)
    edges = np.linspace(0, len(values), bins + 1).astype(int)
    starts, kept = edges[:-1], [edges[:-1], edges[1:] - 1]
    for extreme, filler in ((np.minimum, np.inf), (np.maximum, -np.inf)):
        filled = np.where(finite, values, filler)
        best = np.repeat(extreme.reduceat(filled, starts), np.diff(edges))
        kept.append(_first_of_each(finite & (filled == best), starts))
    kept.append(_first_of_each(~finite, starts))
    return np.unique(np.concatenate(kept))


def _first_of_each(chosen: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The first chosen place of each stretch that has one."""
    places = np.flatnonzero(chosen)
    stretch = np.searchsorted(starts, places, side="right")
    return places[np.unique(stretch, return_index=True)[1]]
