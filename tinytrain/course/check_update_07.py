"""The check of exercise 07.3: an FP16 update, its norm and its move, with gradients of every size."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations, product

import torch
from torch import Tensor

from tinytrain.course.exercises import Report

NEAR = 5e-3  # of a length: what FP16's digits may change


class _ThroughFP16(torch.autograd.Function):
    """Passes values on, and gradients only as FP16 would hold them."""

    @staticmethod
    def forward(_ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient: Tensor) -> Tensor:
        return gradient.half().float()


SIZES = {"a short gradient": 0.01, "a gradient too small for FP16": 1.9e-8, "a gradient of thousands": 4000.0}
"""about how large each slope is, where that is not 1; of the second, FP16 has nothing left"""
BROKEN = {"an overflow in the first tensor": 0, "an overflow in the last tensor": -1, "a NaN": -1}
"""the tensor that holds the value"""
CASES = ("a gradient to clip", *SIZES, *BROKEN, "a gradient of 0")


@dataclass(frozen=True)
class _Question:
    """A gradient, as one slope for each element of each tensor, and what the update is asked to do with it."""

    slopes: list[Tensor]
    scale: float
    limit: float
    lr: float

    @property
    def lengths(self) -> list[float]:
        """The norm of each tensor's gradient."""
        return [slope.double().norm().item() for slope in self.slopes]

    @property
    def norm(self) -> float:
        return math.hypot(*self.lengths)


def _drawn(case: str) -> _Question:
    """One question of a kind, drawn until no usual mistake gives the right norm or that of another mistake."""
    size = SIZES.get(case, 1.0)
    low = {"a gradient too small for FP16": 13, "a gradient of thousands": 1}.get(case, 13 if case in BROKEN else 9)
    while True:
        numel = [random.randint(2, 5) for _ in range(random.randint(2, 3))]
        slopes = [size * (0.5 + torch.rand(n, dtype=torch.float32)) for n in numel]
        slopes = [slope * torch.where(torch.rand_like(slope) < 0.5, -1.0, 1.0) for slope in slopes]
        if case in BROKEN:
            slopes[BROKEN[case]][0] *= math.nan if case == "a NaN" else 1000  # one element of one tensor
        if case == "a gradient of 0":
            slopes = [0 * slope for slope in slopes]
        question = _Question(slopes, 2.0 ** random.randint(low, low + 2), 1.0, random.uniform(1.2, 2.4) / size)
        if case in ("a gradient to clip", "a gradient of thousands"):
            limit = min(question.lengths) * random.uniform(0.3, 0.6)  # whoever clips each tensor clips all of them
        else:
            limit = max(question.norm * random.uniform(2, 3), 1e-3)  # torch's clipping adds 1e-6 to the norm
        question = replace(question, limit=1.0 if case == "a NaN" else limit)
        if case in BROKEN or case == "a gradient of 0" or _apart(question):
            return question


def _apart(question: _Question) -> bool:
    kinds = [[question.norm], *(values for values, _ in _wrong_norms(question))]
    pairs = (pair for some, more in combinations(kinds, 2) for pair in product(some, more))
    return all(abs(a - b) > 0.02 * max(a, b) for a, b in pairs)


