"""The exercises of notebook 09: share out the rows, one divisor over all processes, and when to exchange gradients.

Each check asks the answer once for every process, here, and sends what it returned to two processes that train with it.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Integral, Real

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytrain.course.exercises import Exercise, Report
from tinytrain.distributed import launch
from tinytrain.distributed.group import total, world_size

V = 11  # kinds of token in the checks
LR = 0.5


def tiny_model() -> nn.Module:
    """The same in every process; in float64, so that order of adding up does not matter."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(V, 6), nn.Linear(6, V)).double()


def summed_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """The losses of all targets of rows of ids ``[B,T+1]``, added up."""
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")


def move(model: nn.Module) -> None:
    """One step of plain gradient descent; what is in ``.grad`` is used up."""
    for p in model.parameters():
        if p.grad is not None:
            p.data -= LR * p.grad
            p.grad = None


def average(model: nn.Module) -> None:
    """Put the mean over all processes in the place of each gradient, as DDP does; None counts as zeros."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        total(p.grad).div_(world_size())


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def apart(one: Tensor, other: Tensor) -> float:
    """Length of the difference, in parts of the second's length; infinity where it is NaN."""
    distance = float((one - other).norm() / other.norm())
    return distance if distance >= 0 else float("inf")


def share(order: list[int], batch_size: int, rank: int, processes: int) -> list[list[int]]:
    """What process ``rank`` of ``processes`` does in an epoch: for each update, the list of its row numbers.

    ``order`` holds the row numbers in the order in which one process would visit them; each
    ``batch_size`` of them that follow one another make one update, and what is left at the end
    makes one more. Many processes make the same updates: together they do every row of an update
    exactly once, and their shares of it differ by one row at most. A process for which nothing is
    left in an update has an empty list there, so that all have equally many updates: it must still
    join the exchange, or the others wait for it. ``order`` stays as it is, and is not empty. The
    order of rows within a share is free.
    """
    updates = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    return [rows[rank::processes] for rows in updates]


def train_on_rows(rank: int, plans: list[list[list[int]]], ids: Tensor) -> list[float]:
    """The loss of each update, over the rows of all processes; ``plans[rank][k]`` are this one's rows of update k."""
    model, losses = tiny_model(), []
    for rows in plans[rank]:
        loss = summed_loss(model, ids[rows]) if rows else sum(p.sum() for p in model.parameters()) * 0
        counted = total(torch.tensor(float(len(rows) * (ids.shape[1] - 1))).double())
        (loss / counted * world_size()).backward()
        average(model)
        move(model)
        losses.append(float(total(loss.detach()) / counted))
    return losses


def check_share(answer: Callable[..., list[list[int]]], report: Report) -> None:
    """Two processes that train, with a last update of one row; then other numbers of processes and of rows left."""
    size = 3 * random.randint(3, 5) + 2
    cases = {  # processes, rows in an update, rows left at the end
        "2 processes": (2, random.randint(4, 9), 1),
        "3 processes": (3, size, random.randint(4, size - 1)),
        "1 process": (1, random.randint(4, 9), 2),
        "all updates full": (random.randint(4, 5), random.randint(6, 9), 0),
        "more processes than rows in an update": (random.randint(4, 6), random.randint(2, 3), 1),
    }
    for case, (processes, size, left) in cases.items():
        n = size * random.randint(3, 5) + left
        order = random.sample(range(3 * n), n)
        given = [list(order) for _ in range(processes)]
        plans = [answer(given[rank], size, rank, processes) for rank in range(processes)]
        _check_plans(plans, report, case)
        what = "What was handed in belongs to the caller: take slices."
        report.need(f"{case}: the order is as before", given == [order] * processes, what)
        updates = [order[i : i + size] for i in range(0, n, size)]
        numbers = [len(plan) for plan in plans]
        report.need(
            f"{case}: {len(updates)} updates in each",
            numbers == [len(updates)] * processes,
            _likely_number(numbers, plans, updates),
        )
        likely = _likely_rows(plans, updates)
        known = {int(row) for plan in plans for rows in plan for row in rows} <= {*order}
        report.need(f"{case}: all are row numbers of the order", known, likely)
        if case == "2 processes":
            ids = torch.randint(0, V, (3 * n, 5))
            alone = torch.tensor(train_on_rows(0, [updates], ids))
            pair = [[list(map(int, rows)) for rows in plan] for plan in plans]
            if all(any(plan[k] for plan in pair) for k in range(len(updates))):
                together = torch.tensor(launch(train_on_rows, 2, pair, ids, device="cpu")[0])
                what = "two processes that train on it have the losses of one"
                report.need(what, apart(together, alone) <= 1e-9, likely)
        each_once = all(
            sorted(row for plan in plans for row in plan[k]) == sorted(rows) for k, rows in enumerate(updates)
        )
        report.need(f"{case}: every row of an update is done once, in that update", each_once, likely)
        sizes = [[len(plan[k]) for plan in plans] for k in range(len(updates))]
        uneven = max(range(len(sizes)), key=lambda k: max(sizes[k]) - min(sizes[k]))
        report.need(
            f"{case}: shares differ by one row at most",
            max(sizes[uneven]) - min(sizes[uneven]) <= 1,
            f"The shares of update {uneven} have {sizes[uneven]} rows: the others wait for the one that has most.",
        )


