"""Lines: how one run's values of one name are drawn, and what stands around them in their panel."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from tinytrain.watch.history import OVER, History
from tinytrain.watch.labels import EndLabel, frame, label_ends, left_out
from tinytrain.watch.marks import spans_of
from tinytrain.watch.smooth import smooth
from tinytrain.watch.svg import ALARM, INKS
from tinytrain.watch.thin import thin

AXES_INCHES = (2.1, 3.0)  # least height and width of a panel, without words
LINE_INCHES, LETTER_INCHES = 0.165, 0.075  # height of a line of 9 pt, width of a letter
LARGEST = 1e100  # what is larger is drawn there: matplotlib's axes overflow beyond
PLANNED = ("lr",)  # set and not measured: there is no noise to average
UNITS = {"loss": "nats per token", "eval_loss": "nats per token", "lr": "learning rate", "tokens_per_second": "1/s"}
UNITS |= {"eval_bits_per_byte": "bits"}


@dataclass(frozen=True)
class Look:
    """How one run's lines look; they differ in grey as well, by their dashes and by signs along them."""

    ink: str
    text: str
    dashes: str = "-"
    sign: str = ""


LOOKS = [
    Look(ink, text, dashes, sign)
    for (ink, text, _), dashes, sign in zip(
        INKS, ("-", "--", ":", "-.", "-", "--", "-", "-."), ("", "", "", "", "o", "s", "^", "D"), strict=True
    )
]


