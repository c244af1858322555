"""The exercises of notebook 04: a gradient's norm, eight lines in order, tokens per second, an iterator that ends."""

import copy
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from tinytrain.course.drawn_04 import (
    close,
    drawn_gradients,
    drawn_speeds,
    likely_mistake,
    mistaken_norms,
    mistaken_speeds,
)
from tinytrain.course.exercises import Exercise, Report


def norm_by_hand(parameters: list[Tensor]) -> float:
    """The 2-norm of all gradients together, as a float: the length of one long list of all ``p.grad``.

    A parameter that took no part has ``p.grad is None`` and adds nothing. The gradients must stay
    as they are.
    """
    grads = [p.grad for p in parameters if p.grad is not None]
    return math.sqrt(sum(grad.square().sum().item() for grad in grads))


def check_norm_by_hand(answer: Callable[[Sequence[Tensor]], float], report: Report) -> None:
    """Compare with torch's norm of everything in one vector, on fresh tensors of several shapes."""
    for number in (1, 2):
        parameters, kept = drawn_gradients()
        idle = torch.randn(4, requires_grad=True)
        wanted = torch.cat([grad.flatten() for grad in kept]).norm().item()
        given = list(parameters)
        given.insert(random.randrange(len(parameters)) if number == 1 else 0, idle)
        value = answer(given)
        report.need(
            f"round {number}: returns a float", isinstance(value, float), f"It returned {type(value).__name__}."
        )
        likely = likely_mistake(value, mistaken_norms(parameters, kept)) or "Square, add up, take one root."
        report.need(f"round {number}: equals torch's, to 1e-4", close(value, wanted), likely)
        untouched = idle.grad is None and all(
            p.grad is not None and torch.equal(p.grad, grad) for p, grad in zip(parameters, kept, strict=True)
        )
        report.need(f"round {number}: the gradients are as before", untouched, "Something wrote into a gradient.")


LINES = (
    "optimizer.zero_grad()",
    "logits = model(input_ids)",
    "loss = cross_entropy(logits, labels)",
    "loss.backward()",
    "clip_grad_norm_(model.parameters(), 1.0)",
    "set_lr(optimizer, lr_at(step))",
    "optimizer.step()",
    "step += 1",
)


def in_order(lines: list[str]) -> list[str]:
    """The eight lines of a training loop, as a list of strings in an order that trains rightly.

    ``lines`` holds them shuffled: ``optimizer.step()``, ``loss.backward()``, ``step += 1``,
    ``logits = model(input_ids)``, ``clip_grad_norm_(model.parameters(), 1.0)``,
    ``optimizer.zero_grad()``, ``set_lr(optimizer, lr_at(step))`` and
    ``loss = cross_entropy(logits, labels)``. Before the first batch ``step`` is 0; ``lr_at(step)``
    is the learning rate of the update that follows ``step`` updates. You may ignore the argument
    and write the list down.
    """
    return [
        "optimizer.zero_grad()",
        "logits = model(input_ids)",
        "loss = cross_entropy(logits, labels)",
        "loss.backward()",
        "clip_grad_norm_(model.parameters(), 1.0)",
        "set_lr(optimizer, lr_at(step))",
        "optimizer.step()",
        "step += 1",
    ]


def check_in_order(answer: Callable[[list[str]], list[str]], report: Report) -> None:
    """Run the loop in the order given, on a tiny model, and compare its weights with those of a right loop."""
    shuffled = random.sample(LINES, len(LINES))
    while shuffled.index("optimizer.step()") > shuffled.index("loss.backward()"):  # never right by chance
        shuffled = random.sample(LINES, len(LINES))
    order = answer(list(shuffled))
    report.need("returns a list", isinstance(order, list), f"It returned {type(order).__name__}.")
    whole = all(type(line) is str for line in order) and sorted(order) == sorted(LINES)
    report.need("holds each of the eight lines once", whole, _likely_lines(order))
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    with torch.no_grad():
        model[1].weight.mul_(9)  # steep enough to be clipped
    batches = [torch.randint(0, 7, (2, 5, 6)) for _ in range(5)]
    try:
        trained = _loop(order, model, batches)
    except NameError as error:
        why = f"`{error.name}` is used before the line that makes it has run."
        report.need("every line finds what it uses", False, why)
        return
    except RuntimeError:  # backward finds weights that a step has changed since the forward
        report.need("it trains", False, _likely_order(order))
        return
    wanted = _loop(LINES, model, batches)
    same = all(torch.equal(p, q) for p, q in zip(trained.parameters(), wanted.parameters(), strict=True))
    report.need("after five updates its weights are those of a right loop, bit for bit", same, _likely_order(order))


