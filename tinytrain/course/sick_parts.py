"""What the sick runs are made of: a small healthy run, and models, data and schedules with one fault each."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytrain.attention import Causal, Masked
from tinytrain.batches import Batch
from tinytrain.corpus import load_corpus
from tinytrain.course.threads import one_thread
from tinytrain.data import RowBatches, TokenRows
from tinytrain.generators import keep_generators
from tinytrain.model import GPT, ModelConfig
from tinytrain.precision import LossScaleError, Precision
from tinytrain.schedule import warmup_stable_decay
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.train import TrainConfig, Trainer, TrainingFailedError

V, T, BATCH_SIZE = 256, 32, 16
STEPS, WARMUP_STEPS, LR, EVAL_EVERY = 200, 20, 6e-3, 20
"""of the healthy run: 0.7 CPU-seconds"""
SMALL = ModelConfig(vocab_size=V, d_model=32, n_layers=1, n_heads=2, max_positions=64)

MicroBatches = Sequence[Batch]


@cache
def rows(n_rows: int = 4096, *, held_out: bool = False, corpus: str = "shakespeare", row_length: int = T) -> TokenRows:
    """``n_rows`` rows of bytes: 4,096 are more than 200 updates of 16 need, so no row comes twice."""
    text = load_corpus(corpus).split(validation_fraction=0.1)[held_out]
    ids = ByteTokenizer().encode(text.text[: 2 * n_rows * row_length])
    return TokenRows(ids[: n_rows * row_length + 1], row_length, V, text.name)


def batches(seed: int, n_rows: int = 4096, batch_size: int = BATCH_SIZE, **settings: Any) -> RowBatches:
    return RowBatches(rows=rows(n_rows), batch_size=batch_size, seed=seed, **settings)


def held_out(corpus: str = "shakespeare") -> list[Batch]:
    return list(rows(64, held_out=True, corpus=corpus).batches(64))


def small(seed: int, **sizes: Any) -> GPT:
    """A fresh model; ``sizes`` are those of ``ModelConfig`` that differ."""
    torch.manual_seed(seed)
    return GPT(replace(SMALL, **sizes))


def train(
    folder: Path,
    seed: int,
    *,
    model: Callable[[], nn.Module] | None = None,
    data: Any = None,
    validation: Any = True,
    config: type[TrainConfig] = TrainConfig,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    growth_interval: int | None = None,
    stop_after: int | None = None,
    **settings: Any,
) -> None:
    """The healthy run, with what is given in place of its own; its log is in ``folder`` afterwards.

    A run that ends with an error of the Trainer has its log, too. ``growth_interval`` is that of the loss scale, for
    2,000 updates are more than a small run has. ``stop_after`` batches the run stops and is resumed.
    """
    defaults = {"total_steps": STEPS, "max_lr": LR, "warmup_steps": WARMUP_STEPS}
    defaults["eval_every"] = None if validation is None else EVAL_EVERY
    settings = defaults | settings | {"out": folder}

    def begin(stops: Callable[[dict[str, Any]], bool]) -> Trainer:
        torch.manual_seed(seed)
        built = model() if model else small(seed)
        trainer = Trainer(
            built,
            batches(seed) if data is None else data,
            config(**settings),
            [stops],
            validation=held_out() if validation is True else validation,
            optimizer=optimizer(built) if optimizer else None,
        )
        if growth_interval is not None:
            trainer.precision = Precision("fp16", growth_interval=growth_interval)
        return trainer

    with keep_generators(), one_thread(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="this CPU has no hardware")  # a small model is fast enough
        with suppress(TrainingFailedError, LossScaleError):  # so it may end; what it logged until then is wanted
            begin(lambda record: record["batch"] != stop_after).fit()
            if stop_after is not None:
                trainer = begin(lambda record: True)
                trainer.resume()
                trainer.fit()


# Schedules.


class AlwaysZero(TrainConfig):
    """The warmup divides whole numbers: 0 until its end, which is that of the run."""

    def lr(self, step: int) -> float:
        return self.max_lr * (step // self.total_steps)


class PerMicroBatch(TrainConfig):
    """The schedule moves on four times in each update."""

    def lr(self, step: int) -> float:
        return super().lr(4 * step)


class ClimbsAgain(TrainConfig):
    """A cosine that was told half the length of the run, and comes back up."""

    def lr(self, step: int) -> float:
        half = replace(self, total_steps=self.total_steps // 2)
        return TrainConfig.lr(half, min(step, max(0, self.total_steps - step)))


class StartsAnew(TrainConfig):
    """After half of the run the schedule begins again, as if it had not been saved with the model."""

    def lr(self, step: int) -> float:
        return super().lr(step if step < self.total_steps // 2 else step - self.total_steps // 2)


class Constant(TrainConfig):
    """Up to max_lr, and no decay."""

    def lr(self, step: int) -> float:
        return self.max_lr * min(1.0, (step + 1) / max(1, self.warmup_steps))


class StableDecay(TrainConfig):
    """Up, level, and down over the last third."""

    def lr(self, step: int) -> float:
        return warmup_stable_decay(step, **self._schedule(), decay_steps=self.total_steps // 3)


# Models.


class Looking(GPT):
    """Its mask lets each position see the place to its right; ``only_ahead``: all of them, and nothing else."""

    only_ahead = False

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self._embed(input_ids) + self._embed_positions(torch.arange(input_ids.shape[1]))
        square = torch.ones(input_ids.shape[1], input_ids.shape[1], dtype=torch.bool)
        attend = Masked(square.triu(1) if self.only_ahead else square.tril(1))
        for block in self.blocks:
            x = block(x, attend)
        return self.head(self.norm(x))


class Inverted(Looking):
    """The mask is the wrong way round: where it should forbid it allows."""

    only_ahead = True


class Clamped(GPT):
    """Guards its logits against overflow, with the bound on the wrong side of all of them."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return super().forward(input_ids).clamp(min=10.0)


