"""One update and one evaluation: plain functions that run anywhere, with nothing around them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tinytrain.device import device_of, to_device
from tinytrain.forward import forward_logits
from tinytrain.loss import count_targets, cross_entropy
from tinytrain.observe import observing

Batch = dict[str, Tensor]
"""``input_ids`` and ``labels`` ``[B,T]``, and what else the model takes by name (``attention_mask`` ``[B,T]``)"""


@dataclass(frozen=True)
class StepReport:
    """What one update did."""

    loss: float
    """nats per target token of the whole update: the number that was optimized"""
    grad_norm: float
    """2-norm of the whole gradient, before clipping"""
    lr: float
    """learning rate of the update; of the attempt, if it was skipped"""
    tokens: int
    """target tokens of the update"""
    skipped: bool = False
    """True: no weight, moment or learning rate has moved"""
    reason: str = ""
    """why it was skipped"""


def train_step(
    model: nn.Module,
    micro_batches: Sequence[Batch],
    optimizer: torch.optim.Optimizer,
    *,
    lr: float,
    max_grad_norm: float = 1.0,
) -> StepReport:
    """One update from all micro-batches together.

    The loss is the sum of all token losses over the number of targets in *all* micro-batches, so any way of cutting
    the same rows gives the same update. Micro-batches without a target are fine. If the loss or the gradient is not
    finite, or nothing is a target, the update is skipped and nothing changes. ``max_grad_norm`` (``math.inf`` for no
    limit) bounds the 2-norm of the whole gradient.
    """
    device = device_of(model)
    targets = torch.stack([count_targets(batch["labels"]) for batch in micro_batches]).sum()
    optimizer.zero_grad(set_to_none=True)  # at the start: a gradient left by somebody's own backward must not join in

    loss = torch.zeros((), device=device)
    for batch in micro_batches:
        batch = to_device(batch, device)
        part = cross_entropy(forward_logits(model, batch), batch["labels"], reduction="sum") / targets.clamp(min=1)
        part.backward()
        loss += part.detach()

    norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    loss_value, norm_value = torch.stack([loss, norm.to(loss.dtype)]).tolist()  # the one wait for the device
    tokens = int(targets)

    if reason := _why_skip(loss_value, norm_value, tokens):
        return StepReport(loss_value, norm_value, lr, tokens, skipped=True, reason=reason)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    return StepReport(loss_value, norm_value, lr, tokens)


def _why_skip(loss: float, grad_norm: float, tokens: int) -> str:
    if tokens == 0:
        return "no position of this batch is a target"
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    return "" if math.isfinite(grad_norm) else f"the gradient's norm is {grad_norm}"


@dataclass(frozen=True)
class Evaluation:
    """The loss over an evaluation set."""

    loss: float
    """nats per target token over the whole set; NaN if it has no target"""
    tokens: int
    """target tokens in the set"""


def evaluate(model: nn.Module, batches: Iterable[Batch]) -> Evaluation:
    """The sum of all token losses over the number of all targets, so batch size and padding do not matter.

    The model's modes, its gradients and every random generator are as before afterwards.
    """
    device = device_of(model)
    losses, tokens = torch.zeros((), dtype=torch.float64), 0
    with observing(model):
        for batch in batches:
            batch = to_device(batch, device)
            losses += cross_entropy(forward_logits(model, batch), batch["labels"], reduction="sum").cpu()
            tokens += int(count_targets(batch["labels"]))
    return Evaluation(loss=losses.item() / tokens if tokens else math.nan, tokens=tokens)
