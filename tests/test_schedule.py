import pytest

from tinytrain.schedule import warmup_cosine


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


@pytest.mark.parametrize("changed", [{"warmup_steps": 2.5}, {"total_steps": 6.5}, {"total_steps": float("inf")}])
def test_parts_of_an_update_are_refused(changed):
    call = {"max_lr": 1.0, "min_lr": 0.1, "warmup_steps": 4, "total_steps": 10} | changed
    with pytest.raises(ValueError, match="must be a whole number of updates"):
        warmup_cosine(0, **call)
