"""Which laws there are, how a trainer is found, and the command."""

import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tinytrain.course.laws import loss, rate, resume, rows, update, whole_run
from tinytrain.course.laws.bench import Bench, CannotMakeError, Make, said
from tinytrain.course.laws.line import Finding, Line, Verdicts, holds_if, untested
from tinytrain.course.threads import one_thread
from tinytrain.generators import keep_generators

CHILD_SECONDS = 60


class CannotUseError(ValueError):
    """There is no trainer here that the laws could be run on; the message says why."""


def laws(bench: Bench, child: resume.Child | None = None) -> dict[str, tuple[str, Callable[[], list[Line]]]]:
    """Each law's name, its title, and what asks it."""
    return {
        "law 1": ("One divisor", partial(loss.one_divisor, bench)),
        "law 2": ("However you cut it", partial(loss.however_you_cut_it, bench)),
        "law 3": ("The step decides the rate", partial(rate.step_decides_rate, bench)),
        "law 4": ("The order of rows is a function", partial(rows.order_of_rows, bench)),
        "law 5": ("Resumed is uninterrupted", partial(resume.resumed, bench, child)),
        "law 6": ("A bad step changes nothing", partial(whole_run.bad_steps, bench)),
        "law 7": ("Weights and moments are float32", partial(update.float32, bench)),
        "law 8": ("Looking does not touch", partial(whole_run.looking, bench)),
        "law 9": ("Documents are strangers", partial(rows.strangers, bench)),
        "law 10": ("Bad input is refused early", partial(whole_run.refused, bench)),
        "clipping": ("The whole gradient's norm is bounded", partial(update.clipping, bench)),
        "decay": ("Only matrices decay", partial(update.decay, bench)),
    }


def run_laws(make: Make | str | Path, *, only: Sequence[str] = (), kill: bool = True) -> Verdicts:
    """Run the laws, or those named in ``only``, on a trainer: ``"module:factory"``, ``"file.py"``, or the callable.

    ``kill`` also kills a child process for law 5, which needs a module's or a file's name. Random generators are
    afterwards as they were. Raises ``CannotUseError`` if there is no such trainer or it cannot be made.
    """
    spec = make if isinstance(make, str | Path) else None
    factory = load(str(spec)) if spec is not None else make
    if not callable(factory):
        raise CannotUseError(f"{make!r} cannot be called: a class or a function that returns a trainer is wanted")
    name = str(spec) if spec is not None else getattr(factory, "__name__", type(factory).__name__)
    with keep_generators(), one_thread(), tempfile.TemporaryDirectory() as home:
        bench = Bench(factory, Path(home))
        _try_out(bench, name)
        child = partial(_child, str(spec)) if spec is not None and kill else None
        asked = {law: each for law, each in laws(bench, child).items() if not only or law in only}
        if unknown := sorted(set(only) - set(asked)):
            raise ValueError(f"there is no {', '.join(unknown)}; the laws are {', '.join(laws(bench))}")
        return Verdicts(name, [Finding(law, title, _asked(ask)) for law, (title, ask) in asked.items()])


def _asked(ask: Callable[[], list[Line]]) -> list[Line]:
    try:
        return ask()
    except CannotMakeError as error:
        return [untested(f"the trainer could not be made {error}")]
    except (Exception, SystemExit) as error:
        return [holds_if(False, f"stopped with {said(error)}")]


def _try_out(bench: Bench, name: str) -> None:
    """Make one, and let it do two updates."""
    try:
        run = bench.start(total_steps=2)
    except (Exception, SystemExit) as error:
        raise CannotUseError(f"{name} could not be called as the contract says, {said(error)}") from error
    if not callable(getattr(run.trainer, "fit", None)):
        raise CannotUseError(f"{name} gave a {type(run.trainer).__name__}, which has no fit()")
    bench.go(run)
    if run.ended:
        raise CannotUseError(f"{name}: fit() ended with {run.ended} in a run of two ordinary updates")


# Finding the trainer


def load(spec: str) -> Make:
    """What ``module:name`` or ``file.py:name`` names.

    Without a name it is ``make_trainer``, or else the only class that has ``fit``.
    """
    place, _, name = spec.rpartition(":") if spec.rpartition(":")[2].isidentifier() and ":" in spec else (spec, "", "")
    module = _module(place)
    if name:
        if not hasattr(module, name):
            raise CannotUseError(f"{place} has no {name}")
        return getattr(module, name)
    if callable(getattr(module, "make_trainer", None)):
        return module.make_trainer
    own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    found = [c for c in own if callable(getattr(c, "fit", None))]
    if len(found) != 1:
        named = ", ".join(c.__name__ for c in found) or "none"
        raise CannotUseError(f"{place} must have one class with fit(), and has {named}: say which, as {place}:name")
    return found[0]


def _module(place: str) -> types.ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        path = Path(place).resolve()
        made = importlib.util.spec_from_file_location(f"trainer_in_{path.stem}", path)
        if made is None or made.loader is None or not path.is_file():
            raise CannotUseError(f"there is no file {place}")
        module = importlib.util.module_from_spec(made)
        sys.modules[made.name] = module  # dataclasses look their module up
        sys.path.insert(0, str(path.parent))  # for what lies beside it, as when Python runs a file
        try:
            made.loader.exec_module(module)
        finally:
            sys.path.remove(str(path.parent))
        return module
    except CannotUseError:
        raise
    except (Exception, SystemExit) as error:
        raise CannotUseError(f"{place} could not be imported: {said(error)}") from error


# The child that is killed


def _child(spec: str, folder: Path) -> str:
    """Train in a child process until it is killed; in words, how it ended."""
    if not hasattr(signal, "SIGKILL"):
        return "this system has no signal 9"
    command = [sys.executable, "-m", "tinytrain.course.laws.child", spec, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return f"the child was not through after {CHILD_SECONDS} seconds"
    if done.returncode != -signal.SIGKILL:
        last = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        return f"the child ended with code {done.returncode} before it could be killed ({last[:100]})"
    where = "in the middle of its fifth save" if "save" in done.stdout else "between two batches"
    return f"killed with signal 9 {where}"


def main(spec: str) -> int:
    """The command: print the report; 0 if no law is broken, 1 if one is, 2 if there is nothing to run them on."""
    sys.path.insert(0, "")
    try:
        verdicts = run_laws(spec)
    except CannotUseError as error:
        print(error, file=sys.stderr)
        return 2
    print(verdicts)
    return 1 if verdicts.broken else 0


def train_here(make: Make, folder: Path, **settings: Any) -> str:
    """One run in ``folder``; how it ended."""
    return Bench(make, folder.parent).run(folder=folder, **settings).ended