def _loop(order: Sequence[str], model: nn.Module, batches: list[Tensor]) -> nn.Module:
    """A copy of ``model``, trained by running the lines in this order for each batch."""
    model = copy.deepcopy(model)
    names = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=5.0, momentum=0.9),
        "cross_entropy": lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten()),
        "clip_grad_norm_": clip_grad_norm_,
        "set_lr": lambda optimizer, lr: optimizer.param_groups[0].update(lr=lr),
        "lr_at": lambda step: 0.3 / (1 + step),
        "step": 0,
    }
    code = compile("\n".join(order), "the loop", "exec")  # only lines of LINES come here
    for input_ids, labels in batches:
        names |= {"input_ids": input_ids, "labels": labels}
        exec(code, names)
    return model


def _likely_lines(order: list) -> str:
    absent = [line for line in LINES if line not in order]
    return f"Not among them: `{absent[0]}`." if absent else "Some line is there twice, or changed."


def _likely_order(order: list[str]) -> str:
    at = {name: order.index(line) for name, line in zip(NAMES, LINES, strict=True)}
    if at["step"] < at["backward"]:
        return (
            "`optimizer.step()` comes before `loss.backward()`: it moves by slopes that are not there yet, or are old."
        )
    if at["backward"] < at["zero"] < at["step"]:
        return "`zero_grad()` stands between backward and step: it throws the new slopes away before they are used."
    if not at["backward"] < at["clip"] < at["step"]:
        return "Clipping must find the new slopes and come before they are used: between backward and step."
    if at["lr"] > at["step"]:
        return "The lr is set after the update that it was meant for."
    if at["count"] < at["lr"]:
        return "`step` is raised before `lr_at(step)` is asked: each update gets the next one's lr."
    return "Go through it with one batch on paper: what is in `.grad` at each line?"


NAMES = ("zero", "forward", "loss", "backward", "clip", "lr", "step", "count")


def tokens_per_second(batches: list[dict[str, Tensor]], seconds: list[float]) -> float:
    """Target tokens per second over the whole run, as a float.

    ``batches[i]`` was trained on in ``seconds[i]``; it has ``input_ids`` and ``labels`` ``[B,T]``.
    A position whose label is -100 is no target: padding, or a part of the text that is not trained
    on. Time counts for all batches, also for one without any target.
    """
    tokens = sum((batch["labels"] != -100).sum().item() for batch in batches)
    return tokens / sum(seconds)


def check_tokens_per_second(answer: Callable[..., float], report: Report) -> None:
    """Batches of different lengths, padding and speed, drawn anew; some text is no target though it is no padding."""
    batches, seconds, right = drawn_speeds()
    value = answer([{name: rows.clone() for name, rows in batch.items()} for batch in batches], list(seconds))
    report.need("returns a float", isinstance(value, float), f"It returned {type(value).__name__}.")
    likely = likely_mistake(value, mistaken_speeds(batches, seconds)) or "All targets, over all seconds."
    report.need("equals a count of the targets, to 1e-4", close(value, right), likely)


def first_batches(loader: Callable, n: int) -> list:
    """The first ``n`` batches, as a list, of a run that goes on over as many epochs as it needs.

    ``loader(epoch)`` gives an iterator over the batches of epoch 0, 1, 2 …, each in an order of its
    own; one epoch may hold more batches than another. Ask for an epoch once, when the one before
    has run out and more is needed.
    """
    taken, epoch = [], 0
    batches = iter(loader(epoch))
    while len(taken) < n:
        try:
            taken.append(next(batches))
        except StopIteration:
            epoch += 1
            batches = iter(loader(epoch))
    return taken


