"""For notebook 11: seven training runs that go wrong in FP16, each with its log, its states, its mend and a rerun."""

import tempfile
import warnings
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytrain.corpus import load_corpus
from tinytrain.course import nan_models as parts
from tinytrain.course.nan_show import (
    hunt,
    lead,
    look_along,
    look_at_data,
    questions,
    scale_warns,
    show_log,
    show_rerun,
    side_by_side,
)
from tinytrain.course.nan_trial import IGNORED, Batch, Case, Trial, difference
from tinytrain.data import RowBatches, TokenRows
from tinytrain.precision import LossScaleError, Precision
from tinytrain.runlog import RunLog, read_run
from tinytrain.step import train_step
from tinytrain.tokenizer import ByteTokenizer

__all__ = [
    "hunt",
    "lead",
    "look_along",
    "look_at_data",
    "mean_loss",
    "questions",
    "reveal",
    "scale_warns",
    "show_log",
    "show_rerun",
    "side_by_side",
    "train",
    "under_train_step",
]

ROW_LENGTH, BATCH_SIZE = 32, 8  # tokens in a row, rows in a batch
BETAS = (0.9, 0.95)


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
            batch=as_it_comes,
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
            batch=as_it_comes,
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
            batch=as_it_comes,
            sick=_bare(norm=nn.Identity),
            mended=_bare(),
            code=("norm1, norm2 = nn.Identity(), nn.Identity()", "norm1, norm2 = Float32RMSNorm(), Float32RMSNorm()"),
        ),
    )
}


# training


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


def reveal(name: str) -> str:
    """Where it lay, and the mend as a diff, in Markdown."""
    return f"Lines with - go, lines with + come:\n\n```diff\n{difference(CASES[name])}\n```"
