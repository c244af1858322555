"""Start one function in several processes that can talk to each other, and bring back what it returns.

The caller is told the first failure within seconds, whatever kind it is, and nothing is left behind. Works from a
script, a test and a notebook.
"""

import math
import os
import pickle
import pickletools
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import torch
import torch.multiprocessing

from tinytrain.distributed.group import device_for, process_group, under_torchrun
from tinytrain.distributed.worker import Failed, Job, Returned, run_job

SETTLE_SECONDS = 0.3
"""after the first sign of a failure, how long the others are listened to: a process that lost its peer may be heard
before the death of that peer is"""
INTERRUPT_SECONDS = 4.0
"""after an interrupt, how long the processes have to end by themselves"""
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
PRELOADED = ("torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo", "numpy", "psutil")
"""what the fork server imports once, so that later starts are quick; the caller's own modules are always read anew"""


class LaunchError(RuntimeError):
    """A process failed, and all were stopped.

    ``rank`` is the process that failed first, ``cause`` what became of it in one line, ``remote_traceback`` where (an
    empty string if it died without a word).
    """

    def __init__(self, rank: int, nprocs: int, cause: str, remote_traceback: str = "") -> None:
        self.rank, self.cause, self.remote_traceback = rank, cause, remote_traceback
        where = f"\n\nIn that process:\n{remote_traceback.rstrip()}" if remote_traceback else ""
        super().__init__(f"process {rank} of {nprocs} {cause}. All processes were stopped{where}")

    def __reduce__(self) -> Any:
        return _rebuilt, (self.rank, self.cause, self.remote_traceback, str(self))


def _rebuilt(rank: int, cause: str, remote_traceback: str, text: str) -> LaunchError:
    error = LaunchError(rank, 0, cause, remote_traceback)
    error.args = (text,)
    return error


