"""What is stored in the notebooks: outputs of one run from top to bottom, clean, small, and really asserted."""

import ast
import builtins
import inspect
import re
import symtable
from pathlib import Path

import nbformat
import pytest

from tinytrain.course.cells import refresh
from tinytrain.course.exercises import all_exercises
from tinytrain.course.series import SERIES

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
KNOWN = {lesson.file: lesson for lesson in SERIES}


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def notebook(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def test_there_is_a_first_notebook():
    assert [path.name for path in NOTEBOOKS][:1] == ["00_start_here.ipynb"]


def test_it_is_a_lesson_of_the_series_and_opens_with_its_question(path, notebook):
    lesson = KNOWN[path.name]
    first = notebook.cells[0].source.splitlines()[0]
    assert first == f"# {lesson.number:02d} · {lesson.question}"


def test_its_navigation_and_exercises_are_the_generated_ones(path, notebook):
    before = [(cell.id, cell.source) for cell in notebook.cells]
    refresh(notebook, KNOWN[path.name], FOLDER)
    assert [(cell.id, cell.source) for cell in notebook.cells] == before, "run `make claims`"


def test_its_outputs_are_from_one_run_from_top_to_bottom(notebook):
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))


def test_no_error_and_nothing_on_stderr_is_stored(notebook):
    assert [o for o in outputs(notebook) if o.output_type == "error" or o.get("name") == "stderr"] == []


def test_it_is_small_and_holds_no_widget_state(path, notebook):
    assert path.stat().st_size < 300_000
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"


def test_it_stores_a_picture_that_shows_everywhere(notebook):
    kinds = {kind for output in outputs(notebook) for kind in output.get("data", {})}
    assert kinds & {"image/png", "image/svg+xml"}
    assert "application/vnd.jupyter.widget-view+json" not in kinds


def test_a_drawing_that_jupyterlab_hides_until_it_is_trusted_has_another_form(notebook):
    drawings = [output.data for output in outputs(notebook) if "image/svg+xml" in output.get("data", {})]
    assert all({"image/png", "text/html"} & set(data) for data in drawings)


def test_it_asserts_at_least_five_things_and_its_title_at_the_end(notebook):
    cells = [ast.parse(cell.source) for cell in code_cells(notebook)]
    asserts = [sum(isinstance(node, ast.Assert) for node in ast.walk(cell)) for cell in cells]
    assert sum(asserts) >= 5
    assert asserts[-1] >= 1
    constant = [
        ast.unparse(node)
        for cell in cells
        for node in ast.walk(cell)
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant)
    ]
    assert constant == []


def test_it_sets_nothing_up_behind_the_readers_back(notebook):
    for cell in code_cells(notebook):
        assert not re.search(r"(?m)^\s*[!%]|sys\.path|os\.chdir|urllib|requests\.get", cell.source), cell.source


def test_no_cell_tires_the_reader(notebook):
    for cell in code_cells(notebook):
        assert cell.source.count("\n") < 22, cell.source


def test_the_text_keeps_a_calm_voice(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose = re.sub(r"`[^`]*`|!\[", "", cell.source)
            assert "!" not in prose, cell.source
            assert not re.search("[\U0001f300-\U0001faff\u2600-\u27bf]", prose), cell.source


def names_given(source: str) -> set[str]:
    """The names that a cell imports, defines or assigns.

    >>> sorted(names_given("import os.path; from math import pi as p; x = [y for y in z]"))
    ['os', 'p', 'x', 'y']
    """
    nodes = list(ast.walk(ast.parse(source)))
    imported = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    names = {(alias.asname or alias.name).split(".")[0] for alias in imported}
    names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return names | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def names_wanted(table: symtable.SymbolTable) -> set[str]:
    """The names that a function takes from around it, in its annotations too.

    >>> source = "def f(x: Tensor) -> int: return math.ceil(x + y)"
    >>> sorted(names_wanted(symtable.symtable(source, "cell", "exec")))
    ['Tensor', 'int', 'math', 'y']
    """
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    return own.union(*map(names_wanted, table.get_children()))


def test_a_solution_uses_only_names_that_the_notebook_has(path, notebook):
    given = set(dir(builtins)).union(*(names_given(cell.source) for cell in code_cells(notebook)))
    for key, exercise in all_exercises().items():
        if path.name.startswith(key.split(".")[0]):
            source = inspect.getsource(exercise.solution)
            missing = names_wanted(symtable.symtable(source, key, "exec")) - given
            assert not missing, f"exercise {key}: import {', '.join(sorted(missing))} before it"
