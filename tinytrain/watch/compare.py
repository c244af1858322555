"""Runs beside each other: one panel for each name in their logs, one line for each run."""

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tinytrain.runlog import Run
from tinytrain.watch.history import OVER, History
from tinytrain.watch.labels import EndLabel, frame, label_ends
from tinytrain.watch.marks import spans_of
from tinytrain.watch.smooth import check_half_life, smooth
from tinytrain.watch.svg import ALARM, INKS
from tinytrain.watch.thin import BINS, thin

MOST_RUNS = 8
NAMES = ("loss", "grad_norm", "lr")
PER_ROW = 3  # panels beside each other
LARGEST = 1e100  # what is larger is drawn there: matplotlib's axes overflow beyond
AXES_INCHES, LETTER_INCHES = (2.1, 3.0), 0.075  # height and width of a panel, without words; of a letter of 9 pt
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
    *(Look(*INKS[i][:2], dashes) for i, dashes in enumerate(("-", "--", ":", "-."))),
    Look("#333333", "#333333", "-", "o"),
    Look("#d55e00", "#a34700", "--", "s"),
    Look("#56b4e9", "#1f6f9f", "-", "^"),
    Look("#8c6d31", "#6b5220", "-.", "D"),
]


def plot_runs(
    runs: Mapping[str, Run | str | Path],
    names: Sequence[str] = NAMES,
    over: str = "step",
    *,
    half_life: float | None = None,
    log_scale: Collection[str] = (),
    title: str = "",
) -> Figure:
    """Runs on the same axes, a panel for each of ``names``, each run labelled where its line ends.

    ``runs`` maps a label to a run or to its folder, up to eight of them. ``over`` is ``"step"``, ``"tokens_seen"`` or
    ``"seconds"``. The panel of ``"loss"`` shows evaluations as dots. ``half_life`` (lines of the log) lays an
    exponential average over the lines as logged, which then stay visible behind it; ``log_scale`` names the panels
    with a logarithmic y axis.

    What a line cannot show is said: a value that is not finite leaves a gap, a cross on the upper edge and a count in
    the label; a stroke on the lower edge is an update that was skipped, a triangle a checkpoint that is still there
    (hollow: weights only). The words below count them, and say which run ended before the others. A run without a
    name, or with an empty log, says so. A long run is thinned so that no extreme and no gap is lost.

    Raises ``ValueError`` for settings that cannot be drawn, ``FileNotFoundError`` for a folder without a log.
    """
    if not 1 <= len(runs) <= MOST_RUNS:
        raise ValueError(f"{len(runs)} runs: draw 1 to {MOST_RUNS} in one picture, where they can be told apart")
    histories = [History(str(label), run, over) for label, run in runs.items()]
    return _figure(histories, names, half_life, log_scale, title, alone=False)


def plot_run(
    run: Run | str | Path,
    names: Sequence[str] = NAMES,
    over: str = "step",
    *,
    half_life: float | None = None,
    log_scale: Collection[str] = (),
    title: str = "",
) -> Figure:
    """One panel for each name in a run's log; ``"loss"`` also shows the evaluations. See ``plot_runs``."""
    return _figure([History("", run, over)], names, half_life, log_scale, title, alone=True)


