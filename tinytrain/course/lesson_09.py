"""What the processes of notebook 09 train: they can import it, and cannot see what a notebook's cell defines."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from tinytrain.corpus import load_corpus
from tinytrain.data import RowBatches, TokenRows
from tinytrain.distributed.group import gathered, world_size
from tinytrain.forward import forward_logits
from tinytrain.loss import count_targets, cross_entropy
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.tokenizer import ByteTokenizer

Batch = dict[str, Tensor]
ROW_LENGTH, BATCH_SIZE, LR = 32, 32, 3e-3


@cache
def some_rows() -> TokenRows:
    """The first 512 rows of 32 bytes of Shakespeare's plays."""
    text, _ = load_corpus().split(validation_fraction=0.1)
    ids = ByteTokenizer().encode(text.text[: 2 * 512 * ROW_LENGTH])
    return TokenRows(ids[: 512 * ROW_LENGTH + 1], ROW_LENGTH, 256, text.name)


def batches(batch_size: int = BATCH_SIZE, micro_batch_size: int | None = None) -> RowBatches:
    return RowBatches(rows=some_rows(), batch_size=batch_size, micro_batch_size=micro_batch_size)


def fresh(preset: str = "nano") -> GPT:
    """The same model in every process: 2 layers of width 64 (``nano``), or 4 of width 128 (``tiny``)."""
    torch.manual_seed(0)
    return GPT(PRESETS[preset])


def flat(tensors: Any) -> Tensor:
    """All numbers of some tensors as one long vector."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


# Starting processes.


def meet(rank: int) -> dict[str, Any]:
    """Bring two numbers, add them up over all processes, and say who this is."""
    numbers = torch.tensor([1.0, 10.0]) * (rank + 1)
    brought = numbers.tolist()
    dist.all_reduce(numbers)  # in place: from now on it holds the sums
    return {"rank": rank, "of": dist.get_world_size(), "brought": brought, "now has": numbers.tolist()}


def spawned(function: Callable[..., Any], *arguments: Any) -> tuple[bool, str]:
    """Call a function in a fresh process, by Python's own means: whether it ran, and the last thing it said."""
    with tempfile.TemporaryFile("w+") as said:
        stderr = os.dup(2)
        os.dup2(said.fileno(), 2)  # a new process inherits it
        try:
            process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
            process.start()
            process.join()
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        said.seek(0)
        return process.exitcode == 0, (said.read().strip().splitlines() or [""])[-1]


# One model in two processes.


def average_gradients(model: nn.Module) -> None:
    """Put the mean over all processes in the place of each gradient, one weight after the other."""
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def average_at_once(model: nn.Module) -> None:
    """The same with one message: all gradients in one long vector."""
    together = flat(gradients(model))
    dist.all_reduce(together)
    together /= dist.get_world_size()
    sizes = [p.numel() for p in model.parameters()]
    for p, part in zip(model.parameters(), together.split(sizes), strict=True):
        p.grad.copy_(part.view_as(p))


def train(rank: int, ways: Sequence[str], updates: int) -> dict[str, dict[str, Any]]:
    """Train once for each way on this process's rows of each batch of 32: every second row, if there are two.

    The ways of exchanging gradients: ``"none"``, ``"by hand"`` (``average_gradients``) and ``"DDP"``; followed by
    ``", float64"``, with numbers of 64 bits, or by ``", lr / 3"``, with a third of the learning rate.
    """
    return {way: _train(rank, way, updates) for way in ways}


def _train(rank: int, way: str, updates: int) -> dict[str, Any]:
    model = fresh().double() if way.endswith("float64") else fresh()
    wrapped = DistributedDataParallel(model) if way.startswith("DDP") else model
    optimizer, data = build_adamw(model, lr=LR / 3 if way.endswith("lr / 3") else LR), batches()
    losses, apart = [], []
    for n in range(updates):
        (batch,) = data.share(n, rank=rank, processes=world_size())
        optimizer.zero_grad()
        loss = cross_entropy(wrapped(batch["input_ids"]), batch["labels"])
        loss.backward()
        if way == "by hand":
            average_gradients(model)
        if n == 0:
            first = flat(gradients(model))
        optimizer.step()
        losses.append(loss.item())
        apart.append(furthest_apart(flat(model.parameters())))
    return {"losses": losses, "apart": apart, "first gradient": first, "weights": flat(model.parameters())}


def furthest_apart(mine: Tensor) -> float:
    """How far another process's vector lies from that of process 0, in parts of its length; 0 if no bit differs."""
    first, *others = gathered(mine)
    return max((float((other - first).norm() / first.norm()) for other in others), default=0.0)


def step_of(rank: int, rounds: int) -> dict[str, Any]:
    """Forward, backward and exchange of a larger model, by hand in many messages or one, and with DDP, in turn.

    Returns seconds, and what DDP sends when: it asks a hook to send each bucket, and this one notes how many gradients
    are there by then.
    """
    model, copied = fresh("tiny"), fresh("tiny")
    wrapped = DistributedDataParallel(copied, bucket_cap_mb=1)
    sent: list[int] = []
    ready: list[int] = []
    wrapped.register_comm_hook(None, lambda _, bucket: sent.append(len(ready)) or allreduce_hook(None, bucket))
    for p in copied.parameters():
        p.register_hook(lambda _gradient: ready.append(1))
    ways = {
        "by hand": (model, lambda: average_gradients(model)),
        "by hand, one message": (model, lambda: average_at_once(model)),
        "DDP": (wrapped, lambda: None),
    }
    batch, seconds = batches(8)[rank][0], {way: [] for way in ways}
    for _ in range(rounds):
        for way, (called, exchange) in ways.items():
            called.zero_grad()
            sent.clear()
            ready.clear()
            dist.barrier()
            start = time.perf_counter()
            cross_entropy(called(batch["input_ids"]), batch["labels"]).backward()
            exchange()
            seconds[way].append(time.perf_counter() - start)
    return {"seconds": seconds, "weights": len(list(copied.parameters())), "ready when sent": list(sent)}


# One gradient, from what each process is given.


def gradients_of(
    rank: int, cases: Mapping[str, tuple[list[Batch], str]], weights: Tensor | None = None
) -> dict[str, Tensor]:
    """For each case, ``(shares, divide)``: the whole gradient that DDP leaves when process r does ``shares[r]``.

    Each process divides its summed loss by its ``"own targets"``, by ``"all targets"``, or by all targets over the
    number of processes (``"all / processes"``).
    """
    model = fresh()
    if weights is not None:
        nn.utils.vector_to_parameters(weights, model.parameters())
    wrapped, found = DistributedDataParallel(model) if dist.is_initialized() else model, {}
    for name, (shares, divide) in cases.items():
        model.zero_grad()
        divisor = count_targets(shares[rank]["labels"]).float()
        if divide != "own targets" and dist.is_initialized():
            dist.all_reduce(divisor)
        if divide == "all / processes":
            divisor /= world_size()
        logits = forward_logits(wrapped, shares[rank])
        (cross_entropy(logits, shares[rank]["labels"], reduction="sum") / divisor).backward()
        found[name] = flat(gradients(model))
    return found
