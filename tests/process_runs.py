"""One small run, in this process or in one of several, and what to compare of it."""

from dataclasses import replace

import torch
import torch.distributed as dist

from tinytrain.data import RowBatches, TokenRows
from tinytrain.distributed import shard
from tinytrain.distributed.group import gathered
from tinytrain.model import GPT, PRESETS
from tinytrain.train import TrainConfig, Trainer
from tinytrain.weights import unwrap

CONFIG = TrainConfig(total_steps=12, max_lr=3e-3, warmup_steps=4, eval_every=5)
NO_EVALUATION = replace(CONFIG, eval_every=None)


def some_rows(n=1009, seed=0):
    return TokenRows(torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(seed)), 16, vocab_size=256)


def some_data(**changes):
    return RowBatches(**({"rows": some_rows(), "batch_size": 8, "micro_batch_size": 3} | changes))


def nano(dropout=0.0):
    torch.manual_seed(0)
    return GPT(replace(PRESETS["nano"], dropout=dropout))


def flat(model):
    return torch.cat([p.detach().flatten() for p in unwrap(model).parameters()])


def validation():
    return list(some_rows(600, seed=1).batches(4))


def train(rank, config=CONFIG, *, data=None, dropout=0.0, resume=False, stop_at=None, wrapped=None, callbacks=()):
    """Records, final weights, and whether the copies were alike after every update."""
    alike, records = [], []

    def look(record):
        records.append(record)
        return None if record["batch"] != stop_at else False

    model = nano(dropout)
    if wrapped == "sharded":
        model = shard(model)
    trainer = Trainer(model, data or some_data(), config, [look, *callbacks], validation=validation())
    if dist.is_initialized() and wrapped != "sharded":
        trainer.optimizer.register_step_post_hook(lambda *_: alike.append(all_alike(flat(model))))
    if resume:
        trainer.resume()
    report = trainer.fit()
    weights = None if wrapped == "sharded" else flat(model)
    return {"records": records, "weights": weights, "alike": alike, "report": report}


def all_alike(tensor):
    first, *others = gathered(tensor)
    return all(torch.equal(first, other) for other in others)


def curve(result, name="loss"):
    return [record[name] for record in result["records"]]


def largest_difference(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))
