"""Cells that are made, not written: navigation, and an exercise's task, stub, check and folded help.

A notebook asks for an exercise with a text cell that holds only ``<!-- exercise 01.2 -->``. Made cells are known by
their ids and made anew each time, so they always agree with the series and with the exercises' files.
"""

import re
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell

from tinytrain.course.exercises import Exercise, exercise
from tinytrain.course.series import SERIES, Lesson

PLACE = re.compile(r"<!-- exercise (\d\d\.\d+) -->")


def refresh(notebook: nbformat.NotebookNode, lesson: Lesson, folder: Path) -> None:
    """Make the notebook's navigation and exercise cells anew, in place.

    Raises ``ValueError`` where a stub's cell holds an answer: it would be lost.
    """
    for cell in notebook.cells:
        if cell.id.endswith("-stub") and "raise NotImplementedError" not in cell.source:
            raise ValueError(f"{lesson.file}: cell {cell.id} holds an answer, which would be lost. Restore the stub")
    body = [made for cell in _written(notebook.cells) for made in _expanded(cell)]
    top, bottom = _navigation(lesson, folder, _sections(body))
    notebook.cells = [body[0], top, *body[1:], bottom]


def _key_of(cell: nbformat.NotebookNode) -> str:
    found = re.fullmatch(r"exercise-(\d\d)-(\d+)-task", cell.id)
    return f"{found[1]}.{found[2]}" if found else ""


def _written(cells: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """The cells without the made ones, with a place where each exercise stands."""
    kept = []
    for cell in cells:
        if key := _key_of(cell):
            kept.append(new_markdown_cell(f"<!-- exercise {key} -->"))
        elif not cell.id.startswith(("nav-", "exercise-")):
            kept.append(cell)
    return kept


def _expanded(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    found = PLACE.fullmatch(cell.source.strip())
    return exercise_cells(exercise(found[1])) if found else [cell]


def exercise_cells(this: Exercise) -> list[nbformat.NotebookNode]:
    """Task, stub, check, and the hints and solution folded away."""
    name = f"exercise-{this.key.replace('.', '-')}"
    task = f"### Exercise {this.key} · {this.title}\n\n*{this.difficulty}, about {this.minutes} minutes.* {this.goal}"
    folds = [
        *(_fold(f"Hint {number}", hint) for number, hint in enumerate(this.hints, 1)),
        _fold("A solution", f"```python\n{this.source()}\n```"),
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


def _fold(title: str, text: str) -> str:
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
    inside = " · ".join(f"[{title}](#{title.replace(' ', '-')})" for title in sections)
    top, bottom = new_markdown_cell(f"{line}\n\nIn this notebook: {inside}"), new_markdown_cell(line)
    top["id"], bottom["id"] = "nav-top", "nav-bottom"
    return top, bottom


def _link(lesson: Lesson, folder: Path) -> str:
    title = f"{lesson.number:02d} {lesson.name.replace('_', ' ')}"
    return f"[{title}]({lesson.file})" if (folder / lesson.file).is_file() else f"{title} (to come)"
