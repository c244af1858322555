"""What notebook 13 imports first: the bytes and the seconds of an update in one process."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tinytrain.data import RowBatches, TokenRows
from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, PRESETS, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.precision import Precision
from tinytrain.recompute import recompute_activations
from tinytrain.step import train_step
from tinytrain.watch.tensor_memory import TensorMemory

Batch = dict[str, Tensor]
WORK = ModelConfig(vocab_size=4000, d_model=128, n_layers=6, n_heads=4, max_positions=128)
"""the model whose memory is measured: blocks, vocabulary and rows in about the proportions of the 120M preset"""


# Bytes.


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


def held_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of weights, gradients and moments in this process."""
    moments = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    kinds = {"weights": list(model.parameters()), "gradients": gradients, "moments": moments}
    return {kind: sum(own_part(tensor).nbytes for tensor in tensors) for kind, tensors in kinds.items()}


def own_part(tensor: Tensor) -> Tensor:
    """What lies in this process of a tensor that is shared out; other tensors as they are."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


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
