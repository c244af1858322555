"""Notebook 12's runs on clean and on dirtied text: the dirt, one run that is compared, and when arms are in order."""

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tinytrain.course.lesson_12 import (
    BATCH_SIZE,
    LR,
    RECIPE,
    ROW_LENGTH,
    VOCAB,
    held_out_rows,
    model_of,
    parts,
    tokenizer_of,
)
from tinytrain.data import RowBatches, TokenRows
from tinytrain.step import evaluate
from tinytrain.train import TrainConfig, Trainer


def speeches(characters: int, dirt: float) -> list[tuple[str, bool]]:
    """The speeches in the first ``characters`` of the training text, and which of them are to be made dirty.

    A speech is what stands between two empty lines; each is chosen with the chance ``dirt``, always the same ones.
    """
    choose = random.Random(0)
    return [(speech, choose.random() < dirt) for speech in parts()[0].text[:characters].split("\n\n")]


def scrambled(speech: str, draw: random.Random) -> str:
    """The letters and marks of a speech in a random order; spaces and ends of lines stay where they are."""
    letters = [character for character in speech if not character.isspace()]
    draw.shuffle(letters)
    rest = iter(letters)
    return "".join(character if character.isspace() else next(rest) for character in speech)


@cache
def dirtied(characters: int, dirt: float) -> TokenRows:
    """The text to train on: its chosen speeches scrambled, all others as they were."""
    draw = random.Random(1)
    text = "\n\n".join(scrambled(speech, draw) if bad else speech for speech, bad in speeches(characters, dirt))
    return TokenRows(tokenizer_of().encode(text), ROW_LENGTH, VOCAB)


@cache
def dirt_alone(characters: int, dirt: float, seed: int = 1) -> TokenRows:
    """The scrambled speeches alone: with seed 1 those of ``dirtied``, with another one the same, scrambled anew."""
    draw = random.Random(seed)
    text = "\n\n".join(scrambled(speech, draw) for speech, bad in speeches(characters, dirt) if bad)
    return TokenRows(tokenizer_of().encode(text), ROW_LENGTH, VOCAB)


def share_of_dirt(characters: int, dirt: float) -> float:
    """Share of the tokens in ``dirtied`` that belong to scrambled speeches: they take more tokens than text does."""
    return len(dirt_alone(characters, dirt).ids) / len(dirtied(characters, dirt).ids)


LOOKS = (0.08, 0.25, 0.5)
"""shares of a run at which ``compared`` evaluates; the first lies in every warmup"""


def compared(
    *,
    seed: int,
    steps: int,
    characters: int,
    dirt: float = 0.0,
    d_model: int = 64,
    lr_times: float = 1.0,
    warmup: float = 0.1,
    length: float = 1.0,
    look_at_dirt: float = 0.0,
) -> dict[str, Any]:
    """One run on the first ``characters`` of the training text, evaluated on clean held-out text.

    ``warmup`` is a share of the run, ``length`` a factor for its updates. ``evals`` has the held-out loss by the shares
    in ``LOOKS``. With ``look_at_dirt``, ``dirt_seen`` and ``dirt_new`` are the losses on the dirt of such a share that
    ``dirtied`` holds, and on the same speeches scrambled anew.
    """
    steps = round(length * steps)
    model = model_of(seed, d_model=d_model)
    data = RowBatches(rows=dirtied(characters, dirt), batch_size=BATCH_SIZE, seed=seed)
    config = TrainConfig(total_steps=steps, max_lr=lr_times * LR, warmup_steps=round(warmup * steps), **RECIPE)
    at, evals = {round(share * steps): share for share in LOOKS}, {}

    def look(record: Mapping[str, Any]) -> None:
        if record["step"] in at:
            evals[at[record["step"]]] = evaluate(model, held_out_rows().batches(64, limit=128)).loss

    Trainer(model, data, config, [look]).fit()
    found = {"held_out": evaluate(model, held_out_rows().batches(64, limit=512)).loss, "evals": evals}
    if look_at_dirt:
        for name, again in (("dirt_seen", 1), ("dirt_new", 2)):
            found[name] = evaluate(model, dirt_alone(characters, look_at_dirt, again).batches(64)).loss
    return found


def in_wrong_order(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], at: float) -> float:
    """Share of the pairs of runs whose order at the share ``at`` of the run is not that of the end."""
    wrong = [(a["evals"][at] < b["evals"][at]) != (a["held_out"] < b["held_out"]) for a, b in pairs]
    return sum(wrong) / len(wrong)
