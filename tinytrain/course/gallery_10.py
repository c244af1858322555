"""The gallery of notebook 10: ten runs made sick, how each looks, and the question beside it."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from tinytrain.course.guess import guess
from tinytrain.course.sick import SICK
from tinytrain.runlog import Run
from tinytrain.watch.doctor import diagnose

GALLERY = {
    "A": ("lr far too large", "labels shuffled", "bad batch"),
    "B": ("labels shuffled", "lr too small", "clipped to nothing"),
    "C": ("tiny corpus", "evaluated on other text", "labels not shifted"),
    "D": ("lr jumps", "bad batch", "labels shuffled"),
    "E": ("bad batch", "lr far too large", "embedding init"),
    "F": ("labels not shifted", "tiny corpus", "embedding init"),
    "G": ("lr too small", "clipped to nothing", "labels shuffled"),
    "H": ("embedding init", "lr far too large", "evaluated on other text"),
    "I": ("evaluated on other text", "tiny corpus", "lr jumps"),
    "J": ("clipped to nothing", "lr too small", "labels shuffled"),
}
"""The runs of the gallery by letter: what was done, and two guesses beside it."""

LOOKS = {
    "lr far too large": "The loss swings by whole nats, and stays far above where it began.",
    "labels shuffled": "The loss falls fast to what the frequencies of the bytes give, near 3.3 nats, and stays there.",
    "bad batch": "Calm, then one or two updates at which norm and loss jump together, then calm again.",
    "lr too small": "The loss hardly moves, and the lr panel says why: the blue line lies on 0.",
    "clipped to nothing": "The loss hardly moves although the lr is that of the healthy run, and the norm stays where "
    "it began: the step is lost between them.",
    "tiny corpus": "Training falls and falls, and from some update on the evaluation (dots) rises.",
    "evaluated on other text": "The dots are far away from the first one on, and rise, while training is healthy.",
    "labels not shifted": "Training and evaluation both fall to almost 0: no text can be predicted that well.",
    "lr jumps": "The lr panel is not the plan: the schedule begins again in the middle.",
    "embedding init": "The first loss is far above ln 256 = 5.55; then it falls as in any run.",
}
"""How each cause shows."""


def ask(letter: str, run: Run) -> None:
    """The question for one run of the gallery, its answers, and what the doctor says, folded."""
    right, *others = GALLERY[letter]
    choices = sorted([right, *others], key=list(LOOKS).index)
    replies = {name: LOOKS[name] if name == right else f"That looks otherwise. {LOOKS[name]}" for name in choices}
    reveal = f"Run {letter}: {SICK[right].done}. The doctor says:\n\n```text\n{diagnose(run)[0]}\n```"
    guess(f"Run {letter}: what was done to it?", replies, right=right, reveal=reveal)


def _panel(ax: Axes, name: str, runs: Mapping[str, Run]) -> None:
    """One name of two runs, sick over healthy; evaluations as dots."""
    for (ink, width), run in zip((("#bbbbbb", 1.0), ("#0072b2", 1.2)), reversed(runs.values()), strict=True):
        for y, style in ((name, "-"), ("eval_loss", "o")):
            if y == name or name == "loss":
                points = [(r["step"], r[y]) for r in run if r.get(y) is not None]
                if points:
                    ax.plot(*zip(*points, strict=True), style, color=ink, linewidth=width, markersize=2.5)
    if name == "grad_norm":
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(NullFormatter())
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(labelsize=8)


PANELS = {"loss": "loss, nats", "grad_norm": "gradient norm", "lr": "learning rate"}


def sheet(runs: Mapping[str, Run], healthy: Run) -> Figure:
    """All ``runs`` (blue) over ``healthy`` (grey): a column for each, with loss, norm and learning rate."""
    figure, axes = plt.subplots(len(PANELS), len(runs), figsize=(10, 4.8), dpi=70, layout="constrained")
    for column, (letter, run) in zip(axes.T, runs.items(), strict=True):
        for ax, (name, unit) in zip(column, PANELS.items(), strict=True):
            _panel(ax, name, {letter: run, "healthy": healthy})
            ax.set_title(f"{letter}: {unit}", loc="left", fontsize=9)
        column[-1].set_xlabel("updates", fontsize=8)
    return figure


def portrait(letter: str, run: Run, healthy: Run, doctor: str) -> Figure:
    """Loss, norm and lr of one run (blue) over the healthy one (grey); with ``doctor="shown"`` its name above."""
    figure = Figure(figsize=(7.2, 2.2), dpi=60, layout="constrained")
    units = {
        "loss": "loss, nats per byte (dots: evaluation)",
        "grad_norm": "norm of the gradient",
        "lr": "learning rate",
    }
    for ax, (name, unit) in zip(figure.subplots(1, 3), units.items(), strict=True):
        _panel(ax, name, {letter: run, "healthy": healthy})
        ax.set_title(unit, loc="left", fontsize=9)
        ax.set_xlabel("updates", fontsize=8)
    named = diagnose(run)
    told = (
        f": {named[0].name}, since {named[0].unit} {named[0].since}"
        if doctor == "shown"
        else ": what is wrong with it?"
    )
    figure.suptitle(f"Run {letter}{told}", x=0.01, ha="left", fontsize=11)
    return figure
