"""What a preflight says: lines with a verdict, a number and a cure, for a terminal and for a notebook."""

from dataclasses import dataclass
from html import escape

WORDS = {True: "pass", False: "FAIL", None: "----"}
COLOURS = {True: "#1a7f37", False: "#b3261e", None: "#6e6e6e"}


@dataclass(frozen=True)
class Line:
    """One test: ``passed`` is None where it could not be made."""

    name: str
    passed: bool | None
    measured: str
    advice: str = ""
    """what to do, shown where the line did not pass"""
    fatal: bool = False
    """True: nothing that comes after it would mean anything"""

    def __str__(self) -> str:
        advice = f"\n      {self.advice}" if self.advice and not self.passed else ""
        return f"{WORDS[self.passed]}  {self.name}: {self.measured}{advice}"


@dataclass(frozen=True)
class Report:
    """All lines of one preflight. Printing it shows them; ``passed`` is True if none failed."""

    lines: tuple[Line, ...]

    @property
    def passed(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the lines that failed, the likely root cause first."""
        return tuple(line.name for line in self.lines if line.passed is False)

    def __getitem__(self, name: str) -> Line:
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(f"{name!r} is not a line of this report: {', '.join(line.name for line in self.lines)}")

    def __str__(self) -> str:
        return "\n".join(str(line) for line in self.lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The lines as a table. Each verdict is a word as well as a colour."""
        return f"<table><tr>{_cells('th', '', 'test', 'measured')}</tr>{''.join(map(_row, self.lines))}</table>"


def listed(names: list[str]) -> str:
    """The first four, and how many there are beside them."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _row(line: Line) -> str:
    verdict = f'<b style="color:{COLOURS[line.passed]}">{WORDS[line.passed]}</b>'
    advice = f"<br><i>{escape(line.advice)}</i>" if line.advice and not line.passed else ""
    return f"<tr>{_cells('td', verdict, escape(line.name), escape(line.measured) + advice)}</tr>"


def _cells(kind: str, *contents: str) -> str:
    return "".join(f'<{kind} style="text-align:left">{content}</{kind}>' for content in contents)
