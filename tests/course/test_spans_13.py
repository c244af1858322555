"""Exercise 13.3's timelines: spans lie within spans, own seconds add up, and each mistake is told its own sentence."""

import pytest

from tinytrain.course.spans_13 import likely_seconds, some_seconds, timeline

STEP = ("step", 0.0, [("forward", 3.0, [("attention", 2.0, [])]), ("backward", 4.0, [])])


def test_own_seconds_add_up_to_the_time_of_the_outermost_spans():
    for _ in range(20):
        trees = [("data", some_seconds(), []), STEP, ("data", some_seconds(), [])]
        spans, own = timeline(trees)
        outermost = sum(end - start for name, start, end in spans if name in ("data", "step"))
        assert outermost == sum(own.values()) and own["step"] == 0


def test_spans_lie_inside_the_one_around_them():
    for _ in range(20):
        at = {name: (start, end) for name, start, end in timeline([STEP])[0]}
        for inner, outer in (("forward", "step"), ("backward", "step"), ("attention", "forward")):
            assert at[outer][0] <= at[inner][0] < at[inner][1] <= at[outer][1]


def test_an_inner_span_comes_first_where_both_begin_together_if_that_is_wanted():
    begun_together = 0
    for _ in range(100):
        (first, start, _), (_, other_start, _) = timeline([("step", 1.0, [("forward", 1.0, [])])], inner_first=True)[0]
        begun_together += start == other_start
        assert first == "forward" or start < other_start
    assert begun_together > 0


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"step": 9.0, "forward": 5.0, "attention": 2.0, "backward": 4.0}, "whole durations"),
        ({"step": -2.0, "forward": 3.0, "attention": 2.0, "backward": 4.0}, "two levels inside"),
        ({"step": 0.0, "forward": 3000.0, "attention": 2000.0, "backward": 4000.0}, "milliseconds"),
        ({"step": 1.0, "forward": 3.0, "attention": 2.0, "backward": 4.0}, "directly inside it"),
    ],
)
def test_a_mistake_is_told_what_it_is(value, told):
    spans, own = timeline([STEP])
    assert told in likely_seconds(value, spans, own)
