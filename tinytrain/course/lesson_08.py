"""Notebook 08: a run written by hand, with everything that it depends on."""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tinytrain.corpus import load_corpus
from tinytrain.data import row_order
from tinytrain.model import GPT, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.schedule import warmup_cosine
from tinytrain.tokenizer import ByteTokenizer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T, B, BATCHES_PER_EPOCH = 32, 8, 40  # bytes in a row, rows in a batch
TOTAL_STEPS = 120  # of the schedule of `Training`


class Training:
    """A small run, by hand. Each of Python's, NumPy's and torch's generators draws something, if ``draws`` names it."""

    def __init__(self, *, fp16: bool = True, draws: Collection[str] = ("Python", "NumPy", "torch")) -> None:
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        self.fp16, self.draws = fp16, draws
        self.model = small_model(dropout=0.1 if "torch" in draws else 0.0)
        self.optimizer = build_adamw(self.model, lr=5e-3)
        self.scaler = torch.amp.GradScaler("cpu", enabled=fp16, growth_interval=8)
        self.step = self.epoch = self.place = 0  # updates made; the epoch, and the next batch in its order
        self.skipped: list[int] = []  # which updates the scaler has skipped, for the eye only

    def batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets ``[B,T]``; moves on by one batch."""
        order = row_order(BATCHES_PER_EPOCH * B, seed=0, epoch=self.epoch).tolist()
        rows = order[self.place * B : (self.place + 1) * B]
        self.place += 1
        if self.place == BATCHES_PER_EPOCH:
            self.epoch, self.place = self.epoch + 1, 0
        shifts = [random.randrange(T) if "Python" in self.draws else 0 for _ in rows]
        taken = torch.stack([text()[r * T + s : r * T + s + T + 1] for r, s in zip(rows, shifts, strict=True)])
        inputs, targets = taken[:, :-1].clone(), taken[:, 1:]
        if "NumPy" in self.draws:
            inputs[torch.from_numpy(np.random.random(inputs.shape) < 0.05)] = 0  # a byte that the text has not
        return inputs, targets

    def update(self) -> float:
        """One update; returns its loss in nats per byte."""
        inputs, targets = self.batch()
        for group in self.optimizer.param_groups:
            group["lr"] = warmup_cosine(self.step, max_lr=5e-3, min_lr=5e-4, warmup_steps=20, total_steps=TOTAL_STEPS)
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=self.fp16):
            loss = F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())
        self.scaler.scale(loss).backward()
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() < before:  # something overflowed: this update was skipped
            self.skipped.append(self.epoch * BATCHES_PER_EPOCH + self.place)
        else:
            self.step += 1
        return loss.item()

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as tensors and plain values."""
        name, keys, *rest = np.random.get_state()
        return {
            "weights": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "epoch": self.epoch,
            "place in the epoch": self.place,
            "scaler": self.scaler.state_dict(),
            "Python's generator": random.getstate(),
            "NumPy's generator": (name, keys.tolist(), *rest),
            "torch's generator": torch.get_rng_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over every part that is in ``state``; the others stay as a fresh start has made them."""
        setters: dict[str, Callable[[Any], object]] = {
            "weights": self.model.load_state_dict,
            "optimizer": self.optimizer.load_state_dict,
            "step": lambda value: setattr(self, "step", value),
            "epoch": lambda value: setattr(self, "epoch", value),
            "place in the epoch": lambda value: setattr(self, "place", value),
            "scaler": self.scaler.load_state_dict,
            "Python's generator": random.setstate,
            "NumPy's generator": np.random.set_state,
            "torch's generator": torch.set_rng_state,
        }
        for part, value in state.items():
            setters[part](value)


def plot_forks(ax: "Axes", gaps: Mapping[str, Sequence[float]], first: int) -> None:
    """One row for each run, one column for each update from ``first`` on: by how many nats it is off.

    White is exactly 0. A bar and the row's name say at which update it is off for the first time.
    """
    from matplotlib.colors import LogNorm

    values = np.array(list(gaps.values()))
    edges = np.arange(first - 0.5, first + values.shape[1])
    image = ax.pcolormesh(
        edges, range(len(gaps) + 1), np.ma.masked_equal(values, 0), cmap="viridis_r", norm=LogNorm(1e-4, 3)
    )
    names = []
    for row, (name, gap) in enumerate(gaps.items()):
        start = next((i for i, value in enumerate(gap) if value), None)
        names.append(f"{name}: " + ("never" if start is None else f"from {first + start}"))
        if start is not None:
            ax.plot([edges[start]] * 2, [row + 0.1, row + 0.9], color="#b00020", linewidth=2.5)
    ax.set_xlim(first - 1.5, edges[-1])  # one empty column, so that a bar at the first update is seen
    ax.set_yticks(np.arange(len(gaps)) + 0.5, names)
    ax.set_xlabel("update")
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.figure.colorbar(image, ax=ax, label="nats off (white: exactly 0)")


def small_model(dropout: float = 0.0) -> GPT:
    """Two layers, 32 numbers wide: 34,688 parameters."""
    sizes = {"vocab_size": 256, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_positions": T}
    return GPT(ModelConfig(**sizes, dropout=dropout))


@cache
def text() -> Tensor:
    """The ids ``[n]`` of enough of Shakespeare for one epoch of shifted rows."""
    return all_ids()[: BATCHES_PER_EPOCH * B * T + T + 1]


@cache
def all_ids() -> Tensor:
    """The ids of all of Shakespeare but what is held out."""
    train_text, _ = load_corpus().split(validation_fraction=0.1)
    return ByteTokenizer().encode(train_text.text).long()


def furthest(model: torch.nn.Module, other: torch.nn.Module) -> float:
    """The largest difference between two models in any weight."""
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max((p - q).abs().max().item() for p, q in pairs)
