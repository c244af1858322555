"""What passes from module to module: each tensor on its way forward, each gradient on its way back.

Others look at what passes: ``nonfinite.py`` after a bad step, ``watch/nan_hunt.py`` whenever asked to.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from tinytrain.derivatives import Call, Derivatives, running_derivative
from tinytrain.tensors import Phase, inside_torch_func, readable, tensors_in

OUTSIDE = ""
"""the "module" of what happens before or behind the model: the data, the loss, the scale"""
Side = Literal["input", "output", "weight", "handed", "read", "kept", "left over"]
BEFORE: tuple[Side, ...] = ("kept", "left over")
"""sides of what is older than the passes that are watched"""


@dataclass(frozen=True)
class Role:
    """What a tensor is to one module."""

    module: str
    """the module's name; the class's for the model itself"""
    side: Side
    """its input, output or weight; the gradient that it hands on; what its own code has made and read; a weight or
    buffer of its as it was at the start; the gradient of its weight that an earlier backward has left"""
    caller: str
    """the module whose code called this one; ``OUTSIDE`` for the model itself"""
    name: str = ""
    """of a weight or buffer, within its module"""
    run: int = 0
    """which forward pass of those that were watched it belongs to"""
    within: tuple[str, ...] = ()
    """of what was kept: the modules around its own, from the model itself on"""
    buffer: bool = False
    """kept as a buffer and not as a weight"""
    again: bool = False
    """in a call that was computed once more, during a backward pass"""
    hooked: bool = False
    """a weight with hooks of the user's own, which may change its gradient"""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


See = Callable[[Phase, Sequence[Role], Tensor], None]
"""told of each tensor that passes (backward: the gradient), with every role that the tensor has; as ``readable``
gives it"""


