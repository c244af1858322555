"""What happened in a run, noted from outside: which rows the model read, and what each update was made of.

A trainer is not asked what it did. The model tells of each call, and torch of each ``step()`` of an optimizer.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tinytrain.course.laws.probe import Batch, Noting


@dataclass
class Update:
    """One ``step()`` of an optimizer that holds weights of the model."""

    rows: list[list[int]]
    """the rows that the model has read since the update before, in no order"""
    rate: float
    """the largest learning rate of the optimizer's groups"""
    before: dict[str, Tensor]
    """the weights, by name"""
    gradient: Tensor
    """the whole gradient as one vector in float64; 0 where a weight had none"""
    scaled: list[float]
    """of each call of the model, the largest gradient that came back to its logits: it shows the loss scale"""
    optimizer: torch.optim.Optimizer
    after: dict[str, Tensor] = field(default_factory=dict)


class Tape(Noting):
    """The updates of one run, and how its generators stand."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self._rows: list[list[int]] = []
        self._scaled: list[float] = []

    def __deepcopy__(self, _memo: object) -> "Tape":
        return self  # a model that is copied keeps telling the same tape

    def called(self, model: nn.Module, input_ids: Tensor, logits: Tensor) -> None:
        """Note the rows of a call that a gradient will come back from."""
        if logits.requires_grad:
            self._rows += input_ids.tolist()
            logits.register_hook(lambda gradient: self._scaled.append(float(gradient.abs().max())))

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """While inside, note each step of an optimizer that holds a weight of ``model``."""
        own = {id(p) for p in model.parameters()}

        def holds(optimizer: torch.optim.Optimizer) -> bool:
            return any(id(p) in own for group in optimizer.param_groups for p in group["params"])

        def before(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            found = getattr(optimizer, "found_inf", None)
            if not holds(optimizer) or (found is not None and bool(found)):
                return  # a fused optimizer is called by the scaler even if it is to do nothing
            scale = getattr(optimizer, "grad_scale", None)
            gradient = torch.cat([_flat(p) for p in model.parameters()]) / (1.0 if scale is None else float(scale))
            rate = max(float(group["lr"]) for group in optimizer.param_groups)
            self.updates.append(Update(self._rows, rate, weights_of(model), gradient, self._scaled, optimizer))
            self._rows, self._scaled = [], []

        def after(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            if holds(optimizer) and self.updates:
                self.updates[-1].after = weights_of(model)

        handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @property
    def rates(self) -> list[float]:
        return [update.rate for update in self.updates]


def _flat(p: Tensor) -> Tensor:
    gradient = torch.zeros_like(p) if p.grad is None else p.grad
    return gradient.detach().double().flatten()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all weights, by name."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    """Whether two sets of weights are equal bit for bit (where both are NaN, they are not)."""
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


def furthest(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """By how much any weight differs at most; infinite if one is not finite."""
    gaps = [float((some[name].double() - others[name].double()).abs().max()) for name in some]
    return float("inf") if any(gap != gap for gap in gaps) else max(gaps)


class Rows:
    """``data[n]``: what ``batch(n)`` gives, or what ``instead`` has for it. ``at`` is called before each is handed out.

    It ends a trainer that asks without end.
    """

    MOST = 400

    def __init__(
        self,
        batch: Callable[[int], list[Batch]],
        at: Callable[[int], None] | None = None,
    ) -> None:
        self._batch, self._at, self.asked = batch, at, []

    def __getitem__(self, n: int) -> list[Batch]:
        self.asked.append(int(n))
        if len(self.asked) > self.MOST:
            raise EndlessError
        if self._at is not None:
            self._at(int(n))
        return [{name: value.clone() for name, value in part.items()} for part in self._batch(int(n))]


class EndlessError(BaseException):
    """The trainer has asked for more batches than a run can need."""


class PulledError(BaseException):
    """The plug: no program can carry on after it."""


def generator_states() -> dict[str, str]:
    """How Python's, NumPy's and torch's generators stand, as texts to compare."""
    return {
        "Python's": str(random.getstate()),
        "NumPy's": str([str(part) for part in np.random.get_state()[1:3]] + [np.random.get_state()[1].tolist()]),
        "torch's": torch.get_rng_state().numpy().tobytes().hex(),
    }
