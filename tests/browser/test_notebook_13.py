"""The memory planner of notebook 13: each of its sliders, moved as a reader would, gives another picture."""

from pathlib import Path

import nbformat
import pytest
from labpage import outputs
from nbformat.v4 import new_code_cell, new_notebook

pytestmark = pytest.mark.browser

NOTEBOOK = Path(__file__).parents[2] / "notebooks/13_scaling_up.ipynb"
METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
SLIDERS = ("model", "rows", "precision", "recompute", "loss_chunk", "processes")


def test_every_slider_of_the_memory_planner_moves_the_picture(lab, open_notebook, screenshots):
    (cell,) = [
        c.source for c in nbformat.read(NOTEBOOK, 4).cells if "draw_memory," in c.source and "explore(" in c.source
    ]
    nbformat.write(new_notebook(cells=[new_code_cell(cell)], metadata=METADATA), lab.root / "planner.ipynb")
    page = open_notebook("planner.ipynb")
    page.run_all()
    page.wait_until_done(seconds=120)

    def picture():
        (shown,) = outputs(page.cells()[:1], "image/png")
        return shown.data["image/png"]

    seen, handles = [picture()], page.cell(0).locator(".noUi-handle")
    assert handles.count() == len(SLIDERS)
    for number in range(len(SLIDERS)):
        handle = handles.nth(number)
        page.bring_into_view(handle)
        key = "ArrowRight" if handle.get_attribute("aria-valuenow") == "0.0" else "ArrowLeft"
        handle.press(key)
        page.wait_until(lambda _cells: picture() != seen[-1], f"another picture after {SLIDERS[number]}", seconds=20)
        seen.append(picture())
    assert len(set(seen)) == len(seen)
    page.page.screenshot(path=screenshots / "notebook_13_planner.png")
    assert page.problems == []
