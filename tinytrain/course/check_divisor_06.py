"""The check of exercise 06.1: every micro-batch over one divisor, compared with all tokens at once."""

import copy
import math
import random
from collections.abc import Callable
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytrain.course.exercises import Report

Batch = dict[str, Tensor]
CLOSE = 1e-4  # nats: losses that are nearer than this are the same


def check_add_up(answer: Callable[[nn.Module, list[Batch]], float], report: Report) -> None:
    """Compare with the gradient of all tokens at once, for unequal micro-batches, and with one that is all padding."""
    for case in ("unequal micro-batches", "one without targets", "no gradient before"):
        _check_add_up(answer, report, case, *_drawn(empty=case == "one without targets"))


class _Watched(nn.Module):
    """A tiny model that notes each forward (f) and each backward (b)."""

    def __init__(self, V: int) -> None:
        super().__init__()
        self.embedding, self.head, self.events = nn.Embedding(V, 8), nn.Linear(8, V), ""
        self.head.weight.register_hook(self._backward)

    def forward(self, input_ids: Tensor) -> Tensor:
        self.events += "f"
        return self.head(self.embedding(input_ids))

    def _backward(self, _gradient: Tensor) -> None:
        self.events += "b"


def _micro_batches(V: int, *, empty: bool) -> list[Batch]:
    shapes = [(random.randint(1, 4), random.randint(9, 12)), (2, 3)]
    shapes += [(random.randint(3, 5), random.randint(5, 7)) for _ in range(random.randint(1, 2))]
    batches = [{"input_ids": torch.randint(0, V, s), "labels": torch.randint(0, V, s)} for s in shapes]
    batches[0]["labels"][0, 2:] = -100
    batches[1]["labels"][:, 1:] = -100
    if empty:
        nothing = {"input_ids": torch.randint(0, V, (2, 4)), "labels": torch.full((2, 4), -100)}
        batches.insert(random.randint(0, 3), nothing)
    return batches


def _drawn(*, empty: bool) -> tuple[_Watched, list[Batch]]:
    """A model and its micro-batches, drawn until the right loss and that of each usual mistake are apart."""
    while True:
        V = random.randint(9, 17)  # kinds of token
        model, batches = _Watched(V), _micro_batches(V, empty=empty)
        wanted, _, others = _by_hand(model, batches)
        if not empty:
            del others["means of those with targets"]  # the same as "means"
        if all(abs(a - b) > 10 * CLOSE for a, b in combinations([wanted, *others.values()], 2)):
            return model, batches


def _check_add_up(
    answer: Callable[..., float], report: Report, case: str, model: _Watched, batches: list[Batch]
) -> None:
    wanted, gradient, others = _by_hand(model, batches)
    fresh = case == "no gradient before"
    before = {p: torch.zeros_like(p) if fresh else torch.randn_like(p) for p in model.parameters()}
    for p, old in before.items():
        p.grad = None if fresh else old.clone()
    given, weights = copy.deepcopy(batches), [p.detach().clone() for p in model.parameters()]
    try:
        value = answer(model, given)
    except (TypeError, AttributeError) as error:
        if not fresh:
            raise
        report.need(f"{case}: it runs", False, f"A `.grad` may be None, as at the start of a run: {error}")
        return
    added = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in before])
    old = torch.cat([old.flatten() for old in before.values()])
    report.need(
        f"{case}: returns a float",
        isinstance(value, float),
        f"It returned {type(value).__name__}; `.item()` makes a number of a tensor.",
    )
    close = bool(abs(value - wanted) <= CLOSE)
    likely = "" if close else _likely_divisor(value, others)
    kept = bool((added - old - gradient).norm() <= 1e-4 * gradient.norm())
    if not kept and bool((added - gradient).norm() <= 1e-4 * gradient.norm()):
        likely = "The gradients that were there before are gone. Zeroing is the caller's business here."
    elif not kept and close:
        likely = "The loss is right and the gradient is not: what did you call `backward` on, and how often?"
    report.need(f"{case}: the loss is the mean over all targets", close, likely)
    report.need(f"{case}: its gradient was added to .grad", kept, likely)
    same = all(torch.equal(p, old) for p, old in zip(model.parameters(), weights, strict=True))
    report.need(
        f"{case}: the weights are as before", same, "It changed the weights. An update is the caller's business."
    )
    same = len(given) == len(batches) and all(
        set(mine) == set(b) and all(torch.equal(mine[name], b[name]) for name in b)
        for mine, b in zip(given, batches, strict=True)
    )
    report.need(f"{case}: the micro-batches are as before", same, "What was handed in belongs to the caller.")
    if "without" not in case:
        report.need(
            f"{case}: one micro-batch at a time",
            "ff" not in model.events and model.events.count("f") >= len(batches),
            "It ran forward for a second micro-batch before the first one's backward, or for several in one, so all of "
            "them held their activations at once: right, but without the memory that accumulation is for.",
        )


def _by_hand(model: nn.Module, batches: list[Batch]) -> tuple[float, Tensor, dict[str, float]]:
    """The right loss and gradient from all tokens at once, and the losses that usual mistakes give."""
    twin = copy.deepcopy(model)
    tokens = [
        F.cross_entropy(twin(b["input_ids"]).flatten(0, 1), b["labels"].flatten(), reduction="none") for b in batches
    ]
    counts = [int((b["labels"] != -100).sum()) for b in batches]
    loss = torch.cat(tokens).sum() / sum(counts)
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(twin.parameters()))])
    sums = [float(t.detach().sum()) for t in tokens]
    means = [s / n for s, n in zip(sums, counts, strict=True) if n]
    others = {
        "means": sum(means) / len(batches),
        "means of those with targets": sum(means) / len(means),
        "undivided": sum(means),
        "sums": sum(sums),
        "positions": sum(sums) / sum(b["labels"].numel() for b in batches),
        "rows": sum(sums) / sum(len(b["labels"]) for b in batches),
        "sums over micro-batches": sum(sums) / len(batches),
    }
    return float(loss.detach()), gradient, others


def _likely_divisor(value: float, others: dict[str, float]) -> str:
    means = "This is the mean of the micro-batches' means: a token in a short one weighs more than one in a long one."
    words = {
        "means": means,
        "means of those with targets": means,
        "undivided": "The micro-batches' means were added up and never divided.",
        "sums": "The summed losses were never divided.",
        "positions": "It divides by all positions. Those labelled -100 are no targets.",
        "rows": "It divides by rows. The loss is a mean over target tokens.",
        "sums over micro-batches": "It divides by the number of micro-batches. Divide by the number of targets in all.",
    }
    if not math.isfinite(value):
        return "The mean over a micro-batch without targets is 0/0. Divide sums by the targets of all micro-batches."
    return next((words[name] for name, other in others.items() if abs(value - other) <= CLOSE), "")
