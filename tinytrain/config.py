"""How a run is trained: every setting, its unit, and its check."""

import math
import numbers
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinytrain.precision import DTYPES
from tinytrain.schedule import check_schedule, warmup_cosine


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a run is trained. Every field is checked when the config is made."""

    total_steps: int
    """updates in the run"""
    max_lr: float
    """learning rate at the end of the warmup"""
    min_lr: float | None = None
    """learning rate from the end of the run on; a tenth of max_lr if None"""
    warmup_steps: int = 0
    """updates until max_lr is reached"""
    weight_decay: float = 0.1
    """share of each matrix removed per unit of lr"""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's memory of the gradient and of its square"""
    eps: float = 1e-8
    """AdamW's floor under the root of the second moment"""
    max_grad_norm: float = 1.0
    """bound on the 2-norm of the whole gradient"""
    precision: str = "fp32"
    """width of the forward pass: "fp32", "bf16" or "fp16"; weights stay float32"""
    eval_every: int | None = None
    """updates between two evaluations; None: only after the last"""
    max_skipped_in_a_row: int = 20
    """skipped updates in a row that end the run with an error"""
    out: str | Path | None = None
    """folder of the run: its log, and its checkpoints; None: nothing is written"""
    checkpoint_every: int | None = None
    """updates between two checkpoints that a run can be resumed from; None: no checkpoints"""
    weights_every: int | None = None
    """updates between two checkpoints of the weights alone"""
    keep: int = 2
    """newest checkpoints of each kind that stay; the best one stays as well"""
    save_in_background: bool = False
    """True: training goes on while a checkpoint is written; costs the memory of one copy"""

    def __post_init__(self) -> None:
        check_schedule(**self._schedule())
        if not self.max_lr > 0:
            raise ValueError(f"TrainConfig.max_lr={self.max_lr} must be more than 0, or nothing is trained")
        for name in ("eval_every", "max_skipped_in_a_row", "checkpoint_every", "weights_every", "keep"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, numbers.Integral) and value >= 1):
                raise ValueError(f"TrainConfig.{name}={value!r} must be at least 1, and a whole number")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"TrainConfig.weight_decay={self.weight_decay} must be finite and 0 or more")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"TrainConfig.betas={self.betas} must be two numbers of at least 0 and less than 1")
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise ValueError(f"TrainConfig.eps={self.eps} must be finite and more than 0")
        if self.precision not in DTYPES:
            raise ValueError(f"TrainConfig.precision={self.precision!r} is not one of {', '.join(DTYPES)}")
        if self.out is None and (self.checkpoint_every or self.weights_every):
            raise ValueError("TrainConfig.checkpoint_every and weights_every need a folder: set TrainConfig.out")
        if not self.max_grad_norm > 0:
            raise ValueError(f"TrainConfig.max_grad_norm={self.max_grad_norm} must be more than 0 (math.inf: no limit)")

    def _schedule(self) -> dict[str, Any]:
        min_lr = self.max_lr / 10 if self.min_lr is None else self.min_lr
        return {
            "max_lr": self.max_lr,
            "min_lr": min_lr,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
        }

    def lr(self, step: int) -> float:
        """The learning rate of the update that follows ``step`` completed updates."""
        return float(warmup_cosine(step, **self._schedule()))
