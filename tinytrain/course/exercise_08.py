"""The exercises of notebook 08: generators in a file, a save that cannot be cut in two, the place in the data."""

import collections
import copy
import io
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tinytrain.course.exercises import Exercise, Report
from tinytrain.generators import all_states, restore_all


def generators(saved: dict | None = None) -> dict:
    """Take the states of three random generators, or put them back: Python's, NumPy's, torch's on the CPU.

    Without ``saved``: return the three states in a dict of your own form. It must survive ``torch.save``
    and ``torch.load(…, weights_only=True)``, so it holds tensors and plain Python values (numbers, text,
    tuples, lists) and no NumPy array. Nothing may be drawn or seeded.

    With ``saved``, such a dict as it came from the file: put all three generators where they were when it
    was taken, and return ``saved`` as it was. All of it must come from that dict: it may have been read in another
    process. NumPy's generator is the one behind ``np.random.random()``.
    """
    if saved is None:
        name, keys, *rest = np.random.get_state()
        numpy = (name, keys.tolist(), *rest)
        return {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state()}
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    torch.set_rng_state(saved["torch"])
    return saved


DRAWS: dict[str, Callable[[], list[float]]] = {
    "Python's": lambda: [random.random() for _ in range(3)] + [random.gauss(0.0, 1.0)],
    "NumPy's": lambda: np.random.random(3).tolist() + np.random.randint(1000, size=2).tolist(),
    "NumPy's normal": lambda: [float(np.random.standard_normal())],
    "torch's": lambda: torch.rand(3).tolist() + torch.randn(3).tolist(),
}


def check_generators(answer: Callable[..., dict], report: Report) -> None:
    """Take the states at random moments, send them through a file, move on, put them back, and compare what follows."""
    for moment in ("once", "and at another moment"):
        _move_on()
        before = all_states()
        states = answer()
        report.need("it returns a dict", isinstance(states, dict), f"It returned {type(states).__name__}.")
        report.need(
            f"{moment}: taking the states moves no generator",
            _alike(before, all_states()),
            "After taking the states, a generator stands elsewhere: something was drawn or seeded.",
        )
        file = io.BytesIO()
        torch.save(states, file)
        loaded, refused = _loaded(file)
        report.need(
            f"{moment}: what was saved loads with weights_only=True",
            refused == "",
            "It was refused. NumPy's keys are an array; `.tolist()` or `torch.from_numpy` makes plain values of them.",
        )
        restore_all(before)
        wanted = {name: draw() for name, draw in DRAWS.items()}
        _move_on()
        answer()  # states of another moment, which the first ones must not be mistaken for
        later = {name: draw() for name, draw in DRAWS.items()}
        as_given = copy.deepcopy(loaded)
        for time in ("", ", put back a second time"):
            _move_on()
            back = answer(loaded)
            same = isinstance(back, dict) and _alike(as_given, back)
            likely = "Return `saved`, and change nothing in it: someone may want to load it again."
            report.need(
                f"{moment}{time}: it returns what it was given",
                same,
                likely if isinstance(back, dict) else f"It returned {type(back).__name__}. {likely}",
            )
            found = {name: draw() for name, draw in DRAWS.items()}
            for name in DRAWS:
                report.need(
                    f"{moment}{time}: {name} numbers come again",
                    found[name] == wanted[name],
                    _likely_generator(name, found, wanted, later),
                )


def _move_on() -> None:
    """Leave every generator at a random place, with a second normal number waiting in two of them."""
    for _ in range(random.randint(1, 9)):
        random.random(), np.random.random(), torch.rand(1)
    np.random.seed(random.getrandbits(32))
    random.seed(random.getrandbits(64))
    torch.manual_seed(random.getrandbits(60))
    random.gauss(0.0, 1.0), np.random.standard_normal(), torch.rand(random.randint(1, 9))


