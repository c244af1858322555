"""What the log says about a batch: its update in numbers, and how far the run has come."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinytrain.device import device_of, memory_bytes, memory_limit
from tinytrain.step import Batch, StepReport

if TYPE_CHECKING:
    from tinytrain.train import Trainer


def record_of(trainer: "Trainer", report: StepReport, *, padded: float, positions: float) -> dict[str, Any]:
    """The fields of ``runlog.FIELDS`` that are known once the update was counted; times and evaluation come later.

    Of all ``positions`` of the batch, in all processes, ``padded`` carry no token.
    """
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
        "positions": int(positions),
        "tokens_seen": trainer.tokens_seen,
        "padding": padded / positions if positions else 0.0,
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


def count_padding(micro_batches: Sequence[Batch]) -> tuple[int, int]:
    """(positions that carry no token, all positions): ``attention_mask`` is 0 there, or ``doc_ids`` below 0."""
    positions = sum(batch["input_ids"].numel() for batch in micro_batches)
    padded = sum(int((batch["attention_mask"] == 0).sum()) for batch in micro_batches if "attention_mask" in batch)
    padded += sum(int((batch["doc_ids"] < 0).sum()) for batch in micro_batches if "doc_ids" in batch)
    return padded, positions
