"""Notebook 13's slow network: a link that takes its time, DDP over it, and the formula of a step."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tinytrain.course.lesson_13 import random_batch
from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, PRESETS


class Link:
    """A network that sends ``bytes_per_second``, one message after the other, while the processor does other things.

    ``send`` is a hook for DDP: a bucket's gradients come back when the link would have carried them.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self.restart()

    def restart(self) -> None:
        """A new step begins."""
        self.start = self.free = time.perf_counter()
        self.ready: list[float] = []
        self.sizes: list[int] = []

    def send(self, _state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        values, now = bucket.buffer(), time.perf_counter()
        self.free = max(now, self.free) + values.nbytes / self.bytes_per_second
        self.ready.append(now - self.start)
        self.sizes.append(values.nbytes)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        threading.Timer(self.free - now, future.set_result, [values]).start()
        return future


def end_of_step(
    compute: float,
    ready: Sequence[float],
    sizes: Sequence[float],
    bytes_per_second: float,
) -> float:
    """Seconds after which computing and sending are both done.

    ``ready`` are the seconds at which the messages are ready to be sent, in order; the link sends one at a time.
    """
    free = 0.0
    for at, size in zip(ready, sizes, strict=True):
        free = max(at, free) + size / bytes_per_second
    return max(compute, free)


def slow_network(rank: int, cases: Mapping[Any, tuple[int, float, float]], rounds: int) -> dict[Any, dict[str, Any]]:
    """Forward and backward over slow links. A case is (rows, MB of a bucket, seconds that the link needs for all).

    Of the fastest round the seconds, and the moments at which buckets were ready. The cases take turns. For ``launch``
    with one process: the others would compute what this one does, and the link stands for the way to them.
    """
    runs = {}
    for name, (rows, bucket_mb, seconds) in cases.items():
        torch.manual_seed(0)
        model = GPT(PRESETS["tiny"])
        size = sum(p.nbytes for p in model.parameters())
        link = Link(size / seconds if seconds else math.inf)
        copy = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
        copy.register_comm_hook(None, link.send)
        runs[name] = (copy, link, random_batch(model.config, rows))
    found: dict[Any, list[dict[str, Any]]] = {name: [] for name in cases}
    for number in range(rounds + 2):
        for name, (copy, link, batch) in runs.items():
            copy.zero_grad()
            link.restart()
            cross_entropy(copy(batch["input_ids"]), batch["labels"]).backward()
            if number >= 2:  # the first two settle how messages are packed
                seconds = time.perf_counter() - link.start
                found[name].append({"seconds": seconds, "ready": link.ready, "sizes": link.sizes})
    return {name: min(steps, key=lambda step: step["seconds"]) for name, steps in found.items()}
