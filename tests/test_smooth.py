"""An average that hides nothing."""

import math

import pytest

from tinytrain.watch.smooth import smooth


def by_hand(ys, half_life):
    """The definition: all earlier points of the stretch, each with half the weight of one ``half_life`` later."""
    out, stretch = [], []
    for y in ys:
        if not math.isfinite(y):
            stretch = []
            out.append(math.nan)
            continue
        stretch.append(y)
        weights = [0.5 ** ((len(stretch) - 1 - i) / half_life) for i in range(len(stretch))]
        out.append(sum(w * v for w, v in zip(weights, stretch, strict=True)) / sum(weights))
    return out


@pytest.mark.parametrize("half_life", [0.5, 1, 7, 1000])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_it_is_its_definition_and_gaps_stay_gaps(half_life, bad):
    ys = [5.0, 3.0, 8.0, bad, 100.0, 99.0, bad, bad, 1.0, 2.0]
    assert smooth(ys, half_life) == pytest.approx(by_hand(ys, half_life), rel=1e-12, nan_ok=True)


def test_the_first_value_and_the_first_behind_a_gap_are_themselves():
    smoothed = smooth([7.0, 1.0, math.nan, 1e6, 1.0], half_life=50)
    assert smoothed[0] == 7.0 and smoothed[3] == 1e6
    assert math.isnan(smoothed[2])


def test_what_comes_later_changes_nothing_before_it():
    ys = [4.0, 2.0, 6.0, 3.0]
    assert smooth([*ys, 1e9, math.nan], 3)[:4] == smooth(ys, 3)


def test_huge_values_do_not_overflow():
    assert smooth([1.7e308] * 50 + [-1.7e308], 20)[49] == pytest.approx(1.7e308)
    assert all(map(math.isfinite, smooth([1.7e308, -1.7e308] * 20, 5)))


def test_behind_a_falling_line_it_lags_as_the_docstring_says():
    ys = [-float(i) for i in range(2000)]
    assert smooth(ys, 50)[-1] - ys[-1] == pytest.approx(1.44 * 50, rel=0.02)


@pytest.mark.parametrize("half_life", [0, -1, math.nan, math.inf, "3", True])
def test_a_half_life_that_is_none_is_refused(half_life):
    with pytest.raises(ValueError, match=r"half_life=.* must be a number of points above 0"):
        smooth([1.0], half_life)
