"""The check of exercise 08.2: a save that is watched from inside and after every line, and then made to fail."""

import collections
import io
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from tinytrain.course.check_states_08 import load_safely
from tinytrain.course.exercises import Report


class _Looks:
    """Part of a state: while it is being saved, it calls ``look``. In the file it is an empty OrderedDict."""

    def __init__(self, look: Callable[[], None]) -> None:
        self.look = look

    def __reduce__(self) -> tuple[Any, ...]:
        self.look()
        return collections.OrderedDict, ()


def check_save_whole(answer: Callable[[dict, Path], None], report: Report) -> None:
    """Save over an old file and where there is none, watched from inside and after every line; then let it fail."""
    with tempfile.TemporaryDirectory() as home:
        for number, case in enumerate(("over an old file", "where there is none")):
            _check_a_save(answer, report, case, _folder(Path(home, str(number)), old=number == 0))
        _check_every_line(answer, report, _folder(Path(home, "lines"), old=True))
        for number, failure in enumerate(FAILURES):
            _check_a_failure(answer, report, failure, _folder(Path(home, f"failing {number}"), old=True))


def _folder(folder: Path, *, old: bool) -> Path:
    """A new folder with a neighbour in it; returns the path to save to."""
    folder.mkdir()
    path = folder / f"run{random.randint(1, 99)}.pt"
    (folder / "notes.txt").write_text(f"{random.random()}")
    if old:
        torch.save({"old": torch.randn(50)}, path)
    return path


def _contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def _check_a_save(answer: Callable[[dict, Path], None], report: Report, case: str, path: Path) -> None:
    before, whole, synced = _contents(path.parent), [], []

    def as_before() -> bool:
        return (path.read_bytes() if path.exists() else None) == before.get(path.name)

    weights = torch.randn(random.randint(2000, 5000))
    state = {"weights": weights.clone(), "looks": _Looks(lambda: whole.append(as_before()))}
    with _instead_of(answer, os.fsync, _watched_fsync(path, as_before, synced)):
        answer(state, path)
    report.need(f"{case}: there is a file", path.exists(), "There is nothing under that name.")
    loaded, refused = load_safely(io.BytesIO(path.read_bytes()))
    same = refused == "" and isinstance(loaded, dict) and list(loaded) == ["weights", "looks"]
    same = same and torch.equal(loaded["weights"], weights)
    likely = "The old file is still there." if as_before() else "What was loaded is not the state that was given."
    report.need(f"{case}: it holds the state", bool(same), likely)
    report.need(
        f"{case}: while it saves, the name holds what it held",
        bool(whole) and all(whole),
        "In the middle of the save the old file was gone or cut: a kill at that moment leaves nothing whole.",
    )
    now, inode = path.read_bytes(), path.stat().st_ino
    mine = [each for each in synced if each["file"] == inode]
    report.need(
        f"{case}: the whole file was forced to disk before it got its name",
        any(each["bytes"] == now and each["before"] for each in mine),
        _likely_sync(synced, mine, len(now)),
    )
    others = {name: text for name, text in before.items() if name != path.name}
    left = {name: text for name, text in _contents(path.parent).items() if name != path.name}
    report.need(f"{case}: nothing else is left, or changed, in the folder", left == others, "Look into the folder.")


def _likely_sync(synced: list[dict[str, Any]], mine: list[dict[str, Any]], size: int) -> str:
    if not synced:
        return "`os.fsync` was not called: a power cut after the rename could leave a name with nothing behind it."
    if not mine:
        return "The file that was synced is not the one under that name: was it copied? Rename it instead."
    if not any(each["size"] == size for each in mine):
        return "It was synced before the last bytes had left Python's buffer: flush first."
    if not any(each["before"] for each in mine):
        return "It was synced after it had its name already: a power cut in between leaves a name with half a file."
    if any(each["below"] for each in mine):
        return "It was written in a folder of its own, which a kill would leave behind: write it beside `path`."
    if not any(each["here"] for each in mine):
        return (
            "It was written in another folder, which may be on another disk: then a rename is a copy, and can be cut."
        )
    return "What was synced is not what the file holds now: it was written to again, after the sync."