def _check_plans(plans: list[object], report: Report, case: str) -> None:
    def lists(plan: object) -> bool:
        return isinstance(plan, list) and all(isinstance(rows, list) for rows in plan)

    plan = next((plan for plan in plans if not lists(plan)), plans[0])
    report.need(
        f"{case}: returns a list of lists",
        lists(plan),
        f"It returned {type(plan).__name__}"
        + (f" of {', '.join(sorted({type(rows).__name__ for rows in plan}))}." if isinstance(plan, list) else ".")
        + " One list of row numbers for each update.",
    )
    rows = [row for plan in plans for rows in plan for row in rows]
    kinds = {type(row).__name__ for row in rows if not isinstance(row, Integral)}
    report.need(
        f"{case}: of row numbers", not kinds, f"There is {', '.join(sorted(kinds))} where a row number belongs."
    )


def _likely_number(numbers: list[int], plans: list[list[list[int]]], updates: list[list[int]]) -> str:
    n, whole = len(updates), updates[0]
    if all(number == n + 1 and not plan[-1] for number, plan in zip(numbers, plans, strict=True)):
        return "There is one update too many, an empty one at the end: `order` divides into full updates here."
    if all(number == n - 1 for number in numbers):
        return "The rows left at the end made no update: they were never trained on."
    if len(plans) > 1 and plans[0] and {*plans[0][0]} == {*whole}:
        return "Whole updates were dealt out. Each update belongs to all processes: deal out its rows."
    if len(plans) > 1 and plans[0] and len(plans[0][0]) == len(whole):
        return "The updates are larger than in one process: `batch_size` counts the rows of all processes together."
    if len(set(numbers)) > 1:
        return (
            f"The processes have {numbers} updates. One that has fewer leaves the others waiting: give it an empty "
            "list where nothing is left for it."
        )
    return "There are too few updates." if numbers[0] < n else "There are too many updates."


def _likely_rows(plans: list[list[list[int]]], updates: list[list[int]]) -> str:
    done = Counter(int(row) for plan in plans for rows in plan for row in rows)
    meant = {row for rows in updates for row in rows}
    if len(plans) > 1 and all(sorted(plan[0]) == sorted(plans[0][0]) for plan in plans) and plans[0][0]:
        return "All processes do the same rows. Each must take another part of an update: what does `rank` change?"
    if set(done) - meant:
        return "There are rows that are not in `order`: places in it are not its row numbers."
    if missing := meant - set(done):
        return f"{len(missing)} rows are done by nobody, such as row {min(missing)}."
    if twice := [row for row, times in done.items() if times > 1]:
        return (
            f"Some rows are done twice, such as row {twice[0]}. To fill up a share with rows that were done before "
            "makes them weigh double; an empty or shorter share is fine."
        )
    return (
        "Each row is done once, but in another update than in one process. Cut the epoch into updates first, and "
        "deal out the rows of each."
    )


def factors(counts: list[list[int]], rank: int) -> list[float]:
    """What process ``rank`` must multiply the mean loss of each of its micro-batches by: a float for each.

    ``counts[r][i]`` is the number of targets in micro-batch i of process r; processes may have
    different numbers of micro-batches, even none. Process ``rank`` takes the mean loss over the targets of
    each of its own micro-batches (0 if there is none in it), times your factor, and adds up the
    gradients. Then DDP takes the mean over all processes. What comes out must be the gradient of
    the mean loss over all targets of all processes. Some counts may be 0, but not all of them.
    ``counts`` stays as it is.
    """
    targets = sum(sum(own) for own in counts)
    return [n * len(counts) / targets for n in counts[rank]]


