"""Strokes: one curve as the `d` of SVG paths.

Points are written relative to the one before, in whole tenths of a pixel (half pixels for the band): that
takes half the bytes of full coordinates, and no rounding error adds up.
"""

from collections.abc import Iterator, Sequence

from tinytrain.watch.axis import Axis
from tinytrain.watch.curve import Bin


def path(xs: Sequence[float], ys: Sequence[float], unit: float) -> str:
    """The `d` of a path through points, in whole `unit`s of a pixel. A single point is a line of length 0.

    >>> path([1.0, 2.5], [2.0, 1.0], unit=0.1)
    'M10 20l15-10'
    """
    across, down = [round(x / unit) for x in xs], [round(y / unit) for y in ys]
    steps = zip(across, across[1:] or across, down, down[1:] or down, strict=False)
    moves = " ".join(f"{x1 - x0} {y1 - y0}" for x0, x1, y0, y1 in steps)
    return f"M{across[0]} {down[0]}l{moves}".replace(" -", "-")


def runs(bins: Sequence[Bin]) -> Iterator[list[Bin]]:
    """Neighbours that one line may join. One with a non-finite point stands alone, for what else is in it."""
    run: list[Bin] = []
    for b in bins:
        if b.bad and run:
            yield run
            run = []
        if b.bad and b.count:
            yield [b]
        elif not b.bad:
            run.append(b)
    if run:
        yield run


def line(bins: Sequence[Bin], x: Axis, y: Axis) -> str:
    """The line through the bins' means, in tenths of a pixel."""
    return "".join(path(x.places(b.middle for b in run), y.places(b.mean for b in run), 0.1) for run in runs(bins))


def dots(bins: Sequence[Bin], x: Axis, y: Axis) -> str:
    """Each mean by itself, in tenths of a pixel."""
    return "".join(path([x.place(b.middle)], [y.place(b.mean)], 0.1) for b in bins if b.count)


def band(bins: Sequence[Bin], x: Axis, y: Axis) -> str:
    """The area between the bins' lowest and highest values, in half pixels; nothing if that is no area."""
    parts = []
    for run in runs(bins if any(b.low < b.high for b in bins) else ()):
        xs, highs, lows = (
            x.places(b.middle for b in run),
            (b.high for b in run),
            (b.low for b in reversed(run)),
        )
        parts.append(path(xs + xs[::-1], y.places(highs) + y.places(lows), 0.5) + "z")
    return "".join(parts)


def bad_spans(bins: Sequence[Bin], x: Axis) -> list[tuple[float, float]]:
    """Where values were not finite: pixels of the x axis, 4 or more at a time, neighbours joined."""
    spans: list[tuple[float, float]] = []
    after_bad = False
    for b in bins:
        if b.bad:
            start, end = x.place(b.first) - 2, x.place(b.last) + 2
            if spans and (after_bad or start <= spans[-1][1] + 1):
                start = spans.pop()[0]
            spans.append((start, end))
        after_bad = bool(b.bad)
    return spans
