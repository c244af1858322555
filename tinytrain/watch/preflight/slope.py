"""The loss must change as its gradient says."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tinytrain.seeds import generator_for
from tinytrain.watch.preflight.gradients import loss_and_gradients, loss_of, trainable, weights_back
from tinytrain.watch.preflight.report import Line, listed
from tinytrain.watch.preflight.state import as_before
from tinytrain.watch.preflight.subject import NotTestedError, Subject

SLOPE_TOLERANCE = 0.3  # of the gradient; measured 0.001 to 0.06 on honest models, 0.87 and more on cut ones
SLOPE_STEP = 0.03  # of a weight's size: far above rounding, and still straight
SLOPE_DIRECTIONS = 4
SLOPE_NATS = 0.002  # how far the loss is moved to measure its slope: 1000 times its rounding, and still straight
SEEN = 10  # times the loss's rounding; measured 0 to 0.4 on whole paths, 22 and more on cut ones
STRAIGHT = 0.1  # of what is missing, between a move and half of it: 0 where the loss is smooth, about 1 where it jumps
SMALLER = (1.0, 1 / 4, 1 / 16)  # moves, as shares of the first: smaller ones cross fewer jumps

Moves = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Probe:
    """Moves of weights, the slope that the gradient says each has, and the slope of a move that misses all of it."""

    where: str
    moves: list[tuple[Moves, float]]
    unit: float


def slope_line(subject: Subject) -> Line:
    """Along the gradient, and along random directions of the lowest matrices.

    Along the gradient a missing part may be at right angles. A random direction d of N numbers meets each part of the
    gradient with about |part| |d| / sqrt(N), so what differs there, in that unit, is the share that is missing.

    A loss that jumps as weights move (a router chooses another expert, a rounding goes the other way) has slopes that
    no small move shows: what then differs does not halve with the move, and nothing is said about that weight.
    """
    name = "gradients are the loss's slope"
    subject.need_full_width()
    weights, worst, where, jumps = trainable(subject.model), 0.0, "all weights", []
    with as_before(subject.model, "train") as draw_again, weights_back(subject.model):
        loss, found = loss_and_gradients(subject, draw_again)
        found = {n: g for n, g in found.items() if g is not None and g.isfinite().all() and g.any()}
        length = math.sqrt(sum(g.norm().item() ** 2 for g in found.values()))
        noise = 4 * torch.finfo(torch.float32).eps * max(1.0, abs(loss.item()))
        if length * SLOPE_STEP < 100 * noise:
            raise NotTestedError("the gradient is too small to measure the loss's slope")
        step = min(SLOPE_NATS / length, SLOPE_STEP) / length
        along = {n: (weights[n], g * step) for n, g in found.items()}
        probes = [Probe("all weights", [(along, step * length**2)], step * length**2)]
        draws, still = generator_for("slope"), _rows_that_stay(subject.model)
        for n in [n for n in found if weights[n].dim() >= 2][:3]:
            probes.append(_random_probe(n, weights[n], found[n], still.get(n), draws))
        for probe in probes:
            share = _missing(subject, probe, noise, draw_again)
            if share is None:
                jumps.append(probe.where)
            elif not share <= worst:
                worst, where = share, probe.where
    if jumps and worst <= SLOPE_TOLERANCE:
        raise NotTestedError(
            f"the loss jumps as weights move ({listed(jumps)}), as routing to the top experts, rounding and "
            "straight-through estimators make it"
        )
    return Line(
        name,
        worst <= SLOPE_TOLERANCE,
        f"the loss's slope differs from the gradient by {worst:.1%} of it ({where})",
        "A path to the loss is cut or bent in backward only: detach, no_grad, .data or .item() in forward, or a "
        "backward of your own.",
    )


def _random_probe(name: str, p: Tensor, g: Tensor, still: int | None, draws: torch.Generator) -> Probe:
    size = SLOPE_STEP * p.detach().norm().item() / math.sqrt(p.numel())
    moves = []
    for _ in range(SLOPE_DIRECTIONS):
        d = torch.randn(p.shape, generator=draws).to(p) * size
        if still is not None:
            d[still] = 0.0
        moves.append(({name: (p, d)}, (g * d).sum().item()))
    return Probe(name, moves, g.norm().item() * size)  # |g| |d| / sqrt(N), with |d| = size sqrt(N)


def _rows_that_stay(model: nn.Module) -> dict[str, int]:
    """{name: row} of tables whose padding_idx gets no gradient, and is meant to get none."""
    tables = {m.weight: m.padding_idx for m in model.modules() if isinstance(m, nn.Embedding)}
    return {n: row for n, p in model.named_parameters() if (row := tables.get(p)) is not None}


def _missing(subject: Subject, probe: Probe, noise: float, draw_again: Callable[[], None]) -> float | None:
    """The share of the gradient that is missing; None where the loss jumps at every size of the move."""
    for scale in SMALLER:
        if scale < 1 and scale * probe.unit < 100 * noise:
            break
        unit = max(scale * probe.unit, SEEN * noise / SLOPE_TOLERANCE)  # a cut gradient may be tiny, the slope not
        changes = [_change(subject, moves, scale, draw_again) for moves, _ in probe.moves]
        off = _rms([change - scale * slope for change, (_, slope) in zip(changes, probe.moves, strict=True)])
        if off <= SLOPE_TOLERANCE * unit:
            return off / unit
        halves = [_change(subject, moves, scale / 2, draw_again) for moves, _ in probe.moves]
        bent = _rms([change - 2 * half for change, half in zip(changes, halves, strict=True)])
        if bent <= STRAIGHT * off + SEEN * noise and _rms(changes) > SEEN * noise:
            return off / unit
    return None


def _rms(values: list[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values))


def _change(subject: Subject, moves: Moves, scale: float, draw_again: Callable[[], None]) -> float:
    """Half of the loss a move ahead less the loss a move back; weights stand where they stood, up to rounding."""
    losses = []
    for factor in (scale, -2 * scale, scale):
        with torch.no_grad():
            for p, move in moves.values():
                p.add_(move, alpha=factor)
            if len(losses) < 2:
                draw_again()
                losses.append(loss_of(subject).item())
    return (losses[0] - losses[1]) / 2
