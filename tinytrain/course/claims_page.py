"""``docs/claims.md``: every claim with the numbers and verdicts that the executed notebooks hold."""

from collections.abc import Mapping
from pathlib import Path

from tinytrain.course.claims import Card, Claim, all_claims, cards_of, plain_stars
from tinytrain.course.rules import NOT_MEASURABLE
from tinytrain.course.series import SERIES, Lesson

Found = Mapping[str, list[tuple[Lesson, Card]]]
INTRODUCTION = """\
# Claims, numbers, verdicts

Two articles on training language models make these statements, here in our words: *the training guide*, and
*the hand-written model*, whose code some of the faults are read from. *Ours* are neither's. Each was measured in the
notebook named, on the machine that ran it last. The verdict follows from the number by the rule in the column
*asked*. Some limits were set or changed after a first number had been seen, so read the number before the verdict.
`make claims` builds this page from the notebooks' stored outputs."""
KINDS = ("holds", "holds if", "does not hold", "no difference seen at this size", "not measurable here")


def claims_page(folder: str | Path) -> str:
    """The page, from the notebooks in ``folder``."""
    cards: dict[str, list[tuple[Lesson, Card]]] = {}
    for lesson in SERIES:
        path = Path(folder) / lesson.file
        for card in cards_of(path) if path.is_file() else []:
            cards.setdefault(card.id, []).append((lesson, card))
    head = ["| id | claim | measured | asked | verdict | notebook |", "|---|---|---|---|---|---|"]
    rows = [row for this in all_claims().values() for row in _rows(this, cards)]
    return "\n".join([INTRODUCTION, "", _tally(cards), "", *head, *rows]) + "\n"


def _rows(this: Claim, cards: Found) -> list[str]:
    if this.id not in cards:
        return [f"| {this.id} | {_cell(this.text)} ({this.source}) | | | to come | {this.notebooks[0]:02d} |"]
    return [_row(this, lesson, card) for lesson, card in cards[this.id]]


def _row(this: Claim, lesson: Lesson, card: Card) -> str:
    text = f"{this.text} ({this.source})" + (f"; *{plain_stars(card.part)}*" if card.part else "")
    link = f"[{lesson.number:02d}](../notebooks/{lesson.file})"
    numbers, rule, verdict = map(plain_stars, (card.numbers(), card.rule, card.verdict))
    cells = [this.id, text, numbers, rule, f"**{verdict}**"]
    return "| " + " | ".join([*map(_cell, cells), link]) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _tally(cards: Found) -> str:
    verdicts = [_kind(card.verdict) for found in cards.values() for _, card in found]
    told = ", ".join(f"{verdicts.count(kind)} *{kind}*" for kind in KINDS if kind in verdicts)
    return f"{len(cards)} of {len(all_claims())} claims have cards, {len(verdicts)} cards in all: {told or 'none yet'}."


def _kind(verdict: str) -> str:
    if verdict.startswith(NOT_MEASURABLE):
        return "not measurable here"
    return "holds if" if verdict.startswith("holds if") else verdict
