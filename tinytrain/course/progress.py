"""Which exercises the reader has tried and solved, kept in one small file beside the notebooks."""

import contextlib
import json
import os
from pathlib import Path

FILE = ".progress.json"
VARIABLE = "TINYTRAIN_PROGRESS"  # another file; empty: nothing is kept
TRIED, SOLVED = "tried", "solved"


def progress_file() -> Path | None:
    """Where it is kept: ``$TINYTRAIN_PROGRESS``, or ``.progress.json`` in the folder that notebooks run in."""
    name = os.environ.get(VARIABLE, FILE)
    return Path(name) if name else None


def remember(key: str, *, solved: bool) -> None:
    """Note that exercise ``key`` was tried or solved. What was solved once stays solved."""
    path, known = progress_file(), recall()
    state = SOLVED if solved or known.get(key) == SOLVED else TRIED
    if path is None or known.get(key) == state:
        return
    beside = path.with_name(f"{path.name}.{os.getpid()}")  # renamed when whole, so nobody reads a half
    try:
        beside.write_text(json.dumps({**known, key: state}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        print(f"(progress was not kept: {error})")


def recall() -> dict[str, str]:
    """``"tried"`` or ``"solved"`` by exercise. A file that cannot be read is put aside as ``….bad``, and said so."""
    path = progress_file()
    if path is None or not path.is_file():
        return {}
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): str(state) for key, state in known.items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        bad = path.with_name(f"{path.name}.bad")
        with contextlib.suppress(OSError):
            os.replace(path, bad)
        print(f"({path} cannot be read, so progress starts anew; what it held is in {bad.name}: {error})")
        return {}
