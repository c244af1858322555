"""The experiment of notebook 12: its recipe, the runs that are compared with each other, and its log.

As a program, ``python -m tinytrain.course.lesson_12 record FOLDER NAME notebooks/recorded_12.json`` puts what a long
run has measured into that file, from which the notebook shows it.
"""

import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tinytrain.bits import bits_per_byte, bytes_per_target
from tinytrain.bpe import BPETokenizer, cut_between_words, thinned
from tinytrain.commands.sample import Sample, sample_run
from tinytrain.corpus import Corpus, load_corpus
from tinytrain.course.rules import SPREADS
from tinytrain.data import RowBatches, TokenRows
from tinytrain.distributed.group import rank
from tinytrain.generate import generate, sample
from tinytrain.model import GPT, PRESETS
from tinytrain.runlog import read_run
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


def alone(**settings: Any) -> dict[str, Any]:
    """``brought_in`` in this process."""
    return brought_in(0, settings)


# Clean and dirtied text.


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


# The log of experiments.

HELD = ("yes", "no", "not seen")


def held(gain: float, spread: float) -> str:
    """Whether "this gains" held: "yes" or "no" where ``gain`` is three spreads or more from 0, else "not seen"."""
    if abs(gain) < SPREADS * spread:
        return "not seen"
    return "yes" if gain > 0 else "no"


class ExperimentLog:
    """Dated entries, one JSON line each, that are added and never changed."""

    COLUMNS = ("date", "hypothesis", "change", "result", "held", "kept")

    def __init__(self, path: Path) -> None:
        self.path, self.entries = path, []

    def add(self, *, hypothesis: str, change: str, result: str, held: str, kept: bool) -> None:
        """Write an entry: what was expected, the one thing that was changed, and what was measured.

        ``held`` says whether the hypothesis did: "yes", "no" or "not seen". ``kept`` says whether the change stays.
        """
        if held not in HELD:
            raise ValueError(f"held={held!r} must be one of {', '.join(HELD)}")
        day, words = date.today().isoformat(), "yes" if kept else "no"
        entry = dict(zip(self.COLUMNS, (day, hypothesis, change, result, held, words), strict=True))
        self.entries.append(entry)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def _rows(self) -> Iterator[list[str]]:
        return ([entry[name] for name in self.COLUMNS] for entry in self.entries)

    def _repr_markdown_(self) -> str:
        head = f"| {' | '.join(self.COLUMNS)} |\n|{':---|' * len(self.COLUMNS)}\n"
        unbroken = ([row[0].replace("-", "\u2011"), *row[1:]] for row in self._rows())  # hyphens that end no line
        return head + "\n".join(f"| {' | '.join(row)} |" for row in unbroken)

    def __repr__(self) -> str:
        return "\n".join("; ".join(row) for row in self._rows())


# Long runs, recorded once.


def recorded(path: Path) -> list[dict[str, Any]]:
    """The long runs in a file: ``name``, ``command``, and ``result``, which is None until it was recorded."""
    return json.loads(path.read_text(encoding="utf-8"))


def show_recorded(runs: Sequence[Mapping[str, Any]]) -> None:
    """Print what the long runs gave, each with the line that makes it again."""
    for run in runs:
        print(f"{run['name']}\n  {run['command']}")
        if (found := run["result"]) is None:
            print("  not recorded yet")
            continue
        print(
            f"  {found['date']}: {found['updates']:,} updates, {found['minutes']:.1f} minutes, "
            f"{found['nats']:.3f} nats a token, {found['bits_per_byte']:.3f} bits a byte"
        )
        if "bits_on_all" in found:
            print(f"  the same weights on all of the held-out text: {found['bits_on_all']:.3f} bits a byte")
        print("  " + " / ".join(line for line in found["sample"] if line))


def result_of(folder: Path) -> dict[str, Any]:
    """What a run that ``python -m tinytrain train`` made has measured.

    ``curve`` has 40 points at most, each the minutes of training until an evaluation and its bits per byte.
    """
    run = read_run(folder)
    minutes = list(accumulate((record["seconds_step"] + record["seconds_data"]) / 60 for record in run))
    looks = [(minutes[i], record) for i, record in enumerate(run) if "eval_loss" in record]
    every, last = -(-len(looks) // 40), looks[-1][1]
    return {
        "date": date.today().isoformat(),
        "updates": int(last["step"]),
        "tokens": int(last["tokens_seen"]),
        "minutes": round(minutes[-1], 1),
        "nats": round(last["eval_loss"], 4),
        "bits_per_byte": round(last["eval_bits_per_byte"], 4),
        "curve": [[round(at, 2), round(record["eval_bits_per_byte"], 3)] for at, record in looks[::-1][::every][::-1]],
        "sample": sample_run(Sample(folder=folder)).splitlines()[:8],
    }


def record(folder: Path, name: str, path: Path) -> None:
    """Put ``result_of(folder)`` into the file, at the run of that name. Raises ``KeyError`` if there is none."""
    runs = recorded(path)
    if name not in (known := [run["name"] for run in runs]):
        raise KeyError(f"{path} has no run called {name!r}; it has {', '.join(known)}")
    runs[known.index(name)]["result"] = result_of(folder)
    path.write_text(json.dumps(runs, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _, command, run_folder, run_name, file = sys.argv
    if command != "record":
        sys.exit(f"{command!r} is not known; say: record FOLDER NAME FILE")
    record(Path(run_folder), run_name, Path(file))
