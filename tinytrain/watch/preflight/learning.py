"""Gradients that reach every weight, mean what they say, and lower the loss of one batch."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tinytrain.loss import IGNORE_INDEX, cross_entropy
from tinytrain.seeds import generator_for
from tinytrain.watch.preflight.report import Line
from tinytrain.watch.preflight.subject import NotTestedError, Subject, as_before

STEPS = 40
LEARNING_RATES = (3e-3, 1e-2, 5e-4)  # the later ones only where those before do not lower the loss
CLEARLY = 0.8  # of the initial loss; measured at 3e-3: 0.001 to 0.4 for transformers up to 27m, 0.68 for a small LSTM
ENOUGH = 0.5  # of the initial loss: no update more is needed
SLOPE_TOLERANCE = 0.3  # of the gradient; measured 0.001 to 0.06 on honest models, 0.87 and more on cut ones
SLOPE_STEP = 0.03  # of a weight's size: far above rounding, and still straight
SLOPE_DIRECTIONS = 4
SEEN = 10  # times the loss's rounding; measured 0 to 0.4 on whole paths, 22 and more on cut ones
SLOPE_NATS = 0.002  # how far the loss is moved to measure its slope: 1000 times its rounding, and still straight


def _trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _loss(subject: Subject) -> Tensor:
    logits, labels = subject.call(subject.batch), subject.batch["labels"]
    if not (labels != IGNORE_INDEX).any():
        raise NotTestedError("no position of this batch is a target")
    return cross_entropy(logits, labels)


def _gradients(subject: Subject) -> tuple[Tensor, dict[str, Tensor | None]]:
    weights, loss = _trainable(subject.model), _loss(subject)
    if not loss.isfinite():
        raise NotTestedError("the loss is not finite in train mode")
    if not loss.requires_grad:
        return loss, dict.fromkeys(weights)
    return loss, dict(zip(weights, torch.autograd.grad(loss, list(weights.values()), allow_unused=True), strict=True))


@contextmanager
def _weights_back(model: nn.Module) -> Iterator[None]:
    """The same values in the same tensors afterwards, and the same gradients. Costs one copy of the weights."""
    kept = [(p, p.detach().clone(), p.grad) for p in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for p, value, grad in kept:
                p.copy_(value)
                p.grad = grad


def _list(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def gradient_line(subject: Subject) -> Line:
    """Every trainable weight's gradient: there, finite, not all zero."""
    name = "every weight gets a gradient"
    frozen = [n for n, p in subject.model.named_parameters() if not p.requires_grad]
    note = f"; frozen: {_list(frozen)}" if frozen else ""
    if not _trainable(subject.model):
        return Line(name, False, f"nothing is trainable{note}", "Set requires_grad to True where it should learn.")
    with as_before(subject.model, "train") as draw_again:
        _, found = _gradients(subject)
        absent = [n for n, g in found.items() if g is None]
        broken = [n for n, g in found.items() if g is not None and not g.isfinite().all()]
        zero = [n for n, g in found.items() if g is not None and not g.any()]
        late: list[str] = []
        if zero and not broken:  # behind a projection that starts at 0, gradients come with the second update
            later = _after_steps(subject, draw_again)
            late = [n for n in zero if later[n] is not None and later[n].any()]
    zero = [n for n in zero if n not in late]
    note += f"; from the second update on: {_list(late)}" if late else ""
    faults = {"none at all": absent, "not finite": broken, "zero": zero}
    said = "; ".join(f"{kind}: {_list(names)}" for kind, names in faults.items() if names)
    advice = "None at all: unused in forward, or cut off by detach, no_grad or .data. Zero: nothing depends on it. "
    advice += "Not finite: 0 times infinity in backward, as where() over a NaN, or sqrt at 0."
    return Line(name, not said, (said or f"{len(found)} of {len(found)} finite and not zero") + note, advice)


def _after_steps(subject: Subject, draw_again: Callable[[], None], steps: int = 2) -> dict[str, Tensor | None]:
    with _weights_back(subject.model):
        _descend(subject, LEARNING_RATES[0], steps, draw_again)
        draw_again()
        return _gradients(subject)[1]