def gradient_with(rank: int, weights: list[list[float]], micro_batches: list[list[Tensor]]) -> Tensor:
    """The gradient that is left after this process's micro-batches, each mean times its weight, and the average."""
    model = tiny_model()
    for weight, ids in zip(weights[rank], micro_batches[rank], strict=True):
        if ids.numel():
            (summed_loss(model, ids[None]) / (len(ids) - 1) * weight).backward()
    average(model)
    return flat([p.grad for p in model.parameters()])


def check_factors(answer: Callable[[list[list[int]], int], list[float]], report: Report) -> None:
    """Two processes that train with them; three; counts of 0; other numbers of processes; a large count."""
    processes_of = {
        "2 processes": 2,
        "3 processes": 3,
        "some counts of 0": random.randint(2, 4),
        "many processes": random.randint(5, 7),
        "1 process": 1,
        "a process without micro-batches": random.randint(3, 5),
        "a large count": random.randint(2, 4),
    }
    for case, processes in processes_of.items():
        counts = [[random.randint(1, 30) for _ in range(random.randint(4, 6))] for _ in range(processes)]
        counts[0][0] += 40  # no two processes alike
        counts[-1].append(random.randint(1, 30))
        if case == "some counts of 0":
            counts[0][random.randint(1, 3)] = 0
            counts[-1] = [0] * len(counts[-1])
        if case == "a process without micro-batches":
            counts[random.randrange(processes)] = []
        if case == "a large count":
            counts[0][0] = random.randint(20_000, 50_000)
            counts[0][0] += (8 - sum(map(sum, counts))) % 32  # a sum that 16 bits cannot hold
        given = [[list(own) for own in counts] for _ in range(processes)]
        values = [answer(given[rank], rank) for rank in range(processes)]
        _check_factors(values, counts, report, case)
        report.need(
            f"{case}: the counts are as before", given == [counts] * processes, "What was handed in is the caller's."
        )
        found = [[float(factor) for factor in value] for value in values]
        likely = _likely_factors(found, counts)
        if case == "2 processes":
            ids = [[torch.randint(0, V, (n + 1,)) for n in own] for own in counts]
            model = tiny_model()
            (sum(summed_loss(model, each[None]) for own in ids for each in own) / sum(map(sum, counts))).backward()
            wanted = flat([p.grad for p in model.parameters()])
            gradients = launch(gradient_with, 2, found, ids, device="cpu")
            what = "two processes that train with them have the gradient of one"
            report.need(what, max(apart(gradient, wanted) for gradient in gradients) <= 1e-5, likely)
        wanted = [[n * processes / sum(map(sum, counts)) for n in own] for own in counts]
        report.need(f"{case}: every target weighs the same", _near(found, wanted, counts), likely)


def _check_factors(values: list[object], counts: list[list[int]], report: Report, case: str) -> None:
    def floats(value: object) -> bool:
        return isinstance(value, list) and all(isinstance(one, Real) and not isinstance(one, bool) for one in value)

    value = next((value for value in values if not floats(value)), values[0])
    report.need(
        f"{case}: returns a list of floats",
        floats(value),
        f"It returned {type(value).__name__}"
        + (f" of {', '.join(sorted({type(each).__name__ for each in value}))}." if isinstance(value, list) else "."),
    )
    numbers = [(len(value), len(own)) for value, own in zip(values, counts, strict=True)]
    found, wanted = next((pair for pair in numbers if pair[0] != pair[1]), numbers[0])
    report.need(
        f"{case}: one for each micro-batch of the process",
        found == wanted,
        f"There are {found}, and the process has {wanted} micro-batches.",
    )


def _near(found: list[list[float]], wanted: list[list[float]], counts: list[list[int]]) -> bool:
    """Alike wherever there are targets: a mean of nothing is 0, whatever it is multiplied by."""
    triples = [
        (a, b, n)
        for triple in zip(found, wanted, counts, strict=True)
        for a, b, n in zip(*triple, strict=True)
    ]  # fmt: skip
    return all((n == 0 and a - a == 0) or abs(a - b) <= 1e-5 for a, b, n in triples)


