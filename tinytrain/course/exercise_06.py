"""The exercises of notebook 06: the right divisor, the last update of an epoch, and a test for accumulation."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tinytrain import cross_entropy
from tinytrain.course.check_divisor_06 import check_add_up
from tinytrain.course.check_epoch_06 import check_epoch_losses
from tinytrain.course.exercises import Exercise
from tinytrain.course.suspects_06 import check_is_right


def add_up(model: nn.Module, micro_batches: list[dict[str, Tensor]]) -> float:
    """Add the gradient of the mean loss over all targets to each ``.grad``; return that loss.

    ``model(batch["input_ids"])`` gives logits ``[B,T,V]``. ``batch["labels"]`` is ``[B,T]``, -100
    where nothing is to be predicted; shapes differ between micro-batches. One may be without any
    target, but not all of them. No attention mask is needed: padding comes last, and no position
    looks ahead. Run forward and backward for one micro-batch before the next one's forward, so
    that only one holds its activations at a time. What is in ``.grad`` already stays, and yours
    is added; a ``.grad`` that is None counts as zeros. Weights and micro-batches stay as they are.
    """
    targets = sum(int((batch["labels"] != -100).sum()) for batch in micro_batches)
    total = 0.0
    for batch in micro_batches:
        losses = cross_entropy(model(batch["input_ids"]), batch["labels"], reduction="sum")
        part = losses / targets
        part.backward()
        total += part.item()
    return total


def epoch_losses(sums: list[float], counts: list[int], per_update: int) -> list[float]:
    """The loss of each update of one epoch, in order, as a list of floats.

    Micro-batch i has a summed loss of ``sums[i]`` nats over ``counts[i]`` targets, at least 1. Each
    ``per_update`` micro-batches that follow one another make one update. Those that are left at
    the end make one more, if there are any. An update's loss is the mean over its own targets.
    The two lists stay as they are.
    """
    losses = []
    for start in range(0, len(sums), per_update):
        own = slice(start, start + per_update)
        losses.append(sum(sums[own]) / sum(counts[own]))
    return losses


def is_right(accumulate: Callable, model: nn.Module) -> bool:
    """Whether ``accumulate(model, micro_batches)`` adds the whole batch's gradient to each ``.grad``.

    ``micro_batches`` is a list of dicts with ``input_ids`` and ``labels`` ``[B,T]``, -100 where
    nothing is to be predicted; make up your own. ``model(input_ids)`` gives logits; it is a small
    ``GPT`` for 256 tokens and up to 16 positions, with dropout 0.1 and in training mode; no
    position looks ahead, so targets left out at a row's end need no attention mask. ``accumulate``
    must be right for micro-batches with unequal numbers of targets, too; call it with no gradient
    there before. A difference of less than 1e-5 of the gradient's length is rounding, and one of
    1e-3 is not.
    """
    model.eval()  # otherwise each forward pass drops something else
    ids = torch.randint(0, 256, (6, 17))
    whole = {"input_ids": ids[:, :-1], "labels": ids[:, 1:].clone()}
    whole["labels"][:3, 4:] = -100  # the first micro-batch has fewer targets than the second
    gradients = []
    for pieces in (None, [{name: t[i : i + 3] for name, t in whole.items()} for i in (0, 3)]):
        model.zero_grad()
        if pieces is None:
            cross_entropy(model(whole["input_ids"]), whole["labels"]).backward()
        else:
            accumulate(model, pieces)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    wanted, found = gradients
    return bool((found - wanted).norm() <= 1e-5 * wanted.norm())


EXERCISES = (
    Exercise(
        number=1,
        title="The right divisor",
        goal="Write accumulation yourself, for micro-batches of any shape.",
        difficulty="medium",
        minutes=10,
        solution=add_up,
        check=check_add_up,
        hints=(
            "Every target must weigh the same, so you need their number before the first `backward`. Labels are all "
            "there beforehand; nothing has to be run to count them.",
            'Per micro-batch: `cross_entropy(logits, labels, reduction="sum")` over the number of all targets, then '
            "`backward()`, which adds to `.grad` by itself, then `.item()` for the loss to return.",
        ),
    ),
    Exercise(
        number=2,
        title="The last update of an epoch",
        goal="An epoch rarely ends with a full update. Say what the loss of each one is, the last included.",
        difficulty="easy",
        minutes=5,
        solution=epoch_losses,
        check=check_epoch_losses,
        hints=(
            "`range(0, n, per_update)` gives the place where each update begins, also the last one's.",
            "`sums[start : start + per_update]` is shorter at the end by itself. Divide its sum by the sum of the same "
            "slice of `counts`.",
        ),
    ),
    Exercise(
        number=3,
        title="A test that cannot be fooled",
        goal="Somebody hands you an accumulation function. Write the test that tells a right one from a wrong one.",
        difficulty="hard",
        minutes=15,
        solution=is_right,
        check=check_is_right,
        hints=(
            "Which batch would show the fault? One that is cut into pieces with unequal numbers of targets. And which "
            "part of the model makes even a right one look wrong?",
            "`model.eval()`; the whole batch's `cross_entropy(...).backward()`; copy all gradients into one long "
            "vector; `model.zero_grad()`; `accumulate(model, pieces)`; compare the two vectors by the length of their "
            "difference.",
        ),
    ),
)
