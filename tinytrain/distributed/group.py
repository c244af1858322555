"""The group of processes that train together: who is who, and what they agree on.

Without a group everything here is that of one process, rank 0 of 1, and costs nothing.
"""

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Result = TypeVar("Result")
JOIN_SECONDS = 120.0
"""at least so long processes that were started together wait for each other, whatever ``timeout_s`` is"""
LOOPBACK = {"linux": "lo", "darwin": "lo0"}
"""the network interface of a machine to itself"""


def under_torchrun() -> bool:
    """True in a process that torchrun started."""
    return dist.is_torchelastic_launched()


def in_group() -> bool:
    """True if this process is one of a process group, be it a group of one."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's number, from 0."""
    return dist.get_rank() if in_group() else 0


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if in_group() else 1


def device_for(processes: int) -> str:
    """``"cuda"`` where so many processes on this machine can have a GPU each, else ``"cpu"``."""
    return "cuda" if torch.cuda.is_available() and processes <= torch.cuda.device_count() else "cpu"


@contextmanager
def process_group(
    *, device: str | None = None, timeout_s: float = 600.0, rendezvous: str | None = None
) -> Iterator[None]:
    """Join the group that ``RANK`` and ``WORLD_SIZE`` in the environment speak of; leave it at the end.

    ``device`` is ``"cuda"`` (NCCL; the GPU is number ``LOCAL_RANK``) or ``"cpu"`` (Gloo); None takes GPUs where each
    process of this machine has one. The processes find each other through the file ``rendezvous``, or through
    ``MASTER_ADDR`` and ``MASTER_PORT`` if it is None. ``timeout_s`` bounds each later wait for the others.

    Raises ``ValueError`` if the environment does not say who is who, or if there are too few GPUs.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if missing := [name for name in names if name not in os.environ]:
        raise ValueError(f"the environment has no {', '.join(missing)}: start with launch or torchrun, which set them")
    me, world, local, here = (int(os.environ[name]) for name in names)
    device = device or device_for(here)
    keywords: dict[str, Any] = {"backend": "gloo", "timeout": timedelta(seconds=timeout_s)}
    if device == "cuda":
        if local >= torch.cuda.device_count():
            raise ValueError(
                f"{here} processes want a GPU each and this machine has {torch.cuda.device_count()}: start fewer, or "
                f"say device='cpu'"
            )
        torch.cuda.set_device(local)
        keywords |= {"backend": "nccl", "device_id": torch.device("cuda", local)}
    elif device != "cpu":
        raise ValueError(f"device={device!r} is not 'cpu' or 'cuda'")
    if rendezvous is not None:
        keywords["store"] = _meet(rendezvous, me, world, timedelta(seconds=max(timeout_s, JOIN_SECONDS)))
        if sys.platform in LOOPBACK:  # all on this machine: names and routes of networks do not matter
            os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK[sys.platform])
    dist.init_process_group(rank=me, world_size=world, **keywords)
    try:
        if device == "cpu":
            dist.barrier()  # or one that is done at once would be gone before another has found it
        yield
    finally:
        if dist.is_initialized():  # what runs inside may have left it already
            dist.destroy_process_group()


def _meet(path: str, me: int, world: int, patience: timedelta) -> dist.Store:
    """Wait until all processes have come to the file: some take longer to start than any exchange should take."""
    store = dist.FileStore(path, world)
    store.set(f"here {me}", "")
    store.wait([f"here {number}" for number in range(world)], patience)
    return dist.PrefixStore("group", store)


def check_device(found: torch.device) -> None:
    """Raise ``ValueError`` for a model on a device over which the processes do not talk."""
    talk = "cuda" if dist.get_backend() == "nccl" else "cpu"
    if found.type != talk:
        cure = "model.to(best_device())" if talk == "cuda" else "launch(..., device='cuda'), or model.cpu()"
        raise ValueError(
            f"the model is on {found}, and the processes exchange what is on {talk} ({dist.get_backend()}): {cure}"
        )


def total(values: Tensor) -> Tensor:
    """``values`` summed over all processes, in place; every process gets the same bits."""
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def gathered(value: Any) -> list[Any]:
    """The picklable ``value`` of every process, by rank, in every process."""
    values = [value]
    if world_size() > 1:
        values *= world_size()
        dist.all_gather_object(values, value)
    return values


def on_first(function: Callable[[], Result]) -> Result:
    """Call ``function`` in process 0 while the others wait; all return its result.

    If it raises there, every process raises: process 0 its own error, the others one of the same kind where that can
    be sent, and ``RuntimeError`` otherwise. So no process goes on alone.
    """
    if world_size() == 1:
        return function()
    outcome: list[Any] = [None, None]
    error: BaseException | None = None
    if rank() == 0:
        try:
            outcome[0] = function()
        except Exception as raised:
            error, outcome[1] = raised, _sendable(raised)
    dist.broadcast_object_list(outcome, src=0)
    if error is not None:
        raise error
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def _sendable(error: Exception) -> Exception:
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"process 0 failed: {type(error).__name__}: {error}")
    return again
