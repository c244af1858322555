"""What the log says about a batch: its update in numbers, and how far the run has come."""

import math
from typing import TYPE_CHECKING, Any

from tinytrain.device import device_of, memory_bytes, memory_limit
from tinytrain.step import StepReport

if TYPE_CHECKING:
    from tinytrain.train import Trainer


def record_of(trainer: "Trainer", report: StepReport) -> dict[str, Any]:
    """The fields of ``runlog.FIELDS`` that are known once the update was counted; times and evaluation come later."""
    device = device_of(trainer.model)
    return {
        "batch": trainer.batch,
        "step": trainer.step,
        **({"epoch": trainer.data.place(trainer.batch - 1)[0]} if hasattr(trainer.data, "place") else {}),
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        "clip_factor": clip_factor(report.grad_norm, trainer.config.max_grad_norm),
        "lr": report.lr,
        "tokens": report.tokens,
        "positions": report.positions,
        "tokens_seen": trainer.tokens_seen,
        "padding": report.padded / report.positions if report.positions else 0.0,
        "memory_bytes": memory_bytes(device),
        "memory_limit_bytes": memory_limit(device),
        "skipped": report.skipped,
        **({"reason": report.reason} if report.skipped else {}),
        "skipped_steps": trainer.skipped_steps,
        **({"loss_scale": report.scale} if trainer.config.precision == "fp16" else {}),
        "processes": trainer.processes,
    }


def clip_factor(grad_norm: float, max_grad_norm: float) -> float:
    """What ``clip_grad_norm_`` multiplied the gradient by: 1 if it was short enough, NaN if its norm is not finite."""
    return min(1.0, max_grad_norm / (grad_norm + 1e-6)) if math.isfinite(grad_norm) else math.nan
