"""A case of notebook 11 and a run of it: what went wrong in it, what was logged, what can be run once more."""

import difflib
import inspect
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tinytrain.runlog import Run

Batch = dict[str, Tensor]
IGNORED = -100  # the label that is no target


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run that goes wrong. ``sick`` and ``mended`` hold what differs; ``code`` shows where it lies, both ways."""

    name: str
    updates: int
    lr: float = 3e-3
    weight_decay: float = 0.0
    batch: Callable[[int], Batch]
    """from a batch's number, 0 for the first"""
    sick: dict[str, Any]
    """``model``, ``loss``, ``scaler``: what the sick run uses in place of the usual"""
    mended: dict[str, Any]
    code: tuple[Any, Any]
    """the faulty source and the mended"""


def difference(case: Case) -> str:
    """What the mend changes, as a diff: lines that go begin with -, lines that come with +."""
    before, after = map(source, case.code)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def source(part: Any) -> str:
    """The source of a function or of several, without docstrings; text stays as it is."""
    if isinstance(part, str):
        return part
    if isinstance(part, tuple):
        return "\n\n".join(map(source, part))
    return textwrap.dedent(inspect.getsource(part)).strip()


@dataclass(frozen=True)
class Trial:
    """A run that was made: its log, and the weights as they were before each batch."""

    case: Case
    run: Run
    states: list[dict[str, Tensor]] = field(repr=False)
    usual: dict[str, Any] = field(repr=False)

    def series(self, name: str) -> list[float]:
        """One value per batch."""
        return [record[name] for record in self.run]

    @property
    def skips(self) -> list[int]:
        """Batches (from 0) whose update was not made."""
        return [n for n, skipped in enumerate(self.series("skipped")) if skipped]

    @property
    def nans(self) -> list[int]:
        """Batches (from 0) whose loss is not a finite number."""
        return [n for n, loss in enumerate(self.series("loss")) if not math.isfinite(loss)]

    @property
    def bad(self) -> list[int]:
        """Batches (from 0) whose loss or gradient is not finite."""
        pairs = zip(self.series("loss"), self.series("grad_norm"), strict=True)
        return [n for n, pair in enumerate(pairs) if not all(map(math.isfinite, pair))]

    @property
    def story(self) -> list[str]:
        """Loss, scale and whether it was skipped, batch by batch, to the last digit: NaN equals NaN here."""
        return [f"{r['loss']!r} {r['loss_scale']!r} {r['skipped']}" for r in self.run]

    def mean_loss(self, first: int, last: int | None) -> float:
        """The mean of the finite losses of batches ``first:last``, as in a slice; NaN if there is none."""
        finite = [loss for loss in self.series("loss")[first:last] if math.isfinite(loss)]
        return sum(finite) / len(finite) if finite else math.nan

    def before(self, n: int) -> tuple[nn.Module, Batch, float]:
        """The model as it was before batch n, that batch, and the loss scale of that step."""
        model = self.usual["model"]()
        model.load_state_dict(self.states[n])
        return model, self.case.batch(n), self.run.records[n]["loss_scale"]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of a batch, as this run computes it, in FP16."""
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(batch["input_ids"])
        return self.usual["loss"](logits, batch["labels"])
