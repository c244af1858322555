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
STYLES = ("-", "--", ":", "-.")


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
        ax.plot(xs, ys, color=ink, linestyle=STYLES[i % len(STYLES)], linewidth=1.6)
        labels.append((ys[-1], label, text))
    for label, level in (levels or {}).items():
        ax.axhline(level, color="#777777", linewidth=0.9, linestyle=(0, (4, 3)))
        labels.append((level, label, "#555555"))
    _frame(ax, title, x, y)
    _label_ends(ax, labels)
    return ax


def _label_ends(ax: Axes, labels: list[tuple[float, str, str]]) -> None:
    """Write each label beside the right edge at its height, pushed apart where they would overlap."""
    low, high = ax.get_ylim()
    gap = 0.055 * (high - low)
    lowest_free = -np.inf
    for value, label, colour in sorted(labels):
        height = max(value, lowest_free)
        lowest_free = height + gap
        ax.annotate(
            label,
            xy=(1.01, height),
            xycoords=("axes fraction", "data"),
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )


def _frame(ax: Axes, title: str, x: str, y: str) -> None:
    ax.set_title(title, loc="left", fontsize=11)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    ax.set_axisbelow(True)


def plot_matrix(ax: Axes, values: Sequence[Sequence[float]], *, title: str, x: str, y: str) -> Axes:
    """A square of cells, dark where a value is large, with a cross where it is not finite.

    Values from 0 up; the darkest is the largest finite one.
    """
    array = np.asarray(values, dtype=float)
    finite = np.isfinite(array)
    top = array[finite].max() if finite.any() else 0.0
    ax.imshow(np.where(finite, array, 0.0), cmap="Blues", vmin=0, vmax=top or 1.0)
    rows, columns = np.nonzero(~finite)
    ax.plot(columns, rows, "x", color="#b00020", markersize=5)
    for edge in (ax.xaxis, ax.yaxis):
        edge.set_major_locator(MaxNLocator(integer=True))
    ax.set_title(title, loc="left", fontsize=10)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    return ax


def plot_run(run: Run, names: Sequence[str] = ("loss", "grad_norm", "lr")) -> Figure:
    """One panel for each name in a run's log, over its updates; ``"loss"`` also shows the evaluations."""
    figure, axes = plt.subplots(1, len(names), figsize=(4.6 * len(names), 3.0), squeeze=False, layout="constrained")
    for ax, name in zip(axes[0], names, strict=True):
        curves = {name: run.series(name)}
        if name == "loss" and any("eval_loss" in record for record in run):
            curves["eval_loss"] = run.series("eval_loss")
        plot_curves(ax, curves, title=name, x="step (completed updates)", y=name)
    return figure
