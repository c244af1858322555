"""Runs of the trainer under test: always the same model and rows, with one thing changed."""

import contextlib
import inspect
import io
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tinytrain.course.laws.probe import Batch, ProbeModel, ordinary, seed_everything
from tinytrain.course.laws.tape import EndlessError, PulledError, Rows, Tape, same, state_of, weights_of

MAX_LR, NO_LIMIT = 1e-2, 100.0
"""the largest rate, and a bound on the gradient that none of the runs here comes near"""
Make = Callable[..., Any]


@dataclass
class Run:
    """What came of one call of ``fit``."""

    model: ProbeModel
    trainer: Any
    tape: Tape
    data: Rows
    ended: str
    """"" at its end, "pulled", "endless", or the error in words"""
    began: dict[str, torch.Tensor]
    """the weights before"""
    folder: Path

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return weights_of(self.model)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Weights and buffers."""
        return state_of(self.model)

    @property
    def log(self) -> list[dict[str, Any]] | None:
        log = getattr(self.trainer, "log", None)
        return log if isinstance(log, list) and all(isinstance(line, dict) for line in log) else None

    @property
    def moved(self) -> bool:
        """Whether an update was seen, and the weights are others than before."""
        return bool(self.tape.updates) and not same(self.began, self.weights)


class CannotMakeError(Exception):
    """The trainer refuses settings that the contract allows; the message says which, and where."""


class Bench:
    """Makes trainers with ``make`` and runs them in folders of their own under ``home``."""

    def __init__(self, make: Make, home: Path) -> None:
        self.make, self.home, self._folders = make, home, 0
        self._done: dict[Any, Run] = {}

    @cached_property
    def no_fp16(self) -> str:
        """Why FP16 cannot be asked of this trainer; nothing if it can."""
        if not self._takes_precision:
            return "it takes no argument named precision"
        try:
            run = self.run(total_steps=3, precision="fp16")
        except CannotMakeError as error:
            return f"it refuses it ({error})"
        if run.ended:
            return f"it refuses it ({run.ended})"
        found = {dtype for update in run.tape.updates for dtype in update.dtypes}
        return "" if torch.float16 in found or not found else IGNORED

    @property
    def _takes_precision(self) -> bool:
        return "precision" in inspect.signature(self.make).parameters

    @property
    def precisions(self) -> list[str]:
        """Those that can be asked of it."""
        return ["fp32"] if self.no_fp16 else ["fp32", "fp16"]

    def new_folder(self) -> Path:
        """A new one."""
        self._folders += 1
        path = self.home / f"run_{self._folders}"
        path.mkdir(parents=True)
        return path

    def start(
        self,
        batch: Callable[[int], list[Batch]] = ordinary,
        *,
        total_steps: int = 7,
        warmup_steps: int = 2,
        max_lr: float = MAX_LR,
        max_grad_norm: float = NO_LIMIT,
        folder: Path | None = None,
        at: Callable[[int], None] | None = None,
        pull: int | None = None,
        dropout: float = 0.0,
        width: int = 8,
        model_seed: int = 1,
        seed: int = 2,
        precision: str = "fp32",
    ) -> Run:
        """A trainer that has not begun. ``seed`` is that of all generators once the model is made.

        The plug is pulled when the model reads batch ``pull``: a trainer may ask for it long before.
        ``CannotMakeError`` if the trainer refuses these settings.
        """
        warmup_steps = 1 if total_steps < 3 else warmup_steps
        fatal = [] if pull is None else [row for part in batch(pull) for row in part["input_ids"].tolist()]
        tape, folder = Tape(map(tuple, fatal)), folder or self.new_folder()
        torch.manual_seed(model_seed)
        model = ProbeModel(tape, dropout=dropout, width=width)
        seed_everything(seed)
        data = Rows(batch, at)
        given: dict[str, Any] = {
            "total_steps": total_steps, "max_lr": max_lr, "warmup_steps": warmup_steps, "max_grad_norm": max_grad_norm,
        } | ({"precision": precision} if self._takes_precision else {})  # fmt: skip
        try:
            with quiet():
                trainer = self.make(model, data, **given, folder=folder)
        except (Exception, SystemExit) as error:
            shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
            raise CannotMakeError(f"with {shown}, folder=…: {said(error)}") from error
        return Run(model, trainer, tape, data, "", weights_of(model), folder)

    def run(self, *args: Any, resume: bool = False, **settings: Any) -> Run:
        """Make a trainer, resume it if asked, and fit. Its errors are put down in ``ended``.

        A run that nothing disturbs is the same each time, and is made once.
        """
        bound = inspect.signature(self.start).bind(*args, **settings)
        bound.apply_defaults()
        disturbed = resume or any(bound.arguments[name] is not None for name in ("folder", "at", "pull"))
        key = tuple(bound.arguments.items())
        if not disturbed and key in self._done:
            return self._done[key]
        run = self.start(*args, **settings)
        self.go(run, resume=resume)
        if not disturbed:
            self._done[key] = run
        return run

    def go(self, run: Run, *, resume: bool = False) -> None:
        """``fit``, to its end or its error."""
        try:
            with quiet(), run.tape.watching(run.model):
                if resume:
                    run.trainer.resume()
                run.trainer.fit()
        except PulledError:
            run.ended = "pulled"
        except EndlessError:
            run.ended = "endless"
        except (Exception, SystemExit) as error:
            run.ended = said(error)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What a trainer prints and warns of is not part of the report."""
    out, err = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with out, err, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def said(error: BaseException) -> str:
    """An error in one line, with the last line of the trainer's own that it came through."""
    if isinstance(error, CannotMakeError):
        return str(error)
    lines = str(error).strip().splitlines() or [""]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in OURS and not _library(f)]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    words = lines[0][:160] or (f"{frames[-1].line}"[:80] if frames else "")
    return f"{type(error).__name__}: {words}{place}"


def _library(frame: traceback.FrameSummary) -> bool:
    return "site-packages" in frame.filename or frame.filename.startswith(("<", LIBRARY))


IGNORED = 'precision="fp16" is taken and nothing is computed in it: the logits are not float16'
LIBRARY = sysconfig.get_path("stdlib")
OURS = {str(path) for path in Path(__file__).parent.glob("*.py") if not path.name.endswith("_trainer.py")}
