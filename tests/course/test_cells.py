import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tinytrain.course.cells import exercise_cells, refresh
from tinytrain.course.exercises import exercise
from tinytrain.course.series import SERIES


@pytest.fixture
def notebook():
    return new_notebook(
        cells=[
            new_markdown_cell("# 01 · Why is this loss wrong?"),
            new_markdown_cell("## A number\n\ntext"),
            new_code_cell("1 + 1"),
            new_markdown_cell("<!-- exercise 00.1 -->"),
            new_markdown_cell("## What we showed"),
        ]
    )


def ids(notebook):
    return [cell.id for cell in notebook.cells if cell.id.startswith(("nav-", "exercise-"))]


def test_an_exercise_becomes_task_stub_check_and_help(notebook, tmp_path):
    refresh(notebook, SERIES[1], tmp_path)
    assert ids(notebook) == [
        "nav-top",
        "exercise-00-1-task",
        "exercise-00-1-stub",
        "exercise-00-1-check",
        "exercise-00-1-help",
        "nav-bottom",
    ]
    assert notebook.cells[0].source.startswith("# 01") and notebook.cells[1].id == "nav-top"
    nbformat.validate(notebook)


def test_doing_it_again_changes_nothing(notebook, tmp_path):
    refresh(notebook, SERIES[1], tmp_path)
    before = [(cell.id, cell.source) for cell in notebook.cells]
    refresh(notebook, SERIES[1], tmp_path)
    assert [(cell.id, cell.source) for cell in notebook.cells] == before


def test_old_made_cells_are_made_anew_in_their_place(notebook, tmp_path):
    refresh(notebook, SERIES[1], tmp_path)
    before = [cell.source for cell in notebook.cells]
    for cell in notebook.cells:
        if cell.id.startswith(("nav-", "exercise-")) and not cell.id.endswith("stub"):
            cell.source = "old"
    refresh(notebook, SERIES[1], tmp_path)
    assert [cell.source for cell in notebook.cells] == before


def test_an_exercise_can_be_added_to_a_notebook_that_has_some(notebook, tmp_path):
    refresh(notebook, SERIES[1], tmp_path)
    notebook.cells.insert(-1, new_markdown_cell("<!-- exercise 00.2 -->"))
    refresh(notebook, SERIES[1], tmp_path)
    assert [name for name in ids(notebook) if name.endswith("task")] == ["exercise-00-1-task", "exercise-00-2-task"]


def test_an_answer_in_a_stub_is_not_thrown_away(notebook, tmp_path):
    refresh(notebook, SERIES[1], tmp_path)
    (stub,) = (cell for cell in notebook.cells if cell.id == "exercise-00-1-stub")
    stub.source = "def causal_mask(T):\n    return 7"
    with pytest.raises(ValueError, match="exercise-00-1-stub holds an answer, which would be lost"):
        refresh(notebook, SERIES[1], tmp_path)


def test_navigation_links_what_is_there_and_lists_the_sections(notebook, tmp_path):
    (tmp_path / SERIES[0].file).touch()
    refresh(notebook, SERIES[1], tmp_path)
    top, bottom = notebook.cells[1].source, notebook.cells[-1].source
    way = (
        "← [00 start here](00_start_here.ipynb) · [contents](00_start_here.ipynb#Where-to-go-from-here)"
        " · 02 optimizer (to come) →"
    )
    assert bottom == way
    assert top == f"{way}\n\nIn this notebook: [A number](#A-number) · [What we showed](#What-we-showed)"


def test_the_first_and_the_last_lesson_have_one_neighbour(notebook, tmp_path):
    refresh(notebook, SERIES[0], tmp_path)
    assert notebook.cells[-1].source == "01 loss (to come) →"
    refresh(notebook, SERIES[-1], tmp_path)
    assert notebook.cells[-1].source.startswith("← 13 scaling up (to come) · [contents]")


def test_the_stub_has_the_solutions_signature_and_docstring_and_no_more():
    stub = exercise_cells(exercise("00.1"))[1].source
    assert stub.startswith("def causal_mask(T: int) -> Tensor:\n")
    assert "arange" not in stub
    assert stub.endswith('    raise NotImplementedError("exercise 00.1")  # write your answer over this line')
