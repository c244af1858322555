"""Several machines in notebook 09: torchrun, who a process is, how the processes find each other, and the Trainer."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler

from tinytrain.course.lesson_09 import LR, batches, fresh
from tinytrain.distributed.group import world_size
from tinytrain.train import TrainConfig, Trainer

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def join_without(rank: int, missing: Sequence[str | None]) -> list[str]:
    """Join a group of one by the four variables, without one of them: what torch says then, "" if it does not mind."""
    values = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    told = []
    for one in missing:
        if dist.is_initialized():
            dist.destroy_process_group()
        for name, value in values.items():
            os.environ.pop(name, None)
            if name != one:
                os.environ[name] = value
        try:
            dist.init_process_group("gloo")
            told.append("")
        except ValueError as error:
            told.append(str(error))
    _be_in_a_group()
    return told


def _be_in_a_group() -> None:
    """So that ``launch`` has one to leave."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def free_port() -> str:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def torchrun(script: Path, *options: str, updates: int = 0) -> subprocess.Popen[str]:
    """Start torchrun on a script with these options; the script finds ``UPDATES`` in its environment."""
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(script)]
    environment = {**os.environ, "UPDATES": str(updates)}
    return subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True)


def first_line(runs: Sequence[subprocess.Popen[str]]) -> str:
    """The first line that the first of several torchruns prints. Then all are ended, for one may wait for another."""
    assert runs[0].stdout is not None
    line = runs[0].stdout.readline()
    problems = []
    for run in runs:
        run.terminate()
        problems.append(run.communicate()[1])
    if not line:
        raise RuntimeError(f"it printed nothing, and then: {problems[0][-2000:]}")
    return line


def tell(rank: int, updates: int) -> dict[str, Any]:
    """Who this process is by its environment, its losses, and the rows a sampler gives it by RANK and LOCAL_RANK."""
    said: dict[str, Any] = {name: os.environ.get(name) for name in (*NAMES, "LOCAL_RANK")}
    for name in ("RANK", "LOCAL_RANK"):
        sampler = DistributedSampler(range(64), num_replicas=world_size(), rank=int(os.environ[name]))
        said[f"rows by {name}"] = list(sampler)
    return said | {"losses": fit(rank, updates)["losses"] if updates else []}


def join_as(rank: int, numbers: Sequence[int], path: str, timeout_s: float) -> str:
    """Leave the group, join one under the number ``numbers[rank]``, and add up once: the sum, or what went wrong."""
    dist.destroy_process_group()
    start = time.monotonic()
    settings = {"rank": numbers[rank], "world_size": len(numbers), "timeout": timedelta(seconds=timeout_s)}
    try:
        dist.init_process_group("gloo", init_method=f"file://{path}", **settings)
        one = torch.ones(())
        dist.all_reduce(one)
        return f"{one.item():.0f} processes added up"
    except RuntimeError as error:
        return f"{type(error).__name__} after {time.monotonic() - start:.0f} s: {error}".splitlines()[0]
    finally:
        _be_in_a_group()


def fit(rank: int, updates: int, folder: str | None = None, stop_after: int | None = None) -> dict[str, Any]:
    """A run of the package's Trainer, with nothing said about processes. It resumes where ``folder`` has checkpoints.

    It stops after ``stop_after`` updates, if that is given.
    """
    records: list[dict[str, Any]] = []

    def look(record: dict[str, Any]) -> bool:
        records.append(record)
        return record["step"] != stop_after

    config = TrainConfig(total_steps=updates, max_lr=LR, out=folder, checkpoint_every=5 if folder else None)
    trainer = Trainer(fresh(), batches(micro_batch_size=8), config, [look])
    if folder and any(Path(folder).glob("checkpoints/step_*")):
        trainer.resume()
    report = trainer.fit()
    return {"losses": [r["loss"] for r in records], "steps": report.steps, "stopped by": report.stopped_by}
