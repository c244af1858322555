"""Who made a derivative: each node of autograd's graph belongs to the call in whose code it was made.

A gradient that a tensor gets is a sum over all who read the tensor. Which of them made it NaN is seen only on the
edges of the graph, before they come together: those that lead from one call's nodes to another's are watched here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

LEAF = "AccumulateGrad"


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a module."""

    module: str
    caller: "Call | None"
    """None if it was called from outside the model"""
    run: int
    """which of the calls from outside it is part of"""

    def inside(self, other: "Call") -> bool:
        """Whether ``other`` is this call or was waiting for it to end."""
        call: Call | None = self
        while call is not None and call is not other:
            call = call.caller
        return call is other


Handed = Callable[[Call, "Call | Tensor | None", Tensor], None]
"""told which call handed on a gradient, to whose derivatives (or to which leaf), and the gradient"""


class Derivatives:
    """Marks derivatives with the calls that made them. ``told`` hears of each gradient that leaves its call."""

    def __init__(self, told: Handed) -> None:
        self._told, self._key = told, object()
        self._handles: list[Any] = []

    def clear(self) -> None:
        """Take the hooks away, and forget which nodes were marked."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._key = object()

    def owner(self, node: Any) -> Call | None:
        """The call that made ``node``; None if it was made outside the model."""
        return None if node is None else node.metadata.get(self._key)

    def claim(self, tensors: Iterable[Tensor], call: Call | None) -> None:
        """All derivatives that lead to ``tensors`` and that nobody has claimed were made in the code of ``call``."""
        waiting = [tensor.grad_fn for tensor in tensors]
        while waiting:
            node = waiting.pop()
            if node is None or self._key in node.metadata:
                continue
            node.metadata[self._key] = call
            away = []
            for number, (before, _) in enumerate(node.next_functions):
                if before is None:
                    continue
                if type(before).__name__ == LEAF:
                    away.append((number, before.variable))
                elif self._key not in before.metadata:
                    waiting.append(before)
                elif before.metadata[self._key] is not call:
                    away.append((number, before.metadata[self._key]))
            if away and call is not None:
                self._handles.append(node.register_hook(self._hook(call, away)))

    def _hook(self, call: Call, away: list[tuple[int, Any]]) -> Callable[..., None]:
        def hook(handed: tuple[Tensor | None, ...], _came: Any) -> None:
            for number, target in away:
                gradient = handed[number]
                if gradient is not None:
                    self._told(call, target, gradient)

        return hook
