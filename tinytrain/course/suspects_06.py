"""The check of exercise 06.3: accumulation, right and wrong in many ways, for a test to tell apart."""

import random
from collections.abc import Callable

from torch import Tensor, nn

from tinytrain import cross_entropy
from tinytrain.course.exercises import Report
from tinytrain.course.lesson_06 import accumulate as add_up
from tinytrain.model import GPT, ModelConfig

Batch = dict[str, Tensor]


def _honest(model: nn.Module, micro_batches: list[Batch]) -> float:
    return add_up(model, micro_batches)


def _honest_backwards(model: nn.Module, micro_batches: list[Batch]) -> float:
    """Right as well; it adds up in another order and so rounds in another way."""
    return add_up(model, micro_batches[::-1])


def _mean_of_means(model: nn.Module, micro_batches: list[Batch]) -> float:
    total = 0.0
    for batch in micro_batches:
        loss = cross_entropy(model(batch["input_ids"]), batch["labels"]) / len(micro_batches)
        loss.backward()
        total += loss.item()
    return total


def _undivided(model: nn.Module, micro_batches: list[Batch]) -> float:
    """Logs the right loss, and trains on another."""
    targets = [int((batch["labels"] != -100).sum()) for batch in micro_batches]
    total = 0.0
    for batch in micro_batches:
        losses = cross_entropy(model(batch["input_ids"]), batch["labels"], reduction="sum")
        (losses * len(targets) / sum(targets)).backward()
        total += losses.item() / sum(targets)
    return total


def _last_only(model: nn.Module, micro_batches: list[Batch]) -> float:
    """Zeroes the gradient inside the loop."""
    targets, total = sum(int((batch["labels"] != -100).sum()) for batch in micro_batches), 0.0
    for batch in micro_batches:
        model.zero_grad(set_to_none=False)
        loss = cross_entropy(model(batch["input_ids"]), batch["labels"], reduction="sum") / targets
        loss.backward()
        total += loss.item()
    return total


def _uphill(model: nn.Module, micro_batches: list[Batch]) -> float:
    """The right length, the wrong sign."""
    total = add_up(model, micro_batches)
    for p in model.parameters():
        if p.grad is not None:
            p.grad.neg_()
    return total


def _too_long(model: nn.Module, micro_batches: list[Batch]) -> float:
    """Each gradient a thousandth longer."""
    total = add_up(model, micro_batches)
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(1.001)
    return total


def _right_in_one(kept: int) -> Callable[[nn.Module, list[Batch]], float]:
    """Right in the gradient of one parameter, the first (0) or the last (-1), and in no other."""

    def accumulate(model: nn.Module, micro_batches: list[Batch]) -> float:
        total = add_up(model, micro_batches)
        parameters = [p for p in model.parameters() if p.grad is not None]
        for p in parameters:
            if p is not parameters[kept]:
                p.grad.mul_(2)
        return total

    return accumulate


def _wrong_in_one(model: nn.Module, micro_batches: list[Batch]) -> float:
    """Doubles one parameter's gradient, drawn anew among those that a comparison of all can see."""
    total = add_up(model, micro_batches)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    length = max(gradient.norm() for gradient in gradients)
    random.choice([gradient for gradient in gradients if gradient.norm() > 0.01 * length]).mul_(2)
    return total


SUSPECTS = {
    "a right one": (_honest, True),
    "a right one that adds up in another order": (_honest_backwards, True),
    "one that takes the mean of means": (_mean_of_means, False),
    "one whose gradient is too long, with the right loss": (_undivided, False),
    "one that keeps only the last gradient, with the right loss": (_last_only, False),
    "one whose gradient has the right length and the wrong sign": (_uphill, False),
    "one whose gradient is a thousandth too long": (_too_long, False),
    "one that is right in the first parameter only": (_right_in_one(0), False),
    "one that is right in the last parameter only": (_right_in_one(-1), False),
    "one that is wrong in one parameter only": (_wrong_in_one, False),
}


def check_is_right(answer: Callable[[Callable, nn.Module], bool], report: Report) -> None:
    """Show it every suspect, in a fresh order, each with a fresh model."""
    for number, name in enumerate([*random.sample(list(SUSPECTS), len(SUSPECTS)), "a right one"], 1):
        suspect, right = SUSPECTS[name]
        seen: list[tuple[bool, list[int]]] = []
        watched = _watched(suspect, seen)
        sizes = {"vocab_size": 256, "d_model": 16, "n_layers": 1, "n_heads": 2, "max_positions": 16}
        verdict = answer(watched, GPT(ModelConfig(**sizes, dropout=0.1)).train())
        report.need(
            f"suspect {number}: returns True or False",
            type(verdict) is bool,
            f"It returned {type(verdict).__name__}; `bool(...)` makes a plain truth value of a tensor.",
        )
        report.need(f"suspect {number}, {name}", verdict == right, _likely_test(right, seen))


def _watched(suspect: Callable, seen: list[tuple[bool, list[int]]]) -> Callable:
    """The suspect, noting the model's mode and the micro-batches' targets at each call."""

    def accumulate(model: nn.Module, micro_batches: list[Batch]) -> float:
        seen.append((model.training, [int((b["labels"] != -100).sum()) for b in micro_batches]))
        return suspect(model, micro_batches)

    return accumulate


def _likely_test(right: bool, seen: list[tuple[bool, list[int]]]) -> str:
    if not seen:
        return "It never called `accumulate`."
    if right and any(training for training, _ in seen):
        return "It convicts a right one. Dropout was on, and drops something else in each forward pass: `model.eval()`."
    if right:
        return (
            "It convicts a right one. Was an earlier gradient still in `.grad`? Does it allow for rounding, in parts "
            "of the gradient's length?"
        )
    counts = max((counts for _, counts in seen), key=lambda counts: len(set(counts)))
    if len(counts) == 1:
        return "It lets a wrong one pass: with a single micro-batch there is nothing to add up."
    if len(set(counts)) == 1:
        return (
            "It lets a wrong one pass: all your micro-batches have the same number of targets, and there it is right."
        )
    return (
        "It lets a wrong one pass. Compare the whole gradient, and not the loss, its direction, its length or one "
        "parameter; and allow for rounding only."
    )
