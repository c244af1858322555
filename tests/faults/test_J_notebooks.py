"""Faults of notebooks that show training: each in a real kernel, as it is often written, then as ours."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

REPOSITORY = Path(__file__).parents[2]
KERNELSPEC = {"name": "python3", "display_name": "Python 3", "language": "python"}


def notebook(*sources):
    cells = [new_markdown_cell("# made for a test"), *map(new_code_cell, sources)]
    return new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC})


@pytest.fixture
def executed(tmp_path):
    """`executed(*sources)` runs the cells in a fresh kernel and gives their outputs and the file's bytes."""

    def execute(*sources):
        made = notebook(*sources)
        NotebookClient(made, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
        path = tmp_path / "executed.ipynb"
        nbformat.write(made, path)
        return [output for cell in made.cells for output in cell.get("outputs", ())], path.stat().st_size

    return execute


def pictures(outputs):
    return [o for o in outputs if {"image/png", "image/svg+xml"} & set(o.get("data", ()))]


def printed(outputs):
    return "".join(o.text for o in outputs if o.output_type == "stream")


LIVE = """\
import time
from tinytrain.watch.live import LivePlot
print("keep")
with LivePlot("loss", "grad_norm") as live:
    for step in range({steps}):
        live.log(step, loss=5 - step / {steps}, grad_norm=1.0 + step % 7)
        time.sleep({pause})
"""


def test_j01_a_new_figure_per_update_leaks_figures_and_pictures(executed):
    count = 'import matplotlib.pyplot as plt\nprint("OPEN", len(plt.get_fignums()))'
    often = (
        "%matplotlib inline\nimport matplotlib.pyplot as plt\nfrom IPython.display import display\n"
        "for i in range(25):\n    fig = plt.figure(figsize=(2, 1))\n    plt.plot([0, i])\n    display(fig)\n" + count
    )
    outputs, size = executed(often)
    assert "OPEN 25" in printed(outputs) and len(pictures(outputs)) >= 25 and size > 60_000, "the fault is real"

    no_matplotlib = 'import sys\nassert "matplotlib" not in sys.modules'
    outputs, size = executed(LIVE.format(steps=25, pause=0.1) + no_matplotlib, count)
    assert "OPEN 0" in printed(outputs)
    assert len(pictures(outputs)) == 1
    assert (
        size <= 24_209
    )  # what one figure, updated in place, took in the case; the picture is stored as SVG and as HTML


def test_j05_what_the_cell_printed_is_still_there_beside_exactly_one_plot(executed):
    often = (
        "from IPython.display import SVG, clear_output, display\nprint('keep')\n"
        "for i in range(5):\n    clear_output(wait=True)\n"
        "    display(SVG(f\"<svg xmlns='http://www.w3.org/2000/svg'><text>{i}</text></svg>\"))\n"
    )
    outputs, _ = executed(often)
    assert len(pictures(outputs)) == 1 and "keep" not in printed(outputs), "the fault is real"

    outputs, _ = executed(LIVE.format(steps=5, pause=0.15) + 'print("kept as well")')
    assert printed(outputs) == "keep\nkept as well\n"
    assert len(pictures(outputs)) == 1
    assert len(outputs) == 3, "text, plot, text, and no widget beside them"


@pytest.mark.parametrize("pause", [0, 0.002])
def test_j06_the_file_of_a_2000_step_run_stays_small(executed, pause):
    often = "for i in range(2000):\n    print(f'step {i} loss {5 - i / 2000:.4f} grad_norm {i % 7:.4f}')"
    _, size = executed(often)
    assert size > 50_000, "the fault is real"

    outputs, size = executed(LIVE.format(steps=2000, pause=pause))
    assert len(outputs) == 2
    assert size < 50_000, "with what nbclient keeps of closed widgets, 13 kB here"
    assert len(pictures(outputs)[0].data["image/svg+xml"]) < 10_000


def run_notebooks(folder):
    """`pytest --nbmake` on a folder, with this repository's own settings."""
    settings = ["-c", str(REPOSITORY / "pyproject.toml"), f"--rootdir={folder}", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *settings, "--nbmake", str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        timeout=300,
    )


def test_j08_several_notebooks_pass_three_times_in_a_row(tmp_path):
    for i in range(3):
        nbformat.write(notebook(LIVE.format(steps=20, pause=0), f"assert {i} == {i}"), tmp_path / f"nb_{i}.ipynb")
    for attempt in range(3):
        done = run_notebooks(tmp_path)
        assert done.returncode == 0 and "3 passed" in done.stdout, f"run {attempt}:\n{done.stdout}{done.stderr}"

    nbformat.write(notebook("assert 1 == 2, 'on purpose'"), tmp_path / "nb_wrong.ipynb")
    done = run_notebooks(tmp_path)
    assert done.returncode == 1 and "1 failed, 3 passed" in done.stdout, "a cell that fails is a test that fails"


def test_j08_the_notebooks_are_run_one_after_the_other():
    workflows = (REPOSITORY / ".github" / "workflows").glob("*.y*ml")
    recipes = [REPOSITORY / "Makefile", REPOSITORY / "pyproject.toml", *workflows]
    lines = [line for path in recipes for line in path.read_text("utf-8").splitlines()]
    running = [line for line in lines if ("pytest" in line and "nbmake" in line) or "addopts" in line]
    assert any("--nbmake " in line for line in running), "somebody runs them"
    assert not [line for line in running if re.search(r"(-n|--numprocesses)[ =\"']*(\d|auto|logical)", line)]
