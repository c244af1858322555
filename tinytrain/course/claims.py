"""What two articles on training language models say, and what was measured: one card for each claim.

``claims.toml`` lists every claim. A card shows a claim, a number and a verdict that follows from the number by a rule;
it is stored in the notebook's output together with its data, and ``docs/claims.md`` is built from all of them
(``claims_page.py``).
"""

import math
import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import nbformat

from tinytrain.course.budget import budget
from tinytrain.course.rules import NOT_MEASURABLE, Measured, Rule, values_of

MARK = "tinytrain_claim"  # the key of a card's data in an output's metadata


@dataclass(frozen=True)
class Claim:
    """One statement. ``notebooks`` are the lessons that take it up; the first owns it."""

    id: str
    text: str
    source: str
    notebooks: tuple[int, ...]
    beyond_a_laptop: bool
    """whether the verdict "not measurable here" is allowed"""


@cache
def all_claims() -> dict[str, Claim]:
    """Every claim by its id, in the order of the list."""
    data = tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))
    return {
        name: Claim(name, entry["claim"], entry["source"], tuple(entry["notebooks"]), entry.get("beyond", False))
        for name, entry in data.items()
    }


def claim(id: str, measured: Measured, unit: str, rule: Rule, *, part: str = "") -> str:
    """Show the card of claim ``id`` and return its verdict, which is what ``rule`` makes of ``measured``.

    ``measured`` is a number, or several by label, in ``unit``. ``part`` says which part of the claim this measures.
    The claim's text stands on its first card alone; cards of its other parts leave it out.
    Raises ``KeyError`` for an id that is not on the list, and ``ValueError`` where the rule is "not measurable" and
    the claim is not among those that a laptop cannot show.
    """
    if id not in all_claims():
        raise KeyError(f"there is no claim {id!r}; the list is {Path(__file__).with_name('claims.toml').name}")
    this, verdict = all_claims()[id], rule(measured)
    if verdict.startswith(NOT_MEASURABLE) and not this.beyond_a_laptop:
        raise ValueError(f"claim {id} can be measured here; only a claim marked `beyond` may be left without a verdict")
    numbers = [(_one_line(str(label)), _stored(value)) for label, value in values_of(measured).items()]
    card = Card(id, _one_line(part), numbers, _one_line(unit), _one_line(rule.says), _one_line(verdict), budget())
    from IPython.display import display

    again = _shown.setdefault(id, card.part) != card.part
    bundle = {"text/markdown": card.markdown(again=again), "text/plain": card.plain(again=again)}
    display(bundle, raw=True, metadata={MARK: asdict(card)})
    return Verdict(verdict)


_shown: dict[str, str] = {}
"""the claims that this kernel has shown, each with the part that was first"""


class Verdict(str):
    """A verdict in words. As the last line of a cell it shows nothing: its card has been shown."""

    def _ipython_display_(self) -> None:
        pass


@dataclass(frozen=True)
class Card:
    """A claim's number and verdict, as they are stored."""

    id: str
    part: str
    measured: list[tuple[str, float | str]]
    """label and number; a list, since stored objects lose their order; infinity as text, since JSON has none"""
    unit: str
    rule: str
    verdict: str
    budget: str

    def numbers(self) -> str:
        """The measured numbers with their labels and unit."""
        values = [f"{label}: {_short(value)}" if label != "" else _short(value) for label, value in self.measured]
        return "; ".join(values) + (f" {self.unit}" if self.unit else "")

    def markdown(self, *, again: bool = False) -> str:
        """The card; the claim's text is left out where it is shown ``again``."""
        this = all_claims()[self.id]
        text = "" if again else f" ({this.source}): {this.text}."
        part = f" *Here: {plain_stars(self.part)}.*" if self.part else ""
        numbers, rule, verdict = map(plain_stars, (self.numbers(), self.rule, self.verdict))
        return (
            f"> **Claim {self.id}{', again.' if again else ''}**{text}{part}\n>\n"
            f"> {numbers} &ensp;·&ensp; asked: {rule} &ensp;·&ensp; **{verdict}**"
        )

    def plain(self, *, again: bool = False) -> str:
        """The card without Markdown."""
        part = f" [{self.part}]" if self.part else ""
        text = f"Claim {self.id}{part}" + ("" if again else f": {all_claims()[self.id].text}")
        return f"{text}\n  {self.numbers()} (asked: {self.rule})\n  {self.verdict}"


def _one_line(text: str) -> str:
    """Without line breaks, which would break a card's quote and a table's row."""
    return " ".join(text.split())


def plain_stars(text: str) -> str:
    """The text for Markdown, with stars that are only stars, as in ``loss*mask``."""
    return text.replace("*", "\\*")


def _stored(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


def _short(value: float | str) -> str:
    value = float(value)
    whole = math.isfinite(value) and value == int(value) and abs(value) < 1e9
    return f"{int(value):,}" if whole else f"{value:.4g}"


def cards_of(path: str | Path) -> list[Card]:
    """The cards stored in a notebook's outputs, in order."""
    notebook = nbformat.read(path, as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [Card(**output["metadata"][MARK]) for output in outputs if MARK in output.get("metadata", {})]
