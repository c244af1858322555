"""What an exchange costs in notebook 09: bytes over a ring, exchanges that are left out, memory beside the model."""

import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from tinytrain.course.lesson_09 import LR, batches, flat, fresh, gradients
from tinytrain.distributed.group import world_size
from tinytrain.distributed.wrap import shard
from tinytrain.loss import cross_entropy
from tinytrain.optimizer import build_adamw


def ring_all_reduce(values: Tensor) -> int:
    """Sum ``values`` over all processes, in place; returns how many bytes this process has sent."""
    me, n = dist.get_rank(), dist.get_world_size()
    parts, sent = values.tensor_split(n), 0
    for step in range(2 * (n - 1)):
        out, into = parts[(me - step) % n], parts[(me - step - 1) % n]
        coming = torch.empty_like(into)
        on_its_way = dist.isend(out, (me + 1) % n)
        dist.recv(coming, (me - 1) % n)
        on_its_way.wait()
        into.copy_(into + coming if step < n - 1 else coming)  # first half: add; second half: take over
        sent += out.nbytes
    return sent


def bytes_sent() -> int:
    """What the operating system has counted so far: bytes that this process has sent over its connections."""
    if sys.platform != "linux":
        return psutil.net_io_counters().bytes_sent // world_size()  # of all programs; elsewhere there is no better one
    sent = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            is_socket = stat.S_ISSOCK(os.fstat(number).st_mode)
        except OSError:  # the folder's own, closed by now
            continue
        if is_socket:
            with socket.socket(fileno=os.dup(number)) as connection, suppress(OSError):  # not all are of TCP
                state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total, again = struct.unpack_from("QQ", state, 200)  # tcpi_bytes_sent, tcpi_bytes_retrans
                sent += total - again
    return sent


def ring_beside_torch(rank: int, numbers: int) -> dict[str, float]:
    """Bytes sent by the ring (counted by us) and by ``dist.all_reduce`` (by the system), in parts of the vector's.

    And how far the two sums lie from each other.
    """
    ours = torch.randn(numbers, generator=torch.Generator().manual_seed(rank))
    torchs = ours.clone()
    sent = ring_all_reduce(ours)
    dist.barrier()
    before = bytes_sent()
    dist.all_reduce(torchs)
    dist.barrier()  # by now all has arrived
    by_torch = (bytes_sent() - before) / torchs.nbytes
    return {"sent": sent / torchs.nbytes, "by torch": by_torch, "off by": float((ours - torchs).norm() / torchs.norm())}


def accumulate(rank: int, micro_batches: int, rounds: int) -> dict[str, dict[str, Any]]:
    """The gradient of several micro-batches, exchanged with each or with the last only, in turn; and what was sent."""
    model, sent = fresh("tiny"), []
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, lambda _, bucket: sent.append(bucket.buffer().nbytes) or allreduce_hook(_, bucket))
    mine = batches(4 * micro_batches, 2).share(0, rank=rank, processes=world_size())
    found: dict[str, dict[str, Any]] = {"with each": {"seconds": []}, "with the last": {"seconds": []}}
    for way in [*found] * rounds:
        model.zero_grad()
        sent.clear()
        dist.barrier()
        start = time.perf_counter()
        for number, batch in enumerate(mine, start=1):
            quiet = way == "with the last" and number < len(mine)
            with wrapped.no_sync() if quiet else nullcontext():
                loss = cross_entropy(wrapped(batch["input_ids"]), batch["labels"])
                (loss / len(mine)).backward()
        found[way]["seconds"].append(time.perf_counter() - start)
        found[way] |= {"gradient": flat(gradients(model)), "messages": len(sent), "bytes": sum(sent)}
    return found


class Times(nn.Module):
    """One weight w, which is 1; gives w times x, so that the gradient is x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def stay_silent(rank: int) -> dict[str, float]:
    """The gradient after a backward inside ``no_sync``, with the forward pass inside as well, and before it."""
    wrapped, x = DistributedDataParallel(Times()), torch.tensor(1.0 + 2 * rank)
    with wrapped.no_sync():
        wrapped(x).backward()
    inside = wrapped.module.w.grad.item()
    wrapped.zero_grad()
    loss = wrapped(x)
    with wrapped.no_sync():
        loss.backward()
    return {"both inside": inside, "only backward": wrapped.module.w.grad.item()}


def memory(rank: int, ways: Sequence[str]) -> dict[str, dict[str, int]]:
    """Bytes that this process holds after three updates.

    Ways are ``"alone"``, ``"DDP"``, ``"DDP, views"`` (gradients lie in DDP's buckets) and ``"fully_shard"``.
    """
    return {way: _memory(way) for way in ways}


def _memory(way: str) -> dict[str, int]:
    model, sent = fresh(), {}

    def look(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        storage = bucket.buffer().untyped_storage()
        sent[storage.data_ptr()] = storage.nbytes()
        return allreduce_hook(None, bucket)

    wrapped = shard(model) if way == "fully_shard" else model
    if way.startswith("DDP"):
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=way.endswith("views"))
        wrapped.register_comm_hook(None, look)
    optimizer, batch = build_adamw(model, lr=LR), batches(8)[0][0]
    for _ in range(3):  # DDP packs its buckets anew after the first
        optimizer.zero_grad()
        sent.clear()
        cross_entropy(wrapped(batch["input_ids"]), batch["labels"]).backward()
        optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
    kinds = {"weights": model.parameters(), "gradients": gradients(model), "moments": moments}
    held = {kind: sum(_own_part(tensor).nbytes for tensor in tensors) for kind, tensors in kinds.items()}
    there = {_own_part(gradient).untyped_storage().data_ptr() for gradient in gradients(model)}
    return held | {"buckets": sum(size for place, size in sent.items() if place not in there)}


def _own_part(tensor: Tensor) -> Tensor:
    """What lies in this process of a tensor that is shared out; other tensors as they are."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()
