"""Who made a derivative: each node of autograd's graph belongs to the call in whose code it was made.

A gradient that a tensor gets is a sum over all who read the tensor. Which of them made it NaN is seen only on the
edges of the graph, before they come together: those that lead from one call's nodes to another's, or to what has
passed between modules, are watched here.
"""

import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

LEAF = "AccumulateGrad"


@dataclass(eq=False)
class Call:
    """One call of a module."""

    module: str
    caller: "Call | None"
    """None if it was called from outside the model"""
    run: int
    """which of the calls from outside it is part of"""
    start: int = field(default_factory=torch._C._autograd._get_sequence_nr)
    """nodes are numbered as they are made: the number of the first that can be of this call"""
    end: float = math.inf
    """the first number behind it"""
    again: bool = False
    """computed once more, during a backward pass"""

    def inside(self, other: "Call") -> bool:
        """Whether ``other`` is this call or was waiting for it to end."""
        call: Call | None = self
        while call is not None and call is not other:
            call = call.caller
        return call is other


@dataclass
class Mark:
    """What is known of a node."""

    call: Call | None
    passed: bool = False
    """its tensor has passed from one module to another"""
    read: bool = False
    """by the code of the same call, before it passed"""


Handed = Callable[[Call, "Call | Tensor | None", Tensor], None]
"""told which call handed on a gradient, to whose derivatives (or to which leaf), and the gradient"""


def running_derivative() -> Any:
    """The node of the graph that this thread's backward pass is at; None outside of one. torch has no public name for
    it, nor for the numbers of nodes."""
    return torch._C._current_autograd_node()


class Derivatives:
    """Marks derivatives with the calls that made them. ``told`` hears of each gradient that leaves its call."""

    def __init__(self, told: Handed) -> None:
        self._told = told
        self._handles: list[Any] = []
        self.clear()

    def clear(self) -> None:
        """Take the hooks away, and forget which nodes were marked."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._key, self._thread = object(), threading.get_ident()
        self._calls: list[Call] = []

    def begin(self, call: Call) -> None:
        if threading.get_ident() == self._thread:  # a GPU's backward pass has its own thread, which numbers from 0
            self._calls.append(call)

    def end(self, call: Call) -> None:
        call.end = torch._C._autograd._get_sequence_nr()

    def owner(self, node: Any) -> Call | None:
        """The call that made ``node``; None if it was made outside the model."""
        if node is None:
            return None
        return node.metadata[self._key].call if self._key in node.metadata else self._maker(node, None)

    def reader(self, node: Any) -> Call | None:
        """The call that made ``node``, if its own code has read the result in a way that is not watched."""
        mark = None if node is None else node.metadata.get(self._key)
        return mark.call if mark is not None and mark.read else None

    def claim(self, tensors: Sequence[Tensor], call: Call | None) -> None:
        """Note that ``tensors`` pass from one module to another. The derivatives that lead to them and were not seen
        yet were made by ``call``, if their numbers do not say otherwise: it may have kept what others had made."""
        waiting: list[Any] = []

        def mark(node: Any) -> Mark:
            known = node.metadata
            if self._key not in known:
                known[self._key] = Mark(self._maker(node, call))
                waiting.append(node)
            return known[self._key]

        for tensor in tensors:
            if tensor.grad_fn is not None:
                mark(tensor.grad_fn).passed = True
        while waiting:
            node = waiting.pop()
            mine, away = node.metadata[self._key].call, list[tuple[int, Any]]()
            for number, (before, _) in enumerate(node.next_functions):
                if before is None:
                    continue
                if type(before).__name__ == LEAF:
                    away.append((number, before.variable))
                elif (its := mark(before)).call is not mine or its.passed:
                    away.append((number, its.call))
                else:
                    its.read = True
            if away and mine is not None:
                self._handles.append(node.register_hook(self._hook(mine, away)))

    def _maker(self, node: Any, claims: Call | None) -> Call | None:
        """The innermost call that was running when ``node`` got its number."""
        if threading.get_ident() != self._thread:
            return claims
        number = node._sequence_nr()
        at = bisect_right(self._calls, number, key=lambda call: call.start) - 1
        call = self._calls[at] if at >= 0 else None
        while call is not None and call.end <= number:
            call = call.caller
        again = claims is not None and claims.end <= number  # made after the call: computed once more on the way back
        return claims if call is None and again else call

    def _hook(self, call: Call, away: list[tuple[int, Any]]) -> Callable[..., None]:
        def hook(handed: tuple[Tensor | None, ...], _came: Any) -> None:
            for number, to in away:
                gradient = handed[number]
                if gradient is not None:
                    self._told(call, to, gradient)

        return hook
