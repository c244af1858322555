import math
import random

import numpy as np
import pytest

from tinytrain.watch.thin import BINS, thin


@pytest.mark.parametrize("n", [0, 1, 2, 4 * BINS])
def test_few_points_are_all_drawn(n):
    assert thin(np.zeros(n)).tolist() == list(range(n))


@pytest.mark.parametrize("place", [0, 777, 50_000, 99_999])
@pytest.mark.parametrize("value", [50.0, -50.0, math.nan, math.inf])
def test_no_extreme_and_no_gap_is_lost(place, value):
    draws = random.Random(place)
    ys = [draws.gauss(0, 1) for _ in range(100_000)]
    ys[place] = value
    kept = thin(ys)
    assert place in kept and len(kept) <= 5 * BINS
    assert kept[0] == 0 and kept[-1] == 99_999 and (np.diff(kept) > 0).all()


def test_every_stretch_keeps_its_lowest_and_highest():
    ys = np.random.default_rng(0).normal(size=20_000)
    kept = thin(ys, bins=50)
    for stretch in np.array_split(np.arange(20_000), 50):
        mine = kept[(kept >= stretch[0]) & (kept <= stretch[-1])]
        assert ys[mine].min() == ys[stretch].min() and ys[mine].max() == ys[stretch].max()


def test_a_curve_of_nothing_but_nan_keeps_gaps():
    kept = thin([math.nan] * 10_000, bins=10)
    assert 10 <= len(kept) <= 30
