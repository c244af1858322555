"""The first notebook as a reader meets it: run it all, watch it train, press Stop, save, come back."""

import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from labpage import outputs

pytestmark = pytest.mark.browser

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "00_start_here.ipynb"
WHOLE_NOTEBOOK_S = 900  # a guard against hanging, not a budget


@pytest.fixture
def notebook(lab, open_notebook):
    """An unexecuted copy, open; `training` is the number of the code cell with the live plot."""
    copy = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in copy.cells if cell.cell_type == "code"]
    for cell in code:
        cell.outputs, cell.execution_count = [], None
    nbformat.write(copy, lab.root / NOTEBOOK.name)
    page = open_notebook(NOTEBOOK.name)
    watched = re.compile("^with (LivePlot|live)\\b", re.MULTILINE)
    page.training = next(i for i, cell in enumerate(code) if watched.search(cell.source))
    return page


def seconds_trained(page):
    """The time that the chart shows, or None when it is gone."""
    texts = page.chart().locator("text").all_text_contents() if page.chart().count() else []
    times = [re.search(r"(\d+):(\d\d)$", text) for text in texts if "step" in text]
    return next((60 * int(t[1]) + int(t[2]) for t in times if t), None)


def picture_for_the_readme(page, path):
    """The widget alone, button and chart, when the curve has 15 seconds of training."""
    while (seconds := seconds_trained(page)) is not None and seconds < 15:
        page.page.wait_for_timeout(200)
    assert seconds is not None, "the training ended before it had run 15 s"
    box = page.bring_into_view(page.page.locator(".jp-OutputArea-output .widget-vbox"))
    chart = page.chart().bounding_box()
    page.page.screenshot(path=path, clip=box | {"width": chart["x"] + chart["width"] - box["x"] + 4})


@pytest.mark.parametrize("how", ["button", "interrupt"])
def test_it_trains_stops_goes_on_and_is_there_when_opened_again(how, notebook, open_notebook, screenshots):
    notebook.run_all()
    notebook.wait_until_it_moves(seconds=WHOLE_NOTEBOOK_S)
    if "TINYTRAIN_SCREENSHOTS" in os.environ and how == "button":
        picture_for_the_readme(notebook, screenshots / "live_plot.png")
    notebook.bring_into_view(notebook.chart())
    notebook.page.screenshot(path=screenshots / f"notebook_00_{how}_1_during.png")

    notebook.click_stop() if how == "button" else notebook.click_interrupt()
    training, following = notebook.training, notebook.training + 1
    notebook.wait_until(lambda cells: cells[training].execution_count, "the end of the training", seconds=5)
    notebook.wait_until(lambda cells: cells[following].outputs, "the next cell's output", seconds=15)
    notebook.page.screenshot(path=screenshots / f"notebook_00_{how}_2_stopped.png")
    cells = notebook.wait_until_done(seconds=WHOLE_NOTEBOOK_S)

    assert not outputs(cells, "error")
    (picture,) = outputs([cells[training]], "image/svg+xml")
    assert f"stopped by {how}" in "".join(picture.data["image/svg+xml"])
    saved = notebook.save()
    assert "widgets" not in saved.metadata
    assert not outputs(saved.cells, "application/vnd.jupyter.widget-view+json")
    assert notebook.path.stat().st_size < 300_000
    assert notebook.problems == []
    notebook.close()

    again = open_notebook(NOTEBOOK.name)
    shown = again.cell(training).locator("img[src^='data:image/svg+xml']")
    again.bring_into_view(shown)
    again.page.screenshot(path=screenshots / f"notebook_00_{how}_3_reopened.png")
    assert shown.evaluate("image => image.naturalWidth") > 100
    assert again.problems == []


def test_a_fresh_clone_shows_the_stored_pictures_before_anything_has_run(lab, open_notebook):
    """JupyterLab has not seen this notebook run, so it does not trust it, and hides what could hold a script."""
    shutil.copy(NOTEBOOK, lab.root / "cloned.ipynb")
    page = open_notebook("cloned.ipynb")
    training = next(i for i, cell in enumerate(page.cells()) if outputs([cell], "image/svg+xml"))
    page.bring_into_view(page.cell(training))
    shown = page.cell(training).locator("img[src^='data:image/svg+xml']")
    assert shown.evaluate("image => image.naturalWidth") > 100
    assert page.problems == []
