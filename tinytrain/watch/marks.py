"""Marks: steps at which something happened, skipped updates and checkpoints, beside the curves of a run."""

from collections.abc import Sequence

from tinytrain.watch.curve import number

Span = tuple[float, float]
"""first and last step of a mark"""


class Marks:
    """Steps of one kind, in memory that does not grow: once there are ``most`` marks, the closest two become one.

    >>> marks = Marks(most=2)
    >>> for step in (10, 12, 90):
    ...     marks.add(step)
    >>> marks.spans, marks.count, marks.first, marks.last
    ([(10, 12), (90, 90)], 3, 10, 90)
    """

    def __init__(self, most: int = 24) -> None:
        self.most, self.spans, self.count = most, list[Span](), 0
        self.first: float | None = None
        self.last: float | None = None

    def add(self, step: float) -> None:
        """One more, at ``step``."""
        self.count += 1
        self.first, self.last = step if self.first is None else self.first, step
        if self.spans and self.spans[-1][0] <= step <= self.spans[-1][1]:
            return
        self.spans.append((step, step))
        self.spans.sort()
        while len(self.spans) > self.most:
            gaps = [after[0] - before[1] for before, after in zip(self.spans, self.spans[1:], strict=False)]
            i = gaps.index(min(gaps))
            self.spans[i : i + 2] = [(self.spans[i][0], max(self.spans[i][1], self.spans[i + 1][1]))]


def spans_of(places: Sequence[float], apart: float) -> list[Span]:
    """Sorted places as spans; neighbours less than ``apart`` from each other share one.

    >>> spans_of([1.0, 2.0, 9.0], apart=3)
    [(1.0, 2.0), (9.0, 9.0)]
    """
    spans: list[Span] = []
    for place in places:
        if spans and place - spans[-1][1] < apart:
            spans[-1] = (spans[-1][0], place)
        else:
            spans.append((place, place))
    return spans


def in_words(skipped: int, first_skipped: float | None, saved: int, last_saved: float | None) -> list[str]:
    """How many updates were skipped and how many checkpoints there are, and where; nothing of what there is none.

    >>> in_words(1, 12, 3, 200)
    ['1 update skipped, at step 12', '3 checkpoints, the last at step 200']
    """
    words = []
    if skipped and first_skipped is not None:
        where = f"{'the first ' if skipped > 1 else ''}at step {number(first_skipped)}"
        words.append(f"{skipped:,} update{'s' if skipped > 1 else ''} skipped, {where}")
    if saved and last_saved is not None:
        where = f"{'the last ' if saved > 1 else ''}at step {number(last_saved)}"
        words.append(f"{saved:,} checkpoint{'s' if saved > 1 else ''}, {where}")
    return words
