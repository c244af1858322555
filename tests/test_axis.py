"""Axes carry round values, tell neighbours apart, and survive any range of floats."""

import math

import pytest

from tinytrain.watch.axis import Axis, padded

RANGES = [
    (0, 1),
    (0.4, 3.1),
    (2.295, 2.312),
    (-3, 12_000),
    (0, 1e-7),
    (1e6, 3e6),
    (2e5, 2.004e5),
    (-1e308, 1e308),
]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_ticks_are_few_round_evenly_spaced_and_inside(low, high):
    ticks = Axis(low, high, 0, 300).ticks()
    values = [value for value, _ in ticks]
    assert 2 <= len(values) <= 6
    assert low <= values[0] < values[-1] <= high * (1 + 1e-12)
    step = values[1] / 2 - values[0] / 2
    mantissa = step * 2 / 10.0 ** math.floor(math.log10(step * 2) + 1e-9)
    assert min(abs(mantissa - m) for m in (1, 2, 5)) < 1e-6


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_the_text_beside_a_tick_says_its_value_and_differs_from_the_others(low, high):
    ticks = Axis(low, high, 0, 300).ticks()
    texts = [text for _, text in ticks]
    assert len(set(texts)) == len(texts)
    for value, text in ticks:
        assert float(text.replace(",", "")) == pytest.approx(value, rel=1e-9, abs=1e-12 * (high / 2 - low / 2))
        assert len(text) <= 8


def test_steps_are_marked_at_whole_numbers_only():
    assert Axis(0, 2, 0, 300, whole=True).ticks() == [(0, "0"), (1, "1"), (2, "2")]


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [(0.02, 300, ["0.1", "1", "10", "100"]), (1.5, 60, ["2", "5", "10", "20", "50"]), (2.1, 2.3, None)],
)
def test_a_log_axis_is_marked_at_powers_and_at_plain_steps_where_it_is_short(low, high, texts):
    ticks = Axis(low, high, 0, 300, log=True).ticks()
    assert len(ticks) >= 2
    assert texts is None or [text for _, text in ticks] == texts


def test_powers_are_left_out_evenly_where_there_are_too_many():
    values = [value for value, _ in Axis(1, 1e12, 0, 300, log=True).ticks()]
    assert values == pytest.approx([1, 1e3, 1e6, 1e9, 1e12])


def test_a_range_gets_a_twentieth_of_itself_at_both_ends():
    assert padded(2.0, 4.0) == pytest.approx((1.9, 4.1))


def test_equal_ratios_are_equal_lengths_on_a_log_axis():
    axis = Axis(1, 1000, 0, 300, log=True)
    assert [round(axis.place(v), 9) for v in (1, 10, 100, 1000)] == [0, 100, 200, 300]
    assert axis.place(0) == axis.place(-5) == 0


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("value", [0.0, 5e-324, 1e-300, 2.3, 1e9 + 0.5, 1.7e308])
def test_a_flat_curve_gets_a_range_with_room_on_both_sides(value, log):
    low, high = padded(value, value, log=log)
    axis = Axis(low, high, 0, 300, log=log)
    assert low < high and math.isfinite(high / 2 - low / 2)
    assert 0 <= axis.place(value) <= 300
    assert axis.ticks()
