"""For notebook 11: seven training runs that go wrong in FP16, each with its log, its states, its mend and a rerun."""

import difflib
import inspect
import math
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from tinytrain.corpus import load_corpus
from tinytrain.course import nan_models as parts
from tinytrain.data import RowBatches, TokenRows
from tinytrain.precision import LossScaleError, Precision
from tinytrain.runlog import Run, RunLog, read_run
from tinytrain.step import train_step
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.watch.labels import frame
from tinytrain.watch.nan_hunt import NanHunt
from tinytrain.watch.plots import plot_curves
from tinytrain.watch.svg import INKS

Batch = dict[str, Tensor]
ROW_LENGTH, BATCH_SIZE, IGNORED = 32, 8, -100  # tokens in a row, rows in a batch, the label that is no target
BETAS = (0.9, 0.95)


# the loop's parts: stock torch, and the two that are home-made


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def mean_loss_or_zero(logits: Tensor, labels: Tensor) -> Tensor:
    total = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")
    return total / (labels != -100).sum().clamp(min=1)


class GrowingScaler:
    """A loss scaler by hand: doubles its scale every 15 updates."""

    def __init__(self) -> None:
        self._scale, self.updates = 2.0**13, 0

    def get_scale(self) -> float:
        return self._scale

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self._scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        for gradient in self.gradients:
            gradient /= self._scale

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def update(self) -> None:
        self.updates += 1
        if self.updates % 15 == 0:
            self._scale *= 2


class CheckedScaler(GrowingScaler):
    """The same, and it looks before it steps."""

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.good = all(gradient.isfinite().all() for gradient in self.gradients)
        if self.good:
            optimizer.step()

    def update(self) -> None:
        self.updates = self.updates + 1 if self.good else 0
        if not self.good:
            self._scale /= 2
        elif self.updates % 15 == 0:
            self._scale *= 2


# the data: Shakespeare, as it comes or with a change from some batch on


@cache
def _batches(curly: bool = False) -> RowBatches:
    text = load_corpus().split(validation_fraction=0.1)[0].text[:1_000_000]
    ids = ByteTokenizer().encode(text.replace("'", "\u2019") if curly else text)
    return RowBatches(rows=TokenRows(ids, ROW_LENGTH, 256), batch_size=BATCH_SIZE, seed=0)


def as_it_comes(n: int) -> Batch:
    return _batches()[n][0]


def another_edition(n: int) -> Batch:
    """From batch 80 on an edition in which apostrophes are typographic: three bytes that had not been seen."""
    return _batches(curly=n >= 80)[n][0]


def short_rows(n: int, *, every: int) -> Batch:
    """From batch 40 on every so many batches end in a row of 24 bytes, filled up with id 0."""
    batch = as_it_comes(n)
    if n >= 40 and n % every == 0:
        batch["input_ids"][-1, 24:] = 0
        batch["labels"][-1, 23:] = IGNORED
    return batch


def one_without_targets(n: int) -> Batch:
    batch = as_it_comes(n)
    return batch | {"labels": torch.full_like(batch["labels"], IGNORED)} if n == 60 else batch