class Trace:
    """Hooks on all modules of a model while its ``watching`` block lasts.

    First, ``see`` is told of all weights and buffers as they are. Forward, it is told of a module's weights and
    inputs when it begins and of its outputs when it ends, so in the order of the computation, inner modules first.
    Backward, of each gradient that the code of a module hands on, and of each tensor's gradient once, when it is
    complete, with the roles of its tensor: it leaves the modules of which it is the input, and comes to those of which
    it is the output. ``unseen`` counts the tensors that could not be looked at, by module and reason; ``twice`` says
    whether gradients were made of which there are derivatives again.
    """

    def __init__(self, model: nn.Module, see: See) -> None:
        self.model, self._see = model, see
        self.unseen: dict[tuple[str, str], int] = {}
        self.twice = False
        self._derivatives = Derivatives(self._hands_on)
        self._running: list[Call] = []
        self._handles: list[Any] = []
        self._roles: Any = WeakTensorKeyDictionary()  # of each tensor: the derivative it had then, and its roles
        self._name_modules()

    def _name_modules(self) -> None:
        self.names = {module: name for name, module in self.model.named_modules()}
        whole = type(self.model).__name__
        self.names[self.model] = f"{whole} itself" if whole in self.names.values() else whole

    @property
    def running(self) -> str:
        """The innermost module whose code runs now; ``OUTSIDE`` if none does."""
        return self._running[-1].module if self._running else OUTSIDE

    def owner(self, node: Any) -> str:
        """The module in whose code a derivative was made; ``OUTSIDE`` if in none."""
        call = self._derivatives.owner(node)
        return call.module if call is not None else OUTSIDE

    @contextmanager
    def watching(self) -> Iterator["Trace"]:
        self._running.clear()
        self._derivatives.clear()
        self._begun: set[str] = set()
        self._run = 0
        self.unseen.clear()
        self.twice = False
        self._name_modules()
        try:
            self._look_at_what_is_kept()
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
            self._derivatives.clear()

    @staticmethod
    def apart() -> AbstractContextManager[Any]:
        """What is done in this block is no operation of the model, and no mode counts it: torch has no public way."""
        return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()

    def _look(self, phase: Phase, roles: Sequence[Role], tensor: Tensor) -> None:
        self.twice = self.twice or (phase == "backward" and tensor.requires_grad)
        if not (tensor.is_floating_point() or tensor.is_complex()) or is_lazy(tensor):
            return
        with self.apart():
            try:
                numbers = readable(tensor)
                if not isinstance(numbers, str):
                    self._see(phase, roles, numbers)
                    return
            except NotImplementedError:  # a kind of tensor that cannot be asked
                numbers = f"of type {type(tensor).__name__}"
        key = roles[0].module, numbers
        self.unseen[key] = self.unseen.get(key, 0) + 1

    def _look_at_what_is_kept(self) -> None:
        around = {"": self.names[self.model]}
        for path, module in self.model.named_modules():
            name = around[path] = self.names[module]
            above = [path[:at] for at, letter in enumerate(path) if letter == "."]
            within = tuple(around[each] for each in ["", *above, path] if each in around)
            for own, parameter in module.named_parameters(recurse=False):
                self._look("forward", (Role(name, "kept", OUTSIDE, own, within=within),), parameter)
            for own, buffer in module.named_buffers(recurse=False):
                self._look("forward", (Role(name, "kept", OUTSIDE, own, within=within, buffer=True),), buffer)

    def _listen_to_weights(self) -> None:
        roles: dict[Tensor, list[Role]] = {}
        for module, name in self.names.items():
            for own, parameter in module.named_parameters(recurse=False):
                hooked = bool(parameter._backward_hooks)
                roles.setdefault(parameter, []).append(Role(name, "weight", name, own, hooked=hooked))
        for parameter, its_roles in roles.items():
            if parameter.requires_grad and not is_lazy(parameter):
                self._listen(parameter, its_roles)  # roles are added where it is handed to a module as well

    def _before(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        name, caller = self.names[module], self._caller()
        call = Call(name, caller, caller.run if caller else self._run_of(name))
        call.again = caller is not None and (caller.again or not self._running)
        for own, parameter in module.named_parameters(recurse=False):
            self._look("forward", (Role(name, "weight", name, own, call.run),), parameter)
        tensors = list(tensors_in((arguments, named)))
        for tensor in tensors:
            self._pass(
                tensor, Role(name, "input", caller.module if caller else OUTSIDE, run=call.run, again=call.again)
            )
        self._claim(tensors, caller)
        self._derivatives.begin(call)
        self._running.append(call)

    def _after(self, module: nn.Module, _arguments: tuple[Any, ...], output: Any) -> None:
        name = self.names[module]
        if self.running != name:  # somebody's own hook has failed before this module began
            return
        call = self._running.pop()
        self._derivatives.end(call)
        tensors, caller = list(tensors_in(output)), call.caller.module if call.caller else OUTSIDE
        self._claim([*tensors, *_kept_by(module)], call)
        for tensor in tensors:
            self._pass(tensor, Role(name, "output", caller, run=call.run, again=call.again))

    def _caller(self) -> Call | None:
        """The call whose code runs now; in a backward pass that computes something once more, the one it is part of."""
        return self._running[-1] if self._running else self._derivatives.owner(running_derivative())

    def _run_of(self, name: str) -> int:
        """A call from outside begins the next run if this module was called so before."""
        if name in self._begun:
            self._run += 1
            self._begun.clear()
        self._begun.add(name)
        return self._run

    def _claim(self, tensors: list[Tensor], call: Call | None) -> None:
        self._derivatives.claim([each for each in tensors if not inside_torch_func(each)], call)

    def _pass(self, tensor: Tensor, role: Role) -> None:
        self._look("forward", (role,), tensor)
        if not tensor.requires_grad or inside_torch_func(tensor):
            return
        known = self._roles.get(tensor)
        if known is not None and known[0] is tensor.grad_fn:
            known[1].append(role)
        else:
            self._listen(tensor, [role])  # what was changed in place has another derivative: another tensor, here

    def _listen(self, tensor: Tensor, roles: list[Role]) -> None:
        self._roles[tensor] = (tensor.grad_fn, roles)
        self._handles.append(tensor.register_hook(self._told(roles, tensor if roles[0].side == "weight" else None)))

    def _told(self, roles: list[Role], weight: Tensor | None) -> Callable[[Tensor], None]:
        first = True

        def hook(gradient: Tensor) -> None:
            nonlocal first
            if first and weight is not None and weight.grad is not None:
                role = roles[0]
                self._look("backward", (Role(role.module, "left over", OUTSIDE, role.name),), weight.grad)
            first = False
            reader = self._derivatives.reader(running_derivative())
            added = [Role(reader.module, "read", OUTSIDE, run=reader.run)] if reader is not None else []
            self._look("backward", (*roles, *added), gradient)

        return hook

    def _hands_on(self, call: Call, to: Call | Tensor | None, gradient: Tensor) -> None:
        roles = [Role(call.module, "handed", call.caller.module if call.caller else OUTSIDE, run=call.run)]
        if isinstance(to, Tensor):
            known = self._known(to)
            handed = any(role.side == "input" and role.module == call.module for role in known)  # as an argument
            roles += [role for role in known if role.side == "weight" and not handed][:1]
        elif to is not None and to.inside(call):
            roles.append(Role(to.module, "output", call.module, run=to.run))
        self._look("backward", roles, gradient)

    def _known(self, tensor: Tensor) -> list[Role]:
        known = self._roles.get(tensor)
        return known[1] if known is not None else []


def _kept_by(module: nn.Module) -> list[Tensor]:
    """What a module keeps as an attribute, for a loss to read later."""
    kept: list[Tensor] = []
    for value in vars(module).values():
        if isinstance(value, Tensor):
            kept.append(value)
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            kept += [each for each in value if isinstance(each, Tensor)]
    return kept
