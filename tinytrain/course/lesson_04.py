"""For notebook 04: what changed from one version of a function to the next, and a profiler that keeps quiet."""

import difflib
import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.profiler import ProfilerActivity, profile


def growth(before: Callable[..., Any], after: Callable[..., Any], *, context: int = 1) -> str:
    """The lines that ``after`` adds (+) and drops (-) against ``before``, as text, with ``context`` lines around.

    Both functions are read where they were written. A number at the end of a function's name is left out, so that
    ``step_1`` and ``step_2`` do not differ by their names alone.
    """
    old, new = (_source(function) for function in (before, after))
    lines = list(difflib.unified_diff(old, new, n=context, lineterm=""))[2:]
    return "\n".join("  …" if line.startswith("@@") else f"{line[0]} {line[1:]}" for line in lines)


def show_growth(before: Callable[..., Any], after: Callable[..., Any], *, context: int = 1) -> None:
    """Display ``growth(before, after)``: added lines are marked +, dropped ones -."""
    from IPython.display import display

    text = growth(before, after, context=context)
    title = f"**{before.__name__} → {after.__name__}**"
    display(_Shown(f"{title}\n\n```diff\n{text}\n```", f"{before.__name__} → {after.__name__}\n{text}"))


@contextmanager
def cpu_profile() -> Iterator[profile]:
    """``torch.profiler.profile`` of what the CPU does in this block.

    Its C++ part writes two lines to the process's stderr as it starts and stops, whatever the log level; they are
    dropped. What Python prints in a notebook goes another way and is not.
    """
    profiler = profile(activities=[ProfilerActivity.CPU])
    with _no_stderr():
        profiler.start()
    try:
        yield profiler
    finally:
        with _no_stderr():
            profiler.stop()


@contextmanager
def _no_stderr() -> Iterator[None]:
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class _Shown:
    """Markdown where it can be shown, plain text elsewhere."""

    def __init__(self, markdown: str, plain: str) -> None:
        self.markdown, self.plain = markdown, plain

    def _repr_markdown_(self) -> str:
        return self.markdown

    def __repr__(self) -> str:
        return self.plain


def _source(function: Callable[..., Any]) -> list[str]:
    name = re.sub(r"_\d+$", "", function.__name__)
    return re.sub(rf"\b{function.__name__}\b", name, inspect.getsource(function)).splitlines()