def slope_line(subject: Subject) -> Line:
    """The loss must change as the gradient says, along it and along random directions of the lowest matrices.

    Along the gradient a missing part may be at right angles. A random direction d of N numbers meets each part of the
    gradient with about |part| |d| / sqrt(N), so what differs there, in that unit, is the share that is missing.
    """
    name = "gradients are the loss's slope"
    _full_width(subject)
    weights, worst, where = _trainable(subject.model), 0.0, "all weights"
    with as_before(subject.model, "train") as draw_again, _weights_back(subject.model):
        loss, found = _gradients(subject)
        found = {n: g for n, g in found.items() if g is not None and g.isfinite().all() and g.any()}
        length = math.sqrt(sum(g.norm().item() ** 2 for g in found.values()))
        noise = 4 * torch.finfo(torch.float32).eps * max(1.0, abs(loss.item()))
        if length * SLOPE_STEP < 100 * noise:
            raise NotTestedError("the gradient is too small to measure the loss's slope")
        step = min(SLOPE_NATS / length, SLOPE_STEP) / length
        changed = _change(subject, {n: (weights[n], g * step) for n, g in found.items()}, draw_again)
        worst = abs(changed / (2 * step * length**2) - 1)
        draws = generator_for("slope")
        for n in [n for n in found if weights[n].dim() >= 2][:3]:
            g, p = found[n], weights[n]
            size = SLOPE_STEP * p.detach().norm().item() / math.sqrt(p.numel())
            unit = g.norm().item() * size  # |g| |d| / sqrt(N), with |d| = size sqrt(N)
            unit = max(unit, SEEN * noise / SLOPE_TOLERANCE)  # a cut gradient may be tiny, the slope that it hides not
            square = 0.0
            for _ in range(SLOPE_DIRECTIONS):
                d = torch.randn(p.shape, generator=draws).to(p) * size
                off = _change(subject, {n: (p, d)}, draw_again) / 2 - (g * d).sum().item()
                square += (off / unit) ** 2 / SLOPE_DIRECTIONS
            if not math.sqrt(square) <= worst:
                worst, where = math.sqrt(square), n
    return Line(
        name,
        worst <= SLOPE_TOLERANCE,
        f"the loss's slope differs from the gradient by {worst:.1%} of it ({where})",
        "A path to the loss is cut or bent in backward only: detach, no_grad, .data or .item() in forward, or a "
        "backward of your own.",
    )


def _change(subject: Subject, moves: dict[str, tuple[Tensor, Tensor]], draw_again: Callable[[], None]) -> float:
    """Loss one move ahead less the loss one move back; the weights stand where they stood, up to rounding."""
    losses = []
    for factor in (1.0, -2.0, 1.0):
        with torch.no_grad():
            for p, move in moves.values():
                p.add_(move, alpha=factor)
            if len(losses) < 2:
                draw_again()
                losses.append(_loss(subject).item())
    return losses[0] - losses[1]


def _full_width(subject: Subject) -> None:
    if any(p.dtype.itemsize < 4 for p in _trainable(subject.model).values()):
        raise NotTestedError("weights are narrower than float32")


def _descend(subject: Subject, lr: float, steps: int, draw_again: Callable[[], None]) -> list[float]:
    """Losses before each AdamW update, and after the last; it ends early where the loss has halved."""
    weights, losses = _trainable(subject.model), []
    optimizer = torch.optim.AdamW(weights.values(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps + 1):
        draw_again()
        loss = _loss(subject)
        losses.append(loss.item())
        if step == steps or losses[-1] < ENOUGH * losses[0] or not math.isfinite(losses[-1]) or not loss.requires_grad:
            break
        for p, g in zip(
            weights.values(), torch.autograd.grad(loss, list(weights.values()), allow_unused=True), strict=True
        ):
            p.grad = g
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
    return losses


def overfit_line(subject: Subject) -> Line:
    """A few dozen updates on one batch must lower its loss; the weights are put back. Costs as many updates."""
    name = "one batch can be overfitted"
    _full_width(subject)
    if not _trainable(subject.model):
        raise NotTestedError("nothing is trainable")
    for lr in LEARNING_RATES:
        with as_before(subject.model, "train") as draw_again, _weights_back(subject.model):
            losses = _descend(subject, lr, STEPS, draw_again)
        if not math.isfinite(losses[0]):
            raise NotTestedError("the loss is not finite in train mode")
        start, end = losses[0], losses[-1]
        fine = math.isfinite(end) and end < CLEARLY * start
        if fine:
            break
    said = f"{start:.3f} nats before, {end:.3f} after {len(losses) - 1} updates at lr {lr:g}"
    cure = "What cannot learn 128 tokens by heart cannot learn: look at the gradients, the initial scale, the labels."
    return Line(name, fine, said, cure)
