"""The network and the runs of notebook 03: norms in either place, with warmup or without. Importable, for the runs
have processes of their own."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import torch
from torch import Tensor, nn

from tinytrain.attention import Attend
from tinytrain.corpus import load_corpus
from tinytrain.course.budget import by_budget
from tinytrain.course.runs import run_many
from tinytrain.data import RowBatches, TokenRows
from tinytrain.model import GPT, Block, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.schedule import warmup_cosine, warmup_stable_decay
from tinytrain.step import evaluate, train_step
from tinytrain.tokenizer import ByteTokenizer

ROW_LENGTH, BATCH_SIZE = 32, 16


class PostBlock(Block):
    """Post-LN: each half adds its output to the residual stream ``[B,T,D]`` and normalises the sum."""

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, attend)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class DeepGPT(GPT):
    """A GPT whose blocks are ``"pre"``-LN, as ours are, or ``"post"``-LN, as in Vaswani et al. 2017.

    For one ``seed`` both have the same matrices: Xavier uniform, as in the first transformers, and not scaled down over
    depth. Behind post-LN blocks there is no last norm, since their output is normalised already.
    """

    def __init__(self, norm: str, *, seed: int, n_layers: int = 6) -> None:
        if norm not in ("pre", "post"):
            raise ValueError(f"norm={norm!r} must be 'pre' or 'post'")
        sizes = {"vocab_size": 256, "d_model": 64, "n_heads": 4, "max_positions": ROW_LENGTH}
        super().__init__(ModelConfig(n_layers=n_layers, **sizes))
        if norm == "post":
            self.blocks = nn.ModuleList(PostBlock(self.config) for _ in range(n_layers))
            self.norm = nn.Identity()
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                nn.init.xavier_uniform_(parameter, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


@cache
def shakespeare() -> tuple[TokenRows, TokenRows]:
    """Rows of 32 bytes to train on, and held-out rows from other plays."""
    tokenizer = ByteTokenizer()
    train, held_out = (
        TokenRows(tokenizer.encode(part.text), ROW_LENGTH, tokenizer.vocab_size, part.name)
        for part in load_corpus().split(validation_fraction=0.1)
    )
    return train, held_out


def batches(seed: int) -> RowBatches:
    """Training batches of 16 rows, in the order of ``seed``."""
    return RowBatches(rows=shakespeare()[0], batch_size=BATCH_SIZE, seed=seed)


def held_out_loss(model: nn.Module) -> float:
    """Nats per byte on 1,024 held-out rows, spread over the text (512 in the ``ci`` budget)."""
    return evaluate(model, shakespeare()[1].batches(64, limit=by_budget(ci=512, laptop=1024))).loss


def reading(model: nn.Module) -> float:
    """How far predictions depend on what was read, 0 to 1: their mean distance from the mean prediction.

    The distance of two distributions is half the sum of their absolute differences (total variation).
    """
    (batch,) = shakespeare()[1].batches(64, limit=64)
    with torch.no_grad():
        chances = model(batch["input_ids"]).softmax(-1).flatten(0, 1)  # [positions, V]
    return 0.5 * (chances - chances.mean(0)).abs().sum(-1).mean().item()


def train_deep(
    norm: str,
    max_lr: float,
    warmup_steps: int,
    total_steps: int,
    *,
    seed: int = 0,
    min_share: float = 0.1,
    floor_share: float = 0.0,
    decay_steps: int | None = None,
    filled: int = 0,
    n_layers: int = 6,
) -> dict:
    """One run of ``DeepGPT``: its held-out loss, how far it reads, and the loss, gradient norm and lr of every update.

    The schedule is a cosine down to ``min_share`` of ``max_lr``, or, where ``decay_steps`` is given, level until the
    decay; ``floor_share`` clips it at that share of ``max_lr``. ``filled`` batches are passed at lr 0 before the run:
    no weight moves, but Adam's moments fill.
    """
    ends = {"max_lr": max_lr, "min_lr": min_share * max_lr, "warmup_steps": warmup_steps, "total_steps": total_steps}
    if decay_steps is None:
        schedule = partial(warmup_cosine, **ends)
    else:
        schedule = partial(warmup_stable_decay, decay_steps=decay_steps, **ends)
    model = DeepGPT(norm, seed=seed, n_layers=n_layers)
    data, optimizer = batches(seed), build_adamw(model, lr=max_lr)
    for batch in range(total_steps, total_steps + filled):  # batches that the run itself never sees
        train_step(model, data[batch], optimizer, lr=0.0)
    lrs = [max(floor_share * max_lr, schedule(step)) for step in range(total_steps)]
    reports = [train_step(model, data[step], optimizer, lr=lr) for step, lr in enumerate(lrs)]
    return {
        "held_out": held_out_loss(model),
        "reading": reading(model),
        "losses": [report.loss for report in reports],
        "grad_norms": [report.grad_norm for report in reports],
        "lrs": lrs,
    }


_made: dict[tuple, dict] = {}


def _one_by_one(function: Callable[..., dict], settings: Sequence[Mapping]) -> list[dict]:
    return [function(**each) for each in settings]


def train_all(cases: Sequence[Mapping], *, seeds: Sequence[int], total_steps: int) -> list[list[dict]]:
    """``train_deep`` for each case, once for each seed, in two processes. A run made before is not repeated.

    In the ``ci`` budget, which counts CPU seconds, no processes are started: each would spend some on starting.
    """
    wanted = [{"total_steps": total_steps, "seed": seed, **case} for case in cases for seed in seeds]
    keys = [tuple(sorted(each.items())) for each in wanted]
    new = {key: each for key, each in zip(keys, wanted, strict=True) if key not in _made}
    train = by_budget(ci=_one_by_one, laptop=run_many)
    if new:
        _made.update(zip(new, train(train_deep, list(new.values())), strict=True))
    return [[_made[key] for key in keys[i : i + len(seeds)]] for i in range(0, len(keys), len(seeds))]


def train_branches(
    max_lr: float, warmup_steps: int, decay_steps: int, ends: Sequence[int], *, seed: int = 0, n_layers: int = 6
) -> dict:
    """One pre-LN run at a level lr, and at each of ``ends`` a copy of it that was decayed to 10 % and ends there.

    The held-out loss by end, and how many updates were made in all.
    """
    model = DeepGPT("pre", seed=seed, n_layers=n_layers)
    data, optimizer = batches(seed), build_adamw(model, lr=max_lr)
    done, made, held_out = 0, 0, {}
    for end in sorted(ends):
        schedule = partial(
            warmup_stable_decay,
            max_lr=max_lr,
            min_lr=0.1 * max_lr,
            warmup_steps=warmup_steps,
            decay_steps=decay_steps,
            total_steps=end,
        )
        for step in range(done, end - decay_steps):
            train_step(model, data[step], optimizer, lr=schedule(step))
        branch, moments = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
        branch_optimizer = build_adamw(branch, lr=max_lr)
        branch_optimizer.load_state_dict(moments)
        for step in range(end - decay_steps, end):
            train_step(branch, data[step], branch_optimizer, lr=schedule(step))
        made, done, held_out[end] = made + end - done, end - decay_steps, held_out_loss(branch)
    return {"held_out": held_out, "updates": made}
