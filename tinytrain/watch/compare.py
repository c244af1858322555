"""Runs beside each other: one panel for each name in their logs, one line for each run."""

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from tinytrain.runlog import Run
from tinytrain.watch.history import History
from tinytrain.watch.lines import AXES_INCHES, LETTER_INCHES, LINE_INCHES, Panel
from tinytrain.watch.marks import counted
from tinytrain.watch.smooth import check_half_life
from tinytrain.watch.thin import BINS, thin

MOST_RUNS = 8
NAMES = ("loss", "grad_norm", "lr")
PER_ROW = 3  # panels beside each other


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
    width = columns * (AXES_INCHES[1] + 0.9 + LETTER_INCHES * max(p.label_size()[0] for p in panels))
    words = [part for line in _words(histories, panels, half_life) for part in _wrapped(line, width)]
    rows = -(-len(names) // columns)
    tallest = max(LINE_INCHES * (p.label_size()[1] * (len(p.labelled()) - 1) + 2) for p in panels)
    inches = max(AXES_INCHES[0], tallest)
    height = rows * (inches + 0.9) + 0.16 * len(words) + 0.35 * bool(title)
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")
    for ax, panel in zip(axes.flat, panels, strict=False):
        panel.draw(ax, inches)
    for ax in axes.flat[len(panels) :]:
        ax.remove()
    if words:
        figure.supxlabel("\n".join(words), x=0.01, ha="left", fontsize=9, color="#444444")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    return figure


def _words(histories: Sequence[History], panels: Sequence[Panel], half_life: float | None) -> Iterator[str]:
    """What the lines cannot show: what each run went through, and what the signs mean."""
    last = max((h.end for h in histories if np.isfinite(h.end)), default=0.0)
    for i, history in enumerate(histories):
        facts = [fact for panel in panels if (fact := panel.lines[i].first_bad())]
        if n := len(history.skipped):
            facts.append(counted(n, "update{s} skipped", "first", history.words(float(history.skipped[0]))))
        if n := history.skipped_at_end:
            facts.append(f"its log ends with {f'{n:,} of them' if n > 1 else 'one of them'}")
        if history.end < last:
            facts.append(f"ends at {history.words(history.end)}")
        if n := len(history.checkpoints):
            facts.append(counted(n, "checkpoint{s} kept", "last", history.words(history.checkpoints[-1][0])))
        if facts:
            yield (f"{history.label}: " if history.label else "") + "; ".join(facts)
    yield from _key(histories, panels, half_life)


def _key(histories: Sequence[History], panels: Sequence[Panel], half_life: float | None) -> Iterator[str]:
    signs = []
    if any(panel.evaluations for panel in panels):
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


def _wrapped(line: str, inches: float) -> list[str]:
    return textwrap.wrap(line, max(40, int(inches / LETTER_INCHES * 0.95)))
