"""Which mistake is likely behind a wrong answer to an exercise of notebook 14."""

import math
from typing import Any

import torch

from tinytrain.course.laws.probe import MISTAKES, Batch, ProbeModel, mistake_behind, model_with, true_loss
from tinytrain.course.laws.tape import same, weights_of


def behind_update(moved, true, before, batches, optimizer, rate, norm, limit, stale) -> str:
    if not moved.norm() > 0:
        return "No weight has moved: is step() called, and is this batch not to be skipped?"
    if not moved.isfinite().all():
        return "A weight is NaN: the mean over no target is 0 / 0. Take sums, and divide once."
    now = {float(group["lr"]) for group in optimizer.param_groups}
    if now != {rate}:
        return f"The groups have lr {now}, and this update's is {rate:.4g}: write it into every group before step()."
    if stale:
        return "A gradient that was there before has joined in: call zero_grad() first."
    if limit < norm and abs(float(moved.norm()) / norm - 1) < 1e-3:
        return "The gradient is not clipped before step()."
    words = mistake_behind(moved * float(norm / true.norm()), before, batches)
    return (
        words[:1].upper() + words[1:] + "." if words else "The gradient is another: sum the token losses, divide once."
    )


def behind_number(name: str, value: Any, true: float, limit: float) -> str:
    if not isinstance(value, float):
        return f"{name} is {type(value).__name__}; a float is wanted: .item()."
    if name == "grad_norm" and abs(value - limit) < 1e-3 * limit:
        return "That is the norm after clipping; clip_grad_norm_ returns the one before."
    return f"{name} is {value / true:.4g} times what was optimized: the loss of all micro-batches, over all targets."


def behind_loss(value: float, model: ProbeModel, batches: list[Batch], drawn: bool) -> str:
    if math.isnan(value):
        return "The mean over no target is 0 / 0, which is NaN: take sums, and divide once."
    if drawn:
        return "Dropout was on: put the whole model into eval mode."
    exact, real = model_with(weights_of(model)), [b for b in batches if (b["labels"] != -100).any()]
    with torch.no_grad():
        sums = [float(true_loss(exact, [b])) * int((b["labels"] != -100).sum()) for b in real]
        means = [float(true_loss(exact, [b])) for b in real]
    positions = sum(b["labels"].numel() for b in batches)
    cases = {
        sum(means) / len(means): "It averages the means of batches: a short batch then weighs as much as a long one.",
        sum(means) / len(batches): "It averages the means of batches: a short batch then weighs as much as a long one.",
        sum(sums) / positions: "Padding counts in the divisor: divide by targets, and not by positions.",
        sum(sums): "It is summed and not divided.",
    }
    with torch.no_grad():
        for words, loss in MISTAKES.items():
            if words.startswith(("label 0", "attention_mask", "doc_ids")):
                cases |= {float(loss(exact, batches)): words[:1].upper() + words[1:] + "."}
    right = float(true_loss(exact, batches).detach())
    telling = [wrong for wrong in cases if abs(wrong - right) > 1e-5 * right]  # what changes nothing here tells nothing
    nearest = min(telling, key=lambda wrong: abs(value - wrong))
    if abs(value - nearest) <= 1e-4 * abs(nearest):
        return cases[nearest]
    return "Sum the token losses of all batches, and divide once by the number of all targets."


def behind_counts(found: Any) -> str:
    if not isinstance(found, dict):
        return f"It returned {type(found).__name__}; with `saved`, the counts are wanted."
    if not set(found.values()) - {0}:
        return "It returned those that it was given now: the counts belong to what is saved."
    return f"It returned {str(found)[:60]}."


def behind_fork(now: dict, then: dict, rates_now: list, rates: list, path: list[float], road: list[float]) -> str:
    """``now`` is the model's state as it was put back, ``then`` the true one; the same of the rates."""
    if any(not torch.equal(now[name], then[name]) for name in now if name != "read"):
        return "The weights are not those of back then."
    if not same(now, then):
        return "The weights are those of back then, and the model's buffer is not: model.state_dict() has both."
    if path[0] != road[0]:
        return "The first loss is another: dropout draws other numbers. A seed is not a state: torch.get_rng_state()."
    if rates_now != rates:
        return f"The optimizer's lr is {rates_now[0]:.4g}, and was {rates[0]:.4g}: optimizer.state_dict() has it too."
    return "The first loss is the same and the second is not: the optimizer's moments are missing."