def _likely_factors(found: list[list[float]], counts: list[list[int]]) -> str:
    everything, P = sum(map(sum, counts)), len(counts)
    own = [sum(each) or 1 for each in counts]
    candidates: list[tuple[Callable[[int, int], float], str]] = [
        (lambda r, n: n / everything, "DDP takes the mean over processes, which divides by their number once more."),
        (
            lambda r, n: n / own[r],
            "Each process divides by its own targets: a target weighs more in a process that has few.",
        ),
        (lambda r, n: 1 / len(counts[r]), "This is the mean of the micro-batches' means: see notebook 06."),
        (lambda r, n: 1.0, "Nothing is divided: the micro-batches' means are added up."),
        (lambda r, n: P / everything, "This is for a summed loss. The mean has been divided by its own targets."),
        (lambda r, n: 1 / everything, "This is for a summed loss. The mean has been divided by its own targets."),
        (
            lambda r, n: n * len(counts[r]) / everything,
            "It multiplies by the number of micro-batches. DDP takes a mean over *processes*: multiply by theirs.",
        ),
        (lambda r, n: n * P / own[r], "It divides by the process's own targets. All targets of all processes count."),
        (
            lambda r, n: 1 / (len(counts[r]) * P),
            "Every micro-batch weighs the same, whatever its number of targets; and DDP divides by processes already.",
        ),
        (
            lambda r, n: n / (everything / sum(map(len, counts))),
            "It multiplies by the number of all micro-batches. DDP takes a mean over *processes*.",
        ),
    ]
    if not all(abs(factor) < float("inf") for own in found for factor in own):
        return "A factor is not finite. Is something divided by a count that may be 0?"
    for factor, words in candidates:
        if _near(found, [[factor(r, n) for n in each] for r, each in enumerate(counts)], counts):
            return words
    return "A target's weight is its factor / its micro-batch's targets / processes. It must be 1 / all targets."


def when_to_exchange(micro_batches: int, window: int) -> list[bool]:
    """For each of a process's micro-batches of one epoch, in order: are gradients exchanged with it?

    Each ``window`` micro-batches that follow one another make one update, and what is left at the
    end makes one more, if anything is. The optimizer steps after the last micro-batch of an update.
    Until then gradients add up in ``.grad``; an exchange puts the mean over all processes in its
    place, with all that was added up. Exchange once for each update, so that all processes make the
    same step. Both numbers are at least 1. Processes may have different numbers of micro-batches,
    but have equally many updates.
    """
    ends = {*range(window, micro_batches, window), micro_batches}
    return [number in ends for number in range(1, micro_batches + 1)]


def train_with(rank: int, plans: list[list[bool]], window: int, ids: list[Tensor]) -> list[Tensor]:
    """The weights after each update; process r exchanges where ``plans[r]`` says so."""
    model, weights, plan = tiny_model(), [], plans[rank]
    for number, exchange in enumerate(plan, start=1):
        summed_loss(model, ids[rank][number - 1][None]).div(20).backward()
        if exchange:
            average(model)
        if number % window == 0 or number == len(plan):
            move(model)
            weights.append(flat(list(model.parameters())))
    total(torch.zeros(1))  # nobody leaves before all have come, whatever the plan
    return weights


def weights_of_one(numbers: Sequence[int], window: int, ids: list[Tensor]) -> list[Tensor]:
    """The same in one process, which does the micro-batches of both."""
    model, weights = tiny_model(), []
    for start in range(0, max(numbers), window):
        mine = [each for n, own in zip(numbers, ids, strict=True) for each in own[start : min(start + window, n)]]
        for each in mine:
            (summed_loss(model, each[None]).div(20) / len(numbers)).backward()
        move(model)
        weights.append(flat(list(model.parameters())))
    return weights


