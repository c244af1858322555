"""What the processes of notebook 09 do: a new process can import it, and cannot see what a notebook's cell defines."""

import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from tinytrain.corpus import load_corpus
from tinytrain.data import RowBatches, TokenRows
from tinytrain.distributed.group import gathered, world_size
from tinytrain.distributed.wrap import shard
from tinytrain.forward import forward_logits
from tinytrain.loss import count_targets, cross_entropy
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.train import TrainConfig, Trainer

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
    ``", float64"``, with numbers of 64 bits, or by ``", small steps"``, with a third of the learning rate.
    """
    return {way: _train(rank, way, updates) for way in ways}


def _train(rank: int, way: str, updates: int) -> dict[str, Any]:
    model = fresh().double() if way.endswith("float64") else fresh()
    wrapped = DistributedDataParallel(model) if way.startswith("DDP") else model
    optimizer, data = build_adamw(model, lr=LR / 3 if way.endswith("small steps") else LR), batches()
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


# What it costs.


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
    for number in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(number))) as connection:
                state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total, again = struct.unpack_from("QQ", state, 200)  # tcpi_bytes_sent, tcpi_bytes_retrans
                sent += total - again
        except OSError:  # no connection, but a file
            continue
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


# Saving, and reading what was saved.


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


# When things break.


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


# Several machines.

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def join_without(rank: int, missing: Sequence[str | None]) -> list[str]:
    """Join a group of one by the four variables, without one of them: what torch says then, "" if it does not mind."""
    values = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    told = []
    for one in missing:
        if dist.is_initialized():
            dist.destroy_process_group()
        for name, value in values.items():
            os.environ.pop(name, None)
            if name != one:
                os.environ[name] = value
        try:
            dist.init_process_group("gloo")
            told.append("")
        except ValueError as error:
            told.append(str(error))
    _be_in_a_group()
    return told


def _be_in_a_group() -> None:
    """So that ``launch`` has one to leave."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def free_port() -> str:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def torchrun(script: Path, *options: str, updates: int = 0) -> subprocess.Popen[str]:
    """Start torchrun on a script with these options; the script finds ``UPDATES`` in its environment."""
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(script)]
    environment = {**os.environ, "UPDATES": str(updates)}
    return subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True)


def first_line(runs: Sequence[subprocess.Popen[str]]) -> str:
    """The first line that the first of several torchruns prints. Then all are ended, for one may wait for another."""
    assert runs[0].stdout is not None
    line = runs[0].stdout.readline()
    problems = []
    for run in runs:
        run.terminate()
        problems.append(run.communicate()[1])
    if not line:
        raise RuntimeError(f"it printed nothing, and then: {problems[0][-2000:]}")
    return line


def tell(rank: int, updates: int) -> dict[str, Any]:
    """Who this process is by its environment, its losses, and the rows a sampler gives it by RANK and LOCAL_RANK."""
    said: dict[str, Any] = {name: os.environ.get(name) for name in (*NAMES, "LOCAL_RANK")}
    for name in ("RANK", "LOCAL_RANK"):
        sampler = DistributedSampler(range(64), num_replicas=world_size(), rank=int(os.environ[name]))
        said[f"rows by {name}"] = list(sampler)
    return said | {"losses": fit(rank, updates)["losses"] if updates else []}


def join_as(rank: int, numbers: Sequence[int], path: str, timeout_s: float) -> str:
    """Leave the group, join one under the number ``numbers[rank]``, and add up once: the sum, or what went wrong."""
    dist.destroy_process_group()
    start = time.monotonic()
    settings = {"rank": numbers[rank], "world_size": len(numbers), "timeout": timedelta(seconds=timeout_s)}
    try:
        dist.init_process_group("gloo", init_method=f"file://{path}", **settings)
        one = torch.ones(())
        dist.all_reduce(one)
        return f"{one.item():.0f} processes added up"
    except RuntimeError as error:
        return f"{type(error).__name__} after {time.monotonic() - start:.0f} s: {error}".splitlines()[0]
    finally:
        _be_in_a_group()


# The Trainer.


def fit(rank: int, updates: int, folder: str | None = None, stop_after: int | None = None) -> dict[str, Any]:
    """A run of the package's Trainer, with nothing said about processes. It resumes where ``folder`` has checkpoints.

    It stops after ``stop_after`` updates, if that is given.
    """
    records: list[dict[str, Any]] = []

    def look(record: dict[str, Any]) -> bool:
        records.append(record)
        return record["step"] != stop_after

    config = TrainConfig(total_steps=updates, max_lr=LR, out=folder, checkpoint_every=5 if folder else None)
    trainer = Trainer(fresh(), batches(micro_batch_size=8), config, [look])
    if folder and any(Path(folder).glob("checkpoints/step_*")):
        trainer.resume()
    report = trainer.fit()
    return {"losses": [r["loss"] for r in records], "steps": report.steps, "stopped by": report.stopped_by}
