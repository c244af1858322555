"""The loss of the batch, its gradients however the model hands them over, and weights that move and come back."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tinytrain.loss import IGNORE_INDEX, cross_entropy
from tinytrain.watch.preflight.subject import NotTestedError, Subject

ENOUGH = 0.5  # of the initial loss: no update more is needed


def trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def loss_of(subject: Subject) -> Tensor:
    """The batch's mean loss, its graph kept."""
    logits, labels = subject.call(subject.batch), subject.batch["labels"]
    if not (labels != IGNORE_INDEX).any():
        raise NotTestedError("no position of this batch is a target")
    return cross_entropy(logits, labels)


def loss_and_gradients(subject: Subject, draw_again: Callable[[], None]) -> tuple[Tensor, dict[str, Tensor | None]]:
    """The loss, and {name: gradient} of every trainable weight, None where the loss does not reach it."""
    weights = trainable(subject.model)

    def value() -> Tensor:
        draw_again()
        loss = loss_of(subject)
        if not loss.isfinite():
            raise NotTestedError("the loss is not finite in train mode")
        return loss

    loss, found = gradients_of(value, list(weights.values()))
    return loss, dict(zip(weights, found, strict=True))


def gradients_of(value: Callable[[], Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
    """What ``value()`` returns, and its gradients; None where there is none. ``value`` may be called a second time.

    ``torch.autograd.grad`` touches nothing, but checkpointing with ``use_reentrant=True`` refuses it: there
    ``backward()`` is called, and every ``.grad`` is put back.
    """
    total = value()
    if not total.requires_grad or not weights:
        return total, [None] * len(weights)
    try:
        return total, list(torch.autograd.grad(total, list(weights), allow_unused=True))
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
    if any(getattr(p, "_post_accumulate_grad_hooks", None) for p in weights):
        raise NotTestedError("use_reentrant=True needs backward(), and that calls the hooks on weights: use False")
    kept = [(p, p.grad) for p in weights]
    try:
        for p in weights:
            p.grad = None
        total = value()
        total.backward()
        return total, [p.grad for p in weights]
    finally:
        for p, grad in kept:
            p.grad = grad


@contextmanager
def weights_back(model: nn.Module) -> Iterator[None]:
    """The same values in the same tensors afterwards, and the same gradients. Costs one copy of the weights."""
    kept = [(p, p.detach().clone(), p.grad) for p in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for p, value, grad in kept:
                p.copy_(value)
                p.grad = grad


def descend(subject: Subject, lr: float, steps: int, draw_again: Callable[[], None]) -> list[float]:
    """Losses before each AdamW update, and after the last; it ends early where the loss has halved."""
    weights, losses = trainable(subject.model), []
    optimizer = torch.optim.AdamW(weights.values(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)

    def value() -> Tensor:
        draw_again()
        return loss_of(subject)

    for _ in range(steps):
        loss, found = gradients_of(value, list(weights.values()))
        losses.append(loss.item())
        if losses[-1] < ENOUGH * losses[0] or not math.isfinite(losses[-1]) or not loss.requires_grad:
            break
        for p, g in zip(weights.values(), found, strict=True):
            p.grad = g
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
    else:
        losses.append(value().item())
    return losses
