import pytest

from tinytrain.schedule import lr_sweep, warmup_cosine, warmup_stable_decay


def rates(steps, **schedule):
    return [warmup_cosine(step, **schedule) for step in steps]


def test_the_whole_curve_equals_a_list_written_by_hand():
    written = [0.25, 0.5, 0.75, 1, 1, 0.939711, 0.775, 0.55, 0.325, 0.160289, 0.1, 0.1, 0.1]
    measured = rates(range(13), max_lr=1, min_lr=0.1, warmup_steps=4, total_steps=10)
    assert measured == pytest.approx(written, abs=1e-6)


def test_it_stays_at_the_minimum_for_ever():
    assert rates((10, 20, 10**9), max_lr=1, min_lr=0.1, warmup_steps=4, total_steps=10) == [0.1, 0.1, 0.1]


@pytest.mark.parametrize(
    ("warmup", "total", "written"),
    [
        (10, 10, {0: 0.1, 9: 1.0, 10: 0.0, 11: 0.0}),  # never falls before its end
        (0, 10, {0: 1.0, 5: 0.5, 10: 0.0}),  # starts at the top
        (0, 1, {0: 1.0, 1: 0.0}),
        (1, 1, {0: 1.0, 1: 0.0}),
    ],
)
def test_the_corners_are_defined(warmup, total, written):
    measured = rates(written, max_lr=1, min_lr=0, warmup_steps=warmup, total_steps=total)
    assert measured == pytest.approx(list(written.values()))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"warmup_steps": 20}, "warmup_steps=20 is more than total_steps=10"),
        ({"warmup_steps": -1}, "warmup_steps=-1"),
        ({"total_steps": 0, "warmup_steps": 0}, "total_steps=0"),
        ({"min_lr": 2.0}, "min_lr=2.0"),
        ({"max_lr": float("nan")}, "max_lr=nan"),
        ({"step": -1}, "step=-1"),
    ],
)
def test_numbers_that_make_no_schedule_are_refused(changed, words):
    call = {"step": 0, "max_lr": 1.0, "min_lr": 0.1, "warmup_steps": 4, "total_steps": 10} | changed
    with pytest.raises(ValueError, match=words):
        warmup_cosine(call.pop("step"), **call)


@pytest.mark.parametrize(
    ("name", "value"), [("warmup_steps", 2.5), ("total_steps", 6.5), ("total_steps", float("inf"))]
)
def test_parts_of_an_update_are_refused(name, value):
    call = {"max_lr": 1.0, "min_lr": 0.1, "warmup_steps": 4, "total_steps": 10} | {name: value}
    with pytest.raises(ValueError, match=f"^{name}={value} must be a whole number of updates"):
        warmup_cosine(0, **call)


def test_a_rate_may_stay_the_same_throughout():
    assert rates(range(3), max_lr=0.5, min_lr=0.5, warmup_steps=0, total_steps=2) == [0.5] * 3


STABLE = {"max_lr": 1.0, "min_lr": 0.1, "warmup_steps": 4, "decay_steps": 3, "total_steps": 10}


def stable(steps, **changed):
    return [warmup_stable_decay(step, **STABLE | changed) for step in steps]


def test_up_level_and_down_equals_a_list_written_by_hand():
    assert stable(range(13)) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 0.7, 0.4, 0.1, 0.1, 0.1])


def test_where_it_is_level_it_does_not_know_the_end_of_the_run():
    assert stable(range(8)) == stable(range(8), total_steps=1000)


def test_the_level_part_is_the_maximum_to_the_last_bit():
    """0.3 + (0.9 - 0.3) is 0.9000000000000001: the decay must begin after the level part, not in its last update."""
    assert stable(range(3, 8), max_lr=0.9, min_lr=0.3) == [0.9] * 5


@pytest.mark.parametrize(
    ("warmup", "decay", "total", "written"),
    [
        (4, 0, 10, {9: 1.0, 10: 0.1}),  # never falls before its end
        (0, 3, 10, {0: 1.0, 7: 1.0, 8: 0.7}),  # starts at the top
        (0, 10, 10, {0: 1.0, 5: 0.55, 10: 0.1}),  # falls from the first update on
        (7, 3, 10, {6: 1.0, 7: 1.0, 8: 0.7}),  # no level part
        (10, 0, 10, {9: 1.0, 10: 0.1}),
        (0, 0, 1, {0: 1.0, 1: 0.1, 10**9: 0.1}),
    ],
)
def test_the_corners_of_up_level_and_down_are_defined(warmup, decay, total, written):
    measured = stable(written, warmup_steps=warmup, decay_steps=decay, total_steps=total)
    assert measured == pytest.approx(list(written.values()))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"decay_steps": 7}, "warmup_steps=4 and decay_steps=7 are more than total_steps=10"),
        ({"decay_steps": -1}, "decay_steps=-1"),
        ({"decay_steps": 2.5}, "decay_steps=2.5 must be a whole number"),
        ({"warmup_steps": 11, "decay_steps": 0}, "warmup_steps=11 is more than total_steps=10"),
        ({"min_lr": 2.0}, "min_lr=2.0"),
        ({"step": -1}, "step=-1"),
    ],
)
def test_numbers_that_make_no_up_level_and_down_are_refused(changed, words):
    call = {"step": 0} | STABLE | changed
    with pytest.raises(ValueError, match=words):
        warmup_stable_decay(call.pop("step"), **call)


def test_a_sweep_multiplies_by_the_same_factor_each_time():
    measured = [lr_sweep(step, min_lr=1e-4, max_lr=1.0, total_steps=9) for step in range(12)]
    assert measured == pytest.approx([10 ** (step / 2 - 4) for step in range(9)] + [1.0] * 3)


def test_two_updates_are_a_sweep_and_its_ends_are_exact():
    """0.3 * (0.9 / 0.3) is 0.8999999999999999."""
    assert [lr_sweep(step, min_lr=0.3, max_lr=0.9, total_steps=2) for step in range(3)] == [0.3, 0.9, 0.9]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"min_lr": 0.0}, "min_lr=0.0 must be more than 0"),
        ({"min_lr": 2.0}, "min_lr=2.0"),
        ({"total_steps": 1}, "total_steps=1 must be at least 2"),
        ({"total_steps": 8.5}, "total_steps=8.5 must be a whole number"),
        ({"step": -1}, "step=-1"),
    ],
)
def test_numbers_that_make_no_sweep_are_refused(changed, words):
    call = {"step": 0, "min_lr": 1e-4, "max_lr": 1.0, "total_steps": 9} | changed
    with pytest.raises(ValueError, match=words):
        lr_sweep(call.pop("step"), **call)
