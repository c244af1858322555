"""Still pictures: recorded data in, a matplotlib axis out. The colours are those of the live plot."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tinytrain.watch.compare import plot_run, plot_runs
from tinytrain.watch.labels import EndLabel, frame, label_ends, left_out
from tinytrain.watch.svg import INKS

__all__ = ["plot_bars", "plot_curves", "plot_matrix", "plot_paths", "plot_run", "plot_runs", "plot_seeds"]

Points = tuple[Sequence[float], Sequence[float]]
# With the colours and the labels at the ends, lines differ in grey as well.
STYLES = ("-", "-", "--", ":", "-.", (0, (1, 1)), (0, (8, 2)), (0, (4, 1, 1, 1)))


def plot_curves(
    ax: Axes,
    curves: Mapping[str, Points],
    *,
    title: str,
    x: str,
    y: str,
    levels: Mapping[str, float] | None = None,
    log_x: bool = False,
    log_y: bool = False,
) -> Axes:
    """Lines over the same axes, each labelled where it ends; ``levels`` are horizontal lines to compare with.

    ``curves`` maps a label to (xs, ys). ``title`` states the finding; ``x`` and ``y`` name the axes with units.
    What is not finite leaves a gap, and the label says so; on a logarithmic axis so does what is not above zero.
    """
    _scale(ax, log_x, log_y)
    labels: list[EndLabel] = []
    for i, (label, (xs, ys)) in enumerate(curves.items()):
        ink, text, _ = INKS[i % len(INKS)]
        seen = np.isfinite(ys) & (np.greater(ys, 0) | (not log_y))
        ax.plot(xs, np.where(seen, ys, np.nan), color=ink, linestyle=STYLES[i % len(STYLES)], linewidth=1.6)
        shown = [value for value, is_seen in zip(ys, seen, strict=True) if is_seen]
        labels.append((shown[-1] if shown else float(log_y), label + left_out(np.isfinite(ys), seen), text))
    labels += _levels(ax, levels)
    ax.margins(y=0.08)  # room for a label at the height of the highest line
    frame(ax, title, x, y)
    label_ends(ax, labels)
    return ax


def _scale(ax: Axes, log_x: bool, log_y: bool) -> None:
    if log_x:
        ax.set_xscale("log")
    if log_y:
        ax.set_yscale("log")


def _levels(ax: Axes, levels: Mapping[str, float] | None) -> list[EndLabel]:
    for level in (levels or {}).values():
        ax.axhline(level, color="#777777", linewidth=0.9, linestyle=":")
    return [(level, label, "#555555") for label, level in (levels or {}).items()]


def plot_seeds(
    ax: Axes,
    arms: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    title: str,
    x: str,
    y: str,
    levels: Mapping[str, float] | None = None,
    log_x: bool = True,
) -> Axes:
    """What several seeds gave for each setting: ``arms`` maps a label to ``{x: [one value for each seed]}``.

    Each value is a dot, a line goes through the means, a band from the lowest to the highest. A run that ended in
    NaN or infinity has no dot, and its arm's label says how many there were.
    """
    _scale(ax, log_x, log_y=False)
    labels: list[EndLabel] = []
    for i, (label, values) in enumerate(arms.items()):
        ink, text, _ = INKS[i % len(INKS)]
        finite = {at: [v for v in seeds if np.isfinite(v)] for at, seeds in sorted(values.items())}
        lost = sum(map(len, values.values())) - sum(map(len, finite.values()))
        kept = {at: seeds for at, seeds in finite.items() if seeds}
        xs, means = list(kept), [float(np.mean(seeds)) for seeds in kept.values()]
        ax.plot(xs, means, color=ink, linestyle=STYLES[i % len(STYLES)], linewidth=1.6)
        ax.fill_between(xs, list(map(min, kept.values())), list(map(max, kept.values())), color=ink, alpha=0.15, lw=0)
        dots = [(at, value) for at, seeds in kept.items() for value in seeds]
        ax.scatter(*np.array(dots or [(np.nan, np.nan)]).T, s=10, color=ink)
        labels.append((means[-1] if means else 0.0, f"{label} ({lost} not finite)" if lost else label, text))
    labels += _levels(ax, levels)
    ax.margins(y=0.08)
    frame(ax, title, x, y)
    label_ends(ax, labels)
    return ax


def plot_bars(
    ax: Axes,
    groups: Mapping[str, Sequence[float]],
    *,
    names: Sequence[str],
    title: str,
    x: str,
    y: str,
    digits: int = 2,
) -> Axes:
    """Bars side by side: ``groups`` maps a label to one value for each of ``names``; heights are written above.

    With more than 24 bars the heights are left to the axis.
    """
    width = 0.8 / max(1, len(groups))
    for i, (label, values) in enumerate(groups.items()):
        ink, _, _ = INKS[i % len(INKS)]
        places = np.arange(len(names)) + (i - (len(groups) - 1) / 2) * width
        bars = ax.bar(places, values, width=0.92 * width, color=ink, label=label)
        if len(groups) * len(names) <= 24:
            ax.bar_label(bars, [f"{value:.{digits}f}" for value in values], fontsize=8, padding=2)
    ax.set_xticks(np.arange(len(names)), names)
    ax.margins(y=0.12)
    frame(ax, title, x, y)
    if len(groups) > 1:
        ax.legend(frameon=False, fontsize=9)
    return ax


def plot_paths(
    ax: Axes,
    height: Callable[[np.ndarray, np.ndarray], np.ndarray],
    paths: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    title: str,
    x: str,
    y: str,
) -> Axes:
    """Paths over the contour lines of ``height(X, Y)``: a ring at each start, a dot at each end, a legend by name."""
    X, Y = np.meshgrid(np.linspace(*x_range, 120), np.linspace(*y_range, 120))
    Z = height(X, Y)
    levels = np.quantile(Z, np.linspace(0.02, 0.95, 12))
    ax.contour(X, Y, Z, levels=np.unique(levels), colors="#c4c4c4", linewidths=0.7)
    for i, (label, path) in enumerate(paths.items()):
        ink, _, _ = INKS[i % len(INKS)]
        points = np.asarray(path, dtype=float)
        ax.plot(*points.T, color=ink, linestyle=STYLES[i % len(STYLES)], linewidth=1.4, marker=".", ms=4, label=label)
        ax.plot(*points[0], "o", color="#333333", fillstyle="none", markersize=9)
        ax.plot(*points[-1], "o", color=ink, markersize=7)
    ax.set_xlim(*x_range)
    ax.set_ylim(*y_range)
    frame(ax, title, x, y)
    ax.grid(False)
    ax.legend(frameon=False, fontsize=9)
    return ax


def plot_matrix(
    ax: Axes,
    values: Sequence[Sequence[float]],
    *,
    title: str,
    x: str,
    y: str,
    letters: Sequence[Sequence[str]] | None = None,
) -> Axes:
    """A square of cells, dark where a value is large, with a cross where it is not finite.

    Values from 0 up; the darkest is the largest finite one. ``letters`` writes a text into each cell.
    """
    array = np.asarray(values, dtype=float)
    finite = np.isfinite(array)
    top = array[finite].max() if finite.any() else 0.0
    ax.imshow(np.where(finite, array, 0.0), cmap="Blues", vmin=0, vmax=1.25 * top or 1.0)
    rows, columns = np.nonzero(~finite)
    ax.plot(columns, rows, "x", color="#b00020", markersize=5)
    for (row, column), letter in np.ndenumerate(np.asarray(letters if letters is not None else [], dtype=str)):
        dark = array[row, column] > 0.5 * top
        ax.text(column, row, letter, ha="center", va="center", fontsize=10, color="white" if dark else "#333333")
    for edge in (ax.xaxis, ax.yaxis):
        edge.set_major_locator(MaxNLocator(integer=True, nbins=5))
    _cell_borders(ax, array.shape)
    ax.set_title(title, loc="left", fontsize=10)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    return ax


def _cell_borders(ax: Axes, shape: tuple[int, ...]) -> None:
    ax.set_xticks(np.arange(shape[1] + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(shape[0] + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=0.8)
    ax.tick_params(which="minor", length=0)
