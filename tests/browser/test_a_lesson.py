"""What lessons are made of, as a reader meets it: a slider that draws again, folded hints, a checked answer, a card."""

import nbformat
import pytest
from labpage import outputs, text_of
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tinytrain.course.cells import refresh
from tinytrain.course.series import SERIES

pytestmark = pytest.mark.browser

SOURCES = {
    "sliders": """\
from matplotlib.figure import Figure
from torch import Tensor

from tinytrain.course.claims import claim
from tinytrain.course.exercises import check
from tinytrain.course.explore import explore
from tinytrain.course.rules import above


def draw(height, width):
    figure = Figure(figsize=(5, 2), layout="constrained")
    figure.subplots().plot([0, width], [0, height])
    return figure


explore(draw, height=[1.0, 2.0, 3.0], width=[1, 2])""",
    "card": 'claim("L3", {"half": 0.5, "none": 0.0}, "of the loss", above(0.1), part="its size")',
    "answer": "def causal_mask(T):\n    import torch\n\n    return torch.ones(T, T, dtype=torch.bool).triu(1)",
    "check": 'check("00.1", causal_mask)',
}
METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


@pytest.fixture
def lesson(lab, open_notebook):
    """A short lesson, open and run to its end: an exercise not touched, and after it a wrong answer."""
    cells = [
        new_markdown_cell("# 01 · Why is this loss wrong?"),
        new_code_cell(SOURCES["sliders"]),
        new_code_cell(SOURCES["card"]),
        new_markdown_cell("<!-- exercise 00.1 -->"),
        new_code_cell(SOURCES["answer"]),
        new_code_cell(SOURCES["check"]),
    ]
    notebook = new_notebook(cells=cells, metadata=METADATA)
    refresh(notebook, SERIES[1], lab.root)
    nbformat.write(notebook, lab.root / "lesson.ipynb")
    page = open_notebook("lesson.ipynb")
    page.run_all()
    page.wait_until_done(seconds=120)
    return page


def picture_of(page):
    (picture,) = outputs(page.cells()[:1], "image/png")
    return picture.data["image/png"]


def test_a_lesson_in_the_browser(lesson, open_notebook, screenshots):
    before = picture_of(lesson)
    handle = lesson.cell(0).locator(".noUi-handle").first
    lesson.bring_into_view(handle)
    handle.press("ArrowRight")
    lesson.wait_until(lambda _cells: picture_of(lesson) != before, "another picture", seconds=20)
    lesson.page.screenshot(path=screenshots / "lesson_1_slider.png")

    _, card, _, untried, _, wrong = lesson.cells()
    assert "not tried yet" in text_of(untried)
    assert "not yet." in text_of(wrong) and "turned round" in text_of(wrong)
    assert card.outputs[0].metadata["tinytrain_claim"]["verdict"] == "does not hold"
    shown = lesson.cell(1).locator(".jp-RenderedMarkdown")
    assert "does not hold" in shown.inner_text() and "Claim L3" in shown.inner_text()

    hint = lesson.page.locator(".jp-MarkdownCell details").first
    lesson.bring_into_view(hint)
    inside = hint.locator("p").first
    assert not inside.is_visible()
    hint.locator("summary").click()
    assert inside.is_visible()
    lesson.page.screenshot(path=screenshots / "lesson_2_exercise.png")

    saved = lesson.save()
    moved = outputs([cell for cell in saved.cells if cell.cell_type == "code"][:1], "image/png")
    assert moved[0].data["image/png"] != before
    assert lesson.problems == []
    lesson.close()

    again = open_notebook("lesson.ipynb")
    picture = again.cell(0).locator("img")
    again.bring_into_view(picture)
    assert picture.evaluate("image => image.naturalWidth") > 200, "the picture is there without running anything"
