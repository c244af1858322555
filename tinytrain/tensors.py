"""The tensors that modules are given and give back: which there are, what of them can be looked at, which are bad."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

Phase = Literal["forward", "backward"]
NEAR_THE_END = 0.01
"""share of a format's largest number: 655 in FP16, more than any score that a mask is laid over"""


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested dicts, tuples, lists, sets, dataclasses and namespaces, and those that other objects keep
    as attributes of their own. What an iterator would yield stays unseen: to look would be to take it.

    >>> [len(t) for t in tensors_in({"a": [torch.ones(1)], "b": SimpleNamespace(c=(torch.ones(2), "text"))})]
    [1, 2]
    """
    yield from _tensors_in(value, set())


def _tensors_in(value: Any, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (str, int, float, type, nn.Module)) or value is None or id(value) in seen:
        return
    elif parts := _parts(value):
        seen.add(id(value))  # an object may contain itself
        for part in parts:
            yield from _tensors_in(part, seen)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (tuple, list, set, frozenset)):
        return list(value)
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    if isinstance(value, SimpleNamespace):
        return list(vars(value).values())
    slots = [name for kind in type(value).__mro__ for name in _names(vars(kind).get("__slots__", ()))]
    held = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
    return [part for part in held if isinstance(part, Tensor)]


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def readable(tensor: Tensor) -> Tensor | str:
    """The numbers of a tensor of real or complex numbers, detached, as a dense real tensor; or why there are none to
    be had, in a word or two. Of complex numbers the parts, of a sparse tensor what it stores, 8-bit floats as FP32."""
    if inside_torch_func(tensor):
        return "inside torch.func"
    if tensor.is_nested:
        return "nested"
    if tensor.device.type == "meta" or type(tensor).__name__ == "FakeTensor":
        return "without data (meta)"
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce().values()
    elif tensor.layout != torch.strided:
        return f"of layout {str(tensor.layout).removeprefix('torch.')}"
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor


def inside_torch_func(tensor: Tensor) -> bool:
    """Whether ``vmap``, ``grad`` or the like is at work on this tensor. torch has no public name for it."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def is_bad(tensor: Tensor, phase: Phase, *, buffer: bool = False) -> Tensor:
    """Whether a tensor holds NaN or infinity that nobody meant; a truth value ``[]`` on the tensor's device.

    On the way forward, minus infinity beside ordinary numbers is how masks forbid a place, and is no fault. It is one
    where nothing else is left, and beside numbers that come near the end of the format's range. In a ``buffer`` only
    NaN is a fault: masks are kept in buffers, and observers of ranges begin with both infinities.
    """
    if surely_finite(tensor):
        return torch.zeros((), dtype=torch.bool, device=tensor.device)
    if buffer:
        return tensor.isnan().any()
    finite = tensor.isfinite()
    bad = ~finite.all()
    if phase == "backward" or tensor.numel() == 0:
        return bad
    forbidden = (tensor == -math.inf) | finite
    largest = tensor.abs().where(finite, 0).amax()
    mask = forbidden.all() & finite.any() & (largest < NEAR_THE_END * torch.finfo(tensor.dtype).max)
    return bad & ~mask


def surely_finite(tensor: Tensor) -> bool:
    """True if all is finite, by the one look that is cheap and waits for no device. False says nothing: a sum of large
    numbers can overflow."""
    return tensor.device.type == "cpu" and math.isfinite(tensor.sum().item())
