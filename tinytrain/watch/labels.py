"""What every still picture shares: its frame, and labels written where lines end."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.ticker import NullLocator

EndLabel = tuple[float, str, str]
"""height (data), text, colour"""


def frame(ax: Axes, title: str, x: str, y: str) -> None:
    """Title at the left, named axes, quiet lines behind the data."""
    ax.set_title(title, loc="left", fontsize=11)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    ax.set_axisbelow(True)
    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        if axis.get_scale() == "log" and high / low >= 30:  # powers of ten say enough; in less, the others are needed
            axis.set_minor_locator(NullLocator())


def left_out(finite: np.ndarray, shown: np.ndarray) -> str:
    """What a label says of values that its line cannot show; ``shown`` are those of the finite ones that it does.

    >>> left_out(np.array([True, False, True]), np.array([True, False, False]))
    ' (1 not finite) (1 not above zero)'
    """
    counts = ((~finite, "not finite"), (finite & ~shown, "not above zero"))
    return "".join(f" ({n:,} {what})" for values, what in counts if (n := int(values.sum())))


def label_ends(ax: Axes, labels: Sequence[EndLabel], gap: float = 0.06) -> None:
    """Write each label beside the right edge at its height, pushed apart where they would overlap.

    From a label that was pushed away, a thin line leads to where it belongs.

    ``gap`` is the least distance of two labels, as a share of the height of the axes.
    """
    if not labels:
        return
    scale = ax.yaxis.get_transform()  # so that labels keep apart on a logarithmic axis as well
    low, high = scale.transform(np.array(ax.get_ylim(), dtype=float))
    labels = sorted(labels, key=lambda label: label[0])
    heights = scale.transform(np.array([value for value, _, _ in labels], dtype=float))
    own = np.clip(heights, low, high)
    apart = np.array(spread_out(own.tolist(), gap=gap * (high - low), top=float(high)))
    pushed = np.abs(apart - own) > 0.5 * gap * (high - low)
    own, apart = (scale.inverted().transform(places) for places in (own, apart))
    for place, height, is_pushed, (_, label, colour) in zip(own, apart, pushed, labels, strict=True):
        if is_pushed:
            way = [(1.0, float(place)), (1.025, float(height))]
            on_the_edge = {"transform": ax.get_yaxis_transform(), "clip_on": False}
            ax.add_collection(LineCollection([way], colors=[colour], linewidths=[0.6], **on_the_edge), autolim=False)
        ax.annotate(
            label,
            xy=(1.03 if pushed.any() else 1.01, float(height)),
            xycoords=("axes fraction", "data"),
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )


def spread_out(values: Sequence[float], gap: float, top: float) -> list[float]:
    """Heights at least ``gap`` apart, near the sorted ``values`` and none above ``top``."""
    heights = list(values)
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + gap)
    ceiling = top
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], ceiling)
        ceiling = heights[i] - gap
    return heights
