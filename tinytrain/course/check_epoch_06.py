"""The check of exercise 06.2: the loss of each update of an epoch, the last and short one included."""

import random
from collections.abc import Callable

from tinytrain.course.exercises import Report


def check_epoch_losses(answer: Callable[[list[float], list[int], int], list[float]], report: Report) -> None:
    """Epochs that divide evenly, that leave some, that are shorter than one update, and updates of one micro-batch."""
    per_update = random.randint(3, 6)
    full = random.randint(2, 4)
    cases = {
        "full updates only": (full * per_update, per_update),
        "some left over": (full * per_update + random.randint(1, per_update - 1), per_update),
        "fewer than one update takes": (random.randint(1, per_update - 1), per_update),
        "one micro-batch in each update": (random.randint(3, 6), 1),
    }
    for case, (n, per_update) in cases.items():
        counts = [random.randint(1, 60) for _ in range(n)]
        sums = [count * random.uniform(1, 5) for count in counts]
        given = (list(sums), list(counts))
        losses = answer(*given, per_update)
        report.need(
            f"{case}: returns a list of floats",
            isinstance(losses, list) and all(isinstance(loss, float) for loss in losses),
            f"It returned {type(losses).__name__}"
            + (
                f" of {', '.join(sorted({type(loss).__name__ for loss in losses}))}."
                if isinstance(losses, list)
                else "."
            ),
        )
        right = [_mean(sums[i : i + per_update], counts[i : i + per_update]) for i in range(0, n, per_update)]
        report.need(
            f"{case}: {len(right)} updates",
            len(losses) == len(right),
            _likely_number(losses, right, sums, counts, per_update),
        )
        agree = all(abs(loss - wanted) <= 1e-5 for loss, wanted in zip(losses, right, strict=True))
        report.need(
            f"{case}: each is the mean over its own targets", agree, _likely_loss(losses, sums, counts, per_update)
        )
        report.need(
            f"{case}: the two lists are as before",
            given == (sums, counts),
            "What was handed in belongs to the caller: take slices, and leave the lists as they are.",
        )


def _mean(sums: list[float], counts: list[int]) -> float:
    return sum(sums) / sum(counts)


def _likely_number(
    losses: list[float], right: list[float], sums: list[float], counts: list[int], per_update: int
) -> str:
    if len(losses) == len(sums):
        return "That is one update for each micro-batch. An update comes after `per_update` of them."
    if losses and len(losses) == len(right) - 1:
        last = (len(losses) - 1) * per_update
        if abs(losses[-1] - _mean(sums[last:], counts[last:])) <= 1e-5:
            return "The micro-batches left over at the end joined the update before. They make an update of their own."
    if len(losses) < len(right):
        return "The micro-batches left over at the end made no update: their tokens were never trained on."
    return "There are too many updates."


def _likely_loss(losses: list[float], sums: list[float], counts: list[int], per_update: int) -> str:
    starts = range(0, len(sums), per_update)
    means = [s / n for s, n in zip(sums, counts, strict=True)]
    of_means = [sum(means[i : i + per_update]) / len(means[i : i + per_update]) for i in starts]
    average = sum(counts) / len(counts)
    full = [sum(sums[i : i + per_update]) / (per_update * average) for i in starts]
    first = [_mean(sums[i : i + per_update], counts[i : i + per_update]) for i in starts][:-1]
    first_targets = sum(counts[:per_update])
    running = [_mean(sums[: i + per_update], counts[: i + per_update]) for i in starts]
    summed = [sum(sums[i : i + per_update]) for i in starts]
    candidates = [
        (
            of_means,
            "This is the mean of the micro-batches' means. Add up sums, and divide by all targets of the update.",
        ),
        (full, "It divides by the targets of a usual update. Divide by those of this one."),
        (summed, "The sums were never divided."),
        ([total / first_targets for total in summed], "It divides each update by the targets of the first."),
        (running, "An update took in those before it: start each one from nothing, as `zero_grad` does."),
    ]
    for values, words in candidates:
        if all(abs(a - b) <= 1e-5 for a, b in zip(losses, values, strict=True)):
            return words
    same = all(abs(a - b) <= 1e-5 for a, b in zip(losses[:-1], first, strict=True))
    if same and len(losses) > 1:
        return "Only the last update is wrong: divide what is left by what it holds."
    return "Does the first update begin at the first micro-batch, and each next one where the last ended?"