def launch(
    fn: Callable[..., Any], nprocs: int, *args: Any, device: str | None = None, timeout_s: float = 600.0
) -> list[Any]:
    """Call ``fn(rank, *args)`` in ``nprocs`` processes that form a process group; returns their results by rank.

    ``fn`` must be importable from a module, its arguments and results must be picklable; each process gets a copy.
    The group is up when ``fn`` is called: Gloo and one thread on CPUs, NCCL and one GPU for each process where there
    are GPUs (``device`` is ``"cpu"`` or ``"cuda"``; None takes GPUs if there are enough). ``timeout_s`` bounds, in
    seconds, how long one process waits for the others in a collective.

    The processes see the caller's environment, working directory and ``sys.path``. ``RANK``, ``LOCAL_RANK`` and
    ``WORLD_SIZE`` are set as torchrun sets them.

    Under torchrun the processes are there already: ``fn`` is called in this one, and ``nprocs`` is not looked at.

    Raises ``LaunchError`` for the first process that raises, exits or is killed, after all are stopped. An interrupt
    is passed on to all; if every one then returns within 4 s (a ``Trainer`` does), so does ``launch``, and otherwise
    it raises ``KeyboardInterrupt``. Raises ``ValueError`` for a function or argument that cannot be sent.
    """
    if under_torchrun():
        with process_group(device=device, timeout_s=timeout_s):
            return _everyones(fn(torch.distributed.get_rank(), *args))
    if torch.distributed.is_initialized():
        raise RuntimeError("launch was called inside a process group: its processes cannot start another one")
    if isinstance(nprocs, bool) or not isinstance(nprocs, int) or nprocs < 1:
        raise ValueError(f"nprocs={nprocs!r} must be a whole number of at least 1")
    if not (isinstance(timeout_s, (int, float)) and 0 < timeout_s < math.inf):
        raise ValueError(f"timeout_s={timeout_s!r} must be a number of seconds above 0")
    call = _sendable(fn, args)
    device = device or device_for(nprocs)
    folder = tempfile.mkdtemp(prefix="tinytrain_")  # a fresh one each time: an old rendezvous file would mislead
    jobs = [
        Job(rank, nprocs, call, f"{folder}/rendezvous", device, timeout_s, dict(os.environ)) for rank in range(nprocs)
    ]
    workers = [_Worker(job) for job in jobs]
    try:
        with _interrupts_wait():  # one that is interrupted while it starts would be nobody's
            for worker in workers:
                worker.start()
        return _results(workers)
    finally:
        with _interrupts_wait():
            for worker in workers:
                worker.kill()
            for worker in workers:
                worker.close()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """An interrupt that comes inside takes effect at the end."""
    usual, came = signal.getsignal(signal.SIGINT), []
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    signal.signal(signal.SIGINT, lambda *signal_and_frame: came.append(signal_and_frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if came:
            usual(*came[0])


def _everyones(result: Any) -> list[Any]:
    results: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(results, result)
    return results


class _Worker:
    """One process, the pipe on which it reports, and what it reported."""

    def __init__(self, job: Job) -> None:
        context = torch.multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            context.set_forkserver_preload(list(PRELOADED))
        self.rank, self.report = job.rank, None
        self.reports, self._theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=run_job, args=(job, self._theirs), name=f"tinytrain-{job.rank}")

    def start(self) -> None:
        try:
            self.process.start()
        finally:
            self._theirs.close()

    def listen(self) -> None:
        """Take the report if there is one. Without one, at the end of the process or of the pipe, it has died."""
        report = None
        try:
            if self.reports.poll() or not wait([self.process.sentinel], 0) or self.reports.poll():
                report = self.reports.recv_bytes()
        except (EOFError, OSError):
            pass  # the pipe ended without a report, which is told below
        if report is None:
            self.process.join(5)
            self.report = Died(self.process.exitcode)
            return
        try:
            self.report = pickle.loads(report)
        except (Exception, SystemExit) as error:  # what it returned cannot be put together here
            self.report = Failed(f"returned what cannot be read here: {type(error).__name__}: {error}", "", 0.0)

    def interrupt(self) -> None:
        if self.report is None and self.process.pid is not None:
            _signal(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """End the process and all that it started, unless it came to its end well."""
        if not isinstance(self.report, Returned) and self.process.pid is not None:
            _signal(self.process.pid, KILL)

    def close(self) -> None:
        """Wait for the end of the process, for which one that did well has a moment, and end what it started."""
        self._theirs.close()
        if self.process.pid is not None:
            self.process.join(2)
            if self.process.is_alive():
                _signal(self.process.pid, KILL)
                self.process.join()
            else:
                _signal_group(self.process.pid, KILL)
            self.process.close()
        self.reports.close()


@dataclass(frozen=True)
class Died:
    """A process that ended without a report."""

    exitcode: int | None

    @property
    def cause(self) -> str:
        if self.exitcode is not None and self.exitcode < 0:
            name = signal.Signals(-self.exitcode).name
            hint = "; the system does this when memory runs out" if name == "SIGKILL" else ""
            return f"was killed by signal {-self.exitcode} ({name}){hint}"
        return f"ended with exit code {self.exitcode} before it returned"


def _results(workers: Sequence[_Worker]) -> list[Any]:
    try:
        _listen_until(workers, lambda: any(not isinstance(w.report, (Returned, type(None))) for w in workers))
    except KeyboardInterrupt:
        _interrupted(workers)
    failed = [worker for worker in workers if isinstance(worker.report, (Failed, Died))]
    if failed:
        _listen_until(workers, lambda: False, seconds=SETTLE_SECONDS)
        raise _first_failure(workers)
    return [worker.report.result for worker in workers if isinstance(worker.report, Returned)]


def _listen_until(workers: Sequence[_Worker], enough: Callable[[], bool], seconds: float | None = None) -> None:
    """Take reports as they come, until all have reported, there is ``enough``, or ``seconds`` are over."""
    end = None if seconds is None else time.monotonic() + seconds
    while not enough():
        silent: dict[Any, _Worker] = {}
        for worker in workers:
            if worker.report is None:  # a child of its own may hold the pipe open after its end
                silent |= {worker.reports: worker, worker.process.sentinel: worker}
        left = None if end is None else end - time.monotonic()
        if not silent or (left is not None and left <= 0):
            return
        for worker in {silent[ready] for ready in wait(list(silent), left)}:
            worker.listen()


def _interrupted(workers: Sequence[_Worker]) -> None:
    """Pass an interrupt on once; raise it if not every process returns in time."""
    for worker in workers:
        worker.interrupt()
    _listen_until(workers, lambda: False, seconds=INTERRUPT_SECONDS)
    if not all(isinstance(worker.report, Returned) for worker in workers):
        raise KeyboardInterrupt


def _first_failure(workers: Sequence[_Worker]) -> LaunchError:
    """Who was first: a death without a word, for no other's failure brings that about; else the earliest error."""
    for worker in workers:
        if isinstance(worker.report, Died):
            return LaunchError(worker.rank, len(workers), worker.report.cause)
    failures = [(worker.report.at, worker) for worker in workers if isinstance(worker.report, Failed)]
    _, first = min(failures, key=lambda pair: (pair[0], pair[1].rank))
    assert isinstance(first.report, Failed)
    return LaunchError(first.rank, len(workers), first.report.cause, first.report.traceback)


def _signal(pid: int, number: int) -> None:
    """Send a signal to a worker and to all that it started."""
    if not _signal_group(pid, number):  # it has not made its group yet
        with suppress(ProcessLookupError, PermissionError):  # it has ended; the second is macOS's word for that
            os.kill(pid, number)


def _signal_group(pid: int, number: int) -> bool:
    """Send a signal to the group that a worker leads, in which its own children are; False if there is none."""
    if not hasattr(os, "killpg"):
        return False
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # all in it have ended; the second is macOS's word for that
        return False
    return True


def _sendable(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """``fn`` and ``args`` pickled, or ``ValueError`` that says what cannot be sent and how to mend it."""
    name = getattr(fn, "__qualname__", repr(fn))
    try:
        call = pickle.dumps((fn, args))
    except Exception as error:
        raise ValueError(
            f"{name} and its arguments cannot be sent to another process ({type(error).__name__}: {error}). The "
            f"function must stand at the top level of a module, its arguments must be plain values and tensors"
        ) from error
    if not _main_can_be_imported() and (mine := _names_from_main(call)):
        raise ValueError(
            f"{', '.join(mine)} is defined in this notebook or session, and a new process cannot see it. Move it to a "
            f"module (a .py file beside the notebook; %%writefile my_worker.py writes one) and import it from there"
        )
    return call


def _main_can_be_imported() -> bool:
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return True
    file = getattr(main, "__file__", None)
    if file is not None and not os.path.exists(file):  # each new process would look for it and fail
        raise ValueError(f"the running program is no file ({file}): save it in one and start that")
    return file is not None


def _names_from_main(pickled: bytes) -> list[str]:
    """The functions and classes of ``__main__`` that a pickle refers to."""
    names, texts = [], [""]
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "STACK_GLOBAL" and len(texts) >= 2 and texts[-2] == "__main__":
            names.append(texts[-1])
        elif opcode.name == "GLOBAL" and str(argument).startswith("__main__ "):
            names.append(str(argument).partition(" ")[2])
        if isinstance(argument, str) and opcode.name != "GLOBAL":
            texts.append(argument)
    return list(dict.fromkeys(names))