class Keeping(GPT):
    """Keeps its logits for a statistic, and with them every graph that they belong to."""

    def forward(self, input_ids: Tensor) -> Tensor:
        logits = super().forward(input_ids)
        if self.training:
            self.__dict__.setdefault("kept", []).append(logits)
        return logits


class Hooked(GPT):
    """Hooks all its norms anew in every forward pass, and the hooks stay."""

    def forward(self, input_ids: Tensor) -> Tensor:
        if self.training:
            for norm in (module for module in self.modules() if isinstance(module, nn.LayerNorm)):
                norm.register_forward_hook(lambda module, inputs, output: output.std().item() and None)
        return super().forward(input_ids)


class DropsWhereItShouldNot(GPT):
    """The flag of its dropout is the wrong way round: nothing is dropped in training, most in evaluation."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self._embed(input_ids) + self._embed_positions(torch.arange(input_ids.shape[1]))
        x = F.dropout(x, 0.8, training=not self.training)
        for block in self.blocks:
            x = F.dropout(block(x, Causal()), 0.8, training=not self.training)
        return self.head(self.norm(x))


class HalfNorm(nn.Module):
    """A hand-written RMSNorm that squares in FP16: above 255 the square is infinite."""

    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.ones(width)), gain

    def forward(self, x: Tensor) -> Tensor:
        x = (self.gain * x).half() if torch.is_autocast_enabled("cpu") else self.gain * x
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def half_norms(seed: int, gain: float) -> GPT:
    """Every norm of the small model in FP16, behind a residual stream that is ``gain`` times as large."""
    model = small(seed)
    width = model.config.d_model
    for block in model.blocks:
        block.attention_norm, block.feed_forward_norm = HalfNorm(width, gain), HalfNorm(width, gain)
    model.norm = HalfNorm(width, gain)
    return model


class Features(GPT):
    """Takes a number with each token, ``features`` ``[B,T]``, that comes from a file."""

    def forward(self, input_ids: Tensor, features: Tensor) -> Tensor:
        x = self._embed(input_ids) + self._embed_positions(torch.arange(input_ids.shape[1]))
        x = x * (1.0 + 0.1 * features[..., None])
        for block in self.blocks:
            x = block(x, Causal())
        return self.head(self.norm(x))


def without_residual_scaling(seed: int, n_layers: int, std: float) -> GPT:
    """A deep model whose residual outputs are as large as all other weights."""
    model = small(seed, n_layers=n_layers, init_std=std)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("out.weight"):
                parameter.mul_((2 * n_layers) ** 0.5)
    return model


def with_small_embeddings(seed: int) -> GPT:
    """Token embeddings without the factor sqrt(d_model) that they should have beside those of positions."""
    model = small(seed)
    with torch.no_grad():
        model.tokens.weight.div_(model.config.d_model**0.5)
    return model


def with_missing_row(seed: int, byte: str) -> GPT:
    """Its embedding was read from a table that has no entry for one character."""
    model = small(seed)
    with torch.no_grad():
        model.tokens.weight[ord(byte)] = float("nan")
    return model


# Data.


def changed(data: RowBatches, change: Callable[[int, list[Batch]], list[Batch]]) -> Callable[[int], list[Batch]]:
    """The same data, with ``change(n, micro_batches)`` for batch number n."""
    return lambda n: change(n, data[n])


def with_labels(data: RowBatches, labels: Callable[[Batch], Tensor]) -> Callable[[int], list[Batch]]:
    return changed(data, lambda _n, micro: [batch | {"labels": labels(batch)} for batch in micro])


def shuffled(labels: Tensor) -> Tensor:
    """The same labels in another order, the same at each call."""
    generator = torch.Generator().manual_seed(int(labels.sum()))
    return labels.flatten()[torch.randperm(labels.numel(), generator=generator)].view_as(labels)


class Waits:
    """Waits ``times`` as long as what lies between two waits, so that its share is the same on a busy machine."""

    def __init__(self, times: float) -> None:
        self.times, self._ended = times, time.perf_counter()

    def __call__(self) -> None:
        time.sleep(min(0.2, self.times * (time.perf_counter() - self._ended)))
        self._ended = time.perf_counter()


@dataclass
class Slow:
    """Data for each batch of which one waits."""

    data: RowBatches
    wait: Waits

    def __getitem__(self, n: int) -> list[Batch]:
        self.wait()
        return self.data[n]


def lines(n: int, *, shortest: int, longest: int, seed: int) -> list[Tensor]:
    """Pieces of the text with random lengths, most of them short."""
    generator, ids, start, found = torch.Generator().manual_seed(seed), rows().ids, 0, []
    for share in torch.rand(n, generator=generator).pow(4).tolist():
        length = shortest + int((longest - shortest) * share)
        start = start + length if start + 2 * length < len(ids) else 0
        found.append(ids[start : start + length])
    return found
