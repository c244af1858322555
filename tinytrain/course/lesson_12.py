"""The experiment of notebook 12: its recipe, its main run, and the runs that bring in one thing at a time."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from tinytrain.bits import bits_per_byte, bytes_per_target
from tinytrain.bpe import BPETokenizer, cut_between_words, thinned
from tinytrain.corpus import Corpus, load_corpus
from tinytrain.course.runs import run_many
from tinytrain.data import RowBatches, TokenRows
from tinytrain.distributed.group import rank
from tinytrain.generate import generate, sample
from tinytrain.model import GPT, PRESETS
from tinytrain.step import evaluate
from tinytrain.tokenizer import ByteTokenizer, Tokenizer
from tinytrain.train import TrainConfig, Trainer

VOCAB, ROW_LENGTH, BATCH_SIZE, LR = 512, 64, 16, 2e-3
RECIPE = {"betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1}
"""the guide's AdamW; its least learning rate is a tenth of the largest, as ours is by default"""


# The text and the model.


@cache
def parts() -> tuple[Corpus, Corpus]:
    """Shakespeare's plays, and those that are held out."""
    return load_corpus().split(validation_fraction=0.1)


@cache
def tokenizer_of(kind: str = "bpe") -> Tokenizer:
    """``"bytes"``, or 512 tokens learned from every eighth piece of the training text."""
    if kind == "bytes":
        return ByteTokenizer()
    return BPETokenizer.learn(thinned(cut_between_words([parts()[0].text]), 1 / 8), VOCAB)


@cache
def rows_of(kind: str = "bpe") -> tuple[TokenRows, TokenRows]:
    """Rows of 64 tokens to train on, and held-out ones."""
    return _rows(kind, 0), _rows(kind, 1)


@cache
def _rows(kind: str, part: int) -> TokenRows:
    tokenizer, text = tokenizer_of(kind), parts()[part]
    return TokenRows(tokenizer.encode(text.text), ROW_LENGTH, tokenizer.vocab_size, text.name)


def held_out_rows() -> TokenRows:
    """The held-out rows of BPE tokens alone, without the time to encode the training text."""
    return _rows("bpe", 1)


def model_of(seed: int = 0, *, kind: str = "bpe", **changes: Any) -> GPT:
    """A fresh ``nano`` for a kind of token; ``changes`` are those of its ``ModelConfig``."""
    torch.manual_seed(seed)
    return GPT(replace(PRESETS["nano"], vocab_size=tokenizer_of(kind).vocab_size, **changes))


# The main run, as the notebook writes it, for processes of their own.


def same_text(kind: str, characters: int = 100_000) -> list[dict[str, torch.Tensor]]:
    """Rows that hold the same stretch of held-out text whatever the kind of token, in batches."""
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(parts()[1].text[:characters])
    return list(TokenRows(ids, ROW_LENGTH, tokenizer.vocab_size).batches(64))


