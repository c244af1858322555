"""A curve keeps what matters of a long run in little memory."""

import math
import random

import pytest

from tinytrain.watch.curve import Curve, number


def filled(values, max_bins=160):
    curve = Curve("loss", max_bins)
    for step, value in enumerate(values):
        curve.add(step, value)
    return curve


@pytest.mark.parametrize("length", [1, 7, 160, 161, 5_000, 20_001])
def test_bins_stay_few_and_no_point_is_lost(length):
    curve = filled(range(length))
    assert len(curve.bins) <= 160
    assert sum(b.count for b in curve.bins) == length
    assert sum(b.total for b in curve.bins) == length * (length - 1) / 2
    assert (curve.bins[0].first, curve.bins[-1].last) == (0, length - 1)


@pytest.mark.parametrize("spike", [0, 1, 12_345, 19_999])
def test_an_extreme_is_kept_wherever_it_lies(spike):
    values = [random.Random(0).random() for _ in range(20_000)]
    values[spike] = 50.0
    curve = filled(values)
    assert max(b.high for b in curve.bins) == 50.0
    assert min(b.low for b in curve.bins) == min(values)
    assert curve.highest == (spike, 50.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_bad_value_in_20000_is_kept_and_named(value):
    curve = filled(value if step == 12_345 else 1.0 for step in range(20_000))
    assert sum(b.bad for b in curve.bins) == 1 and curve.bad == 1
    marked = [b for b in curve.bins if b.bad]
    assert marked[0].first <= 12_345 <= marked[0].last
    assert "first at step 12,345" in curve.warning()


def test_the_mean_of_a_bin_survives_sums_that_overflow():
    curve = filled([1.7e308] * 100, max_bins=2)
    assert all(b.mean == 1.7e308 for b in curve.bins)


def test_a_description_gives_latest_first_and_extremes_with_their_steps():
    text = filled([5.5, 9.0, 2.0, 3.0]).describe()
    assert text == "loss: 3 at step 3 (first 5.500, lowest 2 at step 2, highest 9 at step 1)"


def test_a_sparkline_falls_with_the_curve_and_marks_nan():
    assert filled([8.0, 4.0, math.nan, 1.0]).sparkline() == "█▄x▁"
    assert len(filled(range(20_000)).sparkline(32)) <= 32


def test_an_odd_number_of_bins_is_refused():
    with pytest.raises(ValueError, match="max_bins=5"):
        Curve("loss", max_bins=5)


@pytest.mark.parametrize(("value", "text"), [(12345.6, "12,346"), (2_000_000.0, "2,000,000"), (-math.inf, "-inf")])
def test_numbers_of_many_digits_have_no_decimals(value, text):
    assert number(value) == text
