"""The case files of notebook 11 as a reader meets them in the stored file: look, accuse, be told, reveal."""

import shutil
from pathlib import Path

import pytest
from labpage import folds_of, told_by

pytestmark = pytest.mark.browser

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAME = "11_nan_lab.ipynb"


@pytest.fixture
def lab_page(lab, open_notebook):
    shutil.copy(NOTEBOOKS / NAME, lab.root / NAME)
    return open_notebook(NAME)


def cell_of_guess(page, question):
    """Which code cell asks guess number ``question``."""
    return [i for i, cell in enumerate(page.cells()) if "guess(" in cell.source][question]


def test_the_headline_case_is_looked_at_accused_and_revealed(lab_page, screenshots):
    picture = lab_page.cell(0).locator("img").first
    lab_page.bring_into_view(picture)
    assert picture.evaluate("image => image.naturalWidth") > 300
    choices = {fold.locator("summary").inner_text(): fold for fold in folds_of(lab_page, cell_of_guess(lab_page, 0))}
    assert "No." in told_by(choices["blocks.0.norm1, forward"])
    assert "Yes." in told_by(choices["blocks.0.norm1, backward"])
    revealed = told_by(choices["Reveal"])
    assert "wide = " in revealed or "wide * torch.rsqrt" in revealed, "the mend as a diff"
    lab_page.page.screenshot(path=screenshots / "notebook_11_accused.png")
    assert lab_page.problems == []


def test_every_case_has_one_right_accusation_among_several(lab_page):
    seen = [cell for cell in lab_page.cells() if "guess(" in cell.source]
    assert len(seen) == 7
    for cell in seen:
        (shown,) = [
            o.data["text/markdown"] for o in cell.outputs if "<summary>" in o.get("data", {}).get("text/markdown", "")
        ]
        assert shown.count("**Yes.**") == 1 and shown.count("**No.**") >= 3
