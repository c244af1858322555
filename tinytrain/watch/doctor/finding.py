"""What the doctor says: one finding with its evidence, and the list of all for a terminal or a notebook."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

STAGES = ("input", "event", "shape", "eval", "cost")
"""*input*: what the run was given (its learning rate, its labels, its first weights). *event*: what happened at one
moment (a spike, a NaN, the loss scale). *shape*: a loss that goes nowhere. *eval*: training and evaluation compared.
*cost*: time and memory, which leave the curve as it is."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with a run, or looks so."""

    name: str
    """short, and always the same for the same thing"""
    stage: str
    """one of ``STAGES``"""
    symptom: str
    """what is seen, in a sentence"""
    since: int
    """where it begins"""
    unit: str
    """what ``since`` counts: "update", "batch", or "line" of a log that has neither"""
    evidence: str
    """the numbers, with units"""
    cause: str
    """the likely cause"""
    checks: tuple[str, ...]
    """what to look at next, in this order"""

    def __str__(self) -> str:
        steps = "".join(f"\n          {n}. {check}" for n, check in enumerate(self.checks, 1))
        return (
            f"{self.name}, since {self.unit} {self.since}: {self.symptom}\n"
            f"    seen  {self.evidence}\n    cause {self.cause}\n    next{steps[9:]}"
        )


def causes_first(finding: Finding) -> tuple[int, int, int]:
    """The order in which findings are told, as a key to sort by: causes before what they bring about.

    What was given and what happened come first, the earlier before the later, for nothing has its cause behind it; of
    two that begin at the same update the one that was given. Then the shape of the curve, which any of those explains,
    then evaluation, which means something only where training works, then costs.
    """
    stage = STAGES.index(finding.stage)
    return max(0, stage - 1), finding.since, stage


class Findings(list[Finding]):
    """All findings of a run, the most likely root first. An empty one says what was looked at."""

    def __init__(self, findings: Iterable[Finding], *, lines: int, looked_for: list[str], not_seen: dict[str, str]):
        super().__init__(findings)
        self.lines = lines
        """lines of the log"""
        self.looked_for = looked_for
        """names of the findings that were looked for"""
        self.not_seen = not_seen
        """name of a finding that could not be looked for: why"""

    def names(self) -> list[str]:
        return [finding.name for finding in self]

    def _summary(self) -> str:
        what = f"{self.lines} line{'s' if self.lines != 1 else ''} of the log looked at"
        return (
            what
            if self
            else f"Nothing found. {what[0].upper()}{what[1:]} for: {', '.join(self.looked_for) or 'nothing'}"
        )

    def _left_out(self) -> str:
        whys: dict[str, list[str]] = {}
        for name, why in self.not_seen.items():
            whys.setdefault(why, []).append(name)
        return "; ".join(f"{', '.join(names)} ({why})" for why, names in whys.items())

    def __str__(self) -> str:
        told = [f"{n}. {finding}" for n, finding in enumerate(self, 1)] + [self._summary() + "."]
        if self.not_seen:
            told.append(f"Not looked for: {self._left_out()}.")
        return "\n".join(told)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left_out = f" Not looked for: {escape(self._left_out())}." if self.not_seen else ""
        if not self:
            return f"<p>{escape(self._summary())}.{left_out}</p>"
        rows = "".join(
            _row(
                f"<b>{escape(f.name)}</b><br>since {f.unit} {f.since}",
                f"{escape(f.symptom)}<br>{escape(f.evidence)}",
                escape(f.cause),
                "<br>".join(f"{n}. {escape(check)}" for n, check in enumerate(f.checks, 1)),
            )
            for f in self
        )
        head = "".join(
            f"<th style='text-align:left'>{name}</th>" for name in ("finding", "seen", "likely cause", "next")
        )
        return (
            f"<table style='text-align:left'><tr>{head}</tr>{rows}</table><p>{escape(self._summary())}.{left_out}</p>"
        )


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>"  # JupyterLab: right