def check_when_to_exchange(answer: Callable[[int, int], list[bool]], report: Report) -> None:
    """Two processes that train, with different numbers of micro-batches; full windows; one or less; windows of 1, 2."""
    window, full = random.randint(3, 5), random.randint(2, 4)
    cases = {
        "some left over": (window, [full * window + n for n in random.sample(range(1, window), 2)]),
        "full windows": (window, [full * window] * 2),
        "fewer than one window": (window, random.sample(range(1, window), 2)),
        "exactly one window": (window, [window] * 2),
        "one micro-batch": (window, [1] * 2),
        "windows of 1": (1, [full] * 2),
        "windows of 2, a longer epoch": (2, [2 * random.randint(7, 9) + 1] * 2),
    }
    for case, (size, numbers) in cases.items():
        plans = []
        for n in numbers:
            plan = answer(n, size)
            report.need(
                f"{case}: returns a list of {n} truth values",
                isinstance(plan, list) and len(plan) == n and all(isinstance(each, bool | np.bool_) for each in plan),
                _likely_list(plan, n),
            )
            plans.append([bool(each) for each in plan])
        right = [[(i + 1) % size == 0 or i + 1 == n for i in range(n)] for n in numbers]
        likely = _likely_plan(plans[0], right[0], size)
        exchanges = [sum(plan) for plan in plans]
        report.need(
            f"{case}: equally many exchanges in both processes",
            exchanges[0] == exchanges[1],
            f"One exchanges {exchanges[0]} times and the other {exchanges[1]}: it would wait for ever. {likely}",
        )
        if case == "some left over":
            ids = [torch.randint(0, V, (n, 6)) for n in numbers]
            (first, second), one = (
                launch(train_with, 2, plans, size, ids, device="cpu"),
                weights_of_one(numbers, size, ids),
            )
            alike = all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
            report.need("after each update, the two processes have the same weights", alike, likely)
            same = all(apart(a, b) <= 1e-9 for a, b in zip(first, one, strict=True))
            report.need("and they are those of one process", same, likely)
        report.need(f"{case}: once for each update", exchanges[0] == sum(right[0]), likely)
        report.need(f"{case}: with its last micro-batch", plans == right, likely)


def _likely_list(plan: object, n: int) -> str:
    if not isinstance(plan, list):
        return f"It returned {type(plan).__name__}."
    if len(plan) != n:
        return f"There are {len(plan)} values for {n} micro-batches."
    return (
        f"It returned a list of {', '.join(sorted({type(each).__name__ for each in plan}))}; True or False is wanted."
    )


def _likely_plan(plan: list[bool], right: list[bool], window: int) -> str:
    if not any(plan):
        return "Nothing is ever exchanged: each process trains a model of its own."
    if all(plan) and not all(right):
        return "With each micro-batch the result is right, and all but the last exchange of an update were for nothing."
    if plan == [i % window == 0 for i in range(len(plan))]:
        return (
            "It exchanges with the first micro-batch of each update. What the processes add afterwards stays with each."
        )
    if plan == [(i + 2) % window == 0 or i + 1 == len(plan) for i in range(len(plan))]:
        return (
            "It exchanges one micro-batch too early. An update's gradients must be exchanged after the last of them "
            "was added."
        )
    if plan == [not each for each in right]:
        return "True and False are the wrong way round: this is where DDP would be silent."
    if plan[:-1] == right[:-1]:
        return "The last update, of what is left over, is never exchanged: the processes make different steps."
    if sum(plan) == 1 and plan[-1]:
        return "Only the epoch's last micro-batch exchanges. Each update needs its own."
    gaps = {b - a for a, b in pairwise([i for i, each in enumerate(plan) if each])}
    if gaps == {window}:
        return "The windows begin at the first micro-batch: exchange with number `window`, twice `window`, and so on."
    return "An update's gradients must be exchanged after the last of them was added, and before the step."


EXERCISES = (
    Exercise(
        number=1,
        title="Share out the rows",
        goal="Say which rows each process does, so that two or more together make the same updates as one.",
        difficulty="easy",
        minutes=10,
        solution=share,
        check=check_share,
        hints=(
            "An update belongs to all processes. So cut `order` into updates first, as one process would, and then "
            "deal out the rows of each.",
            "`rows[rank::processes]` takes every `processes`-th row, beginning with number `rank`; it is empty by "
            "itself where nothing is left.",
        ),
    ),
    Exercise(
        number=2,
        title="One divisor for all processes",
        goal="The usual script has means already. Mend it: weigh each micro-batch so that all targets weigh the same.",
        difficulty="medium",
        minutes=10,
        solution=factors,
        check=check_factors,
        hints=(
            "A mean over n targets gives each of them 1/n. What must it be multiplied by to give each 1 / all targets? "
            "And what does DDP do to it afterwards?",
            "`n / targets` undoes the mean and divides by all targets of all processes; times `len(counts)`, because "
            "DDP divides by the number of processes.",
        ),
    ),
    Exercise(
        number=3,
        title="When to exchange",
        goal="With accumulation, say with which micro-batches gradients are exchanged: as rarely as is right.",
        difficulty="medium",
        minutes=10,
        solution=when_to_exchange,
        check=check_when_to_exchange,
        hints=(
            "The exchange must see everything that was added up for this update, and nothing may be added between it "
            "and the step. So which micro-batch of a window is it? And which in the last, shorter window?",
            "Count micro-batches from 1. Number i exchanges if `i % window == 0`, or if it is the last of the epoch.",
        ),
    ),
)
