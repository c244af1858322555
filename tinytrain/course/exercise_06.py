"""The exercises of notebook 06: the right divisor, the last window of an epoch, and a test for accumulation."""

import copy
import math
import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytrain import cross_entropy
from tinytrain.course.exercises import Exercise, Report
from tinytrain.model import GPT, ModelConfig

Batch = dict[str, Tensor]


def add_up(model: nn.Module, micro_batches: list[dict[str, Tensor]]) -> float:
    """Add the gradient of the mean loss over all targets of all micro-batches to each ``.grad``; return that loss.

    ``model(batch["input_ids"])`` gives logits ``[B,T,V]``. ``batch["labels"]`` is ``[B,T]``, -100 where nothing is to
    be predicted; shapes differ between micro-batches. One may be without any target, but not all of them. No attention
    mask is needed: padding comes last, and no position looks ahead. Run forward and backward for one micro-batch before
    the next one's forward, so that only one holds its activations at a time. What is in ``.grad`` already stays, and
    yours is added; a ``.grad`` that is None counts as zeros. Weights and micro-batches stay as they are.
    """
    targets = sum(int((batch["labels"] != -100).sum()) for batch in micro_batches)
    total = 0.0
    for batch in micro_batches:
        losses = cross_entropy(model(batch["input_ids"]), batch["labels"], reduction="sum")
        part = losses / targets
        part.backward()
        total += part.item()
    return total


def check_add_up(answer: Callable[[nn.Module, list[Batch]], float], report: Report) -> None:
    """Compare with the gradient of all tokens at once, for unequal micro-batches, and with one that is all padding."""
    for case in ("unequal micro-batches", "one without targets", "no gradient before"):
        V = random.randint(9, 17)  # kinds of token
        _check_add_up(answer, report, case, _Watched(V), _micro_batches(V, empty=case == "one without targets"))


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
    close = bool(abs(value - wanted) <= 1e-4)
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
    return next((words[name] for name, other in others.items() if abs(value - other) <= 1e-4), "")


def epoch_losses(sums: list[float], counts: list[int], window: int) -> list[float]:
    """The loss of each update of one epoch, in order, as a list of floats.

    Micro-batch i has a summed loss of ``sums[i]`` nats over ``counts[i]`` targets, at least 1. Each ``window``
    micro-batches that follow one another make one update. Those that are left at the end make one more, if there are
    any. An update's loss is the mean over its own targets. The two lists stay as they are.
    """
    losses = []
    for start in range(0, len(sums), window):
        own = slice(start, start + window)
        losses.append(sum(sums[own]) / sum(counts[own]))
    return losses


def check_epoch_losses(answer: Callable[[list[float], list[int], int], list[float]], report: Report) -> None:
    """Epochs that divide evenly, that leave some, that are shorter than one window, and windows of 1."""
    window = random.randint(3, 6)
    full = random.randint(2, 4)
    cases = {
        "full windows": (full * window, window),
        "some left over": (full * window + random.randint(1, window - 1), window),
        "fewer than one window": (random.randint(1, window - 1), window),
        "a window of 1": (random.randint(3, 6), 1),
    }
    for case, (n, window) in cases.items():
        counts = [random.randint(1, 60) for _ in range(n)]
        sums = [count * random.uniform(1, 5) for count in counts]
        given = (list(sums), list(counts))
        losses = answer(*given, window)
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
        right = [_mean(sums[i : i + window], counts[i : i + window]) for i in range(0, n, window)]
        report.need(
            f"{case}: {len(right)} updates",
            len(losses) == len(right),
            _likely_number(losses, right, sums, counts, window),
        )
        agree = all(abs(loss - wanted) <= 1e-5 for loss, wanted in zip(losses, right, strict=True))
        report.need(f"{case}: each is the mean over its own targets", agree, _likely_loss(losses, sums, counts, window))
        report.need(
            f"{case}: the two lists are as before",
            given == (sums, counts),
            "What was handed in belongs to the caller: take slices, and leave the lists as they are.",
        )


def _mean(sums: list[float], counts: list[int]) -> float:
    return sum(sums) / sum(counts)


def _likely_number(losses: list[float], right: list[float], sums: list[float], counts: list[int], window: int) -> str:
    if len(losses) == len(sums):
        return "That is one update for each micro-batch. An update comes after `window` of them."
    if losses and len(losses) == len(right) - 1:
        last = (len(losses) - 1) * window
        if abs(losses[-1] - _mean(sums[last:], counts[last:])) <= 1e-5:
            return "The micro-batches left over at the end joined the window before. They make an update of their own."
    if len(losses) < len(right):
        return "The micro-batches left over at the end made no update: their tokens were never trained on."
    return "There are too many updates."


def _likely_loss(losses: list[float], sums: list[float], counts: list[int], window: int) -> str:
    starts = range(0, len(sums), window)
    means = [s / n for s, n in zip(sums, counts, strict=True)]
    of_means = [sum(means[i : i + window]) / len(means[i : i + window]) for i in starts]
    average = sum(counts) / len(counts)
    full = [sum(sums[i : i + window]) / (window * average) for i in starts]
    first = [_mean(sums[i : i + window], counts[i : i + window]) for i in starts][:-1]
    first_targets = sum(counts[:window])
    running = [_mean(sums[: i + window], counts[: i + window]) for i in starts]
    summed = [sum(sums[i : i + window]) for i in starts]
    candidates = [
        (
            of_means,
            "This is the mean of the micro-batches' means. Add up sums, and divide by all targets of the window.",
        ),
        (full, "It divides by the targets of a usual window. Divide by those of this one."),
        (summed, "The sums were never divided."),
        ([total / first_targets for total in summed], "It divides each window by the targets of the first."),
        (running, "An update took in the windows before it: start each one from nothing, as `zero_grad` does."),
    ]
    for values, words in candidates:
        if all(abs(a - b) <= 1e-5 for a, b in zip(losses, values, strict=True)):
            return words
    same = all(abs(a - b) <= 1e-5 for a, b in zip(losses[:-1], first, strict=True))
    if same and len(losses) > 1:
        return "Only the last update is wrong: divide what is left by what it holds."
    return "Do the windows begin at the first micro-batch, and follow one another without a gap?"


def is_right(accumulate: Callable, model: nn.Module) -> bool:
    """Whether ``accumulate(model, micro_batches)`` adds the gradient of the whole batch to each ``.grad``.

    ``micro_batches`` is a list of dicts with ``input_ids`` and ``labels`` ``[B,T]``, -100 where nothing is to be
    predicted; make up your own. ``model(input_ids)`` gives logits; it is a small ``GPT`` for 256 tokens and up to 16
    positions, with dropout 0.1 and in training mode; no position looks ahead, so targets left out at a row's end need
    no attention mask. ``accumulate`` must be right for micro-batches with unequal numbers of targets, too; call it with
    no gradient there before. A difference of less than 1e-5 of the gradient's length is rounding, and one of 1e-3 is
    not.
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
        title="The last partial window",
        goal="An epoch rarely ends with a full window. Say what the loss of each update is, the last one included.",
        difficulty="easy",
        minutes=5,
        solution=epoch_losses,
        check=check_epoch_losses,
        hints=(
            "`range(0, n, window)` gives the place where each window begins, also the last one's.",
            "`sums[start : start + window]` is shorter at the end by itself. Divide its sum by the sum of the same "
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