def _watched_fsync(path: Path, as_before: Callable[[], bool], synced: list[dict[str, Any]]) -> Callable[[Any], None]:
    """An ``os.fsync`` that notes which file it was called for, where that is, and what it holds."""
    real = os.fsync

    def watched(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        file = os.fstat(number)
        files = [each for each in path.parent.rglob("*") if each.is_file() and each.stat().st_ino == file.st_ino]
        here = [each for each in files if each.parent == path.parent]
        noted = {"file": file.st_ino, "size": file.st_size, "before": as_before(), "here": bool(here)}
        noted |= {"below": bool(files) and not here, "bytes": here[0].read_bytes() if here else None}
        synced.append(noted)
        real(descriptor)

    return watched


@contextmanager
def _instead_of(answer: Any, real: Any, other: Any) -> Iterator[None]:
    """Put ``other`` in the place of ``os.…``, also where the answer's module has imported it by name."""
    globals_ = getattr(answer, "__globals__", {})
    names = [name for name, value in globals_.items() if value is real]
    try:
        setattr(os, real.__name__, other)
        globals_.update(dict.fromkeys(names, other))
        yield
    finally:
        setattr(os, real.__name__, real)
        globals_.update(dict.fromkeys(names, real))


def _check_every_line(answer: Callable[[dict, Path], None], report: Report, path: Path) -> None:
    """Look at the file after every line that Python runs, the library's included: a kill could come there."""
    seen: set[bytes | None] = {path.read_bytes()}

    def look(_frame: Any, _event: str, _argument: Any) -> Any:
        try:
            seen.add(path.read_bytes())
        except FileNotFoundError:
            seen.add(None)
        return look

    before, old = sys.gettrace(), path.read_bytes()
    sys.settrace(look)
    try:
        answer({"weights": torch.randn(10)}, path)
    finally:
        sys.settrace(before)
    between = seen - {old, path.read_bytes()}
    likely = "Between two lines the file is cut or empty: it was written to under its own name."
    if None in between:
        likely = (
            "Between two lines there is no file under that name. A rename takes the old one's place: never remove it."
        )
    report.need("after every line, the name holds the whole old file or the whole new one", not between, likely)


FAILURES: dict[str, tuple[type[BaseException], tuple[Any, ...]]] = {
    "torch.save fails": (RuntimeError, ()),
    "the Stop button is pressed": (KeyboardInterrupt, ()),
    "os.fsync fails": (OSError, (os.fsync,)),
    "the rename fails": (OSError, (os.replace, os.rename)),
}


def _check_a_failure(answer: Callable[[dict, Path], None], report: Report, case: str, path: Path) -> None:
    (kind, functions), words = FAILURES[case], f"No space left on device {random.random()}"
    before, failed, raised = _contents(path.parent), [], None

    def fail(*_given: Any, **_named: Any) -> None:
        failed.append(True)
        raise kind(words)

    try:
        with ExitStack() as stack:
            for function in functions:
                stack.enter_context(_instead_of(answer, function, fail))
            answer({"weights": torch.randn(3000), "looks": _Looks(lambda: None if functions else fail())}, path)
    except BaseException as error:
        raised = error
    if not failed:  # it renames by another function: there was nothing that failed
        return
    after = _contents(path.parent)
    report.need(f"{case}: the old file is as it was", after.get(path.name) == before[path.name], "It is not.")
    report.need(
        f"{case}: the error reaches the caller",
        isinstance(raised, kind) and words in str(raised),
        "The error was swallowed, or another one came in its place: the caller would believe that it was saved.",
    )
    report.need(
        f"{case}: nothing is left in the folder",
        after == before,
        "The file under the other name was left behind. `finally` runs whatever the error, and wherever it comes "
        "from; `except Exception` does not see a KeyboardInterrupt.",
    )
