import pytest

from tinytrain.watch.marks import Events, Marks, spans_of


def test_marks_stay_apart_until_there_are_too_many_then_the_closest_are_joined():
    marks = Marks(most=3)
    for step in (1, 100, 200, 203, 400):
        marks.add(step)
    assert marks.spans == [(1, 100), (200, 203), (400, 400)]
    assert (marks.count, marks.first, marks.last) == (5, 1, 400)
    joined = Marks(most=3)
    for step in (1, 100, 200, 203):
        joined.add(step)
    assert joined.spans == [(1, 1), (100, 100), (200, 203)]


@pytest.mark.parametrize("n", [100, 5000])
def test_however_many_there_are_none_is_outside_its_spans(n):
    marks, steps = Marks(most=8), [7 * i % 1013 for i in range(n)]
    for step in steps:
        marks.add(step)
    assert len(marks.spans) <= 8 and marks.count == n
    assert all(any(a <= step <= b for a, b in marks.spans) for step in steps)


def test_neighbours_share_a_span():
    assert spans_of([], 3) == []
    assert spans_of([1, 2, 3, 9, 11, 30], apart=3) == [(1, 3), (9, 11), (30, 30)]


def test_events_in_words():
    events = Events()
    assert events.words() == []
    for step in (3, 4, 9):
        events.skipped.add(step)
    events.saved.add(100)
    events.weights.add(50)
    events.weights.add(150)
    assert events.words() == [
        "3 updates skipped, the first at step 3",
        "1 checkpoint, at step 100",
        "2 checkpoints of weights only, the last at step 150",
    ]
