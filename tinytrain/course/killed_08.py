"""The processes that notebook 08 kills: a whole run, and saves that are cut in two.

As a program: ``train FOLDER`` begins or resumes a run of ``trainer_in``; ``kills FOLDER HOW_MANY`` kills processes
while they save, in three ways, and prints what was left.
"""

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tinytrain.checkpoint import TEMPORARY, Checkpointer
from tinytrain.course.lesson_08 import B, T, small_model, text
from tinytrain.data import RowBatches, TokenRows
from tinytrain.runlog import RunLog, read_run
from tinytrain.train import CHECKPOINTS, TrainConfig, Trainer

KILLED_STEPS = 240  # updates of the run that is killed
OF_THE_MACHINE = ("tokens_per_second", "seconds_data", "seconds_step", "memory_bytes")


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


PROGRAM = [sys.executable, "-m", "tinytrain.course.killed_08"]
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


# Killed while it saves


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
