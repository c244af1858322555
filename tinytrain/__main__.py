"""The command line: ``python -m tinytrain train --preset nano --steps 200 --out runs/first``."""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro
from tqdm import tqdm

from tinytrain.corpus import Corpus, load_corpus
from tinytrain.data import RowBatches, TokenRows
from tinytrain.device import best_device
from tinytrain.generate import sample
from tinytrain.model import GPT, PRESETS
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.train import FitReport, TrainConfig, Trainer, TrainingFailedError


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a model on text and write its log."""

    preset: str = "nano"
    """the model: nano, tiny, 27m, 120m, 350m or 7b"""
    corpus: str = "shakespeare"
    """shakespeare, three_kingdoms, python, or the path of a text file or folder"""
    steps: int = 1000
    """updates"""
    batch_size: int = 16
    """rows in one update"""
    micro_batch_size: int | None = None
    """rows in one forward and backward pass; the whole batch if not given"""
    row_length: int | None = None
    """tokens in a row; the model's positions if not given"""
    max_lr: float = 6e-3
    """learning rate after the warmup"""
    warmup_steps: int | None = None
    """updates until max_lr is reached; a twentieth of the steps if not given"""
    dropout: float = 0.0
    """share of activations dropped in training"""
    weight_decay: float = 0.1
    """share of each matrix removed per unit of lr"""
    eval_every: int = 200
    """updates between evaluations on held-out text"""
    eval_rows: int = 512
    """held-out rows in an evaluation, spread evenly over the held-out text"""
    seed: int = 0
    """of the initial weights, of dropout and of the order of the rows"""
    prompt: str = "ROMEO\n"
    """what the sample at the end continues"""
    out: Path
    """folder for the log; it must not hold one yet"""


def train(options: Train) -> FitReport:
    """Train as ``options`` say; returns how the run ended."""
    if options.preset not in PRESETS:
        raise ValueError(f"preset {options.preset!r} is not one of {', '.join(PRESETS)}")
    tokenizer = ByteTokenizer()
    corpus = load_corpus(options.corpus)
    config = replace(PRESETS[options.preset], vocab_size=tokenizer.vocab_size, dropout=options.dropout)
    row_length = options.row_length or config.max_positions
    if row_length > config.max_positions:
        raise ValueError(f"row_length={row_length} is longer than preset {options.preset}'s {config.max_positions}")
    train_rows, held_out = _rows(corpus, tokenizer, row_length)
    run = TrainConfig(
        total_steps=options.steps,
        max_lr=options.max_lr,
        warmup_steps=options.steps // 20 if options.warmup_steps is None else options.warmup_steps,
        weight_decay=options.weight_decay,
        eval_every=options.eval_every,
        out=options.out,
    )
    torch.manual_seed(options.seed)
    model = GPT(config).to(best_device())
    data = RowBatches(
        rows=train_rows,
        batch_size=options.batch_size,
        micro_batch_size=options.micro_batch_size,
        seed=options.seed,
    )
    print(f"{model.num_parameters():,} parameters, {len(train_rows.ids):,} tokens of {corpus.name}", flush=True)
    validation = list(held_out.batches(64, limit=options.eval_rows))
    with closing(ProgressBar(options.steps)) as bar:
        report = Trainer(model, data, run, [bar], validation=validation).fit()
    print(sample(model, tokenizer, options.prompt, seed=options.seed))
    return report


def _rows(corpus: Corpus, tokenizer: ByteTokenizer, row_length: int) -> tuple[TokenRows, TokenRows]:
    train_side, held_out = (
        TokenRows(tokenizer.encode(part.text), row_length, tokenizer.vocab_size, part.name) for part in corpus.split()
    )
    return train_side, held_out


class ProgressBar:
    """A Trainer callback that shows updates, loss and speed; it appears with the first update."""

    def __init__(self, total_steps: int) -> None:
        self.total_steps, self._bar, self._shown = total_steps, None, {}

    def __call__(self, record: dict[str, Any]) -> None:
        if self._bar is None:
            self._bar = tqdm(total=self.total_steps, unit="update")
        self._shown |= {name: f"{record[name]:.3f}" for name in ("loss", "eval_loss") if name in record}
        self._bar.set_postfix(self._shown, refresh=False)
        self._bar.update(0 if record["skipped"] else 1)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. What a user can mend is told in one line, without a traceback."""
    options = tyro.extras.subcommand_cli_from_dict(
        {"train": Train},
        prog="python -m tinytrain",
        description="Train small language models from the command line.",
        args=arguments,
    )
    try:
        report = train(options)
    except (ValueError, OSError, TrainingFailedError) as error:
        print(f"tinytrain: {error}", file=sys.stderr)
        return 1
    if report.stopped_by == "interrupt":
        print(f"Interrupted after update {report.steps}.")
    print(f"The log is {Path(options.out) / 'log.jsonl'}")
    return 130 if report.stopped_by == "interrupt" else 0


if __name__ == "__main__":
    sys.exit(main())
