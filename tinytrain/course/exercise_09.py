"""The exercises of notebook 09: share out the rows, one divisor over all processes, and when to exchange gradients.

Each check asks the answer once for every process, here, and sends what it returned to two processes that train with it.
"""

import random
from collections.abc import Callable
from numbers import Integral, Real

import numpy as np
import torch

from tinytrain.course.exercises import Exercise, Report
from tinytrain.course.mistakes_09 import near, wrong_factors, wrong_list, wrong_number, wrong_plan, wrong_rows
from tinytrain.course.trained_09 import (
    V,
    apart,
    flat,
    gradient_with,
    summed_loss,
    tiny_model,
    train_on_rows,
    train_with,
    weights_of_one,
)
from tinytrain.distributed import launch


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
            wrong_number(numbers, plans, updates),
        )
        likely = wrong_rows(plans, updates)
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
        likely = wrong_factors(found, counts)
        if case == "2 processes":
            ids = [[torch.randint(0, V, (n + 1,)) for n in own] for own in counts]
            model = tiny_model()
            (sum(summed_loss(model, each[None]) for own in ids for each in own) / sum(map(sum, counts))).backward()
            wanted = flat([p.grad for p in model.parameters()])
            gradients = launch(gradient_with, 2, found, ids, device="cpu")
            what = "two processes that train with them have the gradient of one"
            report.need(what, max(apart(gradient, wanted) for gradient in gradients) <= 1e-5, likely)
        wanted = [[n * processes / sum(map(sum, counts)) for n in own] for own in counts]
        report.need(f"{case}: every target weighs the same", near(found, wanted, counts), likely)


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
                wrong_list(plan, n),
            )
            plans.append([bool(each) for each in plan])
        right = [[(i + 1) % size == 0 or i + 1 == n for i in range(n)] for n in numbers]
        likely = wrong_plan(plans[0], right[0], size)
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
