"""The loss must change as its gradient says."""

import math
from collections.abc import Callable

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
SMALLEST = 100  # times the loss's rounding: what a move must change so that a tenth of it can be seen
SEEN = 10  # times the loss's rounding; measured 0 to 0.4 on whole paths, 22 and more on cut ones
STRAIGHT = 0.1  # of what is missing, between a move and half of it: 0 where the loss is smooth, about 1 where it jumps
LARGEST = 8  # weights that are looked at one by one where all of them together fail
SMALLER = (1.0, 1 / 4, 1 / 16)  # moves, as shares of the first: smaller ones cross fewer jumps

Moves = dict[str, tuple[Tensor, Tensor]]


def slope_line(subject: Subject) -> Line:
    """Along the gradient, and along random directions of the lowest matrices.

    Along the gradient a missing part may be at right angles. A random direction d of N numbers meets each part of the
    gradient with about |part| |d| / sqrt(N), so what differs there, in that unit, is the share that is missing.

    A loss that jumps as weights move (a router chooses another expert, a rounding goes the other way) has slopes that
    no small move shows: what then differs does not halve with the move, and nothing is said about that weight.
    """
    name = "gradients are the loss's slope"
    subject.need_full_width()
    with as_before(subject.model, "train") as draw_again, weights_back(subject.model):
        loss, found = loss_and_gradients(subject, draw_again)
        found = {n: g for n, g in found.items() if g is not None and g.isfinite().all() and g.any()}
        slopes = _Slopes(subject, draw_again, found, 4 * torch.finfo(torch.float32).eps * max(1.0, abs(loss.item())))
        if slopes.length(list(found)) * SLOPE_STEP < SMALLEST * slopes.noise:
            raise NotTestedError("the gradient is too small to measure the loss's slope")
        share, jumps = slopes.along()
        shares = {"all weights": share}
        matrices = [n for n in found if slopes.weights[n].dim() >= 2][:3]
        shares |= dict(zip(matrices, map(slopes.across, matrices), strict=True))
    jumps += [n for n in matrices if shares[n] is None and n not in jumps]
    worst, where = max((share or 0.0, where) for where, share in shares.items())
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
        "backward of your own. A straight-through estimator does so on purpose.",
    )


class _Slopes:
    """The loss as a function of the weights that have a gradient. ``noise`` is its rounding, in nats."""

    def __init__(self, subject: Subject, draw_again: Callable[[], None], found: dict[str, Tensor], noise: float):
        self.subject, self.draw_again, self.found, self.noise = subject, draw_again, found, noise
        self.weights = trainable(subject.model)
        self.draws = generator_for("slope")
        tables = {m.weight: m.padding_idx for m in subject.model.modules() if isinstance(m, nn.Embedding)}
        self.still = {n: tables.get(p) for n, p in self.weights.items()}
        """the row of a table, its padding_idx, that gets no gradient and is meant to get none"""

    def length(self, names: list[str]) -> float:
        return math.sqrt(sum(self.found[n].norm().item() ** 2 for n in names))

    def along(self) -> tuple[float | None, list[str]]:
        """The share that is missing along the gradient, and the weights at which the loss jumps."""
        together = self._share_along(list(self.found))
        if together is not None and together <= SLOPE_TOLERANCE:
            return together, []
        largest = sorted(self.found, key=lambda n: -self.length([n]))[:LARGEST]
        jumps = [n for n in largest if self._share_along([n]) is None]
        if jumps:
            together = self._share_along([n for n in self.found if n not in jumps])
        return together, jumps or (["all weights"] if together is None else [])

    def _share_along(self, names: list[str]) -> float | None:
        length = self.length(names)
        if not length:
            return None
        step = min(SLOPE_NATS / length, SLOPE_STEP) / length
        moves = {n: (self.weights[n], self.found[n] * step) for n in names}
        return self._missing([(moves, step * length**2)], step * length**2)

    def across(self, name: str) -> float | None:
        """The share that is missing along random directions of one weight."""
        p, g = self.weights[name], self.found[name]
        size = SLOPE_STEP * p.detach().norm().item() / math.sqrt(p.numel())
        probes: list[tuple[Moves, float]] = []
        for _ in range(SLOPE_DIRECTIONS):
            d = torch.randn(p.shape, generator=self.draws).to(p) * size
            if self.still[name] is not None:
                d[self.still[name]] = 0.0
            probes.append(({name: (p, d)}, (g * d).sum().item()))
        return self._missing(probes, g.norm().item() * size)  # |g| |d| / sqrt(N), with |d| = size sqrt(N)

    def _missing(self, probes: list[tuple[Moves, float]], unit: float) -> float | None:
        """What differs between the loss's change and the gradient's, in ``unit``; None if the loss jumps at each size.

        What is cut off is missing at every size, so a share is too large only if it is so at each that can be seen.
        """
        verdict = None
        for scale in SMALLER:
            if scale < 1 and scale * unit < SMALLEST * self.noise:
                break
            seen = max(scale * unit, SEEN * self.noise / SLOPE_TOLERANCE)  # a cut gradient may be tiny, its slope not
            changes = [self._change(moves, scale) for moves, _ in probes]
            off = _rms([change - scale * slope for change, (_, slope) in zip(changes, probes, strict=True)])
            if off <= SLOPE_TOLERANCE * seen:
                return off / seen
            halves = [self._change(moves, scale / 2) for moves, _ in probes]
            bent = _rms([change - 2 * half for change, half in zip(changes, halves, strict=True)])
            if bent <= STRAIGHT * off + SEEN * self.noise and _rms(changes) > SEEN * self.noise:
                verdict = off / seen
        return verdict

    def _change(self, moves: Moves, scale: float) -> float:
        """Half of the loss a move ahead less the loss a move back; weights stand where they stood, up to rounding."""
        losses = []
        for factor in (scale, -2 * scale, scale):
            with torch.no_grad():
                for p, move in moves.values():
                    p.add_(move, alpha=factor)
                if len(losses) < 2:
                    self.draw_again()
                    losses.append(loss_of(self.subject).item())
        return (losses[0] - losses[1]) / 2


def _rms(values: list[float]) -> float:
    return math.sqrt(sum(value**2 for value in values) / len(values))
