"""What the project set out to reach in speed, beside what RESULTS.md has recorded: the table at its head."""

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mark:
    """One aim: where its numbers are found in a section of RESULTS.md, and whether they are good enough."""

    what: str
    asked: str
    section: str
    found: str
    """a regular expression; each of its matches is one number, as printed"""
    reached: Callable[[float], bool]
    unit: str = ""
    missing: str = "run `make bench`"
    worst: Callable[..., float] = max
    """of several numbers, the one that decides"""


MARKS = [
    Mark(
        "a step's fixed cost over a bare loop, log on",
        "0.3 ms or less",
        "overhead",
        r"`Trainer`, log on disk \| [\d.]+ \| \+?(-?[\d.]+) ms",
        lambda ms: ms <= 0.3,
        " ms",
    ),
    Mark(
        "tokens/s of the 0.8 M configuration, of a bare loop's",
        "1, within the 8 % of a shared machine",
        "tokens",
        r"`Trainer`, log on disk \|[^|]*\|[^|]*\| [\d,]+ \| ([\d.]+)",
        lambda ratio: ratio >= 0.92,
        worst=min,
    ),
    Mark("live plot", "1 % of the time or less", "live plot", r"\| ([+-][\d.]+)% \|", lambda share: share <= 1, " %"),
    Mark(
        "real tokens/s on mixed lengths, bucketed over random padding",
        "1.4 times",
        "batches",
        r"bucketed \| [\d.]+ ?% \| [\d,]+ \| ([\d.]+)",
        lambda ratio: ratio >= 1.4,
        worst=min,
    ),
    Mark(
        "the same, packed",
        "1.5 times",
        "batches",
        r"packed \| [\d.]+ ?% \| [\d,]+ \| ([\d.]+)",
        lambda ratio: ratio >= 1.5,
        worst=min,
    ),
    Mark(
        "a checkpoint of 29 M parameters blocks training, of a plain save",
        "a sixth or less",
        "saving",
        r"\| 29,125,632 \|[^|]*\|[^|]*\| ([\d.]+)",
        lambda ratio: ratio <= 1 / 6,
    ),
    Mark(
        "`import tinytrain` over `import torch`",
        "0.3 s or less",
        "importing",
        r"`import tinytrain` \| [\d.]+ \| ([+-][\d.]+)",
        lambda seconds: seconds <= 0.3,
        " s",
    ),
    Mark(
        "all notebooks under nbmake, the tests' budget",
        "15 minutes on two quiet cores",
        "notebooks",
        r"\| all \| (\d+) \|",
        lambda seconds: seconds <= 900,
        " s",
        "`python benchmarks/report.py notebooks`",
    ),
    Mark(
        "120M in BF16 on an H200",
        "560,000 tokens/s",
        "gpu",
        r"\| BF16(?:, compiled)? \| ([\d,]+)",
        lambda rate: rate >= 560_000,
        missing="no GPU yet; `python benchmarks/gpu.py`",
    ),
]


def sections(text: str) -> dict[str, str]:
    """The sections of RESULTS.md by name, as ``report.py`` has put them between comments."""
    found = re.findall(r"<!-- begin ([\w ]+) -->\n(.*?)<!-- end \1 -->", text, re.DOTALL)
    return dict(found)


def line(mark: Mark, recorded: dict[str, str]) -> str:
    """One row: the aim, what was asked, every number that was recorded, and whether the worst of them is enough."""
    printed = re.findall(mark.found, recorded.get(mark.section, ""))
    if not printed:
        return f"| {mark.what} | {mark.asked} | not measured: {mark.missing} | |"
    decides = mark.worst(float(each.replace(",", "")) for each in printed)
    said = ", ".join(each.lstrip("+") + mark.unit for each in printed)
    return f"| {mark.what} | {mark.asked} | {said} | {'reached' if mark.reached(decides) else '**missed**'} |"


def table(text: str) -> str:
    """The table of all marks from the text of RESULTS.md."""
    recorded = sections(text)
    rows = [line(mark, recorded) for mark in MARKS]
    return "\n".join(["| what | to reach | measured | |", "|---|---|---|---|", *rows])
