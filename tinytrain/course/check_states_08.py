"""The check of exercise 08.1: three generators taken, sent through a file, and put back."""

import copy
import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tinytrain.course.exercises import Report
from tinytrain.generators import all_states, restore_all

DRAWS: dict[str, Callable[[], list[float]]] = {
    "Python's": lambda: [random.random() for _ in range(3)] + [random.gauss(0.0, 1.0)],
    "NumPy's": lambda: np.random.random(3).tolist() + np.random.randint(1000, size=2).tolist(),
    "NumPy's normal": lambda: [float(np.random.standard_normal())],
    "torch's": lambda: torch.rand(3).tolist() + torch.randn(3).tolist(),
}
LEAST = 10_000
"""bytes: torch's state has 5,056, and Python's and NumPy's about 2,500 each, as 624 numbers of 4 bytes"""


def check_generators(answer: Callable[..., dict], report: Report) -> None:
    """Take the states at random moments, send them through a file, move on, put them back, and compare what follows."""
    for moment in ("once", "and at another moment"):
        _move_on()
        before = all_states()
        states = answer()
        report.need("it returns a dict", isinstance(states, dict), f"It returned {type(states).__name__}.")
        report.need(
            f"{moment}: taking the states moves no generator",
            _alike(before, all_states()),
            "After taking the states, a generator stands elsewhere: something was drawn or seeded.",
        )
        file = io.BytesIO()
        torch.save(states, file)
        loaded, refused = load_safely(file)
        report.need(
            f"{moment}: what was saved loads with weights_only=True",
            refused == "",
            "It was refused. NumPy's keys are an array; `.tolist()` or `torch.from_numpy` makes plain values of them.",
        )
        restore_all(before)
        wanted = {name: draw() for name, draw in DRAWS.items()}
        _move_on()
        answer()  # states of another moment, which the first ones must not be mistaken for
        later = {name: draw() for name, draw in DRAWS.items()}
        as_given = copy.deepcopy(loaded)
        for time in ("", ", put back a second time"):
            _move_on()
            back = answer(loaded)
            same = isinstance(back, dict) and _alike(as_given, back)
            likely = "Return `saved`, and change nothing in it: someone may want to load it again."
            report.need(
                f"{moment}{time}: it returns what it was given",
                same,
                likely if isinstance(back, dict) else f"It returned {type(back).__name__}. {likely}",
            )
            found = {name: draw() for name, draw in DRAWS.items()}
            for name in DRAWS:
                report.need(
                    f"{moment}{time}: {name} numbers come again",
                    found[name] == wanted[name],
                    _likely_generator(name, found, wanted, later),
                )
        size = len(file.getvalue())
        report.need(
            f"{moment}: the states themselves are in the dict",
            size > LEAST,
            f"Saved, the dict has {size:,} bytes, and torch's state alone has 5,056. What stands in a variable beside "
            f"it is not there when another process reads it.",
        )


def _move_on() -> None:
    """Leave every generator at a random place, with a second normal number waiting in two of them."""
    for _ in range(random.randint(1, 9)):
        random.random(), np.random.random(), torch.rand(1)
    np.random.seed(random.getrandbits(32))
    random.seed(random.getrandbits(64))
    torch.manual_seed(random.getrandbits(60))
    random.gauss(0.0, 1.0), np.random.standard_normal(), torch.rand(random.randint(1, 9))


def _alike(a: Any, b: Any) -> bool:
    """Whether both hold the same; a list and a tuple may stand for each other."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(_alike(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(_alike, a, b))
    return type(a) is type(b) and bool(a == b)


def load_safely(file: io.BytesIO) -> tuple[Any, str]:
    file.seek(0)
    try:
        return torch.load(file, weights_only=True), ""
    except Exception as error:  # torch raises several kinds
        return None, str(error)


Drawn = dict[str, list[float]]


def _likely_generator(name: str, found: Drawn, wanted: Drawn, later: Drawn) -> str:
    if found[name] == wanted[name]:
        return ""
    if found[name] == later[name]:
        return (
            "It was put where it stood when a *later* dict was taken: the state must be in the dict, and not in a "
            "variable beside it."
        )
    if found == {**wanted, "NumPy's normal": found["NumPy's normal"]}:
        return (
            "NumPy makes normal numbers in pairs and keeps the second: `np.random.get_state()` has five parts, and all "
            "of them are the state."
        )
    wrong = {each for each in DRAWS if found[each] != wanted[each]}
    if len(wrong) == len(DRAWS):
        return "No generator is back. A seed gives the beginning of a stream, and not the place in it: keep the state."
    return f"{name.removesuffix(' normal')} generator is not where it was: is its state taken, and put back?"
