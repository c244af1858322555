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


def counted(n: int, what: str, which: str, place: str) -> str:
    """How many there are, and where the first or the last of them is; ``what`` has a ``{s}`` for the plural.

    >>> counted(1, "update{s} skipped", "first", "step 12"), counted(3, "update{s} skipped", "first", "step 12")
    ('1 update skipped, at step 12', '3 updates skipped, the first at step 12')
    """
    return f"{n:,} {what.format(s='s' if n > 1 else '')}, {f'the {which} ' if n > 1 else ''}at {place}"


class Events:
    """What happens in a run beside its curves: updates that were skipped, checkpoints that were written."""

    def __init__(self, most: int = 24) -> None:
        self.skipped, self.saved, self.weights = Marks(most), Marks(most), Marks(most)

    def words(self) -> list[str]:
        """How many there are of each, and where; nothing of what there is none.

        >>> events = Events()
        >>> events.skipped.add(12)
        >>> for step in (50, 100):
        ...     events.saved.add(step)
        >>> events.words()
        ['1 update skipped, at step 12', '2 checkpoints, the last at step 100']
        """
        words = []
        if self.skipped.first is not None:
            place = f"step {number(self.skipped.first)}"
            words.append(counted(self.skipped.count, "update{s} skipped", "first", place))
        for marks, what in ((self.saved, ""), (self.weights, " of weights only")):
            if marks.last is not None:
                words.append(counted(marks.count, "checkpoint{s}" + what, "last", f"step {number(marks.last)}"))
        return words
