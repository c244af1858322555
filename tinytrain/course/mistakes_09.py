"""Which mistake an answer to an exercise of notebook 09 has most likely made, from what it returned."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise


def wrong_number(numbers: list[int], plans: list[list[list[int]]], updates: list[list[int]]) -> str:
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


def wrong_rows(plans: list[list[list[int]]], updates: list[list[int]]) -> str:
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


def wrong_factors(found: list[list[float]], counts: list[list[int]]) -> str:
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
        if near(found, [[factor(r, n) for n in each] for r, each in enumerate(counts)], counts):
            return words
    return "A target's weight is its factor / its micro-batch's targets / processes. It must be 1 / all targets."


def near(found: list[list[float]], wanted: list[list[float]], counts: list[list[int]]) -> bool:
    """Alike wherever there are targets: a mean of nothing is 0, whatever it is multiplied by."""
    triples = [
        (a, b, n)
        for triple in zip(found, wanted, counts, strict=True)
        for a, b, n in zip(*triple, strict=True)
    ]  # fmt: skip
    return all((n == 0 and a - a == 0) or abs(a - b) <= 1e-5 for a, b, n in triples)


def wrong_list(plan: object, n: int) -> str:
    if not isinstance(plan, list):
        return f"It returned {type(plan).__name__}."
    if len(plan) != n:
        return f"There are {len(plan)} values for {n} micro-batches."
    return (
        f"It returned a list of {', '.join(sorted({type(each).__name__ for each in plan}))}; True or False is wanted."
    )


def wrong_plan(plan: list[bool], right: list[bool], window: int) -> str:
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
