"""The gallery of notebook 10 as a reader meets it: stored pictures and folds, and made anew by a live kernel."""

import shutil
from pathlib import Path

import nbformat
import pytest
from labpage import folds_of, outputs, told_by
from nbformat.v4 import new_code_cell, new_notebook

from tinytrain.course.gallery_10 import GALLERY

pytestmark = pytest.mark.browser

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAME = "10_curves.ipynb"
METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
LIVE = [
    """\
from pathlib import Path
from tempfile import mkdtemp

from tinytrain.course.explore import explore
from tinytrain.course.gallery_10 import ask, portrait, sheet
from tinytrain.course.lesson_10 import make_all

runs = make_all(["small", "labels not shifted", "lr too small"], Path(mkdtemp()))
picture = sheet({"F": runs["labels not shifted"], "G": runs["lr too small"]}, runs["small"])""",
    'ask("F", runs["labels not shifted"])',
    """\
def draw(run, doctor):
    return portrait("F" if "labels" in run else "G", runs[run], runs["small"], doctor)


explore(draw, run=["labels not shifted", "lr too small"], doctor=["hidden", "shown"])""",
]


def picture_of(page, cell):
    (picture,) = outputs(page.cells()[cell : cell + 1], "image/png")
    return picture.data["image/png"]


def test_the_stored_gallery_is_looked_at_guessed_and_revealed(lab, open_notebook, screenshots):
    shutil.copy(NOTEBOOKS / NAME, lab.root / NAME)
    page = open_notebook(NAME)
    cells = page.cells()
    sheets = [i for i, cell in enumerate(cells) if "sheet({" in cell.source]
    asks = [i for i, cell in enumerate(cells) if "ask(letter" in cell.source]
    assert len(sheets) == len(asks) == 2
    for number, (pictures, questions) in enumerate(zip(sheets, asks, strict=True)):
        image = page.cell(pictures).locator("img").first
        page.bring_into_view(image)
        assert image.evaluate("image => image.naturalWidth") > 600
        page.page.screenshot(path=screenshots / f"notebook_10_room_{number + 1}.png")
        folds, letters = folds_of(page, questions), list(GALLERY)[5 * number : 5 * number + 5]
        assert len(folds) == 4 * 5
        for i, letter in enumerate(letters):
            *choices, reveal = folds[4 * i : 4 * i + 4]
            right = GALLERY[letter][0]
            told = {fold.locator("summary").inner_text(): told_by(fold) for fold in choices}
            assert [name for name, reply in told.items() if "Yes." in reply] == [right]
            assert "The doctor says" in told_by(reveal)
        page.page.screenshot(path=screenshots / f"notebook_10_revealed_{number + 1}.png")
    assert page.problems == []


def test_a_live_kernel_hangs_the_gallery_anew_and_the_slider_goes_from_run_to_run(lab, open_notebook, screenshots):
    notebook = new_notebook(cells=[new_code_cell(source) for source in LIVE], metadata=METADATA)
    nbformat.write(notebook, lab.root / "gallery.ipynb")
    page = open_notebook("gallery.ipynb")
    page.run_all()
    page.wait_until_done(seconds=120)
    assert page.cell(0).locator("img").count() == 1
    assert "Yes." in told_by(folds_of(page, 1)[1])
    seen = [picture_of(page, 2)]
    for slider in range(2):
        handle = page.cell(2).locator(".noUi-handle").nth(slider)
        page.bring_into_view(handle)
        handle.press("ArrowRight")
        page.wait_until(lambda _cells: picture_of(page, 2) != seen[-1], "another picture", seconds=20)
        seen.append(picture_of(page, 2))
    assert len(set(seen)) == 3
    page.page.screenshot(path=screenshots / "notebook_10_slider.png")
    assert page.problems == []
