"""Still pictures: recorded data in, a matplotlib axis out. The colours are those of the live plot."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tinytrain.runlog import Run
from tinytrain.watch.svg import INKS

Points = tuple[Sequence[float], Sequence[float]]
STYLES = ("-", "-", "--", ":")  # with the colours and the labels at the ends, lines differ in grey as well


def plot_curves(
    ax: Axes,
    curves: Mapping[str, Points],
    *,
    title: str,
    x: str,
    y: str,
    levels: Mapping[str, float] | None = None,
) -> Axes:
    """Lines over the same axes, each labelled where it ends; ``levels`` are horizontal lines to compare with.

    ``curves`` maps a label to (xs, ys). ``title`` states the finding; ``x`` and ``y`` name the axes with units.
    """
    labels: list[tuple[float, str, str]] = []
    for i, (label, (xs, ys)) in enumerate(curves.items()):
        ink, text, _ = INKS[i % len(INKS)]
        ax.plot(xs, np.where(np.isfinite(ys), ys, np.nan), color=ink, linestyle=STYLES[i % len(STYLES)], linewidth=1.6)
        finite = [y for y in ys if np.isfinite(y)]
        bad = "" if len(finite) == len(ys) else f" ({len(ys) - len(finite)} not finite)"
        labels.append((finite[-1] if finite else 0.0, label + bad, text))
    for label, level in (levels or {}).items():
        ax.axhline(level, color="#777777", linewidth=0.9, linestyle=":")
        labels.append((level, label, "#555555"))
    ax.margins(y=0.08)  # room for a label at the height of the highest line
    _frame(ax, title, x, y)
    _label_ends(ax, labels)
    return ax


def _label_ends(ax: Axes, labels: list[tuple[float, str, str]]) -> None:
    """Write each label beside the right edge at its height, pushed apart where they would overlap."""
    low, high = ax.get_ylim()
    labels = sorted(labels, key=lambda label: label[0])
    heights = _spread([value for value, _, _ in labels], gap=0.06 * (high - low), top=high)
    for height, (_, label, colour) in zip(heights, labels, strict=True):
        ax.annotate(
            label,
            xy=(1.01, height),
            xycoords=("axes fraction", "data"),
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )


def _spread(values: list[float], gap: float, top: float) -> list[float]:
    """Heights at least ``gap`` apart, near the sorted ``values`` and none above ``top``."""
    heights = list(values)
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    ceiling = top
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], ceiling)
        ceiling = heights[i] - gap
    return heights


def _frame(ax: Axes, title: str, x: str, y: str) -> None:
    ax.set_title(title, loc="left", fontsize=11)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    ax.set_axisbelow(True)


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


def plot_run(run: Run, names: Sequence[str] = ("loss", "grad_norm", "lr")) -> Figure:
    """One panel for each name in a run's log, over its updates; ``"loss"`` also shows the evaluations."""
    figure, axes = plt.subplots(1, len(names), figsize=(4.6 * len(names), 3.0), squeeze=False, layout="constrained")
    for ax, name in zip(axes[0], names, strict=True):
        curves = {name: run.series(name)}
        if name == "loss" and any(record.get("eval_loss") is not None for record in run):
            curves["eval_loss"] = run.series("eval_loss")
        plot_curves(ax, curves, title=name, x="step (completed updates)", y=name)
    return figure
