import base64
import inspect
import io
import sys
from pathlib import Path

import nbformat
import pytest
import torch
from PIL import Image

from tinytrain.course import handwritten
from tinytrain.course.budget import budget, by_budget
from tinytrain.course.environment import environment_report
from tinytrain.course.notebooks import run_notebook
from tinytrain.course.series import SERIES, series_map, update_readme

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "value"), [("ci", 1), ("laptop", 2), ("gpu", 3)])
def test_the_budget_chooses(monkeypatch, name, value):
    monkeypatch.setenv("TINYTRAIN_BUDGET", name)
    assert by_budget(ci=1, laptop=2, gpu=3) == value


def test_a_laptop_is_the_default_and_serves_for_gpu(monkeypatch):
    monkeypatch.delenv("TINYTRAIN_BUDGET")
    assert budget() == "laptop"
    monkeypatch.setenv("TINYTRAIN_BUDGET", "gpu")
    assert by_budget(ci=1, laptop=2) == 2


def test_a_budget_that_is_none_of_the_three_is_named(monkeypatch):
    monkeypatch.setenv("TINYTRAIN_BUDGET", "huge")
    with pytest.raises(ValueError, match="TINYTRAIN_BUDGET='huge' is not one of ci, laptop, gpu"):
        budget()


def test_the_environment_report_tells_versions_device_and_budget():
    report = environment_report()
    assert report["torch"] == torch.__version__
    assert report["device"].startswith(("cpu", "cuda", "mps"))
    assert report["budget"] == "ci"  # the test set-up's
    assert all(report.values())


def test_the_map_links_what_is_written_and_marks_what_is_to_come(tmp_path):
    (tmp_path / SERIES[3].file).touch()
    lines = series_map(tmp_path, "notebooks/").splitlines()[2:]
    assert len(lines) == 15
    assert lines[3] == "| [03 warmup](notebooks/03_warmup.ipynb) | Is warmup optional? |"
    assert lines[4].startswith("| 04 loop (to come) |")


def test_the_readmes_map_is_the_generated_one(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    update_readme(copy, ROOT / "notebooks")
    assert copy.read_text(encoding="utf-8") == (ROOT / "README.md").read_text(encoding="utf-8"), (
        "the README's map of notebooks is old: run `make notebooks`"
    )


def test_a_readme_without_its_marks_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("no marks")
    with pytest.raises(ValueError, match="must hold the marks"):
        update_readme(tmp_path / "README.md", tmp_path)


def notebook_of(path, *sources):
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"widgets": {"state": 1}}), path)
    return path


def test_a_notebook_is_run_and_stored_clean(tmp_path):
    path = notebook_of(tmp_path / "a.ipynb", "print(1 + 1)")
    assert run_notebook(path) > 0
    stored = nbformat.read(path, as_version=4)
    assert stored.cells[0].outputs[0].text == "2\n"
    assert set(stored.metadata) == {"kernelspec", "language_info"}
    assert "execution" not in stored.cells[0].metadata


BUSY = """
import time


def busy(rank, seconds):
    while time.process_time() < seconds:
        pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tell the time of what outlives a kernel")
def test_the_seconds_of_a_notebook_are_those_of_all_that_it_started(tmp_path):
    (tmp_path / "busy_worker.py").write_text(BUSY)
    source = "from busy_worker import busy\nfrom tinytrain.distributed import launch\nlaunch(busy, 2, 4.0)"
    assert run_notebook(notebook_of(tmp_path / "a.ipynb", source)) > 8


def test_a_notebook_runs_as_a_recording_without_a_readers_progress_or_widgets(tmp_path):
    source = """
    import os
    from ipywidgets import IntSlider
    from IPython.display import display
    display(IntSlider())
    print(os.environ["TINYTRAIN_RECORD"], repr(os.environ["TINYTRAIN_PROGRESS"]))
    """
    path = notebook_of(tmp_path / "a.ipynb", inspect.cleandoc(source))
    run_notebook(path)
    (output,) = nbformat.read(path, as_version=4).cells[0].outputs
    assert output.text == "1 ''\n"


def test_pictures_are_stored_with_few_colours(tmp_path):
    source = """
    import matplotlib.pyplot as plt
    plt.plot([0, 1], [0, 1], color="#0072b2");
    """
    path = notebook_of(tmp_path / "a.ipynb", "%matplotlib inline", inspect.cleandoc(source))
    run_notebook(path)
    (output,) = nbformat.read(path, as_version=4).cells[1].outputs
    picture = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"])))
    assert picture.mode == "P" and len(picture.getcolors()) <= 64
    assert (0, 114, 178) in {pixel for _, pixel in picture.convert("RGB").getcolors()}


def test_a_lesson_gets_its_navigation_when_it_is_run(tmp_path):
    path = tmp_path / SERIES[4].file
    notebook_of(path, "1")
    run_notebook(path)
    assert [cell.id for cell in nbformat.read(path, as_version=4).cells][1:] == ["nav-top", "nav-bottom"]


def test_a_notebook_that_fails_keeps_its_old_outputs(tmp_path):
    path = notebook_of(tmp_path / "a.ipynb", "1 / 0")
    before = path.read_bytes()
    with pytest.raises(Exception, match="ZeroDivisionError"):
        run_notebook(path)
    assert path.read_bytes() == before


def test_the_handwritten_pieces_have_the_faults_that_the_lessons_need():
    V, T = 13, 6
    small, mended = (kind(V, 8, 1, 2, T) for kind in (handwritten.SmallLM, handwritten.MendedLM))
    right = torch.nn.Transformer.generate_square_subsequent_mask(T) == -torch.inf
    device = torch.device("cpu")
    assert torch.equal(mended.causal_mask(T, device), right)
    assert torch.equal(small.causal_mask(T, device), ~right)
    assert small.head.weight is small.tokens.weight
    assert set(small(torch.zeros(1, T, dtype=torch.long))) == {"logits"}
    one, two = (handwritten.ToyLMDataset(50, T, V).ids for _ in range(2))
    assert not torch.equal(one, two)
    seeded = [handwritten.ToyLMDataset(50, T, V, torch.Generator().manual_seed(0)).ids for _ in range(2)]
    assert torch.equal(*seeded)
    row = handwritten.ToyLMDataset(50, T, V)[3]
    assert torch.equal(row["input_ids"][1:], row["labels"][:-1])


def test_exactly_one_model_of_the_lineup_is_guilty():
    guilty = [isinstance(model, handwritten.NextTokenLM) for model in handwritten.lineup(13, 6).values()]
    assert sum(guilty) == 1 and len(guilty) == 3


def test_nothing_in_the_package_imports_the_course():
    for path in (ROOT / "tinytrain").rglob("*.py"):
        if "course" not in path.relative_to(ROOT / "tinytrain").parts:
            assert "tinytrain.course" not in path.read_text(encoding="utf-8").replace('"', ""), path
    assert inspect.getdoc(handwritten)
