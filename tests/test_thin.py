"""Few points, and nothing lost that a reader looks for."""

import numpy as np
import pytest

from tinytrain.watch.thin import thin


def noisy(n):
    return np.random.default_rng(0).normal(size=n)


@pytest.mark.parametrize("n", [0, 1, 1200])
def test_what_is_few_is_left_alone(n):
    assert thin(noisy(n)).tolist() == list(range(n))


@pytest.mark.parametrize("n", [1201, 100_000])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("share", [0.0, 0.337, 1.0])
def test_an_extreme_is_kept_wherever_it_lies(n, sign, share):
    ys = noisy(n)
    place = int(share * (n - 1))
    ys[place] = sign * 99.0
    kept = thin(ys)
    assert place in kept and len(kept) <= 5 * 300 and len(kept) < n
    assert (np.diff(kept) > 0).all() and {0, n - 1} <= set(kept.tolist())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_kept_and_takes_no_extremes_place(value):
    ys = noisy(100_000)
    ys[70_001], ys[70_002] = value, 50.0
    assert {70_001, 70_002} <= set(thin(ys).tolist())


def test_only_nan_is_thinned_as_well():
    assert len(thin(np.full(50_000, np.nan))) == 600  # the first and the last of each stretch


@pytest.mark.parametrize("level", [0.0, 10.0, -10.0])
def test_each_stretch_keeps_its_own_extremes_beside_a_nan_as_well(level):
    ys = noisy(30_000) + level
    ys[500::1000] = np.nan
    kept = set(thin(ys, bins=30).tolist())
    for start in range(0, 30_000, 1000):
        part = ys[start : start + 1000]
        assert {start + int(np.nanargmin(part)), start + int(np.nanargmax(part))} <= kept