def check_fp16_update(answer: Callable[..., float], report: Report) -> None:
    """Long gradients, a short one, one that vanishes without a scale, overflows, NaN, and 0."""
    for case in CASES:
        question = _drawn(case)
        slopes, norm, limit, lr = question.slopes, question.norm, question.limit, question.lr
        starts = [torch.randn(len(slope), dtype=torch.float32) for slope in slopes]
        weights = [start.clone().requires_grad_() for start in starts]
        pairs = zip(weights, slopes, strict=True)
        loss = torch.stack([(_ThroughFP16.apply(w) * slope).sum() for w, slope in pairs]).sum()
        try:
            value = answer(list(weights), loss, question.scale, limit, lr)
        except ZeroDivisionError:
            if case != "a gradient of 0":
                raise
            report.need(f"{case}: a float", False, "It divides by the norm, and the norm can be 0.")
        report.need(
            f"{case}: a float",
            isinstance(value, float),
            f"It returned {type(value).__name__}; `.item()` makes a float.",
        )
        moved = [w.detach() - start for w, start in zip(weights, starts, strict=True)]
        if case in BROKEN:
            report.need(
                f"{case}: no weight moves",
                all(bool((m == 0).all()) for m in moved),
                "The gradient was not finite and the weights moved all the same: look at the norm first.",
            )
            report.need(f"{case}: the norm says so", not math.isfinite(value), "The norm is infinite or NaN here.")
            continue
        near = bool(abs(value - norm) <= NEAR * norm)
        report.need(f"{case}: the true norm", near, "" if near else _likely_norm(value, question))
        wanted = [-lr * slope * (limit / norm if norm > limit else 1.0) for slope in slopes]
        near = _near(moved, wanted)
        report.need(f"{case}: how the weights move", near, "" if near else _likely_move(moved, wanted, question))


def _near(found: list[Tensor], wanted: list[Tensor]) -> bool:
    a, b = torch.cat(found), torch.cat(wanted)
    return bool((a - b).norm() <= NEAR * b.norm())


def _wrong_norms(question: _Question) -> list[tuple[list[float], str]]:
    """What usual mistakes return for the norm, and what to say to each."""
    norm, scale, limit = question.norm, question.scale, question.limit
    return [
        ([norm * scale], "This is the norm of the scaled gradient. Divide by the scale before you measure."),
        ([norm / scale], "It divides by the scale once too often, or the loss was not multiplied by it."),
        ([limit], "This is the norm after clipping. Wanted is the one before."),
        ([limit * scale], "This is the norm after clipping, and still scaled."),
        ([norm**2], "The root is missing."),
        ([sum(question.lengths)], "The norms of the tensors were added up. The whole gradient has one length."),
        (question.lengths, "This is one tensor's norm. The whole gradient has one length."),
    ]


def _likely_norm(value: float, question: _Question) -> str:
    if value == 0 or question.norm < 1e-5:
        return "The gradient vanished on its way back: was the loss multiplied by the scale before `backward`?"
    fits = (
        words for others, words in _wrong_norms(question) if any(abs(value - other) <= NEAR * other for other in others)
    )
    return next(fits, "")


def _likely_move(moved: list[Tensor], wanted: list[Tensor], question: _Question) -> str:
    slopes, scale, limit, lr, norm = question.slopes, question.scale, question.limit, question.lr, question.norm
    if norm == 0:
        return "The gradient is 0, and the weights moved."
    each = [-lr * min(1.0, limit / slope.norm().item()) * slope for slope in slopes]
    candidates = [
        (
            [w / scale for w in wanted],
            "The update is too short by the scale: it was clipped while still scaled, or divided twice.",
        ),
        ([-lr * min(1.0, limit / norm / scale) * s for s in slopes], "It clips while the gradient is still scaled."),
        ([-lr * limit / norm / scale * s for s in slopes], "It clips while the gradient is still scaled."),
        ([w * scale for w in wanted], "The gradient was never divided by the scale."),
        ([-w for w in wanted], "It goes uphill: an update subtracts."),
        ([w / lr for w in wanted], "The learning rate is missing."),
        ([-lr * s for s in slopes], "Nothing was clipped."),
        ([-lr * limit / norm * s for s in slopes], "A gradient shorter than the limit was stretched to it."),
        (each, "Each tensor was clipped by itself. The whole gradient has one length."),
        (
            [0 * w for w in wanted],
            "No weight moved. The tensors themselves must change; and what is long but finite is none to skip.",
        ),
    ]
    return next((words for values, words in candidates if _near_or_zero(moved, values)), "")


def _near_or_zero(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return _near(found, wanted) if any(bool((w != 0).any()) for w in wanted) else not torch.cat(found).any()
