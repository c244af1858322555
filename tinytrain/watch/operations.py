"""Every operation inside the modules of a model, forward and backward, with the line of source that asked for it."""

import contextlib
import linecache
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tinytrain import trace as trace_module
from tinytrain.trace import OUTSIDE, Phase, Trace, tensors_in

OWNER = "tinytrain module"
TRACEBACK = "traceback_"  # torch's own name for it, written in anomaly mode
NOT_THE_USERS = (
    f"{Path(torch.__file__).parent}{os.sep}",  # torchvision and its like are not torch
    f"{Path(__file__).parent}{os.sep}",
    trace_module.__file__,
    contextlib.__file__,
)
FRAME = re.compile(r'File "(?P<file>.+)", line (?P<number>\d+), in ')


@dataclass(frozen=True)
class Operation:
    """The first operations that turned finite numbers into ones that are not."""

    module: str
    phase: Phase
    op: str
    """torch's name, such as ``exp``; backward, one of the operations that its derivative is made of"""
    line: str
    """``file:line: text`` of the line that asked for it; backward, of the forward line whose derivative it is"""


class Operations(TorchDispatchMode):
    """Notes, in order, the operations that made infinity out of finite numbers, or NaN out of what was none."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace, self.found = trace, list[Operation]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, given = func._schema.name.partition("::")[2], (args, kwargs or {})
        before = _worst(given)  # before the call: what is written in place is lost after it
        output = func(*args, **(kwargs or {}))
        if "empty" not in name and _worst(output) > before:  # memory that nobody has written yet is no result
            self.found.append(self._operation(name.strip("_")))
        return output

    def _operation(self, op: str) -> Operation:
        node = torch._C._current_autograd_node()
        if node is None:
            return Operation(self._trace.running, "forward", op, _calling_line())
        return Operation(node.metadata.get(OWNER, OUTSIDE), "backward", op, _line_of(node))


@contextmanager
def operations(trace: Trace) -> Iterator[Operations]:
    """Watch every operation in this block. Ten times slower and more: for the one step that went wrong."""
    mode = Operations(trace)
    was, checks = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.autograd.set_detect_anomaly(True, check_nan=False)  # so that each derivative knows its line
    try:
        with mode:
            yield mode
    finally:
        torch.autograd.set_detect_anomaly(was, check_nan=checks)


def own(output: Any, module: str) -> None:
    """Write ``module`` on all derivatives that lead to ``output`` and have no owner yet: they are of its own code."""
    waiting = [tensor.grad_fn for tensor in tensors_in(output)]
    while waiting:
        node = waiting.pop()
        if node is not None and OWNER not in node.metadata:
            node.metadata[OWNER] = module
            waiting += [before for before, _ in node.next_functions]


def _worst(value: Any) -> int:
    """0: all finite, 1: something is infinite, 2: something is NaN; in tensors and in plain numbers.

    A mask is filled with -inf on purpose, so infinity that went in is no fault of an operation; NaN made of it is.
    """
    if isinstance(value, Tensor):
        if (
            value.layout != torch.strided
            or not value.is_floating_point()
            or value.numel() == 0
            or bool(torch.isfinite(value.detach()).all())
        ):
            return 0
        return 2 if bool(torch.isnan(value.detach()).any()) else 1
    if isinstance(value, float):
        return 2 if math.isnan(value) else int(math.isinf(value))
    if isinstance(value, dict):
        value = tuple(value.values())
    return max(map(_worst, value), default=0) if isinstance(value, (tuple, list)) else 0


def _calling_line() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(NOT_THE_USERS):
        frame = frame.f_back
    return "" if frame is None else _shown(frame.f_code.co_filename, frame.f_lineno)


def _line_of(node: Any) -> str:
    """The innermost line outside torch on the way to the forward operation of this derivative."""
    for text in reversed(node.metadata.get(TRACEBACK, [])):
        place = FRAME.search(text)
        if place and not place["file"].startswith(NOT_THE_USERS):
            return _shown(place["file"], int(place["number"]))
    return ""


def _shown(file: str, number: int) -> str:
    text = linecache.getline(file, number).strip()
    name = "cell" if "ipykernel" in file else Path(file).name
    return f"{name}:{number}: {text}"
