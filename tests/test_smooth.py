import math

import pytest

from tinytrain.watch.smooth import smooth

NAN = math.nan


def test_half_life_on_paper():
    # Half-life 1: weights 1, 1/2, 1/4 ... of the points so far, divided by their sum.
    assert smooth([8.0, 2.0, 5.0], half_life=1) == pytest.approx(
        [8.0, (2 + 4) / 1.5, (5 + 2 / 2 + 8 / 4) / (1 + 1 / 2 + 1 / 4)]
    )


def test_after_the_half_life_a_step_is_half_done_and_the_first_value_is_itself():
    curve = smooth([1.0] * 1000 + [0.0] * 20, half_life=20)
    assert curve[0] == 1.0 and curve[999] == pytest.approx(1.0)
    assert curve[1019] == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_what_is_not_finite_is_a_gap_and_neither_side_of_it_is_touched(bad):
    curve = smooth([4.0, 2.0, bad, bad, 1.0, 1.0], half_life=5)
    assert [math.isnan(y) for y in curve] == [False, False, True, True, False, False]
    assert curve[:2] == smooth([4.0, 2.0], half_life=5) and curve[4:] == [1.0, 1.0]


def test_a_curve_does_not_change_behind_its_end_and_no_sum_overflows():
    ys = [1e308, -1e308, 1e308, 3.0, 2.0]
    assert smooth(ys, half_life=100)[:3] == smooth(ys[:3], half_life=100)
    assert all(math.isfinite(y) for y in smooth(ys, half_life=100))
    assert smooth([], half_life=3) == [] and smooth([NAN], half_life=3) != [0.0]


@pytest.mark.parametrize("half_life", [0, -1, math.inf, NAN, True, "3", None])
def test_what_is_no_half_life_is_refused(half_life):
    with pytest.raises(ValueError, match=r"half_life=.* must be a number of points above 0"):
        smooth([1.0], half_life)
