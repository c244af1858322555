"""Many small independent runs, in two processes."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def run_many(
    function: Callable[..., Result], settings: Iterable[Mapping[str, Any]], *, processes: int = 2
) -> list[Result]:
    """``[function(**each) for each in settings]``, computed in ``processes`` processes with one thread each.

    ``function`` must come from a module, for a new process cannot see what a notebook's cell defines; its results
    must be plain values. Each run gets the same result whatever the number of processes. One line shows how far it is.

    The first error, or an interrupt, ends all processes at once. A run whose process dies gives ``RuntimeError``.
    """
    settings = list(settings)
    if processes < 1:
        raise ValueError(f"processes={processes} must be at least 1")
    if function.__module__ == "__main__":
        raise ValueError(
            f"{function.__name__} is defined in this notebook, and a new process cannot see it. Put it into a module "
            f"and import it from there"
        )
    line, before = _Line(len(settings)), set(active_children())
    pool = ProcessPoolExecutor(min(processes, len(settings)) or 1, get_context("spawn"), torch.set_num_threads, (1,))
    try:
        futures = [pool.submit(function, **each) for each in settings]
        for done, future in enumerate(as_completed(futures), start=1):
            future.result()
            line.show(done)
        return [future.result() for future in futures]
    except BrokenProcessPool:
        raise RuntimeError(
            f"a process that ran {function.__name__} died without an error of its own. Was there too little memory? "
            f"Try processes=1, or one run by hand: {function.__name__}(**{dict(settings[0])})"
        ) from None
    except BaseException:
        for child in set(active_children()) - before:
            child.kill()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Line:
    """How many are done, and about how long the rest takes: one line that is written over."""

    def __init__(self, total: int) -> None:
        self.total, self.start, self.handle = total, time.monotonic(), None
        self.show(0)

    def show(self, done: int) -> None:
        text = f"{done} of {self.total} runs"
        if 0 < done < self.total:
            left = (time.monotonic() - self.start) / done * (self.total - done)
            text += f", about {left / 60:.0f} minutes left" if left >= 90 else f", about {left:.0f} seconds left"
        self._write(text)

    def _write(self, text: str) -> None:
        try:
            from IPython import get_ipython
            from IPython.display import display
        except ImportError:
            return
        if get_ipython() is None:
            return
        shown = _Text(text)
        if self.handle is None:
            self.handle = display(shown, display_id=True)
        else:
            self.handle.update(shown)


class _Text:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text
