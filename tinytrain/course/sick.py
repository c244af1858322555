"""Runs made sick on purpose, and healthy ones to compare with: small models, real training, a second or so each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from tinytrain.course import sick_parts as parts
from tinytrain.course.sick_parts import batches, held_out, rows, small, train
from tinytrain.data import RowBatches, without_targets
from tinytrain.distributed import launch
from tinytrain.documents import DocumentBatches
from tinytrain.loss import IGNORE_INDEX
from tinytrain.model import GPT, PRESETS
from tinytrain.runlog import Run, read_run


@dataclass(frozen=True)
class Sick:
    """A run made sick on purpose."""

    done: str
    """what was done to it"""
    finding: str
    """what the doctor must name first; empty where the log alone shows nothing"""
    train: Callable[[Path, int], None]
    """trains it in a folder, with a seed"""
    beside: str = ""
    """what it must name first when it compares with the healthy run called small"""


def make(name: str, folder: str | Path, seed: int = 0) -> Run:
    """Train the run called ``name``, of ``SICK`` or ``HEALTHY``, with its log in ``folder``; returns what the log says.

    Raises ``KeyError`` for another name and ``FileExistsError`` for a folder that holds a log already.
    """
    recipe = SICK[name].train if name in SICK else HEALTHY[name]
    recipe(Path(folder), seed)
    return read_run(folder)


# Gradients and numbers.


def _bad_batch(folder: Path, seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    random = [{k: torch.randint(0, 256, (16, parts.T), generator=noise) for k in ("input_ids", "labels")}]
    data = parts.changed(batches(seed), lambda n, micro: random if n in (120, 121) else micro)
    train(folder, seed, data=data, max_grad_norm=float("inf"))


def _missing_row(folder: Path, seed: int) -> None:
    train(folder, seed, model=lambda: parts.with_missing_row(seed, "X"), validation=None)


def _missing_number(folder: Path, seed: int) -> None:
    def with_features(n: int, micro: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
        features = [torch.full(batch["input_ids"].shape, 0.5) for batch in micro]
        if n in (90, 91, 150):
            features[0][3, 7] = float("nan")
        return [batch | {"features": values} for batch, values in zip(micro, features, strict=True)]

    data = parts.changed(batches(seed), with_features)
    train(folder, seed, model=partial(_built, parts.Features, seed), data=data, validation=None)


def _half_norm(folder: Path, seed: int) -> None:
    train(
        folder, seed, model=lambda: parts.half_norms(seed, 100.0), precision="fp16", growth_interval=20, validation=None
    )


def _nothing_to_scale(folder: Path, seed: int) -> None:
    train(
        folder, seed, model=partial(_built, parts.Clamped, seed), precision="fp16", growth_interval=4, validation=None
    )


# Model and initial weights.


def _wide_embedding(folder: Path, seed: int) -> None:
    train(folder, seed, model=lambda: small(seed, init_std=1.0))


def _mask(kind: type[parts.Looking], folder: Path, seed: int) -> None:
    """Rows of 8 bytes, in which a small model soon finds the place that it should not see."""
    short, others = parts.rows(30_000, row_length=8), parts.rows(256, held_out=True, row_length=8)
    model = partial(_built, kind, seed, d_model=64, n_heads=4)
    data = RowBatches(rows=short, batch_size=64, seed=seed)
    train(folder, seed, model=model, data=data, validation=list(others.batches(256)), max_lr=1e-2, total_steps=300)


def _built(kind: type[GPT], seed: int, **sizes: Any) -> GPT:
    torch.manual_seed(seed)
    return kind(replace(parts.SMALL, **sizes))


def _deep(folder: Path, seed: int) -> None:
    train(folder, seed, model=lambda: parts.without_residual_scaling(seed, 12, 0.02), total_steps=100)


def _small_embeddings(folder: Path, seed: int) -> None:
    train(folder, seed, model=partial(parts.with_small_embeddings, seed))


def _decay_on_norms(folder: Path, seed: int) -> None:
    def all_decay(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=parts.LR, weight_decay=0.1, betas=(0.9, 0.95))

    train(folder, seed, optimizer=all_decay)


def _wrong_dropout(folder: Path, seed: int) -> None:
    model = partial(_built, parts.DropsWhereItShouldNot, seed, d_model=64, n_layers=2)
    train(folder, seed, model=model, total_steps=300)


# Data and labels.


def _unshifted(folder: Path, seed: int) -> None:
    same = [batch | {"labels": batch["input_ids"]} for batch in held_out()]
    train(folder, seed, data=parts.with_labels(batches(seed), lambda batch: batch["input_ids"]), validation=same)


def _nothing_to_predict(folder: Path, seed: int) -> None:
    data = parts.changed(batches(seed), lambda n, micro: micro if n < 40 else [without_targets(b) for b in micro])
    train(folder, seed, data=data)


def _some_without_targets(folder: Path, seed: int) -> None:
    lost = range(80, 92)
    data = parts.changed(batches(seed), lambda n, micro: [without_targets(b) for b in micro] if n in lost else micro)
    train(folder, seed, data=data)


def _documents(seed: int, way: str) -> DocumentBatches:
    texts = parts.lines(4000, shortest=6, longest=64, seed=seed)
    return DocumentBatches(documents=texts, row_length=64, batch_size=16, vocab_size=256, way=way, seed=seed)


def _padding(folder: Path, seed: int) -> None:
    train(folder, seed, data=_documents(seed, "random"), validation=None)


def _padding_as_target(folder: Path, seed: int) -> None:
    def labels(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return batch["labels"].masked_fill(batch["labels"] == IGNORE_INDEX, 0)

    train(folder, seed, data=parts.with_labels(_documents(seed, "random"), labels), validation=None)


def _shuffled_labels(folder: Path, seed: int) -> None:
    train(folder, seed, data=parts.with_labels(batches(seed), lambda batch: parts.shuffled(batch["labels"])))


def _same_batch(folder: Path, seed: int) -> None:
    first = batches(seed)[0]
    train(folder, seed, data=lambda n: first, total_steps=400)


def _tiny_corpus(folder: Path, seed: int) -> None:
    few = RowBatches(rows=rows(64), batch_size=16, seed=seed)
    train(folder, seed, data=few, model=lambda: small(seed, d_model=64, n_heads=4), total_steps=300, max_lr=1e-2)


def _few_rows(folder: Path, seed: int) -> None:
    few = RowBatches(rows=rows(16), batch_size=8, seed=seed)
    train(folder, seed, data=few, model=lambda: small(seed, d_model=64), total_steps=300, max_lr=1e-2, validation=None)


def _other_text(folder: Path, seed: int) -> None:
    train(folder, seed, validation=held_out("three_kingdoms"))


# Speed and memory.


def _slow_data(folder: Path, seed: int) -> None:
    train(folder, seed, data=parts.Slow(batches(seed), parts.Waits(1.0)), validation=None)


def _hooks(folder: Path, seed: int) -> None:
    train(folder, seed, model=partial(_built, parts.Hooked, seed), validation=None, total_steps=250)


def _kept_graphs(folder: Path, seed: int) -> None:
    train(folder, seed, model=partial(_built, parts.Keeping, seed), validation=None)


def _slow_network(folder: Path, seed: int) -> None:
    launch(_one_of_two, 2, folder, seed, 16, 100, 32, 2.0)


def _one_of_two(
    rank: int, folder: Path, seed: int, batch_size: int, steps: int, d_model: int, network: float = 0.0
) -> None:
    """A run in two processes; each message between them takes ``network`` times as long as the work before it."""
    send = default_hooks.allreduce_hook
    wait = parts.Waits(network if rank == 0 else 0.0)  # if both waited, each would wait for the other's wait

    def slow(group: Any, bucket: Any) -> Any:
        wait()
        return send(group, bucket)

    with patch.object(default_hooks, "allreduce_hook", slow):
        model = partial(small, seed, d_model=d_model)
        train(folder, seed, model=model, data=batches(seed, batch_size=batch_size), total_steps=steps)


SICK: dict[str, Sick] = {
    "lr far too large": Sick(
        "max_lr 2, some 300 times what suits this model",
        "swings",
        partial(train, max_lr=2.0, warmup_steps=0, config=parts.Constant),
    ),
    "lr too large in warmup": Sick(
        "a warmup over 150 of 200 updates to max_lr 3",
        "unstable in warmup",
        partial(train, max_lr=3.0, warmup_steps=150),
    ),
    "lr too small": Sick("max_lr 3e-6", "loss hardly moves", partial(train, max_lr=3e-6)),
    "lr stays 0": Sick(
        "a warmup that divides whole numbers",
        "lr off its plan",
        partial(train, config=parts.AlwaysZero),
    ),
    "schedule per micro-batch": Sick(
        "the schedule moves on four times in each update, as if once for each micro-batch",
        "lr off its plan",
        partial(train, config=parts.PerMicroBatch),
    ),
    "lr climbs again": Sick(
        "a cosine told half the length of the run",
        "lr off its plan",
        partial(train, config=parts.ClimbsAgain),
    ),
    "lr jumps": Sick(
        "the schedule starts anew after half of the run",
        "lr off its plan",
        partial(train, config=parts.StartsAnew),
    ),
    "bad batch": Sick("two batches of random bytes, no clipping", "spike", _bad_batch),
    "clipped to nothing": Sick(
        "max_grad_norm 1e-9",
        "gradients clipped away",
        partial(train, max_grad_norm=1e-9),
    ),
    "missing embedding row": Sick("the embedding's row for X is NaN", "loss not finite", _missing_row),
    "NaN in the data": Sick("three batches whose numbers from a file hold a NaN", "loss not finite", _missing_number),
    "FP16 overflow": Sick("norms squared in FP16", "loss scale collapses", _half_norm),
    "scale soars": Sick(
        "logits clamped on the wrong side, so that no gradient comes through",
        "loss scale soars",
        _nothing_to_scale,
    ),
    "embedding init": Sick("init_std 1 in place of 0.02", "initial loss", _wide_embedding),
    "mask lets see": Sick(
        "a mask off by one",
        "too good to be true",
        partial(_mask, parts.Looking),
    ),
    "mask inverted": Sick(
        "the mask is the wrong way round",
        "too good to be true",
        partial(_mask, parts.Inverted),
    ),
    "labels not shifted": Sick("labels are the inputs", "too good to be true", _unshifted),
    "all labels ignored": Sick(
        "every label -100 from batch 41 on",
        "updates skipped",
        _nothing_to_predict,
    ),
    "some batches without labels": Sick("12 batches in a row have no label", "updates skipped", _some_without_targets),
    "padding as target": Sick(
        "labels at padding are 0 and not -100",
        "padding is trained on",
        _padding_as_target,
    ),
    "labels shuffled": Sick(
        "labels in another order than their inputs",
        "loss stuck",
        _shuffled_labels,
    ),
    "same batch always": Sick("the data gives its first batch for every n", "overfitting", _same_batch),
    "tiny corpus": Sick("2,048 bytes, 75 epochs", "overfitting", _tiny_corpus),
    "a few rows": Sick("16 rows, 150 epochs, no evaluation", "memorising", _few_rows),
    "evaluated on other text": Sick("trained on Shakespeare, evaluated on Chinese", "evaluation apart", _other_text),
    "dropout in evaluation": Sick("the flag of dropout the wrong way round", "evaluation apart", _wrong_dropout),
    "much padding": Sick("rows of mixed lengths, padded as they come", "slow: padding", _padding),
    "slow data": Sick("each batch takes as long as its update", "slow: waiting for data", _slow_data),
    "slower and slower": Sick("three hooks more in each update", "throughput falls", _hooks),
    "graphs kept": Sick("a list keeps the logits of all updates", "memory grows", _kept_graphs),
    "slow network": Sick(
        "two processes whose messages take twice as long as their work",
        "slow: exchange",
        _slow_network,
    ),
    "much decay": Sick(
        "weight_decay 150 at a constant lr",
        "",
        partial(train, weight_decay=150.0, config=parts.Constant),
        "behind the other run",
    ),
    "decay on norms": Sick("weight decay on gains and biases too", "", _decay_on_norms),
    "embeddings not scaled": Sick("embeddings a sixth of what they should be", "", _small_embeddings),
    "no residual scaling": Sick("12 layers, outputs not divided by sqrt(2 * layers)", "", _deep),
}
"""Name of a run: what was done to it, and what the doctor must say."""


# Healthy runs.


def _nano(folder: Path, seed: int) -> None:
    train(folder, seed, model=lambda: GPT(PRESETS["nano"]), max_lr=3e-3, total_steps=150)


HEALTHY: dict[str, Callable[[Path, int], None]] = {
    "small": train,
    "nano": _nano,
    "three layers, higher lr": lambda folder, seed: train(
        folder, seed, model=partial(small, seed, n_layers=3), max_lr=1e-2
    ),
    "low lr": partial(train, max_lr=1e-3, total_steps=300),
    "dropout": lambda folder, seed: train(folder, seed, model=partial(small, seed, dropout=0.2)),
    "no warmup": partial(train, warmup_steps=0, max_lr=3e-3),
    "warmup, level, decay": partial(train, config=parts.StableDecay),
    "constant lr": partial(train, config=parts.Constant, max_lr=3e-3),
    "every step clipped": partial(train, max_grad_norm=0.1),
    "accumulation": lambda folder, seed: train(folder, seed, data=batches(seed, micro_batch_size=4)),
    "bucketed": lambda folder, seed: train(folder, seed, data=_documents(seed, "bucketed"), validation=None),
    "packed": lambda folder, seed: train(folder, seed, data=_documents(seed, "packed"), validation=None),
    "several epochs": lambda folder, seed: train(folder, seed, data=batches(seed, n_rows=1600), total_steps=300),
    "BF16": partial(train, precision="bf16"),
    "FP16": partial(train, precision="fp16", validation=None),
    "resumed": partial(train, stop_after=90, checkpoint_every=50),
    "two processes": lambda folder, seed: launch(_one_of_two, 2, folder, seed, 128, 60, 64) and None,
}
"""Name of a healthy run: how it is trained in a folder, with a seed."""
