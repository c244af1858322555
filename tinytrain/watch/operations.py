"""Every operation inside the modules of a model, forward and backward, with the line of source that asked for it."""

import contextlib
import linecache
import math
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
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent),
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
    """Notes, in order, the operations whose inputs are finite and whose output is not."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace, self.found = trace, list[Operation]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, given = func._schema.name.partition("::")[2], (args, kwargs or {})
        was_bad = func._schema.is_mutable and any(map(_bad, tensors_in(given)))  # in place, what went in is lost
        output = func(*args, **(kwargs or {}))
        if "empty" in name or was_bad:  # memory that nobody has written yet is no result
            return output
        given_bad = not func._schema.is_mutable and any(map(_bad, tensors_in(given)))
        if not given_bad and not _has_bad_number(given) and any(map(_bad, tensors_in(output))):
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
        if node is None or node.name() == "torch::autograd::AccumulateGrad":  # that of a weight outlives the graph
            continue
        if OWNER not in node.metadata:
            node.metadata[OWNER] = module
            waiting += [before for before, _ in node.next_functions]


def _bad(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0 and not bool(torch.isfinite(tensor.detach()).all())


def _has_bad_number(value: Any) -> bool:
    """A constant such as -inf is meant, where a mask is filled with it."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_bad_number, value.values()))
    return isinstance(value, (tuple, list)) and any(map(_has_bad_number, value))


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
