"""The exercises of notebook 08: generators in a file, a save that cannot be cut in two, the place in the data."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tinytrain.course.check_places_08 import check_next_batches
from tinytrain.course.check_saves_08 import check_save_whole
from tinytrain.course.check_states_08 import check_generators
from tinytrain.course.exercises import Exercise


def generators(saved: dict | None = None) -> dict:
    """Take the states of three random generators, or put them back: Python's, NumPy's, torch's on the CPU.

    Without ``saved``: return the three states in a dict of your own form. It must survive ``torch.save``
    and ``torch.load(…, weights_only=True)``, so it holds tensors and plain Python values (numbers, text,
    tuples, lists) and no NumPy array. Nothing may be drawn or seeded.

    With ``saved``, such a dict as it came from the file: put all three generators where they were when it
    was taken, and return ``saved`` as it was. All of it must come from that dict: it may have been read in another
    process. NumPy's generator is the one behind ``np.random.random()``.
    """
    if saved is None:
        name, keys, *rest = np.random.get_state()
        numpy = (name, keys.tolist(), *rest)
        return {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state()}
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    torch.set_rng_state(saved["torch"])
    return saved


def save_whole(state: dict, path: Path) -> None:
    """Save ``state`` with ``torch.save``; ``path`` is at every moment the whole old file or the whole new one.

    ``path`` may exist or not. Write to another name in the *same folder*, flush, call ``os.fsync`` on that
    open file, and then rename it to ``path``. If saving, syncing or renaming fails, whatever the error (the Stop
    button's ``KeyboardInterrupt`` included), it goes on to the caller and ``path`` is as it was. Either way,
    nothing else is left in the folder, and the other files in it stay as they are.
    """
    aside = path.with_name(f"{path.name}.unfinished")
    try:
        with open(aside, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def next_batches(
    order: Callable[[int], list[int]], n_rows: int, batch_size: int, done: int, count: int
) -> list[list[int]]:
    """The row numbers of the ``count`` batches that follow the first ``done`` batches of a run.

    ``order(epoch)`` gives the ``n_rows`` row numbers in the order of that epoch, counted from 0; each epoch
    has another order. An epoch is cut into batches of ``batch_size`` rows from its beginning; its last batch
    holds the rows that are left, and may be shorter. ``done`` counts batches through all epochs, and may
    be 0. Return a list of lists.
    """
    per_epoch = -(-n_rows // batch_size)  # rounded up
    batches = []
    for batch in range(done, done + count):
        epoch, place = divmod(batch, per_epoch)
        batches.append(order(epoch)[place * batch_size : (place + 1) * batch_size])
    return batches


EXERCISES = (
    Exercise(
        number=1,
        title="Put three generators into a file",
        goal="Write the part of a checkpoint that is forgotten most: the generators, taken and put back.",
        difficulty="easy",
        minutes=10,
        solution=generators,
        check=check_generators,
        hints=(
            "Python: `random.getstate` and `setstate`. NumPy: `np.random.get_state` and `set_state`. torch: "
            "`torch.get_rng_state` and `set_rng_state`.",
            "NumPy's state is a tuple of five, and only the second is an array: `name, keys, *rest = …`. A list of its "
            "keys is good enough for `set_state`.",
        ),
    ),
    Exercise(
        number=2,
        title="A save that cannot be cut in two",
        goal="Write a save that leaves the old file or the new one, whatever happens on the way.",
        difficulty="medium",
        minutes=15,
        solution=save_whole,
        check=check_save_whole,
        hints=(
            "`path.with_name(…)` is another name in the same folder. `torch.save` also writes into a file that you "
            "have opened with `open(aside, 'wb')`.",
            "The order: write, `file.flush()`, `os.fsync(file.fileno())`, close, `os.replace(aside, path)`; and "
            "`aside.unlink(missing_ok=True)` in a `finally`.",
        ),
    ),
    Exercise(
        number=3,
        title="Which batch comes next?",
        goal="Find the place in the data where a run goes on, in the middle of an epoch or not.",
        difficulty="medium",
        minutes=10,
        solution=next_batches,
        check=check_next_batches,
        hints=(
            "How many batches has an epoch, the short one included? `divmod(batch, that)` is the epoch and the place "
            "in it.",
            "Batch number `place` of an epoch is `order(epoch)[place * batch_size : (place + 1) * batch_size]`, and a "
            "slice that runs over the end is simply shorter.",
        ),
    ),
)
