"""The glossary: each term stands there once, and its link leads to the section of a notebook that uses the term."""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = (ROOT / "docs/glossary.md").read_text("utf-8")
ENTRY = re.compile(
    r"\* \*\*(?P<term>[^*]+)\*\*: (?P<sentence>.+\.) \[(?P<shown>.+)\]\(\.\./(?P<file>[^#)]+)#(?P<anchor>.+)\)"
)
LINES = [line for line in GLOSSARY.splitlines() if line.startswith("*")]
ENTRIES = [entry.groupdict() for entry in map(ENTRY.fullmatch, LINES) if entry]


def sections(path: Path) -> dict[str, str]:
    """What a notebook says under each of its headings, in words and in code; made cells with links are left out."""
    found: dict[str, str] = {}
    heading = ""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.id.startswith("nav-"):
            continue
        for line in cell.source.splitlines():
            if cell.cell_type == "markdown" and (title := re.fullmatch(r"#+ (.+)", line)):
                heading = title[1]
            found[heading] = found.get(heading, "") + line + "\n"
    return found


def uses(text: str, term: str) -> bool:
    """Whether a text has a term as a word of its own, alone or in the plural.

    >>> uses("two rows", "row"), uses("The Row.", "row"), uses("grown", "row")
    (True, True, False)
    """
    return re.search(rf"(?<!\w){re.escape(term)}s?(?!\w)", text, re.IGNORECASE) is not None


SECTIONS = {path.name: sections(path) for path in (ROOT / "notebooks").glob("*.ipynb")}


def test_each_line_is_a_term_a_sentence_and_a_link():
    assert len(LINES) >= 50
    assert [line for line in LINES if not ENTRY.fullmatch(line)] == []
    assert [e["term"] for e in ENTRIES if re.search(r"[.!?] [A-Z]", e["sentence"])] == [], "one sentence for a term"


def test_each_term_stands_there_once():
    terms = [entry["term"].lower() for entry in ENTRIES]
    assert sorted({term for term in terms if terms.count(term) > 1}) == []


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["term"])
def test_a_term_leads_to_a_section_that_uses_it(entry):
    path = ROOT / entry["file"]
    assert path.is_file(), f"there is no {entry['file']}"
    number, _, heading = entry["shown"].partition(", ")
    assert path.name.startswith(f"{number}_"), f"the link names notebook {number} and leads to {path.name}"
    there = SECTIONS[path.name]
    assert heading in there, f"{path.name} has no heading {heading!r}; it has {list(there)}"
    assert entry["anchor"] == heading.replace(" ", "-"), "an anchor is its heading with dashes, as JupyterLab makes it"
    assert uses(there[heading], entry["term"]), f"{path.name} does not say {entry['term']!r} under {heading!r}"