def _alike(a: Any, b: Any) -> bool:
    """Whether both hold the same; a list and a tuple may stand for each other."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(_alike(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(_alike, a, b))
    return type(a) is type(b) and bool(a == b)


def _loaded(file: io.BytesIO) -> tuple[Any, str]:
    file.seek(0)
    try:
        return torch.load(file, weights_only=True), ""
    except Exception as error:  # torch raises several kinds
        return None, str(error)


Drawn = dict[str, list[float]]


def _likely_generator(name: str, found: Drawn, wanted: Drawn, later: Drawn) -> str:
    if found[name] == wanted[name]:
        return ""
    if found[name] == later[name]:
        return (
            "It was put where it stood when a *later* dict was taken: the state must be in the dict, and not in a "
            "variable beside it."
        )
    if found == {**wanted, "NumPy's normal": found["NumPy's normal"]}:
        return (
            "NumPy makes normal numbers in pairs and keeps the second: `np.random.get_state()` has five parts, and all "
            "of them are the state."
        )
    wrong = {each for each in DRAWS if found[each] != wanted[each]}
    if len(wrong) == len(DRAWS):
        return "No generator is back. A seed gives the beginning of a stream, and not the place in it: keep the state."
    return f"{name.removesuffix(' normal')} generator is not where it was: is its state taken, and put back?"


def save_whole(state: dict, path: Path) -> None:
    """Save ``state`` with ``torch.save``; ``path`` is at every moment the whole old file or the whole new one.

    ``path`` may exist or not. Write to another name in the *same folder*, flush, call ``os.fsync`` on that
    open file, and then rename it to ``path``. If saving, syncing or renaming fails, whatever the error (the Stop
    button's ``KeyboardInterrupt`` included), it goes on to the caller and ``path`` is as it was. Either way,
    nothing else is left in the folder, and the other files in it stay as they are.
    """
    aside = path.with_name(f"{path.name}.unfinished")
    try:
        with open(aside, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


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
    loaded, refused = _loaded(io.BytesIO(path.read_bytes()))
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


def next_batches(
    order: Callable[[int], list[int]], n_rows: int, batch_size: int, done: int, count: int
) -> list[list[int]]:
    """The row numbers of the ``count`` batches that follow the first ``done`` batches of a run.

    ``order(epoch)`` gives the ``n_rows`` row numbers in the order of that epoch, counted from 0; each epoch
    has another order. An epoch is cut into batches of ``batch_size`` rows from its beginning; its last batch
    holds the rows that are left, and may be shorter. ``done`` counts batches through all epochs, and may
    be 0. Return a list of lists.
    """
    per_epoch = -(-n_rows // batch_size)  # rounded up
    batches = []
    for batch in range(done, done + count):
        epoch, place = divmod(batch, per_epoch)
        batches.append(order(epoch)[place * batch_size : (place + 1) * batch_size])
    return batches


Order = Callable[[int], list[int]]


def check_next_batches(answer: Callable[..., list[list[int]]], report: Report) -> None:
    """Stop at many places, with and without a short batch; then the smallest and largest batches, and counts."""
    for case in ("at the very beginning", "in the middle of an epoch", "at the end of an epoch", "across an end"):
        for tail in (True, False):
            size, full = random.randint(3, 6), random.randint(4, 7)  # rows in a batch, full batches in an epoch
            per_epoch, epoch = full + tail, random.randint(1, 3)
            inside = epoch * per_epoch + random.randint(2, per_epoch - 2)
            across = epoch * per_epoch - random.randint(1, 2)
            done = {"very": 0, "in": inside, "at": epoch * per_epoch, "across": across}[
                "very" if "very" in case else case.split()[0]
            ]
            count = random.randint(per_epoch, per_epoch + 2)  # so that a short batch is always among them
            named = f"{case}, {'a short' if tail else 'no short'} last batch"
            rows = size * full + (random.randint(1, size - 1) if tail else 0)
            _check_position(answer, report, named, rows, size, done, count)
    rows, size = random.randint(11, 14), random.randint(4, 5)  # three batches
    batches = -(-rows // size)
    done = batches * random.randint(20, 40) + random.randint(0, 2)
    _check_position(answer, report, "far into the run", rows, size, done, batches)
    _check_position(answer, report, "more than two epochs", rows, size, batches + 1, 2 * batches + 1)
    _check_position(answer, report, "no batch at all", rows, size, random.randint(0, 9), 0)
    _check_position(answer, report, "a single batch", rows, size, random.randint(1, 9), 1)
    _check_position(answer, report, "batches of one row", rows, 1, random.randint(1, 2 * rows), rows + 2)
    _check_position(answer, report, "a batch holds an epoch", rows, rows, random.randint(1, 4), 3)
    _check_position(answer, report, "a batch holds more than an epoch", rows, rows + 3, random.randint(1, 4), 3)


def _check_position(
    answer: Callable[..., list[list[int]]], report: Report, case: str, n_rows: int, size: int, done: int, count: int
) -> None:
    seed = random.random()

    @cache
    def order(epoch: int) -> list[int]:
        return random.Random(f"{seed} {epoch}").sample(range(n_rows), n_rows)

    value = answer(lambda epoch: list(order(epoch)), n_rows, size, done, count)
    kind = f"It returned a {_kind(value)}; plain numbers in lists are wanted."
    report.need(f"{case}: a list of lists of numbers", _is_batches(value), "" if _is_batches(value) else kind)
    value = [[int(row) for row in batch] for batch in value]
    wanted = _batches(order, n_rows, size, done + count)[done : done + count]
    right = bool(value == wanted)
    likely = "" if right else _likely_place(value, order, n_rows, size, done, count)
    report.need(f"{case}: the next batches", right, likely)


def _kind(value: Any) -> str:
    kind = type(value).__name__
    while isinstance(value, list) and value:
        value = value[0]
        kind += f" of {type(value).__name__}"
    return kind


def _is_batches(value: Any) -> bool:
    rows = isinstance(value, list) and all(isinstance(batch, list) for batch in value)
    return rows and all(isinstance(row, (int, np.integer)) for batch in value for row in batch)


def _batches(order: Order, n_rows: int, size: int, wanted: int) -> list[list[int]]:
    """All batches from the run's first on, whole epochs of them, and more than two epochs beyond ``wanted``."""
    epochs = wanted // -(-n_rows // size) + 3
    return [order(e)[i : i + size] for e in range(epochs) for i in range(0, n_rows, size)]


def _likely_place(value: list[list[int]], order: Order, n_rows: int, size: int, done: int, count: int) -> str:
    if len(value) != count:
        return f"{count} batches were asked for, and {len(value)} came."
    per_epoch = -(-n_rows // size)
    epoch, place = divmod(done, per_epoch)
    whole = _batches(order, n_rows, size, done + count)
    row_stream = [row for e in range((done + count) // per_epoch + 3) for row in order(e)]
    dropped = [batch for batch in whole if len(batch) == size]
    mistakes = {
        "The epoch begins again: rows that it has had come a second time.": whole[epoch * per_epoch :],
        "It jumps to the next epoch: the rest of this one is never read.": whole[(epoch + 1) * per_epoch :],
        "The run begins again from its first batch.": whole,
        "`done` batches have been read; one more was passed over, or one comes twice.": whole[done + 1 :],
        "The batch before was done already: it comes twice.": whole[max(0, done - 1) :],
        "The short batch at the end of an epoch is left out, and the places after it are wrong.": dropped[done:],
        "A batch holds rows of two epochs: each epoch is cut from its own beginning.": [
            row_stream[i : i + size] for i in range(done * size, (done + count) * size, size)
        ],
        "The order is that of epoch 0: each epoch has its own.": _batches(
            lambda _: order(0), n_rows, size, done + count
        )[done:],
        "It stays in one epoch's order: at its end, the next one's begins.": [
            order(epoch)[i : i + size] for i in range(place * size, (place + count) * size, size)
        ],
    }
    return next((hint for hint, batches in mistakes.items() if value == batches[:count]), "")


EXERCISES = (
    Exercise(
        number=1,
        title="Put three generators into a file",
        goal="Write the part of a checkpoint that is forgotten most: the generators, taken and put back.",
        difficulty="easy",
        minutes=10,
        solution=generators,
        check=check_generators,
        hints=(
            "Python: `random.getstate` and `setstate`. NumPy: `np.random.get_state` and `set_state`. torch: "
            "`torch.get_rng_state` and `set_rng_state`.",
            "NumPy's state is a tuple of five, and only the second is an array: `name, keys, *rest = …`. A list of its "
            "keys is good enough for `set_state`.",
        ),
    ),
    Exercise(
        number=2,
        title="A save that cannot be cut in two",
        goal="Write a save that leaves the old file or the new one, whatever happens on the way.",
        difficulty="medium",
        minutes=15,
        solution=save_whole,
        check=check_save_whole,
        hints=(
            "`path.with_name(…)` is another name in the same folder. `torch.save` also writes into a file that you "
            "have opened with `open(aside, 'wb')`.",
            "The order: write, `file.flush()`, `os.fsync(file.fileno())`, close, `os.replace(aside, path)`; and "
            "`aside.unlink(missing_ok=True)` in a `finally`.",
        ),
    ),
    Exercise(
        number=3,
        title="Which batch comes next?",
        goal="Find the place in the data where a run goes on, in the middle of an epoch or not.",
        difficulty="medium",
        minutes=10,
        solution=next_batches,
        check=check_next_batches,
        hints=(
            "How many batches has an epoch, the short one included? `divmod(batch, that)` is the epoch and the place "
            "in it.",
            "Batch number `place` of an epoch is `order(epoch)[place * batch_size : (place + 1) * batch_size]`, and a "
            "slice that runs over the end is simply shorter.",
        ),
    ),
)
