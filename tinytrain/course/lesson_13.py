"""What notebook 13 measures: bytes and seconds of an update, sharing over processes, a slow network, size and data."""

import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tinytrain.corpus import load_corpus
from tinytrain.course.lesson_09 import bytes_sent
from tinytrain.data import RowBatches, TokenRows
from tinytrain.distributed import replicate, shard
from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, PRESETS, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.precision import Precision
from tinytrain.recompute import recompute_activations
from tinytrain.step import train_step
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.train import TrainConfig, Trainer
from tinytrain.watch.planner import GiB, memory_of
from tinytrain.watch.tensor_memory import TensorMemory

if TYPE_CHECKING:  # new processes import this file, and draw nothing
    from matplotlib.figure import Figure

Batch = dict[str, Tensor]
WORK = ModelConfig(vocab_size=4000, d_model=128, n_layers=6, n_heads=4, max_positions=128)
"""the model whose memory is measured: blocks, vocabulary and rows in about the proportions of the 120M preset"""


# Memory and time of one update.


def random_batch(config: ModelConfig, rows: int, seed: int = 0) -> Batch:
    """Random ids: they cost what text costs."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(config.vocab_size, (rows, config.max_positions + 1), generator=generator)
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


class Update:
    """A model and its optimizer, set up in one way; each call makes one update with AdamW."""

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        *,
        recompute: bool = False,
        loss_chunk: int | None = None,
        micro_batches: int = 1,
        precision: str = "fp32",
    ) -> None:
        torch.manual_seed(0)
        self.model = GPT(config)
        self.model.loss_chunk = loss_chunk
        if recompute:
            recompute_activations(self.model)
        self.optimizer, self.precision = build_adamw(self.model, lr=1e-3), Precision(precision)
        self.batches = [random_batch(config, rows // micro_batches, seed) for seed in range(micro_batches)]

    def __call__(self) -> float:
        """The loss."""
        return train_step(self.model, self.batches, self.optimizer, lr=1e-3, precision=self.precision).loss

    def seconds(self) -> float:
        start = time.perf_counter()
        self()
        return time.perf_counter() - start

    def held(self) -> list[Tensor]:
        """Weights and moments, which are there between updates."""
        self.model.zero_grad(set_to_none=True)
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return [*self.model.parameters(), *moments]

    def peak(self) -> int:
        """The most bytes that tensors hold at one time during an update; not the first, which makes the moments."""
        if not self.optimizer.state:
            self()
        with TensorMemory(self.held()) as memory:
            self()
        return memory.peak

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


def compare(ways: Mapping[str, Mapping[str, Any]], config: ModelConfig, rows: int, rounds: int) -> dict[str, dict]:
    """For each way of making the same updates: bytes at the fullest, median seconds, and the weights at the end.

    The ways take turns, so that what else the machine does falls on all of them.
    """
    updates = {name: Update(config, rows, **how) for name, how in ways.items()}
    found: dict[str, dict] = {name: {"bytes": update.peak()} for name, update in updates.items()}
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(rounds):
        for name, update in updates.items():
            seconds[name].append(update.seconds())
    for name, update in updates.items():
        found[name] |= {"seconds": statistics.median(seconds[name]), "weights": update.weights()}
    return found


# Where the time of a step goes.


def parts_of_a_step(config: ModelConfig, rows: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of the parts of an update on random ids, each timed by itself."""
    ids = torch.randint(config.vocab_size, (200 * config.max_positions + 1,))
    data = RowBatches(rows=TokenRows(ids, config.max_positions, config.vocab_size, "random"), batch_size=rows)
    model = GPT(config)
    optimizer = build_adamw(model, lr=1e-3)
    taken: dict[str, list[float]] = {}

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        taken.setdefault(part, []).append(time.perf_counter() - start)

    for number in range(rounds + 1):
        with timed("data"):
            (batch,) = data[number]
        with timed("forward"):
            logits = model(batch["input_ids"])
        with timed("loss"):
            loss = cross_entropy(logits, batch["labels"])
        with timed("backward"):
            loss.backward()
        with timed("clip"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with timed("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        del logits, loss
    return {
        part: 1000 * statistics.median(seconds[1:]) for part, seconds in taken.items()
    }  # not the first: it warms up


# Many processes: the same Trainer.


@cache
def text_rows(row_length: int = 64, characters: int = 200_000) -> TokenRows:
    """Rows of bytes of Shakespeare's plays."""
    text, _ = load_corpus().split(validation_fraction=0.1)
    return TokenRows(ByteTokenizer().encode(text.text[:characters]), row_length, 256, text.name)


def train(
    rank: int,
    switches: Mapping[str, Any],
    updates: int,
    folder: str | None = None,
    stop_after: int | None = None,
) -> dict[str, Any]:
    """A run of the same ``Trainer`` whatever is switched on: its losses, and the bytes that this process holds.

    Switches: ``shard``, ``recompute``, ``loss_chunk``, ``precision``, ``micro_batch_size``. It resumes where
    ``folder`` has checkpoints, and stops after ``stop_after`` updates if that is given.
    """
    torch.manual_seed(0)
    model = GPT(PRESETS["nano"])
    model.loss_chunk = switches.get("loss_chunk")  # the switches: each is a line before the Trainer
    if switches.get("recompute"):
        recompute_activations(model)
    if switches.get("shard"):
        shard(model)
    pieces = switches.get("micro_batch_size")
    data = RowBatches(rows=text_rows(), batch_size=32, micro_batch_size=pieces)
    precision = switches.get("precision", "fp32")

    losses: dict[int, float] = {}

    def look(record: dict[str, Any]) -> bool:
        losses[record["step"]] = record["loss"]
        return record["step"] != stop_after

    every = 5 if folder else None
    config = TrainConfig(total_steps=updates, max_lr=3e-3, precision=precision, out=folder, checkpoint_every=every)
    trainer = Trainer(model, data, config, [look])
    if folder and any(Path(folder).glob("checkpoints/step_*")):
        trainer.resume()
    trainer.fit()
    return {"losses": losses, **held_bytes(trainer.model, trainer.optimizer)}


def held_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of weights, gradients and moments in this process."""
    moments = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    kinds = {"weights": list(model.parameters()), "gradients": gradients, "moments": moments}
    return {kind: sum(_own_part(tensor).nbytes for tensor in tensors) for kind, tensors in kinds.items()}


def _own_part(tensor: Tensor) -> Tensor:
    """What lies in this process of a tensor that is shared out; other tensors as they are."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def train_all(rank: int, cases: Mapping[str, tuple]) -> dict[str, dict[str, Any]]:
    """``train(rank, *arguments)`` for each case, one after the other."""
    return {name: train(rank, *arguments) for name, arguments in cases.items()}


def own_loop(rank: int, updates: int) -> dict[str, Any]:
    """Losses of a loop written for one process, on a sharded model: the optimizer is made first, or after ``shard``.

    Each process trains on its own half of the rows. ``"kept"`` is how many of the parameters that were there before
    ``shard`` are still those of the model.
    """
    found: dict[str, Any] = {}
    for order in ("before shard", "after shard"):
        torch.manual_seed(0)
        model = GPT(PRESETS["nano"])
        before = list(model.parameters())
        if order == "before shard":
            optimizer = build_adamw(model, lr=1e-3)
        shard(model)
        if order == "after shard":
            optimizer = build_adamw(model, lr=1e-3)
        found["kept"] = sum(old is new for old, new in zip(before, model.parameters(), strict=True))
        data, losses = RowBatches(rows=text_rows(), batch_size=16), []
        batch = data.rows.stack(data.rows_of(0)[rank :: dist.get_world_size()])
        for _ in range(updates):
            optimizer.zero_grad()
            loss = cross_entropy(model(batch["input_ids"]), batch["labels"])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found[order] = losses
    return found


def exchanged(rank: int, updates: int) -> dict[str, float]:
    """Bytes that this process sends in an update with copies of a model (DDP) and with shares of one (FSDP2).

    And for one vector in each of the three collectives. In parts of the bytes of all weights, or of the vector.
    """
    sent, world = {}, dist.get_world_size()
    share = random_batch(replace(PRESETS["tiny"], max_positions=8), 2, rank)
    for way in ("DDP", "FSDP2"):
        torch.manual_seed(0)
        model = GPT(PRESETS["tiny"])
        size = sum(p.nbytes for p in model.parameters())
        wrapped = replicate(model) if way == "DDP" else shard(model)
        optimizer = build_adamw(model, lr=1e-3)
        train_step(wrapped, [share], optimizer, lr=1e-3)  # the first settles how messages are packed
        sent[way] = _sent_by(lambda: train_step(wrapped, [share], optimizer, lr=1e-3), updates) / size  # noqa: B023
    whole = torch.randn(240_000)
    part = torch.randn(len(whole) // world)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the name before torch 2.13
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    collectives = {
        "all-reduce": lambda: dist.all_reduce(whole),
        "all-gather": lambda: gather(whole, part),
        "reduce-scatter": lambda: scatter(part, whole),
    }
    return sent | {name: _sent_by(collective, 3) / whole.nbytes for name, collective in collectives.items()}


def _sent_by(action: Callable[[], Any], times: int) -> float:
    dist.barrier()
    before = bytes_sent()
    for _ in range(times):
        action()
    dist.barrier()  # by now all has arrived
    return (bytes_sent() - before) / times


def peaks(rank: int, cases: Mapping[str, tuple[ModelConfig, int]], way: str) -> dict[str, int]:
    """For each case the bytes at the fullest moment of an update in this process.

    A case is a model and the rows of all processes together, of which each takes its part. ``way`` is ``"alone"``,
    ``"copies"`` (DDP) or ``"shares"`` (FSDP2).
    """
    return {name: _peak(rank, config, rows, way) for name, (config, rows) in cases.items()}


def _peak(rank: int, config: ModelConfig, rows: int, way: str) -> int:
    torch.manual_seed(0)
    world = 1 if way == "alone" else dist.get_world_size()
    model = GPT(config)
    wrapped = {"alone": lambda model: model, "copies": replicate, "shares": shard}[way](model)
    optimizer, batch = build_adamw(model, lr=1e-3), random_batch(config, rows // world, rank)
    for _ in range(2):
        train_step(wrapped, [batch], optimizer, lr=1e-3)
    moments = [value for state in optimizer.state.values() for value in state.values()]
    if way != "copies":
        model.zero_grad(set_to_none=True)  # of a copy, the gradients lie in DDP's buckets, which stay
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    with TensorMemory(map(_own_part, [*model.parameters(), *moments, *gradients])) as memory:
        train_step(wrapped, [batch], optimizer, lr=1e-3)
    return memory.peak


# A slow network.


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


# torch.compile.


def compiled(rows: int, rounds: int) -> dict[str, float]:
    """A one-layer model as it is and compiled: seconds of the first pass, milliseconds of later ones, both losses."""
    with tempfile.TemporaryDirectory() as folder:  # compiled code is kept in a folder: an empty one, to start cold
        kept = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        try:
            return _compiled(rows, rounds)
        finally:
            os.environ.pop("TORCHINDUCTOR_CACHE_DIR")
            if kept is not None:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = kept


def _compiled(rows: int, rounds: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = GPT(replace(PRESETS["tiny"], n_layers=1))
    batch = random_batch(model.config, rows)

    def passes(model: Any) -> tuple[float, float]:
        start = time.perf_counter()
        loss = cross_entropy(model(batch["input_ids"]), batch["labels"])
        loss.backward()
        return time.perf_counter() - start, loss.item()

    fast = torch.compile(model)
    (_, loss), (first, loss_compiled) = passes(model), passes(fast)
    taken: dict[str, list[float]] = {"as it is": [], "compiled": []}
    for _ in range(rounds):
        taken["as it is"].append(passes(model)[0])
        taken["compiled"].append(passes(fast)[0])
    medians = {name: 1000 * statistics.median(seconds) for name, seconds in taken.items()}
    return {"first pass": first, "loss": loss, "loss, compiled": loss_compiled, **medians}


# Size, text and learning rate.

ROW_LENGTH, BATCH_ROWS = 64, 16


@cache
def plays(characters: int) -> TokenRows:
    """Rows from the first ``characters`` of the training text."""
    text, _ = load_corpus().split(validation_fraction=0.1)
    ids = ByteTokenizer().encode(text.text[: 2 * characters])
    return TokenRows(ids[: characters + 1], ROW_LENGTH, 256, text.name)


@cache
def held_out() -> tuple[Batch, ...]:
    """512 rows from all over the held-out plays."""
    _, text = load_corpus().split(validation_fraction=0.1)
    ids = ByteTokenizer().encode(text.text)
    rows = TokenRows(ids, ROW_LENGTH, 256, text.name)
    picks = torch.linspace(0, len(rows) - 1, 512).long().tolist()
    return tuple(rows.stack(picks[start : start + 128]) for start in range(0, 512, 128))


def sized(d_model: int) -> ModelConfig:
    """Two layers of this width, with heads of 16."""
    return ModelConfig(vocab_size=256, d_model=d_model, n_layers=2, n_heads=d_model // 16, max_positions=ROW_LENGTH)


def learn(d_model: int, characters: int, lr: float, seed: int, updates: int) -> dict[str, Any]:
    """Train a model of this width on so much text; held-out loss by update, and the last training losses' mean."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    data = RowBatches(rows=plays(characters), batch_size=BATCH_ROWS, seed=seed)
    evals, losses = {}, []

    def look(record: dict[str, Any]) -> None:
        losses.append(record["loss"])
        if "eval_loss" in record:
            evals[record["step"]] = record["eval_loss"]

    config = TrainConfig(total_steps=updates, max_lr=lr, warmup_steps=updates // 20, eval_every=updates // 8)
    Trainer(GPT(sized(d_model)), data, config, [look], validation=list(held_out())).fit()
    return {"evals": evals, "training": statistics.mean(losses[-20:])}


# The planner with sliders.

COLOURS = {
    "weights": "#0072B2",
    "gradients": "#56B4E9",
    "moments": "#009E73",
    "casts": "#999999",
    "activations": "#E69F00",
    "logits": "#D55E00",
    "temporary": "#CC79A7",
}


def draw_memory(model: str, rows: int, precision: str, recompute: str, loss_chunk: str, processes: int) -> "Figure":
    """The planned memory of one process, by kind, for ``rows`` rows at a time; sharded if there are many processes."""
    from matplotlib.figure import Figure

    config = PRESETS[model]
    memory = memory_of(
        config,
        micro_batch_size=rows,
        precision=precision,
        recompute=recompute == "yes",
        loss_chunk=1024 if loss_chunk == "yes" else None,
        shards=processes,
    )
    figure = Figure(figsize=(7.5, 2.6), layout="constrained")
    ax = figure.subplots()
    left = 0.0
    for kind, size in vars(memory).items():
        if size:
            ax.barh([0], [size / GiB], left=left, color=COLOURS[kind], label=f"{kind} {size / GiB:.3g}")
            left += size / GiB
    limits = {limit: name for limit, name in ((24, "24 GiB"), (80, "80 GiB"), (131, "H200")) if limit < 1.7 * left}
    for limit, name in limits.items():
        ax.axvline(limit, color="black", linestyle=":", linewidth=1)
        ax.annotate(f" {name}", (limit, -0.52), fontsize=8, annotation_clip=False, va="bottom")
    right = 1.1 * max(left, *limits, 0)
    ax.set(yticks=[], xlabel="GiB in each process, at the fullest moment", xlim=(0, right), ylim=(-0.55, 0.45))
    estimate = ", an estimate" if processes > 1 else ""
    ax.set_title(f"{model}, {rows} rows of {config.max_positions}: {left:.3g} GiB{estimate}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure
