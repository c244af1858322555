"""Notebook 13's runs by size: models of several widths that learn from so much text, at some learning rate."""

import statistics
from functools import cache
from typing import Any

import torch

from tinytrain.corpus import load_corpus
from tinytrain.course.lesson_13 import Batch
from tinytrain.data import RowBatches, TokenRows
from tinytrain.model import GPT, ModelConfig
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.train import TrainConfig, Trainer

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


def learn(
    d_model: int,
    characters: int,
    lr: float,
    seed: int,
    updates: int,
    rows: int = BATCH_ROWS,
    evaluations: int = 8,
) -> dict[str, Any]:
    """Train a model of this width on so much text, with batches of so many rows.

    ``"evals"`` is the held-out loss by update, ``"training"`` the mean of the last 20 training losses.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    data = RowBatches(rows=plays(characters), batch_size=rows, seed=seed)
    evals, losses = {}, []

    def look(record: dict[str, Any]) -> None:
        losses.append(record["loss"])
        if "eval_loss" in record:
            evals[record["step"]] = record["eval_loss"]

    every = updates // evaluations
    config = TrainConfig(total_steps=updates, max_lr=lr, warmup_steps=updates // 20, eval_every=every)
    Trainer(GPT(sized(d_model)), data, config, [look], validation=list(held_out())).fit()
    return {"evals": evals, "training": statistics.mean(losses[-20:])}
