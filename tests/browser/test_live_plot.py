"""LivePlot in JupyterLab: it moves, it stops, and what it leaves is there when the file is opened again."""

import re

import nbformat
import pytest
from labpage import outputs, text_of
from nbformat.v4 import new_code_cell, new_notebook

pytestmark = pytest.mark.browser

IMPORTS = """\
import time
import torch
from tinytrain.watch.live import LivePlot
torch.set_num_threads(1)"""

TRAIN = """\
print("printed before")
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
end, step = time.monotonic() + 120, 0
with LivePlot("loss", "grad_norm", title="a small regression") as live:
    while time.monotonic() < end:
        x = torch.randn(64, 64)
        loss = (model(x) - x.square().mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step == 50:
            print("printed inside")
        if not live.log(step, loss=loss, grad_norm=norm):
            break
        step += 1
print("ENDED", time.time(), live.stopped_by)"""

AFTER = 'print("the next cell ran")'


def run_and_stop(page, how, screenshots):
    """Run all cells, stop the training in one of two ways; the time of the click."""
    page.run_all()
    page.wait_until_it_moves()
    page.wait_until(lambda cells: "printed inside" in text_of(cells[1]), "step 50", seconds=60)
    page.page.screenshot(path=screenshots / f"live_{how}_1_during.png")
    clicked = page.click_stop() if how == "button" else page.click_interrupt()
    page.wait_until_done(seconds=30)
    return clicked


@pytest.mark.parametrize("how", ["button", "interrupt"])
def test_it_moves_stops_within_a_second_and_leaves_a_picture(how, lab, open_notebook, screenshots):
    name = f"live_{how}.ipynb"
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells = [new_code_cell(source) for source in (IMPORTS, TRAIN, AFTER)]
    nbformat.write(new_notebook(cells=cells, metadata=metadata), lab.root / name)
    page = open_notebook(name)
    clicked = run_and_stop(page, how, screenshots)

    _, train, after = page.cells()
    ended = re.search(r"ENDED ([.\d]+) (\w+)", text_of(train))
    assert ended[2] == how
    assert 0 <= float(ended[1]) - clicked < 1.0, "seconds from the click to the loop's end"
    assert text_of(after) == "the next cell ran\n"
    assert text_of(train).startswith("printed before\nprinted inside\n")
    page.bring_into_view(page.cell(1).locator("img"))
    page.page.screenshot(path=screenshots / f"live_{how}_2_after.png")
    assert page.still_pictures() == 1 and page.chart().count() == 0

    saved = page.save()
    assert "widgets" not in saved.metadata
    assert not outputs(saved.cells, "error")
    assert not outputs(saved.cells, "application/vnd.jupyter.widget-view+json")
    (picture,) = outputs(saved.cells, "image/svg+xml")
    assert f"stopped by {how}" in "".join(picture.data["image/svg+xml"])
    assert page.path.stat().st_size < 30_000
    assert page.problems == []
    page.close()

    again = open_notebook(name)
    again.bring_into_view(again.cell(1).locator("img"))
    again.page.screenshot(path=screenshots / f"live_{how}_3_reopened.png")
    assert again.still_pictures() == 1
    assert [cell.execution_count for cell in again.cells()] == [1, 2, 3], "as saved, nothing ran"
    assert again.problems == []
