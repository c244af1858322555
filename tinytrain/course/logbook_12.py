"""Notebook 12's logbook: dated entries, and whether a hypothesis held."""

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from tinytrain.course.rules import SPREADS

HELD = ("yes", "no", "not seen")


def held(gain: float, spread: float) -> str:
    """Whether "this gains" held: "yes" or "no" where ``gain`` is three spreads or more from 0, else "not seen"."""
    if abs(gain) < SPREADS * spread:
        return "not seen"
    return "yes" if gain > 0 else "no"


class Logbook:
    """Dated entries, one JSON line each, that are added and never changed."""

    COLUMNS = ("date", "hypothesis", "change", "result", "held", "kept")

    def __init__(self, path: Path) -> None:
        self.path, self.entries = path, []

    def add(self, outcome: str, kept: bool, *, hypothesis: str, change: str, result: str) -> None:
        """Write an entry: what was expected, the one thing that was changed, and what was measured.

        ``outcome`` says whether the hypothesis held: "yes", "no" or "not seen". ``kept`` says whether the change stays.
        """
        if outcome not in HELD:
            raise ValueError(f"outcome={outcome!r} must be one of {', '.join(HELD)}")
        day, words = date.today().isoformat(), "yes" if kept else "no"
        entry = dict(zip(self.COLUMNS, (day, hypothesis, change, result, outcome, words), strict=True))
        self.entries.append(entry)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def _rows(self) -> Iterator[list[str]]:
        return ([entry[name] for name in self.COLUMNS] for entry in self.entries)

    def _repr_markdown_(self) -> str:
        head = f"| {' | '.join(self.COLUMNS)} |\n|{':---|' * len(self.COLUMNS)}\n"
        unbroken = ([row[0].replace("-", "\u2011"), *row[1:]] for row in self._rows())  # hyphens that end no line
        return head + "\n".join(f"| {' | '.join(row)} |" for row in unbroken)

    def __repr__(self) -> str:
        return "\n".join("; ".join(row) for row in self._rows())
