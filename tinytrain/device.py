"""Which device to train on, asked when a run starts and never at import; and the way there and back."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""files in which Linux says how much memory a container may use, in bytes; "max" for all"""

_THIS_PROCESS: dict[int, psutil.Process] = {}


def best_device() -> torch.device:
    """The fastest device here: CUDA, then Apple's MPS, then the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's first parameter, or else of its first buffer; the CPU for a model with neither."""
    first = next(model.parameters(), None)
    first = next(model.buffers(), None) if first is None else first
    return torch.device("cpu") if first is None else first.device


def to_device(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The same batch with its tensors on ``device``; from pinned memory the copy does not wait."""
    ahead = device.type != "cpu"  # a copy back to the CPU must be complete before it is read
    return {name: tensor.to(device, non_blocking=ahead) for name, tensor in batch.items()}


def is_out_of_memory(error: BaseException) -> bool:
    """True if ``error`` was raised because the memory of a device, or of the computer, was too small."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)  # torch has no type of its own here


def memory_bytes(device: torch.device) -> int:
    """Bytes that this process holds now: allocated by tensors on a GPU, resident memory on a CPU."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.current_allocated_memory()
    pid = os.getpid()
    if pid not in _THIS_PROCESS:  # a forked child must not report its parent
        _THIS_PROCESS.clear()
        _THIS_PROCESS[pid] = psutil.Process(pid)
    return _THIS_PROCESS[pid].memory_info().rss


@cache
def memory_limit(device: torch.device) -> int:
    """Bytes that a device has in all; of a CPU, the machine's memory, or what its container may use of it.

    It is read once: it does not change, and a step should not ask the system for it.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    return min([psutil.virtual_memory().total, *_container_limits()])


def _container_limits() -> list[int]:
    texts = []
    for file in CGROUP_LIMITS:
        try:
            texts.append(file.read_text().strip())
        except OSError:
            continue  # no Linux, or no such container
    return [int(text) for text in texts if text.isdigit() and int(text) > 0]


def copy_to_host(state: Any, reuse: dict[tuple[Any, ...], Tensor] | None = None) -> Any:
    """The same nested state with its tensors copied to CPU memory; a tensor that stands in two places is copied once.

    ``reuse`` keeps the copies from call to call and writes over them: fresh memory costs more than the copying.
    """
    kept = {} if reuse is None else reuse
    fresh: dict[tuple[Any, ...], Tensor] = {}
    copied = _copy(state, kept, fresh)
    kept.clear()
    kept.update(fresh)
    return copied


def _copy(value: Any, kept: dict[tuple[Any, ...], Tensor], fresh: dict[tuple[Any, ...], Tensor]) -> Any:
    if isinstance(value, Tensor):
        key = (value.device, value.data_ptr(), tuple(value.shape), tuple(value.stride()), value.dtype)
        if value.numel() == 0:
            return value.detach().clone()
        if key not in fresh:
            old = kept.get(key)
            fresh[key] = value.detach().to("cpu", copy=True) if old is None else old.copy_(value.detach())
        return fresh[key]
    if isinstance(value, dict):
        return {name: _copy(part, kept, fresh) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copy(part, kept, fresh) for part in value)
    return value
