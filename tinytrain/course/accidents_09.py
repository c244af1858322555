"""Who saves and who reads in notebook 09, and what happens when a process dies."""

import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tinytrain.course.lesson_09 import average_gradients, batches, flat, fresh, furthest_apart
from tinytrain.distributed.group import gathered
from tinytrain.loss import cross_entropy


def save_and_read(rank: int, folder: str, way: str, tries: int) -> int:
    """How often a reader found no whole file. What is saved is the same in both processes.

    ``way``: ``"0 writes"`` or ``"both write"``, process 1 a moment later; then ``", all wait"``, until it is done, or
    ``", nobody waits"``: process 1 reads at once if it does not write, and process 0 while process 1 writes.
    """
    bad, both, waits = 0, way.startswith("both"), way.endswith("all wait")
    state = {"weights": torch.ones(2_000_000)}
    for n in range(tries):
        path = Path(folder, f"{way} {n}.pt")
        dist.barrier()
        if rank == 0:
            torch.save(state, path)
        if both:
            dist.barrier()  # process 1 comes when process 0 has just saved
            if rank == 1:
                torch.save(state, path)
        if waits:
            dist.barrier()
        if waits or rank == (0 if both else 1):
            bad += not _is_whole(path)
        dist.barrier()
        if rank == 0:
            path.unlink()
    return max(gathered(bad))


def _is_whole(path: Path) -> bool:
    try:
        return bool((torch.load(path)["weights"] == 1).all())
    except Exception:
        return False


def read_and_wrap(rank: int, path: str, ways: Sequence[str]) -> dict[str, float]:
    """How far the copies lie apart if ``"all read"`` the weights, or process 0 alone, before DDP is built or after."""
    apart = {}
    for way in ways:
        model = fresh()
        if way == "all read" or (way == "0 before DDP" and rank == 0):
            model.load_state_dict(torch.load(path))
        DistributedDataParallel(model)  # sends the weights of process 0 to all, once
        if way == "0 after DDP" and rank == 0:
            model.load_state_dict(torch.load(path))
        apart[way] = furthest_apart(flat(model.parameters()))
    return apart


def train_until(rank: int, accident: str) -> None:
    """Average gradients with the other process; at the fourth batch, something happens."""
    model, data = fresh(), batches()
    for n in range(6):
        if n == 3 and rank == 1 and accident == "process 1 is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if n == 3 and rank == 0 and accident == "process 0 has no batch left":
            return
        if n == 3 and rank == 0 and accident == "process 0 is busy":
            time.sleep(600)
        (batch,) = data.share(n, rank=rank, processes=2)
        cross_entropy(model(batch["input_ids"]), batch["labels"]).backward()
        average_gradients(model)


def save_until(rank: int, accident: str) -> None:
    """Process 0 saves while the other waits for it; the disk is full."""
    if rank == 0:
        raise OSError(28, "No space left on device")
    dist.barrier()


ACCIDENTS = {
    "process 1 is killed": train_until,
    "process 0 cannot save": save_until,
    "process 0 has no batch left": train_until,
    "process 0 is busy": train_until,
}
"""What happens, and the function in which it does."""


def first_sentence(cause: str) -> str:
    """The first sentence of a cause, without the place in torch's own source that may stand before it.

    >>> first_sentence("failed: RuntimeError: [/a/pair.cc:537] Read error: Connection reset. This is typical of it.")
    'failed: RuntimeError: Read error: Connection reset'
    """
    return re.sub(r"\[/.*?\] ", "", cause).split(". ")[0]
