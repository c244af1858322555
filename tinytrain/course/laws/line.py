"""What the laws found: a verdict, a number and a likely cause for each thing that was asked."""

import textwrap
from dataclasses import dataclass, field

HOLDS, BROKEN, UNTESTED = "holds", "broken", "could not be tested"


@dataclass(frozen=True)
class Line:
    """One thing asked of the trainer."""

    verdict: str
    number: str
    """what was measured, in words; of an untested line, why"""
    likely: str = ""
    """the likely cause, of a broken line"""


def holds_if(ok: bool, number: str, likely: str = "") -> Line:
    """A line that holds or is broken."""
    return Line(HOLDS if ok else BROKEN, number, "" if ok else likely)


def untested(why: str) -> Line:
    return Line(UNTESTED, why)


@dataclass
class Finding:
    """A law, and all that was asked about it."""

    law: str
    title: str
    lines: list[Line] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Broken if anything is; could not be tested if nothing could."""
        verdicts = [line.verdict for line in self.lines]
        return BROKEN if BROKEN in verdicts else HOLDS if HOLDS in verdicts else UNTESTED

    def __str__(self) -> str:
        shown = "BROKEN" if self.verdict == BROKEN else self.verdict
        text = [f"{self.law:9} {self.title:38} {shown}"]
        for line in self.lines:
            mark = "" if line.verdict == self.verdict else f"({line.verdict}) "
            text += _wrapped(f"{mark}{line.number}", " " * 10)
            if line.likely:
                text += _wrapped(f"likely: {line.likely}", " " * 10)
        return "\n".join(text)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=indent + "  ")


@dataclass
class Verdicts:
    """What all laws found. Prints as the report."""

    name: str
    findings: list[Finding]

    def of(self, verdict: str) -> list[str]:
        """The laws with this verdict."""
        return [finding.law for finding in self.findings if finding.verdict == verdict]

    @property
    def broken(self) -> list[str]:
        return self.of(BROKEN)

    @property
    def held(self) -> list[str]:
        return self.of(HOLDS)

    @property
    def untested(self) -> list[str]:
        return self.of(UNTESTED)

    def __getitem__(self, law: str) -> Finding:
        return next(finding for finding in self.findings if finding.law == law)

    def __str__(self) -> str:
        counts = f"{len(self.held)} hold, {len(self.broken)} broken, {len(self.untested)} could not be tested"
        return "\n".join([f"{self.name}: {counts}", "", *map(str, self.findings)])
