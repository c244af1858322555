"""What passes from module to module: each tensor on its way forward, each gradient on its way back.

Others look at what passes: ``nonfinite.py`` after a bad step, ``watch/nan_hunt.py`` whenever asked to.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

Phase = Literal["forward", "backward"]
NEAR_THE_END = 0.01
"""share of a format's largest number: 655 in FP16, more than any score that a mask is laid over"""
OUTSIDE = ""
"""the "module" of what happens before or behind the model: the data, the loss, the scale"""


@dataclass(frozen=True)
class Role:
    """What a tensor is to one module."""

    module: str
    """the module's name; the class's for the model itself"""
    side: Literal["input", "output", "weight"]
    caller: str
    """the module whose code called this one; ``OUTSIDE`` for the model itself"""
    name: str = ""
    """of a weight, within its module"""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


See = Callable[[Phase, Sequence[Role], Tensor], None]
"""told of each tensor that passes (backward: the gradient), with every role that the tensor has"""


class Trace:
    """Hooks on all modules of a model while its ``watching`` block lasts.

    Forward, ``see`` is told of a module's weights and inputs when it begins and of its outputs when it ends, so in
    the order of the computation, inner modules first. Backward, of each gradient once, when it is complete, with the
    roles of its tensor: it leaves the modules of which it is the input, and comes to those of which it is the output.
    ``code(values, module)``, if given, is told that the code of ``module`` has just made these values.
    """

    def __init__(self, model: nn.Module, see: See, code: Callable[[Any, str], None] | None = None) -> None:
        self.model, self._see, self._code = model, see, code
        self.names = {module: name or type(model).__name__ for name, module in model.named_modules()}
        self._running: list[str] = []
        self._handles: list[Any] = []
        self._roles: Any = WeakTensorKeyDictionary()  # of each tensor: the derivative it had then, and its roles

    @property
    def running(self) -> str:
        """The innermost module whose code runs now; ``OUTSIDE`` if none does."""
        return self._running[-1] if self._running else OUTSIDE

    @contextmanager
    def watching(self) -> Iterator["Trace"]:
        self._running.clear()
        try:
            for module in self.names:
                self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
                self._handles.append(module.register_forward_hook(self._after, always_call=True))
            self._listen_to_weights()
            yield self
        finally:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            self._roles.clear()

    def _listen_to_weights(self) -> None:
        roles: dict[Tensor, list[Role]] = {}
        for module, name in self.names.items():
            for own, parameter in module.named_parameters(recurse=False):
                roles.setdefault(parameter, []).append(Role(name, "weight", name, own))
        for parameter, its_roles in roles.items():
            if parameter.requires_grad:
                self._listen(parameter, its_roles)  # roles are added where it is handed to a module as well

    def _before(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        name, caller = self.names[module], self.running
        for own, parameter in module.named_parameters(recurse=False):
            self._see("forward", (Role(name, "weight", name, own),), parameter.detach())
        for tensor in tensors_in((arguments, named)):
            self._pass(tensor, Role(name, "input", caller))
        if self._code is not None:
            self._code((arguments, named), caller)
        self._running.append(name)

    def _after(self, module: nn.Module, _arguments: tuple[Any, ...], output: Any) -> None:
        name = self.names[module]
        if self._running[-1:] != [name]:  # somebody's own hook has failed before this module began
            return
        self._running.pop()
        for tensor in tensors_in(output):
            self._pass(tensor, Role(name, "output", self.running))
        if self._code is not None:
            self._code(output, name)

    def _pass(self, tensor: Tensor, role: Role) -> None:
        if not tensor.is_floating_point():
            return
        self._see("forward", (role,), tensor.detach())
        if not tensor.requires_grad:
            return
        known = self._roles.get(tensor)
        if known is not None and known[0] is tensor.grad_fn:
            known[1].append(role)
            return
        roles = [role]  # a tensor that was changed in place has another derivative, and is another tensor here
        self._listen(tensor, roles)

    def _listen(self, tensor: Tensor, roles: list[Role]) -> None:
        self._roles[tensor] = (tensor.grad_fn, roles)
        self._handles.append(tensor.register_hook(self._told(roles)))

    def _told(self, roles: list[Role]) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
            self._see("backward", tuple(roles), gradient.detach())

        return hook


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested dicts, tuples and lists, and in objects that keep them as attributes."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)):
        yield from (part for part in vars(value).values() if isinstance(part, Tensor))


def is_bad(tensor: Tensor, phase: Phase) -> Tensor:
    """Whether a tensor holds NaN or infinity that nobody meant; a truth value ``[]`` on the tensor's device.

    On the way forward, minus infinity beside ordinary numbers is how masks forbid a place, and is no fault. It is one
    where nothing else is left, and beside numbers that come near the end of the format's range.
    """
    finite = tensor.isfinite()
    bad = ~finite.all()
    if phase == "backward" or tensor.numel() == 0 or (tensor.device.type == "cpu" and not bad):
        return bad
    forbidden = (tensor == -math.inf) | finite
    largest = tensor.abs().where(finite, 0).amax()
    mask = forbidden.all() & finite.any() & (largest < NEAR_THE_END * torch.finfo(tensor.dtype).max)
    return bad & ~mask


@dataclass(frozen=True)
class Passage:
    """One tensor that passed, and whether it was bad, as ``is_bad`` says."""

    phase: Phase
    roles: tuple[Role, ...]
    bad: bool


@dataclass(frozen=True)
class Blame:
    """Where finite numbers became others."""

    module: str
    """the module's name; ``OUTSIDE`` if it was neither the model nor one of its parts"""
    phase: Phase
    role: Role
    """of the first bad tensor"""
    how: Literal["output", "weight", "between", "outside"]
    """its own output; its own weight (backward: the gradient of one); its own code, between the modules that it
    calls; outside the model"""


def blame(passages: Sequence[Passage]) -> Blame | None:
    """Which module turned finite numbers into ones that are not; None if all are finite."""
    clean: set[str] = set()  # modules into which the gradient came finite
    for passage in passages:
        if passage.bad:
            return _forward(passage) if passage.phase == "forward" else _backward(passage, clean)
        if passage.phase == "backward":
            clean.update(role.module for role in passage.roles if role.side == "output")
    return None


def _forward(first: Passage) -> Blame:
    role = first.roles[0]
    if role.side == "input":
        return Blame(role.caller, "forward", role, "between" if role.caller else "outside")
    return Blame(role.module, "forward", role, role.side)


def _backward(first: Passage, clean: set[str]) -> Blame:
    """The gradient left a module into which it came finite; if there is none, the code around the modules did it."""
    left = [role for role in first.roles if role.side == "input" and role.module in clean]
    if left:
        role = max(left, key=lambda role: role.module.count("."))
        return Blame(role.module, "backward", role, "output")
    weights = [role for role in first.roles if role.side == "weight"]
    if weights:
        return Blame(weights[0].module, "backward", weights[0], "weight")
    came = [role for role in first.roles if role.side == "output"] or list(first.roles)
    return Blame(came[-1].caller, "backward", came[0], "between" if came[-1].caller else "outside")