@dataclass
class Line:
    """One run's values of one name, and how they are drawn."""

    history: History
    name: str
    label: str
    look: Look
    log: bool
    half_life: float | None = None

    def __post_init__(self) -> None:
        self.xs, self.ys = self.history.values(self.name)
        self.finite = np.isfinite(self.ys)
        self.shown = self.finite & ((self.ys > 0) | (not self.log))
        self.drawn = np.where(self.shown, np.clip(self.ys, -LARGEST, LARGEST), np.nan)
        self.smoothed = None if self.half_life is None else np.array(smooth(self.drawn.tolist(), self.half_life))

    def words(self) -> str:
        """The label, with what the line cannot show."""
        if not len(self.history.run):
            return f"{self.label}: empty log"
        if not len(self.ys):
            missing = self.name if np.isfinite(self.history.xs).any() else self.history.over
            return f"{self.label}: no {missing}" if self.label != missing else f"no {missing}"
        return self.label + left_out(self.finite, self.shown)

    def end(self) -> tuple[float, float] | None:
        """The last point that is shown, on the line that stands out."""
        best = self.drawn if self.smoothed is None else self.smoothed
        seen = np.flatnonzero(np.isfinite(best))
        return (float(self.xs[seen[-1]]), float(best[seen[-1]])) if len(seen) else None

    def first_bad(self) -> str:
        """Where it first was not finite, or nothing."""
        if self.finite.all():
            return ""
        return f"{self.name} not finite from {self.history.words(float(self.xs[~self.finite][0]))}"

    def draw(self, ax: Axes) -> None:
        look, strong = self.look, {"linewidth": 1.6, "alpha": 1.0}
        if self.smoothed is not None:
            self._stroke(ax, self.drawn, linewidth=0.8, alpha=0.4)
            self._stroke(ax, self.smoothed, linestyle=look.dashes, **strong)
        else:
            self._stroke(ax, self.drawn, linestyle=look.dashes, **strong)

    def _stroke(self, ax: Axes, ys: np.ndarray, **style: object) -> None:
        kept = thin(ys)
        xs, ys = self.xs[kept], ys[kept]
        (line,) = ax.plot(xs, ys, color=self.look.ink, **style)
        if self.look.sign and style["alpha"] == 1.0:
            line.set(marker=self.look.sign, markersize=4.5, markerfacecolor="white", markevery=max(1, len(xs) // 8))
        seen = np.isfinite(ys)
        alone = seen & ~np.append(False, seen[:-1]) & ~np.append(seen[1:], False)  # no line reaches them
        if alone.any():
            ax.scatter(xs[alone], ys[alone], s=12, color=self.look.ink, alpha=style["alpha"], linewidths=0)

    def dots(self, ax: Axes) -> None:
        """The values as dots, for what was measured now and then."""
        kept = thin(self.drawn)
        edge = {"markeredgecolor": "#222222", "markeredgewidth": 0.6}
        ax.plot(self.xs[kept], self.drawn[kept], "o", markersize=4, color=self.look.ink, **edge)


class Panel:
    """One name of all runs on one pair of axes."""

    def __init__(self, name: str, histories: Sequence[History], half_life: float | None, log: bool, alone: bool):
        self.name, self.histories, self.log, self.alone = name, histories, log, alone
        half_life = None if name in PLANNED else half_life
        looks = list(zip(histories, LOOKS, strict=False))
        self.lines = [Line(h, name, name if alone else h.label, look, log, half_life) for h, look in looks]
        self.evaluations = []
        if name == "loss":
            lines = [Line(h, "eval_loss", "eval_loss", LOOKS[1] if alone else look, log) for h, look in looks]
            self.evaluations = [line for line in lines if len(line.ys)]

    def labelled(self) -> list[Line]:
        """The lines with a label of their own; of several runs, evaluations are known by their colour."""
        return [*self.lines, *(self.evaluations if self.alone else ())]

    def label_size(self) -> tuple[int, int]:
        """Letters of the longest line of a label, and lines of the tallest label."""
        parts = [folded(line.words()).split("\n") for line in self.labelled()]
        return max(len(part) for label in parts for part in label), max(map(len, parts))

    def draw(self, ax: Axes, inches: float) -> None:
        """Draw all on ``ax``, which will be about this high."""
        if self.log:
            ax.set_yscale("log")
        for line in self.lines:
            line.draw(ax)
        for line in self.evaluations:
            line.dots(ax)
        if self.log and not any(line.end() for line in (*self.lines, *self.evaluations)):
            ax.set_ylim(0.1, 1.0)  # nothing has a place there, and an empty axis has to have a range
        ax.margins(y=0.08)
        ax.set_ylim(*ax.get_ylim())
        last = max((h.end for h in self.histories if np.isfinite(h.end)), default=1.0)
        first = min((float(np.nanmin(h.xs)) for h in self.histories if np.isfinite(h.end)), default=0.0)
        room = 0.02 * (last - first) or 0.5
        ax.set_xlim(first - room, last + room)
        for i, line in enumerate(self.lines):
            self._marks(ax, line, i, apart=(last - first) / 200)
        frame(ax, self.name, OVER[self.histories[0].over], UNITS.get(self.name, self.name))
        label_ends(ax, list(self._labels(ax)), gap=LINE_INCHES * self.label_size()[1] / inches)

    def _labels(self, ax: Axes) -> Iterator[EndLabel]:
        bottom = ax.get_ylim()[0]
        right = ax.get_xlim()[1]
        for line in self.labelled():
            x, y = line.end() or (right, bottom)
            if x < right - 0.04 * (right - ax.get_xlim()[0]):  # from where the line ends to where its label stands
                ax.plot([x, right], [y, y], color=line.look.ink, linewidth=0.7, linestyle=(0, (1, 3)))
                ax.plot([x], [y], "o", color=line.look.ink, markersize=4)
            yield y, folded(line.words()), line.look.text

    def _marks(self, ax: Axes, line: Line, row: int, apart: float) -> None:
        """On the edges, a row for each run: what was not finite above, skipped updates and checkpoints below."""
        at = dict(transform=ax.get_xaxis_transform(), clip_on=False, zorder=3)
        for a, b in spans_of(line.xs[~line.finite].tolist(), apart):
            ax.plot([a, b], [0.985 - 0.035 * row] * 2, color=ALARM, linewidth=2, solid_capstyle="butt", **at)
            ax.plot([a], [0.985 - 0.035 * row], "x", color=line.look.text, markersize=5, markeredgewidth=1.4, **at)
        for a, b in spans_of(line.history.skipped.tolist(), apart):
            ax.plot([a, b], [0.03 + 0.06 * row] * 2, color=line.look.ink, linewidth=2, solid_capstyle="butt", **at)
            ax.plot([a], [0.03 + 0.06 * row], "|", color=line.look.text, markersize=8, markeredgewidth=1.6, **at)
        for place, full in line.history.checkpoints:
            face = line.look.ink if full else "white"
            ax.plot([place], [-0.02], "^", markersize=6, color=line.look.text, markerfacecolor=face, **at)


def folded(label: str) -> str:
    """A long label on several lines: all of it stays readable, and the axes keep their room."""
    return "\n".join(textwrap.wrap(label, 26)) or label
