"""Notebook 13 in several processes: one Trainer and its switches, a plain loop, bytes sent and bytes held."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tinytrain.corpus import load_corpus
from tinytrain.course.costs_09 import bytes_sent
from tinytrain.course.lesson_13 import held_bytes, own_part, random_batch
from tinytrain.data import RowBatches, TokenRows
from tinytrain.distributed import replicate, shard
from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, PRESETS, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.recompute import recompute_activations
from tinytrain.step import train_step
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.train import TrainConfig, Trainer
from tinytrain.watch.tensor_memory import TensorMemory


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
    with TensorMemory(map(own_part, [*model.parameters(), *moments, *gradients])) as memory:
        train_step(wrapped, [batch], optimizer, lr=1e-3)
    return memory.peak
