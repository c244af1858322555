"""One update and one evaluation: plain functions that run anywhere, with nothing around them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tinytrain.batches import Batch, count_positions
from tinytrain.device import device_of, to_device
from tinytrain.distributed.group import total
from tinytrain.distributed.wrap import after_backward, is_sharded, sharers, synchronising, whole
from tinytrain.forward import fitted, fitted_logits
from tinytrain.loss import check_labels, count_targets, cross_entropy, unchecked_loss_sum
from tinytrain.observe import observing
from tinytrain.precision import Precision
from tinytrain.vocabulary import check_ids
from tinytrain.weights import unwrap


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
    scale: float = 1.0
    """what the loss was multiplied by for the backward pass; 1 except in FP16"""
    positions: int = 0
    """all positions of the update, in all processes"""
    padded: int = 0
    """those of them that carry no token"""


def train_step(
    model: nn.Module,
    micro_batches: Sequence[Batch],
    optimizer: torch.optim.Optimizer,
    *,
    lr: float,
    precision: Precision | None = None,
    max_grad_norm: float = 1.0,
) -> StepReport:
    """One update from all micro-batches together.

    The loss is the sum of all token losses over the number of targets in *all* micro-batches, so any way of cutting
    the same rows gives the same update. Micro-batches without a target are fine. If the loss or the gradient is not
    finite, or nothing is a target, the update is skipped and nothing changes. ``max_grad_norm`` (``math.inf`` for no
    limit) bounds the 2-norm of the whole gradient. ``precision`` is float32 if not given; keep the same object from
    step to step, for it holds the loss scale.

    A model that several processes share (``replicate``, ``shard``) makes one update in all of them: each passes its
    own micro-batches, equally many of them, and the divisor is the number of targets in all. Loss, norm and whether
    the update is skipped are then the same in every process. Gradients are exchanged with the last micro-batch only.

    Raises ``ValueError`` for half-precision weights, bad ids and bad labels, and ``LossScaleError`` when the loss
    scale has fallen under its floor. Raises ``RuntimeError`` for copies of a model in which a weight took no part.
    """
    device, precision, processes = device_of(model), precision or Precision(), sharers(model)
    precision.prepare(model, device)
    check_micro_batches(micro_batches)
    if not (math.isfinite(lr) and lr >= 0 and max_grad_norm > 0):
        raise ValueError(f"lr={lr} must be finite and 0 or more, max_grad_norm={max_grad_norm} more than 0")
    model.zero_grad(set_to_none=True)  # at the start: a gradient left by somebody's own backward must not join in
    positions = count_positions(micro_batches)
    targets = torch.stack([count_targets(batch["labels"]) for batch in micro_batches]).sum()
    if processes > 1:
        targets, *positions = total(torch.stack([targets, *positions]).to(device, non_blocking=True))
    divisor = targets.clamp(min=1) / processes  # the processes' gradients are averaged, and their sum is meant

    loss = torch.zeros((), device=device)
    for number, batch in enumerate(micro_batches, start=1):
        with synchronising(model, now=number == len(micro_batches)):
            part = loss_sum(model, batch, precision) / divisor
            precision.scaled(part).backward()
        loss += part.detach()
    if processes > 1:
        after_backward(model)
        loss = total(loss) / processes

    scale = precision.unscale(optimizer)  # before clipping: the limit is meant for the true gradient
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    norm = whole(nn.utils.clip_grad_norm_(trained, max_grad_norm))
    report = _read(loss, norm, scale, lr, [targets, *positions])
    precision.check_scale(report.scale)
    if not report.skipped:
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    precision.update()
    return report


def check_micro_batches(micro_batches: Sequence[Batch]) -> None:
    """Raise ``TypeError`` or ``ValueError`` for what is not a list with at least one micro-batch in it."""
    if isinstance(micro_batches, Mapping) or not isinstance(micro_batches, Sequence):
        raise TypeError(
            f"micro_batches is a {type(micro_batches).__name__}; it must be a list of batches, [batch] if there is one"
        )
    if not micro_batches:
        raise ValueError("micro_batches is empty: an update needs at least one micro-batch")
    for number, batch in enumerate(micro_batches):
        if not isinstance(batch, Mapping):
            raise TypeError(f"micro-batch {number} is a {type(batch).__name__}; it must be a dict of tensors")
        if missing := {"input_ids", "labels"} - set(batch):
            raise ValueError(f"micro-batch {number} has no {' and no '.join(sorted(missing))}, only {sorted(batch)}")


def loss_sum(model: nn.Module, batch: Batch, precision: Precision) -> Tensor:
    """The summed loss of a batch on the model's device: forward in ``precision``, loss in float32.

    Off the CPU a bad id or label would surface late and without a name, and looking for one there would wait for the
    device. So a batch that comes from the CPU is looked at before it leaves.
    """
    device, labels = device_of(model), batch["labels"]
    leaves_the_cpu = device.type != "cpu" and labels.device.type == "cpu"
    if leaves_the_cpu and (vocab_size := getattr(getattr(model, "config", None), "vocab_size", None)):
        check_ids(batch["input_ids"], vocab_size)
    batch = to_device(fitted(model, batch), device)
    if getattr(unwrap(model), "loss_chunk", None):
        check_labels(labels, unwrap(model).config.vocab_size)
        with precision.autocast(device):
            return model(**batch)
    with precision.autocast(device):
        logits = fitted_logits(model, batch)
    if leaves_the_cpu:
        check_labels(labels, logits.shape[-1])
        return unchecked_loss_sum(logits, batch["labels"])
    return cross_entropy(logits, batch["labels"], reduction="sum")


def _read(loss: Tensor, norm: Tensor, scale: Tensor, lr: float, counts: list[Tensor]) -> StepReport:
    """Bring the numbers of an update to the host: the one place where a step waits for the device."""
    numbers = [loss, norm.to(loss), scale.to(loss)]
    if counts[0].device.type == "cuda":  # with the others, for a read of its own would wait once more
        *values, targets, positions, padded = torch.stack([n.double() for n in [*numbers, *counts]]).tolist()
    else:
        values, (targets, positions, padded) = torch.stack(numbers).tolist(), torch.stack(counts).tolist()
    reason = _why_skip(values[0], values[1], int(targets))
    return StepReport(
        loss=values[0],
        grad_norm=values[1],
        lr=lr,
        tokens=int(targets),
        skipped=bool(reason),
        reason=reason,
        scale=values[2],
        positions=int(positions),
        padded=int(padded),
    )


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


def evaluate(model: nn.Module, batches: Iterable[Batch], *, precision: Precision | None = None) -> Evaluation:
    """The sum of all token losses over the number of all targets, so batch size and padding do not matter.

    Batches without a target are fine. ``precision`` is float32 if not given, and is left as it was. Of a model that
    several processes share, each passes its own batches (of a sharded one, equally many), and gets the result of all.
    The model's modes, its gradients and every random generator are as before afterwards.
    """
    precision, losses, tokens = precision or Precision(), 0.0, 0
    local = model if is_sharded(model) else unwrap(model)  # a copy needs no word with the others
    with observing(model):
        for batch in batches:
            tokens += int(count_targets(batch["labels"]))
            losses += loss_sum(local, batch, precision).item()
        if sharers(model) > 1:
            sums = total(torch.tensor([losses, tokens], dtype=torch.float64, device=device_of(model)))
            losses, tokens = sums[0].item(), int(sums[1])
    return Evaluation(loss=losses / tokens if tokens else math.nan, tokens=tokens)