def _figure(
    histories: Sequence[History],
    names: Sequence[str],
    half_life: float | None,
    log_scale: Collection[str],
    title: str,
    alone: bool,
) -> Figure:
    names = [names] if isinstance(names, str) else list(names)
    log_scale = [log_scale] if isinstance(log_scale, str) else list(log_scale)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"names={names!r}: give at least one, each of them once")
    if unknown := sorted(set(log_scale) - set(names)):
        raise ValueError(f"log_scale names {unknown}, which no panel shows; shown are {names}")
    if half_life is not None:
        check_half_life(half_life)
    panels = [Panel(name, histories, half_life, name in log_scale, alone) for name in names]
    columns = min(PER_ROW, len(names))
    width = columns * (AXES_INCHES[1] + 0.9 + LETTER_INCHES * max(p.longest_label() for p in panels))
    words = [part for line in _words(histories, panels, half_life) for part in _wrapped(line, width)]
    rows = -(-len(names) // columns)
    height = rows * (AXES_INCHES[0] + 0.9) + 0.16 * len(words) + 0.35 * bool(title)
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")
    for ax, panel in zip(axes.flat, panels, strict=False):
        panel.draw(ax)
    for ax in axes.flat[len(panels) :]:
        ax.remove()
    if words:
        figure.supxlabel("\n".join(words), x=0.01, ha="left", fontsize=9, color="#444444")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


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
        bad, below = int((~self.finite).sum()), int((self.finite & ~self.shown).sum())
        return self.label + "".join(
            f" ({n:,} {what})" for n, what in ((bad, "not finite"), (below, "not above zero")) if n
        )

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
        looks = dict(zip(map(id, histories), LOOKS, strict=False))
        self.lines = [Line(h, name, name if alone else h.label, looks[id(h)], log, half_life) for h in histories]
        self.evaluations = []
        if name == "loss":
            look = (lambda h: LOOKS[1]) if alone else (lambda h: looks[id(h)])
            lines = [Line(h, "eval_loss", "eval_loss", look(h), log) for h in histories]
            self.evaluations = [line for line in lines if len(line.ys)]

    def longest_label(self) -> int:
        labelled = [*self.lines, *(self.evaluations if self.alone else ())]
        return max(len(part) for line in labelled for part in _folded(line.words()).split("\n"))

    def draw(self, ax: Axes) -> None:
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
        label_ends(ax, list(self._labels(ax)), gap=self._gap())

    def _gap(self) -> float:
        """Between two labels, as a share of the panel's height: a line of 9 pt, or as many as the largest has."""
        return 0.165 / AXES_INCHES[0] * max(1 + _folded(line.words()).count("\n") for line in self.lines)

    def _labels(self, ax: Axes) -> Iterator[EndLabel]:
        bottom = ax.get_ylim()[0]
        right = ax.get_xlim()[1]
        for line in (*self.lines, *(self.evaluations if self.alone else ())):
            x, y = line.end() or (right, bottom)
            if x < right - 0.04 * (right - ax.get_xlim()[0]):  # from where the line ends to where its label stands
                ax.plot([x, right], [y, y], color=line.look.ink, linewidth=0.7, linestyle=(0, (1, 3)))
                ax.plot([x], [y], "o", color=line.look.ink, markersize=4)
            yield y, _folded(line.words()), line.look.text

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


def _words(histories: Sequence[History], panels: Sequence[Panel], half_life: float | None) -> Iterator[str]:
    """What the lines cannot show: what each run went through, and what the signs mean."""
    last = max((h.end for h in histories if np.isfinite(h.end)), default=0.0)
    for i, history in enumerate(histories):
        facts = [fact for panel in panels if (fact := panel.lines[i].first_bad())]
        if n := len(history.skipped):
            where = f"{'the first ' if n > 1 else ''}at {history.words(float(history.skipped[0]))}"
            facts.append(f"{n:,} update{'s' if n > 1 else ''} skipped, {where}")
        if n := history.skipped_at_end:
            facts.append(f"its log ends with {f'{n:,} of them' if n > 1 else 'one of them'}")
        if history.end < last:
            facts.append(f"ends at {history.words(history.end)}")
        if n := len(history.checkpoints):
            place = history.words(history.checkpoints[-1][0])
            facts.append(f"{n:,} checkpoint{'s' if n > 1 else ''} kept, {'the last ' if n > 1 else ''}at {place}")
        if facts:
            yield (f"{history.label}: " if history.label else "") + "; ".join(facts)
    yield from _key(histories, panels, half_life)


def _key(histories: Sequence[History], panels: Sequence[Panel], half_life: float | None) -> Iterator[str]:
    signs = []
    if any(len(line.evaluations) for line in panels):
        signs.append("dots: eval_loss")
    if any(not line.finite.all() for panel in panels for line in panel.lines):
        signs.append("× above: not finite")
    if any(len(h.skipped) for h in histories):
        signs.append("| below: an update skipped")
    kinds = {full for h in histories for _, full in h.checkpoints}
    signs += [
        f"{sign} checkpoint{what}"
        for sign, what, full in (("▲", "", True), ("△", ", weights only", False))
        if full in kinds
    ]
    if half_life is not None:
        signs.append(f"faint: as logged, strong: exponential average of it, half-life {half_life:g} lines of the log")
    if signs:
        yield " · ".join(signs)
    most = max(len(line.ys) for panel in panels for line in panel.lines)
    if len(thin(np.zeros(most))) < most:
        yield f"of every {most // BINS:,} lines the first, the last, the lowest and the highest are drawn"


def _folded(label: str) -> str:
    """A long label on several lines: all of it stays readable, and the axes keep their room."""
    return "\n".join(textwrap.wrap(label, 26)) or label


def _wrapped(line: str, inches: float) -> list[str]:
    return textwrap.wrap(line, max(40, int(inches / LETTER_INCHES * 0.95)))
