"""What several laws use: their batches, and what can be said of a run in which there is nothing to judge."""

from collections.abc import Sequence

import torch

from tinytrain.course.laws.bench import Run
from tinytrain.course.laws.line import Line, holds_if, untested
from tinytrain.course.laws.probe import Batch, T, cut, distance, gradient_of, rows_of, true_loss

CLOSE = {"fp32": 1e-5, "fp16": 2e-2}
"""how far a gradient may be off the true one, in its own length"""
UNEVEN = (T, 1, 5, 3, 2, 8)
"""targets of the rows of a batch in which every way of counting gives another number"""


def uneven(number: int, sizes: Sequence[int] = (1, 3, 2), *, length: int = T) -> list[Batch]:
    """A batch of rows of very different lengths, cut up unevenly."""
    return cut(rows_of(number, UNEVEN, length=length), sizes)


def always_uneven(_n: int) -> list[Batch]:
    """The same batch each time: in which order they come is law 4."""
    return uneven(0)


def in_six(n: int) -> list[Batch]:
    """The rows of the ordinary batch ``n``, each a micro-batch of its own."""
    return cut(rows_of(n, [T] * 6), [1] * 6)


def without_targets(batch: Batch) -> Batch:
    return batch | {"labels": torch.full_like(batch["labels"], -100)}


def no_update(run: Run) -> Line:
    """Why nothing can be said about the updates of this run."""
    if run.ended:
        return holds_if(False, f"the run ended with {run.ended}")
    if not run.tape.updates and not run.moved and any(not torch.equal(a, run.weights[n]) for n, a in run.began.items()):
        return untested("the weights move, and no step() of a torch optimizer was seen")
    return untested("no update was seen: the weights are as they were")


NOT_FLOAT32 = untested("the weights are not float32, of which law 7 tells")


def in_float32(run: Run) -> bool:
    return all(value.dtype == torch.float32 for update in run.tape.updates for value in update.before.values())


def furthest_off(run: Run, batches: list[Batch]) -> float:
    """By how much any update's gradient is off the true one, in its own length."""
    return max(distance(u.gradient, gradient_of(u.before, true_loss, batches)) for u in run.tape.updates)
