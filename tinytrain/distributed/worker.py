"""What runs inside a process that ``launch`` started. Torch alone is imported before the function is looked up."""

import io
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from tinytrain.distributed.group import process_group


@dataclass(frozen=True)
class Job:
    """What one process is to do."""

    rank: int
    world_size: int
    call: bytes
    """the function and its arguments, pickled"""
    rendezvous: str
    """path of the file through which the processes find each other; it must not exist yet"""
    device: str
    timeout_s: float
    environment: dict[str, str]


@dataclass(frozen=True)
class Returned:
    """The function came to its end."""

    result: Any


@dataclass(frozen=True)
class Failed:
    """The function raised, or could not be called."""

    cause: str
    traceback: str
    at: float
    """monotonic clock of the machine, by which the first of several failures is known"""


def run_job(job: Job, pipe: Connection) -> None:
    """Do the job and report on ``pipe``, whatever happens."""
    if hasattr(os, "setsid"):
        os.setsid()  # interrupts of the terminal or the notebook reach the caller only, which passes them on once
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    mine = os.getpid()
    try:
        fn, args = _prepare(job)
        with process_group(device=job.device, timeout_s=job.timeout_s, rendezvous=job.rendezvous):
            try:
                result = fn(job.rank, *args)
                _end_here_unless(mine)
                report = _returned(result)
            except BaseException as error:  # told before the group is left, which makes the others fail as well
                _end_here_unless(mine)
                report = _failed(error)
                _send(report, pipe)
    except BaseException as error:
        report = _failed(error)
    if not pipe.closed:
        _send(report, pipe)


def _end_here_unless(mine: int) -> None:
    """A process that the function forked, and that came out of it, is not the one that reports."""
    if os.getpid() != mine:
        os._exit(0)


def _prepare(job: Job) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Make this process one of the caller's, and find the function in it."""
    os.environ.clear()  # the fork server's is as old as the server
    os.environ.update(job.environment)
    os.environ |= {
        "RANK": str(job.rank),
        "LOCAL_RANK": str(job.rank),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_WORLD_SIZE": str(job.world_size),
    }
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)  # whole lines, though several write at once
    torch.set_num_threads(1)
    return pickle.loads(job.call)


def _returned(result: Any) -> bytes:
    try:
        return pickle.dumps(Returned(result))
    except Exception as error:
        raise TypeError(f"its result, a {type(result).__name__}, cannot be sent back ({error})") from None


def _failed(error: BaseException) -> bytes:
    try:
        said = str(error)
    except Exception:
        said = "its message cannot be read"
    cause = f"failed: {type(error).__name__}" + (f": {_shortened(said, 2_000)}" if said else "")
    return pickle.dumps(Failed(cause, _shortened(_own_lines(error), 20_000), time.monotonic()))


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


def _send(report: bytes, pipe: Connection) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or replaced by something else
            stream.flush()
    pipe.send_bytes(report)
    pipe.close()


def _own_lines(error: BaseException) -> str:
    """The traceback from the function on, without the lines of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _end_with_the_caller() -> None:
    """When the caller is gone, however it went, end this process and all that it started."""
    caller = parent_process()
    if caller is not None:
        wait([caller.sentinel])
        if hasattr(os, "killpg"):
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os._exit(1)
