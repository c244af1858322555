"""As a program: ``SPEC FOLDER`` trains in FOLDER, and kills itself with signal 9 in the middle of its fifth save.

Half of the file is written by then. If the trainer does not save through ``torch.save``, it is killed before batch 5.
"""

import io
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from tinytrain.course.laws.court import load, train_here
from tinytrain.course.laws.whole_run import KILLED

SAVE = 5
_save, _saves = torch.save, 0


def _dies(where: str) -> None:
    os.write(1, f"{where}\n".encode())  # past any redirection
    os.kill(os.getpid(), signal.SIGKILL)


def save_until_killed(obj: Any, f: Any, *args: Any, **named: Any) -> None:
    """``torch.save``, the fifth time only its first half."""
    global _saves
    _saves += 1
    if _saves < SAVE:
        return _save(obj, f, *args, **named)
    whole = io.BytesIO()
    _save(obj, whole, *args, **named)
    half = whole.getvalue()[: len(whole.getvalue()) // 2]
    if hasattr(f, "write"):
        f.write(half)
        f.flush()
    else:
        Path(f).write_bytes(half)
    _dies("in a save")
    return None


def before_batch(n: int) -> None:
    """The other place to die: the trainer has made five updates, and saved none through ``torch.save``."""
    if n == SAVE and _saves == 0:
        _dies("between batches")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.save = save_until_killed
    sys.path.insert(0, "")
    train_here(load(sys.argv[1]), Path(sys.argv[2]), at=before_batch, **KILLED)
