"""Run notebooks in fresh kernels and store their outputs clean."""

import base64
import ctypes
import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient
from PIL import Image

from tinytrain.course import progress, spread
from tinytrain.course.cells import refresh
from tinytrain.course.series import SERIES

CELL_TIMEOUT_S = 1800  # a guard against hanging; the budget `laptop` on a busy machine stays far below
SET_CHILD_SUBREAPER = 36  # of prctl, from linux/prctl.h
WIDGET, PNG = "application/vnd.jupyter.widget-view+json", "image/png"


def run_notebook(path: Path) -> float:
    """Run ``path`` from top to bottom in a fresh kernel and store its outputs; returns CPU seconds, of all it started.

    Its made cells (navigation, exercises) are made anew first. An error in a cell leaves the file as it was. What
    only this machine's run knows is left out of the file: widgets and execution times.
    """
    notebook = _read_fresh(path)
    before = os.times()
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources=where)
    with _adopting():
        client.execute(env={**os.environ, spread.RECORD: "1", progress.VARIABLE: ""})
    after = os.times()
    clean(notebook)
    nbformat.write(notebook, path)
    used = (after.children_user - before.children_user) + (after.children_system - before.children_system)
    return used


@contextmanager
def _adopting() -> Iterator[None]:
    """Processes that outlive the kernel, such as a fork server, come to this one, so that their time is counted.

    On Linux only; elsewhere their time is missing.
    """
    if sys.platform != "linux":
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    prctl(SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        end = time.monotonic() + 10
        while (left := psutil.Process().children()) and time.monotonic() < end:
            for process in left:
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)
            time.sleep(0.05)
        prctl(SET_CHILD_SUBREAPER, 0)


def _read_fresh(path: Path) -> nbformat.NotebookNode:
    """The notebook with its made cells as they should be."""
    notebook = nbformat.read(path, as_version=4)
    if lesson := next((lesson for lesson in SERIES if lesson.file == path.name), None):
        refresh(notebook, lesson, path.parent)
    return notebook


def refresh_all(folder: Path) -> None:
    """Make the made cells of all notebooks in ``folder`` anew, without running anything."""
    for path in sorted(folder.glob("*.ipynb")):
        nbformat.write(_read_fresh(path), path)


def clean(notebook: nbformat.NotebookNode) -> None:
    """Keep only what a reader needs: cells, still outputs, the kernel's name."""
    notebook.metadata = nbformat.NotebookNode(
        kernelspec={"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        language_info={"name": "python"},
    )
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
        for output in cell.get("outputs", []):
            if PNG in output.get("data", {}):
                output.data[PNG] = _few_colours(output.data[PNG])


def _few_colours(png: str) -> str:
    """The same picture with a palette of 64 colours: a third of the bytes or less, and lines look the same.

    Pictures are stored as PNG and not as SVG, which JupyterLab hides in a notebook that it does not trust yet.
    """
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    stored = io.BytesIO()
    picture.quantize(64, dither=Image.Dither.NONE).save(stored, "png", optimize=True)
    return base64.b64encode(stored.getvalue()).decode()


def run_all(folder: Path, names: list[str]) -> None:
    """Run the notebooks in ``folder`` whose file names begin with one of ``names`` (all, if there are none)."""
    for path in sorted(folder.glob("*.ipynb")):
        if not names or any(path.name.startswith(name) for name in names):
            start = time.perf_counter()
            cpu = run_notebook(path)
            print(f"{path.name}: {cpu:.0f} CPU-seconds, {time.perf_counter() - start:.0f} s", flush=True)
