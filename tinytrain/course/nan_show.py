"""The pictures of notebook 11's runs, and the questions of its hunt."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from tinytrain.course.means import running_mean
from tinytrain.course.nan_trial import IGNORED, Trial
from tinytrain.watch.labels import frame
from tinytrain.watch.nan_hunt import NanHunt
from tinytrain.watch.plots import plot_curves
from tinytrain.watch.svg import INKS

PANELS = {
    "loss": ("loss (nats per byte)", False),
    "grad_norm": ("norm of the gradient", True),
    "loss_scale": ("loss scale", True),
}


def _plain(value: float, _place: int) -> str:
    return f"{value:g}"


def show_log(trial: Trial, title: str, names: Sequence[str] = ("loss", "loss_scale")) -> Figure:
    """Fields of the log over the batches; a tick below marks a skipped update, grey a loss that is not finite."""
    figure, axes = plt.subplots(1, len(names), figsize=(2.5 + 2.5 * len(names), 2.6), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    xs = list(range(len(trial.run)))
    for ax, name in zip(axes, names, strict=True):
        y, log_y = PANELS[name]
        values = trial.series(name)
        ax.plot(xs, [v if math.isfinite(v) and (v > 0 or not log_y) else math.nan for v in values], color=INKS[0][0])
        ax.set_yscale("log" if log_y else "linear")
        frame(ax, "", "batch", y)
        if name == "grad_norm":
            ax.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter=_plain, minor_locator=NullLocator())
        ax.plot(trial.skips, [0.02] * len(trial.skips), "|", color="black", ms=5, transform=ax.get_xaxis_transform())
        for n in trial.nans:
            ax.axvspan(n - 0.5, n + 0.5, color="#bbbbbb", alpha=0.6, lw=0)
    return figure


def show_rerun(sick: Trial, mended: Trial, title: str, **others: Trial) -> Figure:
    """The loss of the sick and of the mended run, and of others by name, over the batches."""
    figure, ax = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    trials = {"sick": sick, "mended": mended} | {name.replace("_", " "): other for name, other in others.items()}
    curves = {name: (range(len(trial.run)), running_mean(trial.series("loss"), 5)) for name, trial in trials.items()}
    plot_curves(ax, curves, title=title, x="batch", y="loss (nats), mean of 5")
    line = next(line for line in ax.lines if line.get_color() == INKS[0][0])  # the sick run, over the others
    line.set(linewidth=3.0, alpha=0.7)
    if gone := [n for n in range(1, len(sick.run)) if n in set(sick.nans) and n - 1 not in set(sick.nans)]:
        ax.plot(gone, [curves["sick"][1][n - 1] for n in gone], "x", color="#b00020", markersize=6)
    return figure


def look_at_data(trial: Trial, batches: list[int]) -> None:
    """The first question: are ids and labels what they should be?"""
    for n in batches:
        batch = trial.case.batch(n)
        ids, labels = batch["input_ids"], batch["labels"]
        targets = labels[labels != IGNORED]
        reach = f"{int(targets.min())} to {int(targets.max())}" if len(targets) else "none"
        empty = int(((labels != IGNORED).sum(1) == 0).sum())
        print(f"batch {n}: ids {int(ids.min())} to {int(ids.max())}, targets {reach}", end="; ")
        print(f"{len(targets)} of {labels.numel()} positions are targets, {empty} of {len(labels)} rows have none")


def look_along(trial: Trial, batches: list[int]) -> None:
    """The second and third question: how large are the logits, and where is the scale?"""
    print(f"{'batch':>6}{'loss':>8}{'largest logit':>15}{'scale':>10}{'gradients that are 0':>22}   update")
    for n in batches:
        r = trial.run.records[n]
        zero = f"{r['zero_gradients']:.0%}"
        made = "skipped" if r["skipped"] else "made"
        print(f"{n:6}{r['loss']:8.2f}{r['max_logit']:15.3g}{r['loss_scale']:10.2g}{zero:>22}   {made}")


def questions(trial: Trial) -> None:
    """The first three questions of the hunt, about the batches around the first bad one."""
    first, last = trial.bad[0], len(trial.run) - 1
    look_at_data(trial, [first - 1, first])
    print()
    look_along(trial, sorted({0, first - 1, first, first + 1, (first + last) // 2, last}))


def hunt(trial: Trial, n: int, *, lines: bool = False, scale_times: float = 1.0) -> NanHunt:
    """Batch n once more, forward and backward with ``scale_times`` the scale of that step, under ``NanHunt``."""
    model, batch, scale = trial.before(n)
    with NanHunt(model, lines=lines) as found:
        (trial.loss(model, batch) * scale * scale_times).backward()
    return found


def scale_warns(trial: Trial) -> int | None:
    """The first batch at which the scale was halved three times within ten batches, or stands above 2^17, twice the
    2^16 with which torch's begins; None if there is no such batch."""
    scales = trial.series("loss_scale")
    for n, scale in enumerate(scales):
        recent = scales[max(0, n - 10) : n + 1]
        if scale > 2.0**17 or sum(b < a for a, b in pairwise(recent)) >= 3:
            return n
    return None


def lead(trial: Trial) -> int:
    """By how many batches the scale's warning comes before the first loss that is not finite; the end of the run
    stands for what never came."""
    warned, end = scale_warns(trial), len(trial.run)
    return (trial.nans[0] if trial.nans else end) - (end if warned is None else warned)


def side_by_side(
    sick: Mapping[str, Trial], mended: Mapping[str, Trial], bf16: Mapping[str, Trial], hunts: Mapping[str, NanHunt]
) -> None:
    """Print a line for each case: when it broke, what ``hunts`` accuse, and how many updates were not finite."""
    heads = ("case", "first skip", "first NaN loss", "accused", "pass", "not finite: sick", "mended", "BF16")
    print("{:14}{:>11}{:>16}  {:27}{:10}{:>17}{:>8}{:>6}".format(*heads))
    for name, trial in sick.items():
        skip, nan = (each[0] if each else "none" for each in (trial.skips, trial.nans))
        who, phase = hunts[name].accused or "outside the model", getattr(hunts[name].first, "phase", "")
        counts = f"{len(trial.bad):>17}{len(mended[name].bad):>8}{len(bf16[name].bad):>6}"
        print(f"{name:14}{skip:>11}{nan:>16}  {who:27}{phase:10}{counts}")
