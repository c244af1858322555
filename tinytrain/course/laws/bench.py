"""Runs of the trainer under test: always the same model and rows, with one thing changed."""

import contextlib
import inspect
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tinytrain.course.laws.probe import Batch, ProbeModel, ordinary, seed_everything
from tinytrain.course.laws.tape import EndlessError, PulledError, Rows, Tape, same, weights_of

MAX_LR, NO_LIMIT = 1e-2, 1e9
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

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return weights_of(self.model)

    @property
    def log(self) -> list[dict[str, Any]] | None:
        log = getattr(self.trainer, "log", None)
        return log if isinstance(log, list) and all(isinstance(line, dict) for line in log) else None

    @property
    def moved(self) -> bool:
        """Whether an update was seen, and the weights are others than before."""
        return bool(self.tape.updates) and not same(self.began, self.weights)


class Bench:
    """Makes trainers with ``make`` and runs them in folders of their own under ``home``."""

    def __init__(self, make: Make, home: Path) -> None:
        self.make, self.home, self._folders = make, home, 0

    @cached_property
    def no_fp16(self) -> str:
        """Why FP16 cannot be asked of this trainer; nothing if it can."""
        if not self._takes_precision:
            return "it takes no argument precision"
        try:
            ended = self.run(total_steps=2, precision="fp16").ended
        except (Exception, SystemExit) as error:
            ended = said(error)
        return ended and f"it refuses it ({ended})"

    @property
    def _takes_precision(self) -> bool:
        return "precision" in inspect.signature(self.make).parameters

    @property
    def precisions(self) -> list[str]:
        """Those that can be asked of it."""
        return ["fp32"] if self.no_fp16 else ["fp32", "fp16"]

    def folder(self) -> Path:
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
        dropout: float = 0.0,
        width: int = 8,
        model_seed: int = 1,
        seed: int = 2,
        precision: str = "fp32",
    ) -> Run:
        """A trainer that has not begun. ``seed`` is that of all generators once the model is made."""
        tape, warmup_steps = Tape(), min(warmup_steps, total_steps) if total_steps < 3 else warmup_steps
        torch.manual_seed(model_seed)
        model = ProbeModel(tape, dropout=dropout, width=width)
        seed_everything(seed)
        data = Rows(batch, at)
        given = {"precision": precision} if self._takes_precision else {}
        with quiet():
            trainer = self.make(
                model,
                data,
                total_steps=total_steps,
                max_lr=max_lr,
                warmup_steps=warmup_steps,
                max_grad_norm=max_grad_norm,
                folder=folder or self.folder(),
                **given,
            )
        return Run(model, trainer, tape, data, "", weights_of(model))

    def run(self, *args: Any, resume: bool = False, **settings: Any) -> Run:
        """Make a trainer, resume it if asked, and fit. Its errors are put down in ``ended``."""
        run = self.start(*args, **settings)
        self.go(run, resume=resume)
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
    """An error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"


def pull_at(n: int) -> Callable[[int], None]:
    """Pulls the plug when batch ``n`` is asked for."""

    def at(asked: int) -> None:
        if asked == n:
            raise PulledError

    return at
