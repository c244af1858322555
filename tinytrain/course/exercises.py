"""Exercises that say what holds, what does not, and which mistake is likely.

Each ``exercise_NN.py`` holds the exercises of one notebook: for each a solution, a check, and the words around them.
The notebook's cells (task, stub, check, hints, folded solution) are made from it by ``make notebooks``, so the two
cannot drift apart.
"""

import ast
import importlib
import inspect
import pkgutil
import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from tinytrain.course import progress
from tinytrain.generators import all_states, restore_all

DIFFICULTIES = ("easy", "medium", "hard")


@dataclass
class Report:
    """What a check found: lines that hold or do not, in the order in which they were asked."""

    lines: list[tuple[bool, str, str]] = field(default_factory=list)

    def that(self, what: str, ok: bool, likely: str = "") -> bool:
        """Note whether ``what`` holds; ``likely`` names the mistake that would explain that it does not."""
        if type(ok) is not bool:
            raise TypeError(f"the check of {what!r} gave {type(ok).__name__}; True or False is needed")
        self.lines.append((ok, what, likely))
        return ok

    def need(self, what: str, ok: bool, likely: str = "") -> None:
        """The same, and the check ends here if it does not hold: what follows could not be asked."""
        if not self.that(what, ok, likely):
            raise _CheckEndsError

    @property
    def passed(self) -> bool:
        """Whether something was asked and all of it holds."""
        return bool(self.lines) and all(ok for ok, _, _ in self.lines)

    @property
    def likely(self) -> str:
        """The mistake behind the first line that does not hold."""
        return next((likely for ok, _, likely in self.lines if not ok and likely), "")


class _CheckEndsError(Exception):
    """A line that everything after it needs does not hold."""


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise. Its stub is the solution's signature and docstring; its folded solution is the whole source."""

    number: int
    title: str
    goal: str
    difficulty: str
    minutes: int
    solution: Callable[..., Any]
    check: Callable[[Callable[..., Any], Report], None]
    hints: tuple[str, str]

    def __post_init__(self) -> None:
        if self.difficulty not in DIFFICULTIES:
            raise ValueError(f"difficulty {self.difficulty!r} is not one of {', '.join(DIFFICULTIES)}")
        if len(self.hints) != 2 or not all(self.hints) or not inspect.getdoc(self.solution):
            raise ValueError(f"exercise {self.key}: it needs two hints, and a docstring that says what to return")

    @property
    def lesson(self) -> int:
        """The number of its notebook, from the name of its file."""
        return int(self.solution.__module__.rpartition("_")[2])

    @property
    def key(self) -> str:
        return f"{self.lesson:02d}.{self.number}"

    def source(self) -> str:
        """The solution as it stands in its file."""
        return textwrap.dedent(inspect.getsource(self.solution)).strip()

    def stub(self) -> str:
        """The solution's signature and docstring, and a line that raises ``NotImplementedError``."""
        source = self.source()
        function = ast.parse(source).body[0]
        end = function.body[0].end_lineno
        head = "\n".join(source.splitlines()[:end])
        return f'{head}\n    raise NotImplementedError("exercise {self.key}")  # write your answer over this line'

    def examine(self, answer: Callable[..., Any]) -> Report | None:
        """Check ``answer``; None if it is still the stub. An answer that raises an error does not pass.

        The random generators are afterwards as they were, so that the cells that follow give the numbers they gave.
        """
        report, states = Report(), all_states()
        random.seed()  # fresh inputs each time, whatever seed the notebook has set
        torch.seed()
        try:
            self.check(answer, report)
        except _CheckEndsError:
            pass  # the line that does not hold is in the report already
        except NotImplementedError as error:
            if str(error) == f"exercise {self.key}":
                return None
            report.that("it runs", False, _said(error))
        except (Exception, SystemExit) as error:
            report.that("it runs", False, _said(error))
        finally:
            restore_all(states)
        return report


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"It stopped with {type(error).__name__}: {lines[0]}"


@cache
def all_exercises() -> dict[str, Exercise]:
    """Every exercise by its key, such as ``"01.2"``, found in the files ``exercise_NN.py`` of this folder."""
    package = importlib.import_module("tinytrain.course")
    names = sorted(name for _, name, _ in pkgutil.iter_modules(package.__path__) if name.startswith("exercise_"))
    modules = [importlib.import_module(f"tinytrain.course.{name}") for name in names]
    return {exercise.key: exercise for module in modules for exercise in module.EXERCISES}


def exercise(key: str) -> Exercise:
    """The exercise with this key. Raises ``KeyError`` that lists the known ones."""
    known = all_exercises()
    if key not in known:
        raise KeyError(f"there is no exercise {key!r}; known are {', '.join(known)}")
    return known[key]


def check(key: str, answer: Callable[..., Any]) -> None:
    """Print how ``answer`` does in exercise ``key``, and remember it in the reader's progress."""
    this = exercise(key)
    if not callable(answer):
        print(f"Exercise {key}: not yet. A function is wanted, and this is {type(answer).__name__}.")
        return
    report = this.examine(answer)
    print(verdict(this, report))
    if report is not None:
        progress.remember(key, solved=report.passed)


def progress_table() -> str:
    """A Markdown table of all exercises, and which of them the reader has solved."""
    known, marks = progress.recall(), {progress.SOLVED: "solved", progress.TRIED: "tried"}
    rows = [
        f"| {key} | {this.title} | {this.difficulty} | {this.minutes} | {marks.get(known.get(key, ''), '')} |"
        for key, this in all_exercises().items()
    ]
    solved = sum(known.get(key) == progress.SOLVED for key in all_exercises())
    head = [f"**{solved} of {len(rows)} exercises solved.**", ""]
    head += ["| exercise | title | difficulty | minutes | you |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def verdict(this: Exercise, report: Report | None) -> str:
    """What ``check`` prints: one line for the whole, one for each thing asked, and the likely mistake."""
    if report is None:
        return f"Exercise {this.key}: not tried yet."
    lines = [f"Exercise {this.key}: {'right.' if report.passed else 'not yet.'}"]
    lines += [f"  {'holds' if ok else 'DOES NOT HOLD':15}{what}" for ok, what, _ in report.lines]
    if report.likely:
        lines += [f"  {'likely':15}{report.likely}"]
    return "\n".join(lines)
