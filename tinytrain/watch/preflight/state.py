"""A model before and after it is asked: what it keeps beside its weights is put back, between calls and at the end."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tinytrain.generators import all_states, keep_generators, restore_all
from tinytrain.observe import keep_modes_and_buffers

MODES = ("train", "eval")
CONTAINERS = (list, dict, set, deque, OrderedDict, defaultdict)  # these and no classes made of them
OWN = frozenset(nn.Module().__dict__) - {"training"}  # parameters, buffers, children, hooks: torch's own
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes: what floats are compared as


@contextmanager
def as_before(model: nn.Module, mode: str) -> Iterator[Callable[[], None]]:
    """Run the model in ``mode``; gives a function that makes the next call start where the first one did.

    That function sets back all random generators, also those that modules keep as attributes, and in train mode the
    buffers: running statistics and the biases of a router may move there. In eval mode nothing may move, so there
    buffers stay as the last call left them.

    Put back afterwards, also after an exception: modes, buffers, generators, and what modules keep as plain attributes
    (tensors, generators, modules, and lists, dicts, sets and deques of them). What an object of another class keeps
    is not seen. Of tensors that are sparse, nested or without data, only which one it was is put back.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is neither 'train' nor 'eval'")
    kept = [(module, dict(module.__dict__)) for module in _all_modules(model)]
    values = _Values()
    for module, attributes in kept:
        values.keep([value for name, value in attributes.items() if name not in OWN])
        values.keep(module._buffers)
        values.keep(module._non_persistent_buffers_set)
    with keep_generators(), keep_modes_and_buffers(model):
        states = all_states()

        def again() -> None:
            restore_all(states)
            values.restore_generators()
            if mode == "train":
                _renew_buffers(model, values)

        try:
            model.train(mode == "train")
            with torch.set_grad_enabled(mode == "train"):
                yield again
        finally:
            for module, attributes in kept:
                module.__dict__.clear()
                module.__dict__.update(attributes)
            values.restore()


def _renew_buffers(model: nn.Module, values: "_Values") -> None:
    """A copy in the place of each buffer that a call has changed: backward may need the changed one itself."""
    copies: dict[int, Tensor] = {}
    for module in model.modules():
        for name, buffer in values.contents.get(id(module._buffers), {}).items():
            if buffer is None or id(buffer) not in values.tensors:
                module._buffers[name] = buffer
            elif not equal(module._buffers.get(name), kept := values.tensors[id(buffer)][1]):
                module._buffers[name] = copies.setdefault(id(buffer), kept.clone())


def equal(a: Tensor | None, b: Tensor | None) -> bool:
    """Shape, kind and, of floats, every bit: a NaN equals itself alone, and -0.0 is not 0.0."""
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return a is b
    if a.is_floating_point():
        a, b = (t.detach().view(BITS[t.itemsize]) for t in (a, b))
    return torch.equal(a, b)


def plain_attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """(name, value) of each tensor and module that stands in a plain attribute, list, tuple or dict of a module."""
    seen: set[int] = set()

    def walk(name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, (Tensor, nn.Module)):
            yield name, value
        elif type(value) in (*CONTAINERS, tuple) and id(value) not in seen:
            seen.add(id(value))
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            for key, part in parts:
                yield from walk(f"{name}[{key!r}]", part)

    for prefix, module in model.named_modules():
        for name, value in module.__dict__.items():
            if name not in OWN:
                yield from walk(f"{prefix}.{name}" if prefix else name, value)


def _all_modules(model: nn.Module) -> list[nn.Module]:
    """The model's modules, and those in plain attributes, which torch does not know of."""
    found = dict.fromkeys(model.modules())
    for _, value in plain_attributes(model):
        if isinstance(value, nn.Module):
            found |= dict.fromkeys(value.modules())
    return list(found)


class _Values:
    """What stood in tensors, generators and containers, by their identity."""

    def __init__(self) -> None:
        self.tensors: dict[int, tuple[Tensor, Tensor]] = {}
        self.generators: dict[int, tuple[torch.Generator, Tensor]] = {}
        self.containers: dict[int, Any] = {}
        self.contents: dict[int, Any] = {}

    def keep(self, value: Any) -> None:
        if isinstance(value, torch.Generator):
            self.generators[id(value)] = (value, value.get_state())
        elif isinstance(value, Tensor):
            plain = value.layout == torch.strided and not value.is_nested and not value.is_meta  # can be compared
            if plain and not isinstance(value, nn.Parameter) and id(value) not in self.tensors:
                self.tensors[id(value)] = (value, value.detach().clone())
        elif type(value) in (*CONTAINERS, tuple) and id(value) not in self.containers:
            self.containers[id(value)] = value  # the thing itself, so that no other gets its id
            self.contents[id(value)] = value if isinstance(value, tuple) else value.copy()
            for part in value.values() if isinstance(value, dict) else value:
                self.keep(part)

    def restore_generators(self) -> None:
        for generator, state in self.generators.values():
            generator.set_state(state)

    def restore(self) -> None:
        self.restore_generators()
        for key, container in self.containers.items():
            if isinstance(container, list):
                container[:] = self.contents[key]
            elif not isinstance(container, tuple):
                container.clear()
                (container.extend if isinstance(container, deque) else container.update)(self.contents[key])
        with torch.no_grad():
            for tensor, value in self.tensors.values():
                if tensor.shape == value.shape and not equal(tensor, value):
                    tensor.copy_(value)
