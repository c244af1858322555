"""What happened in a run, noted from outside: which rows the model read, and what each update was made of.

A trainer is not asked what it did. The model tells of each call, and torch of each ``step()`` of an optimizer.
"""

import random
from collections.abc import Callable, Iterable, Iterator
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
    """One ``step()`` of the optimizer that holds the weights of the model, or of each of several in turn."""

    rows: list[list[int]]
    """the rows that the model has read since the update before, in no order"""
    before: dict[str, Tensor]
    """the weights, by name"""
    gradients: dict[str, Tensor]
    """the gradient of each weight, flat in float64; 0 where it had none"""
    scaled: list[float]
    """of each call of the model, the largest gradient that came back to its logits: it shows the loss scale"""
    dtypes: set[torch.dtype]
    """those of the logits"""
    rates: dict[str, float] = field(default_factory=dict)
    """of each weight that an optimizer holds, the learning rate of its group"""
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    after: dict[str, Tensor] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """The largest learning rate."""
        return max(self.rates.values())

    @property
    def gradient(self) -> Tensor:
        """The whole gradient as one vector."""
        return torch.cat(list(self.gradients.values()))

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Those of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]


class Tape(Noting):
    """The updates of one run. The plug is pulled when the model reads a row of ``fatal`` in training."""

    def __init__(self, fatal: Iterable[tuple[int, ...]] = ()) -> None:
        self.updates: list[Update] = []
        self.fatal = set(fatal)
        self._clear()

    def _clear(self) -> None:
        self._rows: list[list[int]] = []
        self._scaled: list[float] = []
        self._dtypes: set[torch.dtype] = set()

    def __deepcopy__(self, _memo: object) -> "Tape":
        return self  # a model that is copied keeps telling the same tape

    def called(self, model: nn.Module, input_ids: Tensor, logits: Tensor) -> None:
        """Note the rows of a call that a gradient will come back from."""
        if logits.requires_grad:
            rows = input_ids.tolist()
            if self.fatal and any(tuple(row) in self.fatal for row in rows):
                raise PulledError
            self._rows += rows
            self._dtypes.add(logits.dtype)
            logits.register_hook(lambda gradient: self._scaled.append(float(gradient.abs().max())))

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """While inside, note each step of an optimizer that holds a weight of ``model``."""
        own = {id(p): name for name, p in model.named_parameters()}

        def rates_in(optimizer: torch.optim.Optimizer) -> dict[str, float]:
            pairs = [(p, group["lr"]) for group in optimizer.param_groups for p in group["params"]]
            return {own[id(p)]: float(rate) for p, rate in pairs if id(p) in own}

        def before(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            found, rates = getattr(optimizer, "found_inf", None), rates_in(optimizer)
            if not rates or (found is not None and bool(found)):
                return  # a fused optimizer is called by the scaler even if it is to do nothing
            scale = getattr(optimizer, "grad_scale", None)
            gradients = {name: _flat(p) / (1.0 if scale is None else float(scale)) for name, p in
                         model.named_parameters()}  # fmt: skip
            last = self.updates[-1] if self.updates else None
            if last is None or self._rows or any(optimizer is other for other in last.optimizers):
                last = Update(self._rows, weights_of(model), gradients, self._scaled, self._dtypes)
                self.updates.append(last)
                self._clear()
            last.gradients |= {name: gradients[name] for name in rates}  # a second optimizer's, as they are now
            last.rates |= rates
            last.optimizers.append(optimizer)

        def after(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            if rates_in(optimizer) and self.updates:
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


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all weights and buffers, by name."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    """Whether two sets of weights are equal bit for bit (where both are NaN, they are not)."""
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


def furthest(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """By how much any weight differs at most; infinite if one is not finite."""
    gaps = [float((some[name].double() - others[name].double()).abs().max()) for name in some]
    return float("inf") if any(gap != gap for gap in gaps) else max(gaps)


class Rows:
    """``data[n]``: what ``batch(n)`` gives; ``at`` is called before. It ends a trainer that asks without end."""

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
