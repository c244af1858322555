import json
import re
from pathlib import Path

import nbformat
import pytest

from tinytrain.course import claims
from tinytrain.course.claims import all_claims, cards_of, claim
from tinytrain.course.claims_page import claims_page
from tinytrain.course.rules import above, not_measurable, only_if
from tinytrain.course.series import SERIES

ROOT = Path(__file__).parents[2]


def stored(outputs, path):
    cell = nbformat.v4.new_code_cell("claim(...)")
    cell.outputs = [nbformat.v4.new_output("display_data", o.data, metadata=o.metadata) for o in outputs]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    return path


@pytest.fixture(autouse=True)
def _a_fresh_kernel(monkeypatch):
    monkeypatch.setattr(claims, "_shown", {})


def test_the_list_is_whole():
    claims = all_claims()
    assert len(claims) == 100
    assert all(re.fullmatch(r"[LOSTBGPKDRMNEZ]\d+", name) for name in claims)
    assert {each.source for each in claims.values()} == {
        "the training guide",
        "the hand-written model",
        "both",
        "ours",
        "the training guide's log",
    }
    assert all(set(each.notebooks) <= set(range(len(SERIES))) and each.notebooks for each in claims.values())
    assert {name for name, each in claims.items() if each.beyond_a_laptop} == {"P1", "S5", "S6", "E2", "Z3"}
    assert len({each.text for each in claims.values()}) == 100


def test_a_card_shows_claim_number_and_verdict(shown):
    assert claim("L3", {"none": 0.0, "half": 0.51234}, "of the loss", above(0.1), part="its size") == "does not hold"
    (card,) = shown.outputs
    markdown = card.data["text/markdown"]
    for text in ("Claim L3", "the training guide", "weights tokens unevenly", "its size", "more than 0.1"):
        assert text in markdown
    assert "none: 0; half: 0.5123 of the loss" in markdown and "**does not hold**" in markdown
    assert "does not hold" in card.data["text/plain"]


def test_the_claims_text_stands_on_its_first_card_also_when_that_is_run_again(shown):
    for part in ("its size", "its sign", "its size"):
        claim("L3", 1.0, "", above(0.1), part=part)
    text = all_claims()["L3"].text
    for kind in ("text/markdown", "text/plain"):
        assert [text in output.data[kind] for output in shown.outputs] == [True, False, True]
        assert "its sign" in shown.outputs[1].data[kind] and "holds" in shown.outputs[1].data[kind]
    assert "**Claim L3, again.** *Here: its sign.*" in shown.outputs[1].data["text/markdown"]


def test_a_verdict_at_the_end_of_a_cell_shows_nothing(shown):
    verdict = claim("L3", 1.0, "", above(0.1))
    assert verdict._ipython_display_() is None and len(shown.outputs) == 1


def test_a_line_break_or_a_star_breaks_no_card_and_no_label_is_lost(shown, tmp_path):
    claim("L3", {0: 1.0, "a*b\nc": 2.0}, "na\nts", above(0.1), part="its*\nsize")
    (card,) = cards_of(stored(shown.outputs, tmp_path / SERIES[1].file))
    assert (card.numbers(), card.part) == ("0: 1; a*b c: 2 na ts", "its* size")
    markdown = shown.outputs[0].data["text/markdown"]
    assert "a\\*b c: 2 na ts" in markdown and "*Here: its\\* size.*" in markdown and markdown.count("\n") == 2
    assert "a\\*b c: 2 na ts" in claims_page(tmp_path)


def test_an_infinite_number_is_stored_as_json_can(shown, tmp_path):
    claim("L3", {"torch": float("inf"), "ours": 2.0}, "nats", above(0.1))
    (card,) = cards_of(stored(shown.outputs, tmp_path / "a.ipynb"))
    assert card.numbers() == "torch: inf; ours: 2 nats"
    json.dumps(shown.outputs[0].metadata, allow_nan=False)


def test_an_unknown_claim_gets_no_card(shown):
    with pytest.raises(KeyError, match="there is no claim 'X1'"):
        claim("X1", 1.0, "", above(0))
    assert shown.outputs == []


def test_only_a_listed_claim_may_be_left_without_a_verdict(shown):
    with pytest.raises(ValueError, match="claim L3 can be measured here"):
        claim("L3", 1.0, "", not_measurable("time"))
    assert claim("S5", 1.0, "", not_measurable("more parameters")) == "not measurable here: needs more parameters"


def test_cards_come_back_from_a_stored_notebook_in_order(shown, tmp_path):
    claim("L3", {"z": 1.0, "a": 2.0}, "nats", above(0.1), part="one")
    claim("L1", 3, "", above(0.1))
    first, second = cards_of(stored(shown.outputs, tmp_path / "a.ipynb"))
    assert (first.id, first.part, first.numbers(), first.verdict) == ("L3", "one", "z: 1; a: 2 nats", "holds")
    assert (second.id, second.budget) == ("L1", "ci")


def test_the_page_has_each_card_each_open_claim_and_the_tally(shown, tmp_path):
    claim("L3", 0.5, "of a|b", above(0.1))
    claim("L3", {"with": 0.0, "without": 0.5}, "", only_if("nothing is padded", above(-1)), part="padded")
    stored(shown.outputs, tmp_path / SERIES[1].file)
    page = claims_page(tmp_path)
    assert "1 of 100 claims have cards, 2 cards in all: 2 *holds*." in page
    rows = [line for line in page.splitlines() if line.startswith("| L3 |")]
    assert len(rows) == 2
    assert "0.5 of a\\|b" in rows[0] and rows[0].endswith("[01](../notebooks/01_loss.ipynb) |")
    assert "*padded*" in rows[1]
    assert re.search(r"\| L4 \| .* \| to come \| 01 \|", page)


def test_the_page_in_docs_is_the_one_that_the_notebooks_give():
    assert (ROOT / "docs/claims.md").read_text(encoding="utf-8") == claims_page(ROOT / "notebooks"), (
        "docs/claims.md is old: run `make claims`"
    )


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_claim_has_its_card_once_its_notebook_exists(path):
    number, cards = int(path.name[:2]), cards_of(path)
    have = {card.id for card in cards}
    assert {each.id for each in all_claims().values() if each.notebooks[0] == number} <= have, "a claim without a card"
    strangers = {name for name in have if name not in all_claims() or number not in all_claims()[name].notebooks}
    assert strangers == set(), "a card in a notebook that its claim does not name"
    assert {card.budget for card in cards} == {"laptop"}, "stored outputs come from the budget `laptop`"


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_stored_verdict_is_one_of_the_five(path):
    kinds = r"holds|holds if .+|does not hold|no difference seen at this size|not measurable here: needs .+"
    assert all(re.fullmatch(kinds, card.verdict) for card in cards_of(path))
