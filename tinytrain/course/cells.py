"""Cells that are made, not written: navigation, and an exercise's task, stub, check and folded help.

A notebook asks for an exercise with a text cell that holds only ``<!-- exercise 01.2 -->``. Made cells are known by
their ids and made anew each time, so they always agree with the series and with the exercises' files.
"""

import ast
import re
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell

from tinytrain.course.exercises import Exercise, exercise
from tinytrain.course.series import SERIES, Lesson

PLACE = re.compile(r"<!-- exercise (\d\d\.\d+) -->")
MADE = re.compile(r"nav-(?:top|bottom)|exercise-(\d\d)-(\d+)-(task|stub|check|help)")


def refresh(notebook: nbformat.NotebookNode, lesson: Lesson, folder: Path) -> None:
    """Make the notebook's navigation and exercise cells anew, in place. What their code printed stays.

    Raises ``ValueError``, with the notebook as it was, where a stub or a check holds something of the reader's, which
    would be lost; where an exercise has lost its task cell, or is there twice; and for a place that cannot be read.
    """
    if not notebook.cells:
        raise ValueError(f"{lesson.file} has no cells")
    try:
        _check_nothing_is_lost(notebook.cells)
        body = [made for cell in _written(notebook.cells) for made in _expanded(cell)]
        _check_each_once(body)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{lesson.file}: {error.args[0]}") from None
    top, bottom = _navigation(lesson, folder, _sections(body))
    before = {cell.get("id"): cell for cell in notebook.cells}
    notebook.cells = [body[0], top, *body[1:], bottom]
    for cell in notebook.cells:
        if cell.cell_type == "code" and (old := before.get(cell.get("id"))) is not None:
            cell["outputs"], cell["execution_count"] = old.outputs, old.execution_count


def _check_nothing_is_lost(cells: list[nbformat.NotebookNode]) -> None:
    tasks = {_key_of(cell) for cell in cells}
    for cell in cells:
        found = MADE.fullmatch(cell.get("id", ""))
        if not found or not found[3]:
            continue
        key = f"{found[1]}.{found[2]}"
        if key not in tasks:
            raise ValueError(f"cell {cell.id} stands without its task. Put back the task, or remove all of {key}")
        if found[3] == "stub" and not _is_open(cell.source):
            raise ValueError(f"cell {cell.id} holds an answer, which would be lost. Restore the stub")
        if found[3] == "check" and not re.fullmatch(rf'check\("{key}", \w+\)', cell.source.strip()):
            raise ValueError(f"cell {cell.id} holds more than its check, which would be lost. Move it to its own cell")


def _is_open(source: str) -> bool:
    """Whether nothing stands between a function's docstring and its ``raise NotImplementedError``, nor behind it."""
    try:
        function, *more = ast.parse(source).body
    except SyntaxError:
        return False
    body = function.body[1:] if isinstance(function, ast.FunctionDef) and ast.get_docstring(function) else []
    return not more and len(body) == 1 and ast.unparse(body[0]).startswith("raise NotImplementedError(")


def _check_each_once(cells: list[nbformat.NotebookNode]) -> None:
    keys = [key for cell in cells if (key := _key_of(cell))]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"exercise {', '.join(twice)} is there twice")


def _key_of(cell: nbformat.NotebookNode) -> str:
    found = MADE.fullmatch(cell.get("id", ""))
    return f"{found[1]}.{found[2]}" if found and found[3] == "task" else ""


def _written(cells: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """The cells without the made ones, with a place where each exercise stands."""
    kept = []
    for cell in cells:
        if key := _key_of(cell):
            kept.append(new_markdown_cell(f"<!-- exercise {key} -->"))
        elif not MADE.fullmatch(cell.get("id", "")):
            kept.append(cell)
    return kept


def _expanded(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    if cell.cell_type != "markdown":
        return [cell]
    if found := PLACE.fullmatch(cell.source.strip()):
        return exercise_cells(exercise(found[1]))
    if asks := re.search(r"(?i)<!--\s*exercise.*?-->", cell.source):
        raise ValueError(f"{asks[0]} is no place for an exercise: a cell of its own holds only <!-- exercise 01.2 -->")
    return [cell]


def exercise_cells(this: Exercise) -> list[nbformat.NotebookNode]:
    """Task, stub, check, and the hints and solution folded away."""
    name = f"exercise-{this.key.replace('.', '-')}"
    task = f"### Exercise {this.key} · {this.title}\n\n*{this.difficulty}, about {this.minutes} minutes.* {this.goal}"
    folds = [
        *(folded(f"Hint {number}", hint) for number, hint in enumerate(this.hints, 1)),
        folded("A solution", f"```python\n{this.source()}\n```"),
    ]
    cells = [
        new_markdown_cell(task),
        new_code_cell(this.stub()),
        new_code_cell(f'check("{this.key}", {this.solution.__name__})'),
        new_markdown_cell("\n\n".join(folds)),
    ]
    for cell, part in zip(cells, ("task", "stub", "check", "help"), strict=True):
        cell["id"] = f"{name}-{part}"
    return cells


def folded(title: str, text: str) -> str:
    """Markdown that shows ``title`` and unfolds ``text`` under it at a click."""
    return f"<details>\n<summary>{title}</summary>\n\n{text}\n\n</details>"


def _sections(cells: list[nbformat.NotebookNode]) -> list[str]:
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    return [title for text in texts for title in re.findall(r"(?m)^## (.+)$", text)]


def _navigation(lesson: Lesson, folder: Path, sections: list[str]) -> tuple[nbformat.NotebookNode, ...]:
    before, after = lesson.number - 1, lesson.number + 1
    steps = [
        f"← {_link(SERIES[before], folder)}" if before >= 0 else "",
        "" if lesson.number == 0 else f"[contents]({SERIES[0].file}#Where-to-go-from-here)",
        f"{_link(SERIES[after], folder)} →" if after < len(SERIES) else "",
    ]
    line = " · ".join(step for step in steps if step)
    inside = " · ".join(f"[{title}](#{_anchor(title)})" for title in sections)
    top, bottom = new_markdown_cell(f"{line}\n\nIn this notebook: {inside}"), new_markdown_cell(line)
    top["id"], bottom["id"] = "nav-top", "nav-bottom"
    return top, bottom


def _anchor(title: str) -> str:
    """A heading's id as JupyterLab makes it: from the text that is seen, so without the marks of code."""
    return title.replace("`", "").replace(" ", "-")


def _link(lesson: Lesson, folder: Path) -> str:
    title = f"{lesson.number:02d} {lesson.name.replace('_', ' ')}"
    return f"[{title}]({lesson.file})" if (folder / lesson.file).is_file() else f"{title} (to come)"
