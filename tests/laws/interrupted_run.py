"""The run that law 5 stops, kills and resumes. As a program: resumes the run in a folder, or begins it.

python interrupted_run.py FOLDER PRECISION [PROCESSES]
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import tinytrain.precision
from tinytrain.checkpoint import Checkpointer
from tinytrain.data import RowBatches, TokenRows, share_of
from tinytrain.distributed import launch, rank
from tinytrain.model import GPT, PRESETS
from tinytrain.runlog import read_run
from tinytrain.train import TrainConfig, Trainer

BATCHES, SKIPPED = 15, (5, 8, 10)  # batch 10 is skipped in float16 only
OF_THE_MACHINE = {"tokens_per_second", "seconds_data", "seconds_step", "memory_bytes", "seconds_communication"}
ROWS = TokenRows(torch.randint(0, 256, (16 * 41,), generator=torch.Generator().manual_seed(2)), 16, vocab_size=256)


@dataclass(frozen=True, kw_only=True)
class Troubled(RowBatches):
    """Rows in micro-batches of 3; two batches have no target."""

    def __getitem__(self, batch):
        parts = super().__getitem__(batch)
        if batch in SKIPPED[:2]:
            parts = [part | {"labels": torch.full_like(part["labels"], -100)} for part in parts]
        return [part | {"batch": torch.tensor(batch)} for part in parts]

    def share(self, batch, *, rank, processes):
        return share_of(self[batch], rank=rank, processes=processes)


class Overflowing(GPT):
    """In float16 the scaled gradient of one batch is more than a number of that width can hold."""

    def forward(self, input_ids, batch=None):
        logits = super().forward(input_ids)
        if batch is not None and batch == SKIPPED[2] and logits.dtype == torch.float16:
            logits = Overflow.apply(logits)
        return logits


class Overflow(torch.autograd.Function):
    @staticmethod
    def forward(_context, x):
        return x.clone()

    @staticmethod
    def backward(_context, gradient):
        return torch.full_like(gradient, torch.inf)


def trainer_in(folder, precision, stop=None, **changed):
    """A new Trainer, its model not yet trained; it stops after ``stop`` batches."""
    torch.manual_seed(7)
    config = TrainConfig(
        total_steps=BATCHES - (3 if precision == "fp16" else 2),
        max_lr=1e-2,
        warmup_steps=4,
        precision=precision,
        eval_every=3,
        out=folder,
        checkpoint_every=4,
    )
    data = Troubled(rows=ROWS, batch_size=8, micro_batch_size=3, seed=3)
    model = Overflowing(replace(PRESETS["nano"], d_model=32, dropout=0.1))
    validation = list(ROWS.batches(8, limit=8))
    callbacks = [lambda record: record["batch"] != stop]
    return Trainer(model, data, replace(config, **changed), callbacks, validation=validation)


def fit(folder, precision, stop=None, resume=False, **changed):
    """Train to the end or to a stop, from the beginning or from the newest checkpoint; returns the Trainer."""
    trainer = trainer_in(folder, precision, stop, **changed)
    if resume:
        trainer.resume()
    trainer.fit()
    return trainer


def lines_of(folder):
    """The log's lines without what depends on the machine."""
    return [{name: v for name, v in record.items() if name not in OF_THE_MACHINE} for record in read_run(folder)]


def begin_or_resume(_rank, folder, precision):
    tinytrain.precision.cpu_supports = lambda dtype: True
    trainer = trainer_in(folder, precision, checkpoint_every=1)
    if Checkpointer(Path(folder, "checkpoints")).latest() is not None:
        trainer.resume()
    elif rank() == 0:  # killed before its first checkpoint: there is nothing to lose
        Path(folder, "log.jsonl").unlink(missing_ok=True)
    if rank() == 0:
        print("begins", flush=True)
    trainer.fit()


def main(folder, precision, processes="1"):
    if processes == "1":
        begin_or_resume(0, folder, precision)
    else:
        launch(begin_or_resume, int(processes), folder, precision)


if __name__ == "__main__":
    main(*sys.argv[1:])
