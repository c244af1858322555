"""Notebook 08: a run written by hand with everything that it depends on, and the children that are killed.

As a program: ``train FOLDER`` begins or resumes a run of ``trainer_in``; ``kills FOLDER HOW_MANY`` kills processes
while they save, in three ways, and prints what was left.
"""

import copy
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tinytrain.checkpoint import MANIFEST, STATE, TEMPORARY, Checkpointer, CheckpointError
from tinytrain.corpus import load_corpus
from tinytrain.data import RowBatches, TokenRows, row_order
from tinytrain.durable import checksum_of
from tinytrain.model import GPT, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.resume import state_of
from tinytrain.runlog import RunLog, read_run
from tinytrain.schedule import warmup_cosine
from tinytrain.step import train_step
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.train import CHECKPOINTS, TrainConfig, Trainer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T, B, BATCHES_PER_EPOCH = 32, 8, 40  # bytes in a row, rows in a batch
TOTAL_STEPS = 120  # of the schedule of `Training`
KILLED_STEPS = 240  # updates of the run that is killed
OF_THE_MACHINE = ("tokens_per_second", "seconds_data", "seconds_step", "memory_bytes")


class Training:
    """A small run, by hand. Each of Python's, NumPy's and torch's generators draws something, if ``draws`` names it."""

    def __init__(self, *, fp16: bool = True, draws: Collection[str] = ("Python", "NumPy", "torch")) -> None:
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        self.fp16, self.draws = fp16, draws
        self.model = small_model(dropout=0.1 if "torch" in draws else 0.0)
        self.optimizer = build_adamw(self.model, lr=5e-3)
        self.scaler = torch.amp.GradScaler("cpu", enabled=fp16, growth_interval=8)
        self.step = self.epoch = self.place = 0  # updates made; the epoch, and the next batch in its order
        self.skipped: list[int] = []  # which updates the scaler has skipped, for the eye only

    def batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets ``[B,T]``; moves on by one batch."""
        order = row_order(BATCHES_PER_EPOCH * B, seed=0, epoch=self.epoch).tolist()
        rows = order[self.place * B : (self.place + 1) * B]
        self.place += 1
        if self.place == BATCHES_PER_EPOCH:
            self.epoch, self.place = self.epoch + 1, 0
        shifts = [random.randrange(T) if "Python" in self.draws else 0 for _ in rows]
        windows = torch.stack([text()[r * T + s : r * T + s + T + 1] for r, s in zip(rows, shifts, strict=True)])
        inputs, targets = windows[:, :-1].clone(), windows[:, 1:]
        if "NumPy" in self.draws:
            inputs[torch.from_numpy(np.random.random(inputs.shape) < 0.05)] = 0  # a byte that the text has not
        return inputs, targets

    def update(self) -> float:
        """One update; returns its loss in nats per byte."""
        inputs, targets = self.batch()
        for group in self.optimizer.param_groups:
            group["lr"] = warmup_cosine(self.step, max_lr=5e-3, min_lr=5e-4, warmup_steps=20, total_steps=TOTAL_STEPS)
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=self.fp16):
            loss = F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())
        self.scaler.scale(loss).backward()
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() < before:  # something overflowed: this update was skipped
            self.skipped.append(self.epoch * BATCHES_PER_EPOCH + self.place)
        else:
            self.step += 1
        return loss.item()

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as tensors and plain values."""
        name, keys, *rest = np.random.get_state()
        return {
            "weights": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "epoch": self.epoch,
            "place in the epoch": self.place,
            "scaler": self.scaler.state_dict(),
            "Python's generator": random.getstate(),
            "NumPy's generator": (name, keys.tolist(), *rest),
            "torch's generator": torch.get_rng_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over every part that is in ``state``; the others stay as a fresh start has made them."""
        setters: dict[str, Callable[[Any], object]] = {
            "weights": self.model.load_state_dict,
            "optimizer": self.optimizer.load_state_dict,
            "step": lambda value: setattr(self, "step", value),
            "epoch": lambda value: setattr(self, "epoch", value),
            "place in the epoch": lambda value: setattr(self, "place", value),
            "scaler": self.scaler.load_state_dict,
            "Python's generator": random.setstate,
            "NumPy's generator": np.random.set_state,
            "torch's generator": torch.set_rng_state,
        }
        for part, value in state.items():
            setters[part](value)


def plot_forks(ax: "Axes", gaps: Mapping[str, Sequence[float]], first: int) -> None:
    """One row for each run, one column for each update from ``first`` on: by how many nats it is off.

    White is exactly 0. A bar and the row's name say at which update it is off for the first time.
    """
    from matplotlib.colors import LogNorm

    values = np.array(list(gaps.values()))
    edges = np.arange(first - 0.5, first + values.shape[1])
    image = ax.pcolormesh(
        edges, range(len(gaps) + 1), np.ma.masked_equal(values, 0), cmap="viridis_r", norm=LogNorm(1e-4, 3)
    )
    names = []
    for row, (name, gap) in enumerate(gaps.items()):
        start = next((i for i, value in enumerate(gap) if value), None)
        names.append(f"{name}: " + ("never" if start is None else f"from {first + start}"))
        if start is not None:
            ax.plot([edges[start]] * 2, [row + 0.1, row + 0.9], color="#b00020", linewidth=2.5)
    ax.set_xlim(first - 1.5, edges[-1])  # one empty column, so that a bar at the first update is seen
    ax.set_yticks(np.arange(len(gaps)) + 0.5, names)
    ax.set_xlabel("update")
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.figure.colorbar(image, ax=ax, label="nats off (white: exactly 0)")


def small_model(dropout: float = 0.0) -> GPT:
    """Two layers, 32 numbers wide: 34,688 parameters."""
    sizes = {"vocab_size": 256, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_positions": T}
    return GPT(ModelConfig(**sizes, dropout=dropout))


@cache
def text() -> Tensor:
    """The ids ``[n]`` of enough of Shakespeare for one epoch of shifted rows."""
    return _ids()[: BATCHES_PER_EPOCH * B * T + T + 1]


@cache
def _ids() -> Tensor:
    train_text, _ = load_corpus().split(validation_fraction=0.1)
    return ByteTokenizer().encode(train_text.text).long()


def furthest(model: torch.nn.Module, other: torch.nn.Module) -> float:
    """The largest difference between two models in any weight."""
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max((p - q).abs().max().item() for p, q in pairs)


# The package's Trainer, to be killed


def trainer_in(
    folder: str | Path, *, total_steps: int = KILLED_STEPS, stop: int | None = None, keep: int = 2
) -> Trainer:
    """A new Trainer with a checkpoint every 5 updates in ``folder``; it stops by itself after ``stop`` updates."""
    torch.manual_seed(0)
    model = small_model(dropout=0.1)
    data = RowBatches(rows=TokenRows(text(), T, 256), batch_size=B)
    config = TrainConfig(
        total_steps=total_steps, max_lr=5e-3, warmup_steps=20, out=folder, checkpoint_every=5, keep=keep
    )
    return Trainer(model, data, config, [lambda record: record["step"] != stop])


def train_child(folder: str) -> None:
    """What the child does: begin the run in ``folder``, or go on with it."""
    torch.set_num_threads(1)
    trainer = trainer_in(folder)
    if Checkpointer(Path(folder, CHECKPOINTS)).latest() is not None:
        print(f"goes on after update {trainer.resume().step}", flush=True)
    else:  # killed before its first checkpoint: there is nothing to go on from
        Path(folder, RunLog.FILE).unlink(missing_ok=True)
        print("begins after update 0", flush=True)
    trainer.fit()


PROGRAM = [sys.executable, "-m", "tinytrain.course.lesson_08"]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def killed_child(folder: str | Path, kill: str) -> tuple[str, int]:
    """Start the child; kill it with signal 9 at a random moment, or inside of a save, or let it finish (``kill=""``).

    Returns the line with which it began, and the code with which it ended.
    """
    command = [*PROGRAM, "train", str(folder)]
    child = subprocess.Popen(command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    began = child.stdout.readline().strip()
    updates = int(began.split()[-1]) + 10 + secrets.randbelow(50)
    while kill and child.poll() is None and count_lines(folder) < updates:
        time.sleep(0.001)
    if kill == "at a random moment":
        time.sleep(secrets.randbelow(20_000) / 1e6)  # up to 20 ms, in which several updates fit
    elif kill == "inside of a save":
        while child.poll() is None and not unfinished_in(Path(folder, CHECKPOINTS)):
            pass
    if kill:
        child.kill()
    child.wait(timeout=120)
    child.stdout.close()
    return began, child.returncode


def unfinished_in(folder: Path) -> list[str]:
    """The names of what a save has begun in ``folder`` and not finished."""
    names = (path.name for path in folder.iterdir())
    return sorted(name for name in names if name.startswith(TEMPORARY) and "_old_" not in name)


def lines_of(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's log without what depends on the machine: speed, seconds, memory."""
    return [{name: v for name, v in record.items() if name not in OF_THE_MACHINE} for record in read_run(folder)]


def count_lines(folder: str | Path) -> int:
    """How many lines the log in ``folder`` has by now."""
    path = Path(folder, RunLog.FILE)
    return path.read_bytes().count(b"\n") if path.exists() else 0


# Killed while saving


def save_straight(state: dict[str, Any], path: Path) -> None:
    """The obvious way: over the old file."""
    torch.save(state, path)


def save_aside(state: dict[str, Any], path: Path) -> None:
    """Write under another name, force it to disk, rename: at any moment ``path`` is the old file or the new one."""
    aside = path.with_name(f"{path.name}.unfinished")
    with aside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def save_ours(state: dict[str, Any], path: Path) -> None:
    """The package's way: a folder for each step, renamed when it is complete."""
    Checkpointer(path.parent).save(state, step=state["number"])


WAYS = {"straight onto the file": save_straight, "aside, then renamed": save_aside, "Checkpointer": save_ours}


def kills(folder: str, how_many: int) -> dict[str, list[dict[str, Any]]]:
    """For each way: kill a process that saves again and again, at a random moment; what can be loaded afterwards."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for way, save in WAYS.items():
        for number in range(how_many):
            path = Path(folder, f"{list(WAYS).index(way)}_{number}", "state.pt")
            path.parent.mkdir(parents=True)
            save(_numbered(0), path)  # a good one to begin with
            told, tells = os.pipe()
            if (child := os.fork()) == 0:
                _save_for_ever(save, path, tells)
            os.close(tells)
            marks = os.read(told, 1)  # the child has begun its first save
            time.sleep(random.uniform(0.0, 0.03))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            while more := os.read(told, 4096):
                marks += more
            os.close(told)
            found[way].append({"midway": marks.endswith(BEGUN), **_what_is_left(path)})
    return found


BEGUN, ENDED = b"(", b")"  # what the child tells before and after each save


def _numbered(number: int) -> dict[str, Any]:
    """A state whose every weight is its number: a hole in it would be seen."""
    return {"number": number, "weights": torch.full((1_000_000,), float(number))}


def _save_for_ever(save: Callable[[dict[str, Any], Path], None], path: Path, tells: int) -> None:
    try:
        state = _numbered(0)
        for number in range(1, 10_000):
            state["number"] = number
            state["weights"].fill_(number)
            os.write(tells, BEGUN)
            save(state, path)
            os.write(tells, ENDED)
    finally:
        os._exit(1)  # a forked process must never go back into its parent's code


def _what_is_left(path: Path) -> dict[str, Any]:
    """Whether a state is there with all its weights; if not, the kind of the error and how many bytes are left."""
    try:
        state = torch.load(path, weights_only=True) if path.exists() else Checkpointer(path.parent).load()[1]
        whole, error = bool((state["weights"] == state["number"]).all()), "other weights"
    except Exception as raised:  # torch raises several kinds
        whole, error = False, type(raised).__name__
    return {"whole": whole, "error": "" if whole else error, "bytes": path.stat().st_size if path.exists() else 0}


# Checkpoints that are damaged


def flip(data: bytes) -> bytes:
    """One bit of a byte a sixteenth into the file, which is among the embedding's."""
    at = len(data) // 64 * 4 + 2
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes | None]]] = {
    "a bit flipped": (STATE, flip),
    "cut in half": (STATE, lambda data: data[: len(data) // 2]),
    "emptied": (STATE, lambda data: b""),
    "gone": (STATE, lambda data: None),
    "manifest cut in half": (MANIFEST, lambda data: data[: len(data) // 2]),
}


def survives(home: Path, damage: str, *, keep: int, damaged: int) -> tuple[str, bool]:
    """Damage the newest checkpoints of a copy of ``home/keep_…``, and go on; what was said, and whether all is well.

    All is well if the run ends with the weights of the one in ``home/whole``.
    """
    folder = home / f"{keep}_{damaged}_{damage.replace(' ', '_')}"
    shutil.copytree(home / f"keep_{keep}", folder)
    name, change = DAMAGES[damage]
    for checkpoint in Checkpointer(folder / CHECKPOINTS).all()[-damaged:]:
        data = change((checkpoint.folder / name).read_bytes())
        (checkpoint.folder / name).unlink()
        if data is not None:
            (checkpoint.folder / name).write_bytes(data)
    trainer = trainer_in(folder, total_steps=40)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            after = trainer.resume().step
        except CheckpointError as error:
            return str(error), False
    trainer.fit()
    said = [str(each.message).replace(f"{folder / CHECKPOINTS}{os.sep}", "") for each in told]
    wanted = Checkpointer(home / "whole" / CHECKPOINTS).load()[1]["model"]
    same = all(torch.equal(value, wanted[name]) for name, value in trainer.model.state_dict().items())
    return " … ".join([*said, f"goes on after update {after}"]), same


# A checkpoint that someone has tampered with


def tamper(folder: Path, state: object) -> None:
    """Put ``state`` into the checkpoint in ``folder``, with the right checksum: whoever can write can also compute."""
    torch.save(state, folder / STATE)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest["checksum"] = checksum_of(folder / STATE, manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


# What resuming from the weights alone costs

WARMUP = 30  # updates of a second warmup


def resume_in_four_ways(seed: int, *, stop: int = 300, after: int = 60) -> dict[str, list[float]]:
    """Losses of the ``after`` updates behind update ``stop``, for one run that is resumed in several ways.

    ``full`` has its optimizer state, ``weights`` begins with an empty one; ``warmup`` and ``full warmup`` are the same
    two with a second warmup. ``… length`` is how far each update moved the weights, as a root mean square over all of
    them, in units of the learning rate that the schedule gives. There is no dropout: nothing is drawn after the start.
    """
    torch.manual_seed(seed)
    model, lr = small_model(), 1e-2
    optimizer = build_adamw(model, lr=lr)
    data = RowBatches(rows=TokenRows(_ids(), T, 256), batch_size=16, seed=seed)

    def lr_at(step: int) -> float:
        return warmup_cosine(step, max_lr=lr, min_lr=lr / 10, warmup_steps=20, total_steps=1000)

    for step in range(stop):
        train_step(model, data[step], optimizer, lr=lr_at(step))
    found: dict[str, list[float]] = {}
    for arm in ("full", "weights", "warmup", "full warmup"):
        twin = copy.deepcopy(model)
        own = build_adamw(twin, lr=lr)
        if arm.startswith("full"):
            own.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        found[arm], found[f"{arm} length"] = [], []
        for step in range(stop, stop + after):
            now = lr_at(step) * (min(1.0, (step - stop + 1) / WARMUP) if arm.endswith("warmup") else 1.0)
            before = [p.detach().clone() for p in twin.parameters()]
            found[arm].append(train_step(twin, data[step], own, lr=now).loss)
            moved = [(p - q).flatten() for p, q in zip(twin.parameters(), before, strict=True)]
            length = torch.cat(moved).detach().square().mean().sqrt().item()
            found[f"{arm} length"].append(length / lr_at(step))
    return found


def tens(values: Sequence[float]) -> list[float]:
    """Means of ten values each.

    >>> tens([1.0] * 10 + [3.0] * 10)
    [1.0, 3.0]
    """
    return [sum(values[i : i + 10]) / 10 for i in range(0, len(values) - 9, 10)]


# What a save costs


def timed(action: Callable[[int], object], times: int = 15) -> float:
    """The shortest of its times, in seconds: what it takes when nothing else is in its way."""
    taken = []
    for n in range(times):
        start = time.perf_counter()
        action(n)
        taken.append(time.perf_counter() - start)
    return min(taken)


def update_and_save_seconds(folder: Path) -> tuple[float, float]:
    """What one update of ``trainer_in`` takes, and one save of its full state."""
    small = trainer_in(folder)
    batch = small.data[0]
    update = timed(lambda n: train_step(small.model, batch, small.optimizer, lr=1e-3))
    with Checkpointer(folder / "timed") as store:
        return update, timed(lambda n: store.save(state_of(small, full=True), step=n + 1))


def main(arguments: Sequence[str]) -> None:
    """Run the command that the arguments name."""
    command, folder, *rest = arguments
    if command == "train":
        train_child(folder)
    elif command == "kills":
        torch.set_num_threads(1)
        print(json.dumps(kills(folder, int(rest[0]))))
    else:
        raise SystemExit(f"{command} is none of the commands: train, kills")


if __name__ == "__main__":
    main(sys.argv[1:])
