"""Pictures of lessons for the README, taken from the notebooks' stored outputs so that they cannot drift from them."""

import base64
from pathlib import Path

import nbformat

PICTURES = {  # name in docs/: (notebook, words of the cell that draws it)
    "warmup": ("03_warmup.ipynb", "Without warmup this network learns"),
    "resume": ("08_checkpoints.ipynb", "Leave one part out and the run forks"),
    "nan": ("11_nan_lab.ipynb", "Mended, it learns on where the sick run unlearns"),
}


def stored_picture(path: Path, words: str) -> bytes:
    """The PNG that the one cell with these words has stored. Raises ``LookupError`` if there is not exactly one."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if words in cell.source and "outputs" in cell]
    found = [
        output.data["image/png"] for cell in cells for output in cell.outputs if "image/png" in output.get("data", {})
    ]
    if len(found) != 1:
        raise LookupError(f"{path}: {len(found)} pictures in cells with {words!r}, and one is wanted")
    return base64.b64decode(found[0])


def write_pictures(notebooks: Path, docs: Path) -> None:
    """Write each picture to ``docs``/lesson_NAME.png."""
    for name, (file, words) in PICTURES.items():
        (docs / f"lesson_{name}.png").write_bytes(stored_picture(notebooks / file, words))
