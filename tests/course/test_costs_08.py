"""What resuming from the weights alone costs, what a save costs, and how often to save."""

import pytest
import torch

from tinytrain.course import costs_08
from tinytrain.course.costs_08 import (
    added,
    best_interval,
    draw_costs,
    resume_in_four_ways,
    tens,
    timed,
    update_and_save_seconds,
)


@pytest.fixture(autouse=True)
def _one_thread():
    """As the children have, or the last digits would differ."""
    torch.set_num_threads(1)


def test_a_resume_in_four_ways_differs_in_the_first_steps_length():
    found = resume_in_four_ways(0, stop=15, after=3)
    arms = ("full", "weights", "warmup", "full warmup")
    assert len({found[arm][0] for arm in arms}) == 1  # before any of them has moved
    assert len({found[arm][1] for arm in arms}) == 4
    lengths = {arm: found[f"{arm} length"][0] for arm in arms}
    assert 0.9 < lengths["weights"] < 1.1 and lengths["full"] < 0.8
    for short, long in (("warmup", "weights"), ("full warmup", "full")):
        assert lengths[short] == pytest.approx(lengths[long] / costs_08.WARMUP, rel=0.05)
    assert found == resume_in_four_ways(0, stop=15, after=3) != resume_in_four_ways(1, stop=15, after=3)


def test_means_of_ten_leave_out_what_is_no_ten():
    assert tens(range(25)) == [4.5, 14.5]


def test_times_are_the_shortest_and_more_than_nothing(tmp_path):
    assert timed(lambda n: costs_08.time.sleep(0.02 if n else 0.001), times=3) < 0.02
    assert all(0 < seconds < 60 for seconds in update_and_save_seconds(tmp_path))


def test_the_best_interval_costs_least_and_half_of_it_in_saving():
    case = {"save": 2.0, "update": 0.5, "hours": 10}
    best = best_interval(**case)
    saving, twice = added(best, **case)
    assert saving == pytest.approx(twice)
    assert all(sum(added(other, **case)) > saving + twice for other in (0.9 * best, 1.1 * best))
    assert added(100, **case) == (4.0, pytest.approx(100 * 25 / 36_000))


def test_the_costs_are_drawn_around_the_best():
    ax = draw_costs(1.3, 0.3, 24).axes[0]
    assert "1,580 updates" in ax.get_title(loc="left")
    saving, twice, both = (line.get_ydata() for line in ax.lines[:3])
    assert both == pytest.approx(saving + twice)
