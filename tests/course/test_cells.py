import copy

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tinytrain.course.cells import exercise_cells, refresh
from tinytrain.course.exercises import exercise
from tinytrain.course.series import SERIES

RAISE = 'raise NotImplementedError("exercise 00.1")'
ANSWERS = {
    "another body": "def causal_mask(T):\n    return 7",
    "the raise left below": f'def causal_mask(T):\n    """A mask."""\n    return 7\n    {RAISE}',
    "the raise left as a comment": f"def causal_mask(T):\n    return 7\n    # {RAISE}",
    "half written": "def causal_mask(T):\n    return (",
    "a helper before it": f'x = 1\ndef causal_mask(T):\n    """A mask."""\n    {RAISE}',
}


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


def test_what_made_cells_printed_stays(notebook, tmp_path):
    refresh(notebook, SERIES[1], tmp_path)
    made(notebook, "check").outputs = [new_output("stream", text="not tried yet")]
    made(notebook, "check").execution_count = 7
    refresh(notebook, SERIES[1], tmp_path)
    assert made(notebook, "check").outputs[0].text == "not tried yet" and made(notebook, "check").execution_count == 7


def test_old_made_cells_are_made_anew_in_their_place(notebook, tmp_path):
    refresh(notebook, SERIES[1], tmp_path)
    before = [cell.source for cell in notebook.cells]
    for cell in notebook.cells:
        if cell.id.startswith("nav-") or cell.id.endswith(("task", "help")):
            cell.source = "old"
    refresh(notebook, SERIES[1], tmp_path)
    assert [cell.source for cell in notebook.cells] == before


def test_an_exercise_can_be_added_to_a_notebook_that_has_some(notebook, tmp_path):
    refresh(notebook, SERIES[1], tmp_path)
    notebook.cells.insert(-1, new_markdown_cell("<!-- exercise 00.2 -->"))
    refresh(notebook, SERIES[1], tmp_path)
    assert [name for name in ids(notebook) if name.endswith("task")] == ["exercise-00-1-task", "exercise-00-2-task"]


def made(notebook, part):
    return next(cell for cell in notebook.cells if cell.id == f"exercise-00-1-{part}")


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_in_a_stub_is_not_thrown_away(notebook, tmp_path, answer):
    refresh(notebook, SERIES[1], tmp_path)
    made(notebook, "stub").source = ANSWERS[answer]
    before = copy.deepcopy(notebook)
    with pytest.raises(ValueError, match=r"01_loss\.ipynb: cell exercise-00-1-stub holds an answer"):
        refresh(notebook, SERIES[1], tmp_path)
    assert notebook == before


def test_what_a_reader_wrote_into_a_check_is_not_thrown_away(notebook, tmp_path):
    refresh(notebook, SERIES[1], tmp_path)
    made(notebook, "check").source += "\nprint(causal_mask(3))"
    with pytest.raises(ValueError, match="exercise-00-1-check holds more than its check"):
        refresh(notebook, SERIES[1], tmp_path)


def test_an_exercise_whose_task_was_deleted_does_not_vanish(notebook, tmp_path):
    refresh(notebook, SERIES[1], tmp_path)
    notebook.cells.remove(made(notebook, "task"))
    with pytest.raises(ValueError, match="exercise-00-1-stub stands without its task"):
        refresh(notebook, SERIES[1], tmp_path)


def test_a_readers_cell_stays_whatever_its_id(notebook, tmp_path):
    notebook.cells[2]["id"] = "exercise-intro"
    refresh(notebook, SERIES[1], tmp_path)
    refresh(notebook, SERIES[1], tmp_path)
    assert [cell.source for cell in notebook.cells if cell.id == "exercise-intro"] == ["1 + 1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- exercise 00.1 -->", r"exercise 00\.1 is there twice"),
        ("<!--exercise 00.2-->", "is no place for an exercise"),
        ("<!-- Exercise 0.2 -->", "is no place for an exercise"),
        ("Now <!-- exercise 00.2 -->", "is no place for an exercise"),
        ("<!-- exercise 99.1 -->", r"there is no exercise '99\.1'"),
    ],
)
def test_a_place_that_cannot_be_used_is_named(notebook, tmp_path, text, message):
    notebook.cells.append(new_markdown_cell(text))
    with pytest.raises(ValueError, match=rf"01_loss\.ipynb: .*{message}"):
        refresh(notebook, SERIES[1], tmp_path)


def test_an_empty_notebook_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"01_loss\.ipynb has no cells"):
        refresh(new_notebook(), SERIES[1], tmp_path)


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


def test_a_heading_with_code_is_linked_as_jupyterlab_names_it(notebook, tmp_path):
    """Its id is made from the text that is seen, in which there are no backticks."""
    notebook.cells.append(new_markdown_cell("## `.half()` by hand"))
    refresh(notebook, SERIES[1], tmp_path)
    assert "[`.half()` by hand](#.half()-by-hand)" in notebook.cells[1].source


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
