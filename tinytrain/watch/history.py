"""History: a run as a picture needs it, its numbers over one axis, and what happened to it."""

import math
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tinytrain.checkpoint import Checkpointer
from tinytrain.runlog import Run, read_run
from tinytrain.train import CHECKPOINTS
from tinytrain.watch.curve import number

OVER = {
    "step": "step (completed updates)",
    "tokens_seen": "target tokens seen",
    "seconds": "seconds of training, without evaluations and pauses",
}
"""What a run can be drawn over, and what the axis is then called."""


class History:
    """A run under its label. ``over`` names what lies on the x axis, one of ``OVER``.

    The seconds are those that the log has for each batch, waiting for data and the update itself, added up: a run that
    was stopped for a night and resumed has no gap there.

    Raises ``ValueError`` for another ``over``, ``FileNotFoundError`` for a folder without a log.
    """

    def __init__(self, label: str, run: Run | str | Path, over: str = "step") -> None:
        if over not in OVER:
            raise ValueError(f"over={over!r} is not known: runs can be drawn over {', '.join(OVER)}")
        self.label, self.over = label, over
        self.run = run if isinstance(run, Run) else read_run(run)

    @cached_property
    def xs(self) -> np.ndarray:
        """Where each line lies, float [lines]; NaN for one that does not tell."""
        if self.over == "seconds":
            parts = [(r.get("seconds_data"), r.get("seconds_step")) for r in self.run]
            known = [[_number(part) for part in pair] for pair in parts]
            seconds = np.array(known, dtype=float).reshape(-1, 2)
            told = np.isfinite(seconds).any(1)
            return np.where(told, np.cumsum(np.nan_to_num(seconds).sum(1)), np.nan)
        return np.array([_number(r.get(self.over)) for r in self.run], dtype=float)

    def values(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Places and values on the lines that have both. Raises ``ValueError`` for a name that holds text."""
        found = [record.get(name) for record in self.run]
        if text := next((value for value in found if isinstance(value, str)), None):
            raise ValueError(f"{self.label}: {name!r} holds text ({text!r}), which has no place on an axis")
        kept = np.array([value is not None for value in found], dtype=bool) & np.isfinite(self.xs)
        return self.xs[kept], np.array([found[i] for i in np.flatnonzero(kept)], dtype=float)

    @cached_property
    def end(self) -> float:
        """Where the last line lies; NaN for a log that has none."""
        known = self.xs[np.isfinite(self.xs)]
        return float(known[-1]) if len(known) else math.nan

    @cached_property
    def skipped(self) -> np.ndarray:
        """The places of updates that were not made, and that the log tells of."""
        return self.xs[np.array([bool(r.get("skipped")) for r in self.run], dtype=bool) & np.isfinite(self.xs)]

    @cached_property
    def skipped_at_end(self) -> int:
        """How many of the last lines are of updates that were not made."""
        made = (i for i, record in enumerate(reversed(self.run.records)) if not record.get("skipped"))
        return next(made, len(self.run))

    @cached_property
    def checkpoints(self) -> list[tuple[float, bool]]:
        """Places of the checkpoints in the run's folder, and whether a run can be resumed from each.

        Read from the checkpoints' own manifests, which are there only once a checkpoint is whole. A line of the log is
        written before the save, so that no checkpoint is ahead of the log, and could only say what was meant to come.
        Those that were removed since are not told of, nor those of a course that a resume has left.
        """
        if not self.run.folder.is_dir():
            return []
        store = Checkpointer(self.run.folder / CHECKPOINTS)
        with warnings.catch_warnings():  # one without a readable manifest is none
            warnings.simplefilter("ignore")
            found = [*store.all(), *filter(None, [store.best()])]
        at = {r.get("step"): x for r, x in zip(self.run, self.xs, strict=True) if not r.get("skipped")}
        full: dict[float, bool] = {}
        for checkpoint in found:
            place = at.get(checkpoint.step, math.nan)
            if math.isfinite(place):
                full[place] = full.get(place, False) or checkpoint.full
        return sorted(full.items())

    def words(self, place: float) -> str:
        """What to call a place, `"step 12"` or `"0.35 s"`."""
        unit = {"step": "step {}", "tokens_seen": "{} tokens", "seconds": "{} s"}[self.over]
        return unit.format(number(place))


def _number(value: Any) -> float:
    return math.nan if value is None or isinstance(value, str) else float(value)
