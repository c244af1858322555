"""Notebook 14: three models that others might have written, one run for all of them, and a child to be killed.

As a program: ``python -m tinytrain.course.lesson_14 FOLDER MODEL`` trains that model, and prints each batch's number.
"""

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tinytrain.corpus import load_corpus
from tinytrain.course.handwritten import MendedLM, SmallLM, ToyLMDataset
from tinytrain.course.laws.tape import Tape
from tinytrain.data import RowBatches, TokenRows
from tinytrain.runlog import read_run
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.train import TrainConfig, Trainer

V, T, WIDTH = 256, 32, 48
OF_THE_MACHINE = ("tokens_per_second", "seconds_data", "seconds_step", "memory_bytes")
PROGRAM = [sys.executable, "-m", "tinytrain.course.lesson_14"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


class GRUModel(nn.Module):
    """No transformer at all: a recurrent network, which can only look back."""

    def __init__(self, vocabulary: int = V, width: int = WIDTH) -> None:
        super().__init__()
        self.bytes, self.gru = nn.Embedding(vocabulary, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)
        nn.init.normal_(self.bytes.weight, std=0.1)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.gru(self.bytes(input_ids))[0])


def gpt2() -> nn.Module:
    """A small, untrained model of the library ``transformers``; nothing is downloaded."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": V, "n_positions": T, "n_embd": WIDTH, "n_layer": 2, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "a plain module": GRUModel,
    "SmallLM as written": lambda: SmallLM(V, WIDTH, 2, 4, T),
    "SmallLM, mended": lambda: MendedLM(V, WIDTH, 2, 4, T),
}
if find_spec("transformers"):
    MODELS["Hugging Face's GPT-2"] = gpt2


def make(name: str) -> nn.Module:
    """One of the models, always with the same first weights."""
    torch.manual_seed(0)
    return MODELS[name]()


@cache
def rows(part: str = "train") -> TokenRows:
    """Shakespeare in rows of 32 bytes; ``part`` is "train" or "valid"."""
    train, valid = load_corpus().split(validation_fraction=0.1)
    text = (train if part == "train" else valid).text[:400_000]
    return TokenRows(ByteTokenizer().encode(text), T, V, name=part)


def trainer_for(name: str, folder: Path, **changed: Any) -> Trainer:
    """The package's Trainer for that model: the same lines for all."""
    settings = {"total_steps": 60, "max_lr": 3e-3, "warmup_steps": 10, "checkpoint_every": 5, "eval_every": 20}
    callbacks = changed.pop("callbacks", ())
    config = TrainConfig(**(settings | changed), out=folder)
    data = RowBatches(rows=rows(), batch_size=16, micro_batch_size=8)
    return Trainer(make(name), data, config, callbacks, validation=list(rows("valid").batches(16, limit=32)))


# The plug


def killed_child(folder: Path, name: str, after: int) -> int:
    """Train that model in a child process, and kill it with signal 9 once batch ``after`` is done; its exit code."""
    command = [*PROGRAM, str(folder), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | ONE_THREAD) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == after:
                child.send_signal(signal.SIGKILL)
                break
        return child.wait(60)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The log without what belongs to the machine."""
    return [{k: v for k, v in line.items() if k not in OF_THE_MACHINE} for line in read_run(folder)]


def furthest(some: nn.Module, other: nn.Module) -> float:
    """By how much any weight of two models differs at most."""
    pairs = zip(some.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


# The hand-written pieces


def rows_in_a_new_program() -> dict[str, list[int]]:
    """The first 500 tokens of ``ToyLMDataset``, made in a new program: as it stands, and with a seeded generator."""
    code = (
        "import json, torch; from tinytrain.course.handwritten import ToyLMDataset as Toy; "
        "tokens = lambda *generator: Toy(20, 25, 97, *generator).ids[:, :25].flatten().tolist(); "
        "print(json.dumps({'as it stands': tokens(), 'seeded': tokens(torch.Generator().manual_seed(1))}))"
    )
    return json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


class StoppedError(Exception):
    """Somebody has stopped the run."""


class ToyData:
    """Batches of the toy data set, seeded, as a trainer of one's own takes them: ``data[n]``. It ends at ``stop``."""

    def __init__(self, stop: int | None = None) -> None:
        self.rows, self.stop = ToyLMDataset(64, 16, 97, torch.Generator().manual_seed(1)), stop

    def __getitem__(self, n: int) -> list[dict[str, Tensor]]:
        if n == self.stop:
            raise StoppedError
        picked = [self.rows[(8 * n + i) % len(self.rows)] for i in range(8)]
        return [{part: torch.stack([row[part] for row in picked]) for part in ("input_ids", "labels")}]


def toy_trainer(kind: Callable[..., Any], folder: Path, *, stop: int | None = None, precision: str = "fp32", seed=0):
    """A trainer of that kind on toy data, 40 updates. In FP16 the scale doubles every 2 updates."""
    torch.manual_seed(seed)
    folder.mkdir(exist_ok=True)
    settings = {"total_steps": 40, "max_lr": 5e-3, "warmup_steps": 8, "max_grad_norm": 1.0, "folder": folder}
    trainer = kind(GRUModel(97, 32), ToyData(stop), precision=precision, **settings)
    if precision == "fp16":
        trainer.scaler = torch.amp.GradScaler("cpu", growth_interval=2)
    return trainer


def rates_of(trainer: Any) -> list[float]:
    """Let it train to its end or its stop; the learning rate of each update that was really made."""
    tape = Tape()
    with warnings.catch_warnings(), tape.watching(trainer.model), suppress(StoppedError):
        warnings.simplefilter("ignore")  # torch warns of a schedule that moves without an update; here it is counted
        trainer.fit()
    return tape.rates


def main(folder: str, name: str) -> None:
    """Train, and say after each batch which one it was."""
    torch.set_num_threads(1)
    trainer_for(name, Path(folder), callbacks=[lambda record: print(record["batch"], flush=True)]).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