# the cases


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run that goes wrong. ``sick`` and ``mended`` hold what differs; ``code`` shows where it lies, both ways."""

    name: str
    updates: int
    lr: float = 3e-3
    weight_decay: float = 0.0
    batch: Callable[[int], Batch] = as_it_comes
    sick: dict[str, Any]
    """``model``, ``loss``, ``scaler``: what the sick run uses in place of the usual"""
    mended: dict[str, Any]
    code: tuple[Any, Any]
    """the faulty source and the mended"""


def _model(**changes: Any) -> dict[str, Any]:
    return {"model": partial(parts.Model, **changes)}


_thin = partial(_model, byte_rms=0.031, even_rows=True, positions=False)
_padded = partial(_model, byte_rms=0.3, pad_is_zero=True, positions=False)
_bare = partial(_model, activation=parts.SquaredReLU, byte_rms=1.0)
CASES = {
    case.name: case
    for case in (
        Case(
            name="headline",
            updates=340,
            weight_decay=1.1,
            batch=another_edition,
            sick=_thin(norm=parts.HandRMSNorm),
            mended=_thin(),
            code=(parts.HandRMSNorm.forward, parts.Float32RMSNorm.forward),
        ),
        Case(
            name="softmax",
            updates=100,
            lr=1e-2,
            sick=_model(softmax=parts.HandSoftmax),
            mended=_model(),
            code=(parts.HandSoftmax.forward, parts.ShiftedSoftmax.forward),
        ),
        Case(
            name="now and then",
            updates=100,
            batch=partial(short_rows, every=7),
            sick=_padded(norm=parts.HandRMSNorm),
            mended=_padded(norm=partial(parts.HandRMSNorm, eps=1e-3)),
            code=("norm = HandRMSNorm(eps=1e-8)", "norm = HandRMSNorm(eps=1e-3)"),
        ),
        Case(
            name="standstill",
            updates=100,
            batch=partial(short_rows, every=1),
            sick=_padded(norm=parts.GuardedRMSNorm),
            mended=_padded(norm=parts.TwiceGuardedRMSNorm),
            code=(parts.GuardedRMSNorm.forward, parts.TwiceGuardedRMSNorm.forward),
        ),
        Case(
            name="soaring",
            updates=130,
            sick={"scaler": GrowingScaler},
            mended={"scaler": CheckedScaler},
            code=((GrowingScaler.step, GrowingScaler.update), (CheckedScaler.step, CheckedScaler.update)),
        ),
        Case(
            name="one batch",
            updates=100,
            batch=one_without_targets,
            sick={"loss": mean_loss},
            mended={"loss": mean_loss_or_zero},
            code=(mean_loss, mean_loss_or_zero),
        ),
        Case(
            name="explosion",
            updates=60,
            lr=1e-2,
            sick=_bare(norm=nn.Identity),
            mended=_bare(),
            code=("norm1, norm2 = nn.Identity(), nn.Identity()", "norm1, norm2 = Float32RMSNorm(), Float32RMSNorm()"),
        ),
    )
}


# training, and what is left of it


@dataclass(frozen=True)
class Trial:
    """A run that was made: its log, and the weights as they were before each batch."""

    case: Case
    run: Run
    states: list[dict[str, Tensor]] = field(repr=False)
    usual: dict[str, Any] = field(repr=False)

    def series(self, name: str) -> list[float]:
        """One value per batch."""
        return [record[name] for record in self.run]

    @property
    def skips(self) -> list[int]:
        """Batches (from 0) whose update was not made."""
        return [n for n, skipped in enumerate(self.series("skipped")) if skipped]

    @property
    def nans(self) -> list[int]:
        """Batches (from 0) whose loss is not a finite number."""
        return [n for n, loss in enumerate(self.series("loss")) if not math.isfinite(loss)]

    @property
    def bad(self) -> list[int]:
        """Batches (from 0) whose loss or gradient is not finite."""
        pairs = zip(self.series("loss"), self.series("grad_norm"), strict=True)
        return [n for n, pair in enumerate(pairs) if not all(map(math.isfinite, pair))]

    @property
    def story(self) -> list[str]:
        """Loss, scale and whether it was skipped, batch by batch, to the last digit: NaN equals NaN here."""
        return [f"{r['loss']!r} {r['loss_scale']!r} {r['skipped']}" for r in self.run]

    def mean_loss(self, first: int, last: int | None) -> float:
        """The mean of the finite losses of batches ``first:last``, as in a slice; NaN if there is none."""
        finite = [loss for loss in self.series("loss")[first:last] if math.isfinite(loss)]
        return sum(finite) / len(finite) if finite else math.nan

    def before(self, n: int) -> tuple[nn.Module, Batch, float]:
        """The model as it was before batch n, that batch, and the loss scale of that step."""
        model = self.usual["model"]()
        model.load_state_dict(self.states[n])
        return model, self.case.batch(n), self.run.records[n]["loss_scale"]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of a batch, as this run computes it, in FP16."""
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(batch["input_ids"])
        return self.usual["loss"](logits, batch["labels"])


def train(
    name: str,
    *,
    mended: bool = False,
    dtype: torch.dtype = torch.float16,
    lr_times: float = 1.0,
    max_grad_norm: float = 1.0,
    updates: int | None = None,
    **model_settings: Any,
) -> Trial:
    """Make the run of a case: stock AdamW, autocast, GradScaler and clipping, one log line per batch.

    The log is written by ``RunLog`` and read back by ``read_run``. Besides its usual fields it has ``max_logit``, the
    largest logit in size, and ``zero_gradients``, the share of exact zeros in the gradients of the matrices (without
    the byte table, whose unseen bytes have none). ``model_settings`` are put over those of the case. Two calls give
    identical runs on one machine.
    """
    case = CASES[name]
    usual: dict[str, Any] = {
        "model": parts.Model,
        "loss": mean_loss,
        "scaler": partial(torch.amp.GradScaler, "cpu", enabled=dtype == torch.float16),
    }
    usual |= case.mended if mended else case.sick
    usual["model"] = partial(usual["model"], **model_settings)
    torch.manual_seed(0)
    model, scaler = usual["model"](), usual["scaler"]()
    lr = case.lr * lr_times
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=case.weight_decay, betas=BETAS)
    made: list[int] = []
    optimizer.register_step_post_hook(lambda *_: made.append(1))
    matrices = [p for p in model.parameters() if p.dim() == 2 and p is not model.bytes.weight]
    states: list[dict[str, Tensor]] = []
    with tempfile.TemporaryDirectory() as folder:
        with RunLog(folder) as log:
            for n in range(updates or case.updates):
                states.append({key: value.clone() for key, value in model.state_dict().items()})
                batch, before = case.batch(n), len(made)
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                    logits = model(batch["input_ids"])
                loss, scale = usual["loss"](logits, batch["labels"]), scaler.get_scale()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                gradients = torch.cat([p.grad.flatten() for p in matrices])
                norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
                scaler.step(optimizer)
                scaler.update()
                log.write(
                    {
                        "batch": n + 1,
                        "step": len(made),
                        "loss": loss,
                        "grad_norm": norm,
                        "lr": lr,
                        "tokens": int((batch["labels"] != IGNORED).sum()),
                        "loss_scale": scale,
                        "skipped": len(made) == before,
                        "skipped_steps": n + 1 - len(made),
                        "max_logit": logits.detach().float().abs().max(),
                        "zero_gradients": (gradients == 0).float().mean(),
                    }
                )
        return Trial(case, read_run(folder), states, usual)


