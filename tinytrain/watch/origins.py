"""From which operation numbers that are not finite come: an account that is kept while they pass from one to the next.

An operation that makes infinity out of finite numbers is an origin. So is one that makes NaN of nothing worse than
minus infinity, with which masks forbid a place. What is made of the results of an origin has that origin; what is
finite again has none, however it became so: ``where``, ``nan_to_num``, ``clamp``, a softmax over a mask.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tinytrain.tensors import Phase, is_bad, readable, surely_finite

FINITE, FORBIDDEN, INFINITE, NAN = range(4)  # the worst of a tensor's numbers; FORBIDDEN is minus infinity alone


@dataclass(frozen=True)
class Operation:
    """One that turned finite numbers into ones that are not."""

    module: str
    """in whose code it is"""
    phase: Phase
    op: str
    """such as ``exp``; backward, one of the operations that its derivative is made of"""
    line: str
    """``file:line: text`` of the line that asked for it; backward, of the forward line whose derivative it is.
    Empty where none is known"""
    derivative: str = ""
    """backward: torch's name for the derivative, such as ``SqrtBackward0``"""
    out_of: "Operation | None" = None
    """where the minus infinity came from of which it made NaN or plus infinity"""


@dataclass
class Result:
    """A tensor that is not finite, in the memory where it lies."""

    memory: StorageWeakRef
    origin: Operation
    place: str
    """the module in whose code it was made"""
    phase: Phase
    number: int
    fault: bool
    """whether it is bad, as ``is_bad`` says, and not a mask"""
    gone: bool = False
    """another operation of this phase has made something of it: finite numbers, or a result that lives on"""


@dataclass(frozen=True)
class Given:
    """What an operation was given."""

    worst: int = FINITE
    results: list[tuple[int, Result]] = field(default_factory=list)
    """what was not finite among it and has an origin, with how bad it is"""
    forbidden: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """tensors that hold minus infinity, and where"""


class Origins:
    """Of tensors that are not finite, by the memory in which they lie, so that a view has the origin of its whole."""

    def __init__(self) -> None:
        self._results: dict[int, Result] = {}
        self._ever: list[Result] = []

    def of(self, tensor: Tensor) -> Operation | None:
        result = self._result(tensor)
        return result.origin if result is not None else None

    def left_over(self, place: str) -> Operation | None:
        alive = (r.origin for r in self._ever if r.place == place and r.fault and not r.gone)
        return next(alive, None)

    def given(self, values: Any) -> Given:
        worst, results, forbidden = FINITE, [], []
        for value in _flat(values):
            level = _level(value)
            if level == FINITE:
                continue
            worst = max(worst, level)
            if isinstance(value, Tensor):
                if (result := self._result(value)) is not None:
                    results.append((level, result))
                if level == FORBIDDEN:
                    forbidden.append((value, value == -math.inf))
        return Given(worst, results, forbidden)

    def made(self, output: Any, given: Given, operation: Callable[[], Operation], place: str, phase: Phase) -> None:
        """``operation()`` is asked for only where it is an origin."""
        tensors = [value for value in _flat(output) if isinstance(value, Tensor) and _numeric(value)]
        levels = [_level(tensor) for tensor in tensors]
        if tensors:  # a comparison or item() is a look: it neither mends anything nor hands it on
            for _, result in given.results:
                result.gone = result.gone or result.phase == phase
        for tensor, level in zip(tensors, levels, strict=True):
            if level == FINITE:
                self._forget(tensor)
            elif (origin := self._origin(tensor, level, given, operation)) is not None:
                self._keep(tensor, origin, place, phase)

    def _origin(self, tensor: Tensor, level: int, given: Given, operation: Callable[[], Operation]) -> Operation | None:
        before = [result.origin for each, result in sorted(given.results, key=lambda r: (-r[0], r[1].number))]
        if given.worst == FINITE:
            return operation()
        if given.worst == FORBIDDEN and (level == NAN or (level == INFINITE and _elsewhere(tensor, given.forbidden))):
            made = operation()
            if made.phase == "forward":  # backward nobody forbids anything
                return replace(made, out_of=before[0] if before else None)
        if before:
            return before[0]
        return operation() if level > given.worst else None

    def _result(self, tensor: Tensor) -> Result | None:
        if not self._results or (key := _memory(tensor)) is None:
            return None
        result = self._results.get(key)
        return result if result is not None and not result.memory.expired() else None

    def _keep(self, tensor: Tensor, origin: Operation, place: str, phase: Phase) -> None:
        if (key := _memory(tensor)) is not None:
            numbers, memory = readable(tensor), StorageWeakRef(tensor.untyped_storage())
            fault = not isinstance(numbers, str) and bool(is_bad(numbers, phase))
            result = Result(memory, origin, place, phase, len(self._ever), fault)
            self._results[key] = result
            self._ever.append(result)

    def _forget(self, tensor: Tensor) -> None:
        if (result := self._result(tensor)) is not None:
            whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
            if whole:  # written over in place; a part that is finite says nothing of the rest
                del self._results[result.memory.cdata]


def _flat(values: Any) -> list[Any]:
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, (tuple, list)):
        return [one for value in values for one in _flat(value)]
    return [values]


def _numeric(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _level(value: Any) -> int:
    if isinstance(value, Tensor):
        try:
            return _level_of(value) if _numeric(value) else FINITE
        except NotImplementedError:  # a kind of tensor that cannot be asked
            return FINITE
    if isinstance(value, float) and math.isinf(value):  # NaN as a constant is no excuse for who computes with it
        return INFINITE if value > 0 else FORBIDDEN
    return FINITE


def _level_of(tensor: Tensor) -> int:
    numbers = readable(tensor)
    if isinstance(numbers, str) or surely_finite(numbers) or bool(numbers.isfinite().all()):
        return FINITE
    if bool(numbers.isnan().any()):
        return NAN
    return INFINITE if bool((numbers == math.inf).any()) else FORBIDDEN


def _elsewhere(tensor: Tensor, forbidden: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether plus infinity stands where none of the given tensors of this shape had minus infinity. Where a shape is
    another, places cannot be compared."""
    if any(each.shape != tensor.shape for each, _ in forbidden) or not forbidden:
        return False
    fresh = tensor == math.inf
    for _, where in forbidden:
        fresh = fresh & ~where
    return bool(fresh.any())


def _memory(tensor: Tensor) -> int | None:
    if tensor.layout != torch.strided or isinstance(readable(tensor), str):
        return None
    return tensor.untyped_storage()._cdata
