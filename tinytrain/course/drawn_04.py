"""What the checks of notebook 04 draw: inputs for which no mistake can pass for another, or for the right answer."""

import math
import random
from itertools import pairwise

import torch
from torch import Tensor

Mistakes = list[tuple[float, str]]


def drawn_gradients() -> tuple[list[Tensor], list[Tensor]]:
    """Parameters with gradients, and copies of these: drawn again until every mistake gives a number of its own."""
    while True:
        shapes = [(3, 4), (5,), (2, 2, int(torch.randint(2, 6, ()))), *[(4,)] * random.randint(0, 3)]
        parameters = [torch.randn(shape, requires_grad=True) for shape in shapes]
        for p in parameters:
            p.grad = torch.randn_like(p) * 3
        grads = [p.grad.clone() for p in parameters]
        right = torch.cat([grad.flatten() for grad in grads]).norm().item()
        if _all_apart(right, mistaken_norms(parameters, grads)):
            return parameters, grads


def mistaken_norms(parameters: list[Tensor], grads: list[Tensor]) -> Mistakes:
    """Wrong norms of these gradients, each with its mistake."""
    squares = sum(grad.square().sum().item() for grad in grads)
    count = sum(grad.numel() for grad in grads)
    return [
        (squares, "That is the sum of the squares: the root is missing."),
        (
            sum(grad.norm().item() for grad in grads),
            "It added the norms of the parameters. Lengths do not add up; their squares do.",
        ),
        (math.sqrt(squares / count), "It took the mean of the squares. A length grows with the number of entries."),
        (max(grad.abs().max().item() for grad in grads), "That is the largest entry, another kind of norm."),
        (
            math.sqrt(sum(p.detach().square().sum().item() for p in parameters)),
            "That is the norm of the weights. The gradients are in `.grad`.",
        ),
        (sum(grad.abs().sum().item() for grad in grads), "It added absolute values; squares are wanted."),
    ]


def drawn_speeds() -> tuple[list[dict[str, Tensor]], list[float], float]:
    """Batches, their seconds, and targets per second: drawn again until every mistake gives a number of its own."""
    while True:
        batches, tokens = [], 0
        for _ in range(random.randint(4, 7)):
            B, T = (int(torch.randint(3, 12, ())) for _ in range(2))
            labels = torch.full((B, T), -100)
            ids = torch.zeros(B, T, dtype=torch.long)  # 0 is the padding
            for row in range(B):
                n = int(torch.randint(1, T + 1, ()))
                ids[row, :n] = torch.randint(0, 50, (n,))  # and a token like any other
                ids[row, n - 1] *= min(row, 1)  # row 0 has an input of 0 that is a target all the same
                unasked = int(torch.randint(0, n, ()))  # the row's beginning is not trained on
                labels[row, unasked:n] = torch.randint(0, 50, (n - unasked,))
                tokens += n - unasked
            batches.append({"input_ids": ids, "labels": labels})
        nothing = {"input_ids": torch.randint(0, 50, (3, 5)), "labels": torch.full((3, 5), -100)}
        batches.insert(random.randrange(len(batches)), nothing)
        seconds = [0.05 + 0.5 * random.random() for _ in batches]
        right = tokens / sum(seconds)
        if _all_apart(right, mistaken_speeds(batches, seconds)):
            return batches, seconds, right


def mistaken_speeds(batches: list[dict[str, Tensor]], seconds: list[float]) -> Mistakes:
    """Wrong speeds of this run, each with its mistake."""
    targets = [int((batch["labels"] != -100).sum()) for batch in batches]
    real = sum(int((batch["input_ids"] != 0).sum()) for batch in batches)
    positions = sum(batch["labels"].numel() for batch in batches)
    nonzero = sum(int((batch["labels"] > 0).sum()) for batch in batches)
    both = sum(int(((batch["labels"] != -100) & (batch["input_ids"] != 0)).sum()) for batch in batches)
    total, busy = sum(seconds), sum(s for n, s in zip(targets, seconds, strict=True) if n)
    speeds = [n / s for n, s in zip(targets, seconds, strict=True)]
    return [
        (sum(targets) / busy, "Time counts for all batches, also for one without any target."),
        (both / total, "An input of 0 may be a token like any other. Only the label says what is a target."),
        (positions / total, "It counts every position, padding too."),
        (real / total, "It counts all tokens that are not padding; some of them are no targets. Look at labels."),
        (nonzero / total, "A label of 0 is a token like any other; only -100 is none."),
        (len(batches) / total, "Those are updates per second."),
        (sum(targets), "That is a number of tokens; per second is wanted."),
        (
            sum(targets) / total / len(batches),
            "That is the mean number of tokens of a batch over the whole run's time.",
        ),
        (speeds[-1], "That is the last batch alone."),
        (
            sum(speeds) / len(batches),
            "It averages the batches' speeds. A slow batch takes more of the time, so add up tokens and seconds first.",
        ),
    ]


def likely_mistake(value: float, mistakes: Mistakes) -> str:
    """What the first mistake that gives ``value`` is, or nothing."""
    return next((text for number, text in mistakes if close(value, number)), "")


def close(a: float, b: float) -> bool:
    """Equal to 1e-4 of ``b``; a plain bool, also of a NumPy float."""
    return bool(abs(a - b) <= 1e-4 * abs(b))


def _all_apart(right: float, mistakes: Mistakes) -> bool:
    numbers = sorted([right, *(number for number, _ in mistakes)])
    return all(larger > 1.001 * smaller for smaller, larger in pairwise(numbers))  # ten times what ``close`` forgives