def uninterrupted(*, steps: int, kind: str = "bpe") -> dict[str, Any]:
    """The main run in one go: no look at it, no sample, no evaluation but the last; ``bits`` are of ``same_text``."""
    train, held_out = rows_of(kind)
    model, text = model_of(kind=kind), same_text(kind)
    config = TrainConfig(total_steps=steps, max_lr=LR, warmup_steps=steps // 10, **RECIPE)
    records: list[dict[str, Any]] = []
    Trainer(
        model,
        RowBatches(rows=train, batch_size=BATCH_SIZE, micro_batch_size=BATCH_SIZE // 4),
        config,
        [records.append],
        validation=list(held_out.batches(64, limit=256)),
    ).fit()
    per_token = bytes_per_target(text, tokenizer_of(kind).token_bytes())
    return {
        "losses": [record["loss"] for record in records],
        "eval_loss": records[-1]["eval_loss"],
        "bits": bits_per_byte(evaluate(model, text).loss, per_token),
    }


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference between two curves, over as many updates as the shorter one has."""
    return max(abs(a - b) for a, b in zip(one, other, strict=False))


def slopes(stations: Sequence[tuple[int, float]]) -> list[float]:
    """Nats per update in each stretch between (update, loss) pairs."""
    return [(a[1] - b[1]) / (b[0] - a[0]) for a, b in pairwise(stations)]


class Samples:
    """A Trainer callback: at each evaluation it continues the same prompts with the same draws."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, prompts: Sequence[str], new_tokens: int = 40) -> None:
        self.model, self.tokenizer, self.prompts, self.new_tokens = model, tokenizer, prompts, new_tokens
        self.texts: dict[int, list[str]] = {}
        """by update, a text for each prompt"""

    def __call__(self, record: Mapping[str, Any]) -> None:
        if "eval_loss" in record:
            self.texts[record["step"]] = [
                sample(self.model, self.tokenizer, prompt, self.new_tokens, seed=0) for prompt in self.prompts
            ]


WORD = re.compile(r"[A-Za-z]+")


@cache
def words() -> frozenset[str]:
    """Every word of the training text, in small letters."""
    return frozenset(word.lower() for word in WORD.findall(parts()[0].text))


def word_shares(model: nn.Module, sets: Sequence[int], *, seed: int = 0, new_tokens: int = 40) -> list[float]:
    """For each set of four prompts: the share of words in their continuations that the training text has.

    ``sets`` numbers the sets: the same number gives the same prompts, eight tokens each, from held-out text. The draws
    differ from set to set, also where the prompts do not. The first and the last word of each text, which may be cut,
    and single letters do not count.
    """
    rows = held_out_rows()
    places = [torch.randint(len(rows), (4,), generator=torch.Generator().manual_seed(n)).tolist() for n in sets]
    prompts = torch.stack([rows[place]["input_ids"][:8] for each in places for place in each])
    written = generate(model, prompts, new_tokens, temperature=0.8, seed=seed)[:, 8:]
    shares = []
    for texts in written.split(4):
        found = [word.lower() for ids in texts for word in WORD.findall(tokenizer_of().decode(ids))[1:-1]]
        found = [word for word in found if len(word) > 1]
        shares.append(sum(word in words() for word in found) / max(1, len(found)))
    return shares


# One thing brought in at a time.


def brought_in(_rank: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The baseline of ``settings["steps"]`` updates with what else ``settings`` name, in as many processes as call it.

    ``precision``; ``micro_batch_size``, rows in one pass; ``seed``; ``cleared``: gradients are set to zero before each
    micro-batch, so that only the last one of a batch counts, while the loss in the log is that of all.
    """
    micro, seed, steps = (
        settings.get(name, usual) for name, usual in (("micro_batch_size", None), ("seed", 0), ("steps", 60))
    )
    data = RowBatches(rows=rows_of()[0], batch_size=BATCH_SIZE, micro_batch_size=micro, seed=seed)
    config = TrainConfig(
        total_steps=steps, max_lr=LR, warmup_steps=steps // 10, precision=settings.get("precision", "fp32"), **RECIPE
    )
    losses: list[float] = []
    model = model_of(seed)
    if settings.get("cleared"):
        model.register_forward_pre_hook(lambda module, _given: module.zero_grad())
    Trainer(model, data, config, [lambda record: losses.append(record["loss"])]).fit()
    held_out = evaluate(model, held_out_rows().batches(64, limit=256)).loss if rank() == 0 else 0.0
    return {"losses": losses, "held_out": held_out}


def over_seeds(
    function: Callable[..., dict[str, Any]], arms: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]
) -> dict[str, list[dict[str, Any]]]:
    """Runs by arm, one for each seed; ``function`` makes one from an arm's settings and ``seed``."""
    results = iter(run_many(function, [{**settings, "seed": seed} for settings in arms.values() for seed in seeds]))
    return {name: [next(results) for _ in seeds] for name in arms}


def alone(**settings: Any) -> dict[str, Any]:
    """``brought_in`` in this process."""
    return brought_in(0, settings)