def check_first_batches(answer: Callable[..., list], report: Report) -> None:
    """Epochs of lengths drawn anew; the run ends within an epoch, at its end, within the first, and after many."""
    orders = [(1 + torch.randperm(1000)[: random.randint(4, 8)]).tolist() for _ in range(30)]
    ends = [len(_all(orders[:epoch])) for epoch in range(1, len(orders) + 1)]
    for n in (ends[1] + 2, ends[1], ends[0] - 1, ends[random.randint(6, 9)] + 1):
        last = next(epoch for epoch, end in enumerate(ends) if n <= end)
        asked: list[int] = []

        def loader(epoch: int, asked: list[int] = asked, last: int = last) -> Iterator[int]:
            if len(asked) > 1000:  # an answer that throws every batch away would never end
                raise LookupError(f"an epoch was asked for 1000 times; {last + 1} are enough")
            asked.append(epoch)
            return iter(orders[epoch] if epoch < len(orders) else [])

        value, wanted = answer(loader, n), _all(orders)[:n]
        report.need(f"{n} batches: returns a list", isinstance(value, list), f"It returned {type(value).__name__}.")
        right = all(type(batch) is int for batch in value) and value == wanted
        report.need(
            f"{n} batches, {ends[0]} in the first epoch: the right ones", right, _likely_batches(value, wanted, orders)
        )
        needed = max(asked) <= last
        report.need(f"{n} batches: no epoch is asked for in vain", needed, f"Epoch {last + 1} was asked for as well.")
        once = sorted(asked) == list(range(last + 1))
        report.need(f"{n} batches: each epoch is asked for once", once, "An epoch was asked for more than once.")


def _likely_batches(value: list, wanted: list[int], orders: list[list[int]]) -> str:
    length, n = len(orders[0]), len(wanted)
    if value == (orders[0] * n)[:n]:
        return "Epoch 0 comes again and again: the order was not drawn anew."
    if value == orders[0][:n]:
        return "It ends with the first epoch."
    if len(value) != n:
        return f"It holds {len(value)} batches; {n} are wanted."
    if value == _all(order[1:] for order in orders)[:n] or value == (orders[0] + _all(o[1:] for o in orders[1:]))[:n]:
        return "The first batch of an epoch is lost."
    if value == _all(order[:-1] for order in orders)[:n]:
        return "The last batch of each epoch is lost."
    return f"The first {length} must be those of epoch 0, in their order; then those of epoch 1, and so on."


def _all(orders: Iterable[list[int]]) -> list[int]:
    return [batch for order in orders for batch in order]


EXERCISES = (
    Exercise(
        number=1,
        title="The norm by hand",
        goal="Write the gradient norm of a model without `clip_grad_norm_`.",
        difficulty="easy",
        minutes=5,
        solution=norm_by_hand,
        check=check_norm_by_hand,
        hints=(
            "The length of (3, 4) together with (12) is 13, not 5 + 12. What adds up is the squares.",
            "`p.grad.square().sum().item()` is one parameter's part. Leave out those whose `p.grad` is None, and take "
            "`math.sqrt` of the sum at the very end.",
        ),
    ),
    Exercise(
        number=2,
        title="Eight lines in order",
        goal="Put the eight lines of a training loop in order. The check runs your loop; more than one order is right.",
        difficulty="medium",
        minutes=10,
        solution=in_order,
        check=check_in_order,
        hints=(
            "Begin with what needs what: logits, loss, backward, step. Then place the other four: what must each of "
            "them find, and before what must it be done?",
            "Clipping stands between backward and step, the lr anywhere before `optimizer.step()`, and counting after "
            "the lr. `zero_grad()` may stand anywhere outside backward … step.",
        ),
    ),
    Exercise(
        number=3,
        title="Count tokens",
        goal="Write the speed of a run in target tokens per second. Batches differ in length, in padding and in time.",
        difficulty="easy",
        minutes=5,
        solution=tokens_per_second,
        check=check_tokens_per_second,
        hints=(
            'Which tensor says what is a target? `(batch["labels"] != -100).sum().item()` counts one batch.',
            "Add up all tokens and all seconds, and divide once.",
        ),
    ),
    Exercise(
        number=4,
        title="Survive the end of the iterator",
        goal="Take the first n batches of a run whose epochs are shorter. Each epoch has an order of its own.",
        difficulty="medium",
        minutes=10,
        solution=first_batches,
        check=check_first_batches,
        hints=(
            "`next(batches)` raises `StopIteration` at the end. Catch it, count the epoch, and make a new iterator.",
            "A generator needs no `try`: one loop over epochs, inside it one over the batches of `loader(epoch)`, and "
            "a `return` as soon as there are n. Where must that test stand so that no epoch is asked for in vain?",
        ),
    ),
)