def under_train_step(name: str, updates: int | None = None) -> dict[str, Any]:
    """The sick model of a case under tinytrain's own ``train_step`` and ``Precision("fp16")``.

    Returns ``batches`` tried, ``skipped``, ``reasons`` (of the skips), ``raised`` (the error's text, or empty) and
    ``finite``, whether all weights are finite at the end.
    """
    case = CASES[name]
    torch.manual_seed(0)
    model = case.sick.get("model", parts.Model)()
    optimizer = torch.optim.AdamW(model.parameters(), lr=case.lr, weight_decay=case.weight_decay, betas=BETAS)
    precision, reports, raised = Precision("fp16"), [], ""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="this CPU has no hardware")
        for n in range(updates or case.updates):
            try:
                reports.append(train_step(model, [case.batch(n)], optimizer, lr=case.lr, precision=precision))
            except LossScaleError as error:
                raised = str(error)
                break
    skipped = [report.reason for report in reports if report.skipped]
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    reasons = sorted(set(skipped))
    return {"batches": len(reports), "skipped": len(skipped), "reasons": reasons, "raised": raised, "finite": finite}


# pictures and the questions of the hunt


PANELS = {
    "loss": ("loss (nats per byte)", False),
    "grad_norm": ("norm of the gradient", True),
    "loss_scale": ("loss scale", True),
}


def show_log(trial: Trial, title: str, names: Sequence[str] = ("loss", "loss_scale")) -> Figure:
    """Fields of the log over the batches; a tick below marks a skipped update, grey a loss that is not finite."""
    figure, axes = plt.subplots(1, len(names), figsize=(3.1 * len(names) + 0.4, 2.4), layout="constrained")
    figure.suptitle(title, fontsize=10)
    xs = list(range(len(trial.run)))
    for ax, name in zip(axes, names, strict=True):
        y, log_y = PANELS[name]
        values = trial.series(name)
        ax.plot(xs, [v if math.isfinite(v) and (v > 0 or not log_y) else math.nan for v in values], color=INKS[0][0])
        ax.set_yscale("log" if log_y else "linear")
        frame(ax, "", "batch", y)
        ax.plot(trial.skips, [0.02] * len(trial.skips), "|", color="black", ms=5, transform=ax.get_xaxis_transform())
        for n in trial.nans:
            ax.axvspan(n - 0.5, n + 0.5, color="#bbbbbb", alpha=0.6, lw=0)
    return figure


def show_rerun(sick: Trial, mended: Trial, title: str, **others: Trial) -> Figure:
    """The loss of the sick and of the mended run, and of others by name, over the batches."""
    figure, ax = plt.subplots(figsize=(6.4, 2.4), layout="constrained")
    trials = {"sick": sick, "mended": mended} | {name.replace("_", " "): other for name, other in others.items()}
    curves = {name: (range(len(trial.run)), smooth(trial.series("loss"))) for name, trial in trials.items()}
    plot_curves(ax, curves, title=title, x="batch", y="loss (nats), mean of 5")
    (line,) = [line for line in ax.lines if line.get_color() == INKS[0][0]][:1]  # the sick run, over the others
    line.set(linewidth=3.0, alpha=0.7)
    if gone := [n for n in range(1, len(sick.run)) if n in set(sick.nans) and n - 1 not in set(sick.nans)]:
        ax.plot(gone, [curves["sick"][1][n - 1] for n in gone], "x", color="#b00020", markersize=6)
    return figure


def smooth(values: list[float], width: int = 5) -> list[float]:
    """The mean of each value and those before it, ``width`` in all; where the value itself is not finite, NaN."""
    means = []
    for n, value in enumerate(values):
        near = [v for v in values[max(0, n - width + 1) : n + 1] if math.isfinite(v)]
        means.append(sum(near) / len(near) if math.isfinite(value) else math.nan)
    return means


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


def reveal(name: str) -> str:
    """Where it lay, and the mend as a diff, in Markdown."""
    return f"Lines with - go, lines with + come:\n\n```diff\n{difference(CASES[name])}\n```"


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


def difference(case: Case) -> str:
    """What the mend changes, as a diff: lines that go begin with -, lines that come with +."""
    before, after = map(source, case.code)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def source(part: Any) -> str:
    """The source of a function or of several, without docstrings; text stays as it is."""
    if isinstance(part, str):
        return part
    if isinstance(part, tuple):
        return "\n\n".join(map(source, part))
    return textwrap.dedent(inspect.getsource(part)).strip()
