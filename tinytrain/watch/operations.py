"""Every operation inside the modules of a model, forward and backward, with the line of source that asked for it."""

import contextlib
import linecache
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tinytrain import derivatives, tensors
from tinytrain import trace as trace_module
from tinytrain.trace import OUTSIDE, Trace
from tinytrain.watch.origins import Operation, Origins

TRACEBACK = "traceback_"  # torch's own name for it, written in anomaly mode
NOT_THE_USERS = (
    f"{Path(torch.__file__).parent}{os.sep}",  # torchvision and its like are not torch
    f"{Path(__file__).parent}{os.sep}",
    *(module.__file__ for module in (contextlib, derivatives, tensors, trace_module)),
)
FRAME = re.compile(r'File "(?P<file>.+)", line (?P<number>\d+), in ')


class Operations(TorchDispatchMode):
    """Keeps account, operation by operation, of where numbers that are not finite came from."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace, self._origins = trace, Origins()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, func._schema.name.partition("::")[2]
        shape_only = name.endswith("_like") or name.startswith("new_")  # of its first argument
        with self._trace.apart():  # other modes do not see these looks
            given = self._origins.given((args[shape_only:], kwargs))  # before the call, which may write over it
        output = func(*args, **kwargs)
        if "empty" not in name:  # memory that nobody has written yet is no result
            node = derivatives.running_derivative()
            place, phase = (self._trace.running, "forward") if node is None else (self._trace.owner(node), "backward")
            with self._trace.apart():
                self._origins.made(output, given, lambda: self._operation(shown_name(func, kwargs), node), place, phase)
        return output

    def origin(self, tensor: Tensor) -> Operation | None:
        """The operation from which what is not finite in ``tensor`` comes; None if nothing is, or it was so given."""
        return self._origins.of(tensor)

    def left_over(self) -> Operation | None:
        """The first operation whose result outside the model is still not finite and was not made finite by another:
        that of a loss, for example."""
        return self._origins.left_over(OUTSIDE)

    def _operation(self, op: str, node: Any) -> Operation:
        if node is None:
            return Operation(self._trace.running, "forward", op, _calling_line())
        return Operation(self._trace.owner(node), "backward", op, _line_of(node), node.name())


def shown_name(func: Any, kwargs: dict[str, Any]) -> str:
    """An operation by the name under which a reader may know it, and not by that of torch's kernel.

    >>> aten = torch.ops.aten
    >>> shown_name(aten._to_copy.default, {"dtype": torch.float16}), shown_name(aten._softmax.default, {})
    ('to(float16)', 'softmax')
    >>> shown_name(aten.nll_loss_forward.default, {}), shown_name(aten.native_layer_norm.default, {})
    ('nll_loss', 'layer_norm')
    """
    name = func._schema.name.partition("::")[2].strip("_")
    if name == "to_copy":
        what = kwargs.get("dtype") or kwargs.get("device")
        return f"to({str(what).removeprefix('torch.')})" if what is not None else "to"
    if name.startswith("scaled_dot_product") and "backward" not in name:
        return "scaled_dot_product_attention"  # its kernels have a name each
    return name.removeprefix("native_").removeprefix("thnn_").removesuffix("_forward")


@contextmanager
def operations(trace: Trace) -> Iterator[Operations]:
    """Watch every operation in this block, and wait for the device at each: for the one step that went wrong."""
    mode = Operations(trace)
    was, checks = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.autograd.set_detect_anomaly(True, check_nan=False)  # so that each derivative knows its line
    try:
        with mode:
            yield mode
    finally:
        torch.autograd.set_detect_anomaly(was, check_nan=checks)


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
