"""The exercises of notebook 03: a flat schedule, a whole schedule, an lr range test."""

import math
import random
from collections.abc import Callable, Iterable

from tinytrain.course.exercises import Exercise, Report
from tinytrain.schedule import warmup_cosine

TOLERANCE = 1e-9  # relative: a handful of float64 operations
LR_TOLERANCE = 1e-5  # relative: rates made in float32, as by torch.logspace, are right too


def flat_share(floor: float) -> float:
    """The share of a half cosine that a floor cuts off, from 0 to 1.

    The multiplier of the lr falls from 1 to 0 as 0.5 * (1 + cos(pi * p)), while the progress p goes
    from 0 to 1. It is clipped at ``floor``, a number from 0 to 1: where it would be lower, it is
    ``floor``. Return for what share of the progress that is so, as a float. It is exact: neither
    counted nor rounded.
    """
    return 1 - math.acos(2 * floor - 1) / math.pi


def check_flat_share(answer: Callable[[float], float], report: Report) -> None:
    """Put each share back: where the flat part begins, the multiplier must be the floor."""
    floors = [0.1, *(random.uniform(max(0.02, k / 10), min(0.98, (k + 1) / 10)) for k in range(9, -1, -1))]
    shares = []
    for floor in floors:
        shares.append(value := answer(floor))
        if not _is_number(value):
            report.need("returns a number", False, f"It returned {value!r}; a share such as 0.2 is wanted.")
    report.that("returns a number", True)
    what = "where the flat part begins, the multiplier is the floor (11 floors between 0 and 1)"
    for floor, value in zip(floors, shares, strict=True):
        inside = bool(0 <= value <= 1)
        if not (inside and abs(0.5 * (1 + math.cos(math.pi * (1 - value))) - floor) <= TOLERANCE):
            near = all(abs(share - flat_share(floor)) < 1e-3 for share, floor in zip(shares, floors, strict=True))
            report.need(what, False, _likely_flat(value, floor, near))
    report.that(what, True)
    report.that("no floor cuts nothing off", _about(answer(0.0), 0.0), "At floor 0 the share is 0.")
    report.that("a floor of 1 cuts all of it off", _about(answer(1.0), 1.0), "At floor 1 the share is 1.")


def _likely_flat(value: float, floor: float, near: bool) -> str:
    reached = math.acos(2 * floor - 1) / math.pi
    mistakes = {
        "That is where the floor is reached. The flat part is what comes after it.": reached,
        "It is negative: turn the difference round, to 1 minus the progress where the floor is reached.": reached - 1,
        "The angle runs to pi, not to 1: divide by pi.": 1 - math.acos(2 * floor - 1),
        "That holds for a straight line. A cosine is flat near its end, so it stays below the floor for longer.": floor,
        "The multiplier is 0.5 * (1 + cos), so the cosine at the floor is 2 * floor - 1, not the floor itself.": (
            1 - math.acos(floor) / math.pi
        ),
        "The half cosine ends at pi, not at 2 * pi.": 1 - math.acos(2 * floor - 1) / (2 * math.pi),
    }
    for text, wrong in mistakes.items():
        if _near(value, wrong):
            return text
    if near:
        return f"At floor {floor:.3f} it is near, but not exact: it looks counted or rounded. Undo the cosine instead."
    return f"At floor {floor:.3f} it gave {value:.6g}. Solve 0.5 * (1 + cos(pi * p)) = floor for p; then it is flat."


def lr_at(step: int, max_lr: float, min_lr: float, warmup_steps: int, total_steps: int) -> float:
    """The lr of the update that follows ``step`` completed updates (0, 1, 2, ...), as a float.

    While ``step`` is less than ``warmup_steps`` it rises in equal parts, so that the first update
    already has one part and the last of the warmup has ``max_lr``. Then it falls along half a
    cosine: ``max_lr`` at step ``warmup_steps``, ``min_lr`` at step ``total_steps``, and ``min_lr``
    for ever after. ``total_steps`` is at least 1. ``warmup_steps`` may be 0, and may be equal to
    ``total_steps``: then the run is all warmup, and from step ``total_steps`` on the lr is
    ``min_lr``. If ``warmup_steps`` is more than ``total_steps``, raise ``ValueError``, whatever
    ``step`` is.
    """
    if warmup_steps > total_steps:
        raise ValueError(f"warmup_steps={warmup_steps} is more than total_steps={total_steps}")
    if step >= total_steps:
        return min_lr
    if step < warmup_steps:
        return max_lr * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / (total_steps - warmup_steps)
    return min_lr + 0.5 * (max_lr - min_lr) * (1 + math.cos(math.pi * progress))


def check_lr_at(answer: Callable[[int, float, float, int, int], float], report: Report) -> None:
    """Compare with the package's schedule, which is tested against a list written by hand."""
    warmup, total = random.randint(3, 9), random.randint(20, 40)
    max_lr = random.uniform(0.5, 2.0)
    min_lr = max_lr * random.uniform(0.05, 0.3)
    rise, fall, end = _likely_lrs(max_lr, min_lr, warmup, total)
    for what, steps, mistakes in (
        ("the first update has one part of max_lr", [0], rise),
        ("the warmup rises in equal parts", range(warmup), rise),
        ("the first update after the warmup has max_lr", [warmup], fall),
        ("it falls along a cosine", range(warmup + 1, total), fall),
        ("at total_steps and ever after it is min_lr", [total, total + 1, 2 * total, 10 * total], end),
    ):
        _compare(report, answer, what, steps, (max_lr, min_lr, warmup, total), mistakes)
    _compare(report, answer, "without a warmup it starts at max_lr", [0, 3, 9], (max_lr, min_lr, 0, 9), {})
    over = "At total_steps the run is over, even if all of it was warmup: from there on it is min_lr."
    all_warmup = {over: lambda step: max_lr * min(1, (step + 1) / 9)}
    _compare(report, answer, "a run may be all warmup", [0, 8, 9, 12], (max_lr, min_lr, 9, 9), all_warmup)
    for step in (0, 10, 15, 25):
        try:
            value = answer(step, max_lr, min_lr, 20, 10)
        except ValueError:
            continue
        late = " Ask for it before anything else, so that no step slips past." if step else ""
        report.need(
            "a warmup longer than the run raises ValueError, at any step",
            False,
            f"At step {step} with {_said(20, 10)} it returned {value!r}. The run would end before max_lr is reached: "
            f"say so with a ValueError.{late}",
        )
    report.that("a warmup longer than the run raises ValueError, at any step", True)


def _compare(
    report: Report, answer: Callable, what: str, steps: Iterable[int], numbers: tuple, mistakes: dict[str, Callable]
) -> None:
    """Ask for the lr at each of ``steps``. A mistake is named only if it explains every value, the right ones too."""
    values, names = {}, ("max_lr", "min_lr", "warmup_steps", "total_steps")
    warmup, total = numbers[2:]
    for step in steps:
        try:
            values[step] = answer(step, *numbers)
        except ZeroDivisionError:
            report.need(what, False, f"It divides by 0 at step {step} with {_said(warmup, total)}.")
        except ValueError:
            if 0 < warmup < total:
                raise
            report.need(what, False, f"It raises ValueError with {_said(warmup, total)}, which is allowed.")
        if not _is_number(values[step]):
            report.need(what, False, f"It gave {values[step]!r} at step {step}; a float is wanted.")
    wanted = {step: warmup_cosine(step, **dict(zip(names, numbers, strict=True))) for step in values}
    wrong = [step for step in values if not _near(values[step], wanted[step])]
    if not wrong:
        report.that(what, True)
        return
    fits = [text for text, lr in mistakes.items() if all(_near(value, lr(step)) for step, value in values.items())]
    fits += [f"At step {wrong[0]} it gave {values[wrong[0]]:.6g}; {wanted[wrong[0]]:.6g} is right."]
    report.need(what, False, fits[0])


def _likely_lrs(high: float, low: float, warmup: int, total: int) -> tuple[dict[str, Callable], ...]:
    """The mistakes that are likely in the warmup, in the cosine and after the end, each as the lr at a step."""
    steps = total - warmup

    def cosine(progress: float, end: float = low) -> float:
        return end + 0.5 * (high - end) * (1 + math.cos(math.pi * progress))

    lr_0 = "The first update has lr 0: its batch is thrown away. Count the coming update, step + 1."
    from_min = "It rises from min_lr. The first part is max_lr / warmup_steps."
    at_min = "It begins at min_lr. The first part is max_lr / warmup_steps."
    slow = "It rises too slowly: the last update of the warmup should have max_lr."
    to_0 = "It ends at 0. Between max_lr and min_lr lies min_lr plus a share of their difference."
    clipped = "The cosine is clipped at min_lr, so it is flat long before the end. Scale it instead."
    early = "It is one update early: completed updates are counted, so at step warmup_steps the lr is still max_lr."
    soon = "It reaches min_lr one update too soon: progress is 1 at step total_steps, not at the last update."
    late = "It falls too slowly: progress must be 1 at step total_steps, so divide by total_steps - warmup_steps."
    climbs = "A cosine climbs again after its half turn. From total_steps on, return min_lr."
    rise = {
        lr_0: lambda step: high * step / warmup,
        from_min: lambda step: low + (high - low) * (step + 1) / warmup,
        at_min: lambda step: low + (high - low) * step / warmup,
        slow: lambda step: high * (step + 1) / (warmup + 1),
    }
    fall = {
        to_0: lambda step: cosine((step - warmup) / steps, end=0.0),
        clipped: lambda step: max(low, cosine((step - warmup) / steps, end=0.0)),
        "Its progress counts from step 0. It must be 0 at the end of the warmup.": lambda step: cosine(step / total),
        "That is a straight line.": lambda step: high + (low - high) * (step - warmup) / steps,
        early: lambda step: cosine((step + 1 - warmup) / steps),
        soon: lambda step: cosine((step - warmup) / (steps - 1)),
        late: lambda step: cosine((step - warmup) / (steps + 1)),
        "The warmup is one update too long: at step warmup_steps it is over.": lambda step: high * (step + 1) / warmup,
    }
    return rise, fall, {climbs: lambda step: cosine((step - warmup) / steps)}


def lr_range_test(update: Callable[[float], float], min_lr: float, max_lr: float, n_steps: int) -> list[tuple]:
    """A list of tuples (lr, loss), one for each update that was made.

    ``update(lr)`` makes one update at that lr and returns its loss: a positive float, inf or NaN.
    The first lr is ``min_lr``, and each is the same multiple of the one before, such that update
    number ``n_steps`` has ``max_lr``. Stop early after the first loss that is not finite, or more
    than twice the lowest loss so far: the network is lost. That loss is in the list. ``n_steps`` is
    at least 2.
    """
    factor, points = (max_lr / min_lr) ** (1 / (n_steps - 1)), []
    for step in range(n_steps):
        lr = min_lr * factor**step
        points.append((lr, update(lr)))
        losses = [loss for _, loss in points]
        if not math.isfinite(losses[-1]) or losses[-1] > 2 * min(losses):
            break
    return points


def check_lr_range_test(answer: Callable, report: Report) -> None:
    """Play networks whose losses are known beforehand, and look at which updates were asked for."""
    n, low, high = random.randint(8, 14), 10 ** random.uniform(-5, -4), 10 ** random.uniform(-1, 0)
    falling = [5.0 - 0.1 * i + random.uniform(0, 0.05) for i in range(n)]
    lrs, points = _play(report, answer, falling, low, high)
    report.that("returns a list of pairs", True)
    report.need("makes all updates while the loss falls", len(lrs) == n, f"It made {len(lrs)} updates of {n}.")
    report.need("begins at min_lr", _all_near(lrs[:1], [low]), f"The first lr is {lrs[0]:.4g}; min_lr is {low:.4g}.")
    report.need("raises the lr by the same factor each time", *_judge_sweep(lrs, low, high, n))
    report.need("returns each lr with its loss", *_judge_pairs(points, lrs, falling))
    lrs, points = _play(report, answer, falling[:2], low, high)
    two = f"With n_steps=2 the rates are min_lr and max_lr. It asked for {len(lrs)}."
    report.need("two updates are enough", _all_near(lrs, [low, high]) and len(points) == 2, two)
    loud = random.uniform(0.5, 2.0)  # the same factor for every loss, so twice stays twice
    for what, losses, wanted in (
        ("stops after a loss of more than twice the lowest", [4.0, 3.0, 2.0, 3.9, 4.1, 9.0, 8.0], 5),
        ("goes on while the loss is no more than that", [4.0, 6.0, 8.0, 6.0], n),
        ("stops after a loss that is NaN", [*falling[: random.randint(1, 4)], math.nan], 0),
        ("stops after a first loss that is inf", [math.inf], 1),
    ):
        played = [loss * loud for loss in [*losses, *falling][:n]]
        _ends(report, answer, what, played, wanted or len(losses), low, high)


def _play(report: Report, answer: Callable, losses: list[float], low: float, high: float) -> tuple[list, list]:
    """The lrs that were asked for, and the pairs returned, where update number i gives ``losses[i]``."""
    lrs, n = [], len(losses)

    def update(lr: float) -> float:
        lrs.append(lr)
        if len(lrs) > 3 * n:
            raise RuntimeError(f"update was called more than {3 * n} times, and n_steps is {n}")
        return losses[min(len(lrs), n) - 1]

    points, likely = answer(update, low, high, n), ""
    if points is None and 0 < len(lrs) < n:
        likely = f"It returned None after a loss of {losses[len(lrs) - 1]:.3g}: where it stops early, return the list."
    elif not isinstance(points, list):
        likely = f"It returned {type(points).__name__}. A list of tuples (lr, loss) is wanted."
    else:
        odd = [pair for pair in points if not isinstance(pair, tuple) or len(pair) != 2]
        if odd:
            kind = f"tuple of {len(odd[0])}" if isinstance(odd[0], tuple) else type(odd[0]).__name__
            likely = f"In the list is a {kind}; each pair is a tuple (lr, loss)."
    if likely:
        report.need("returns a list of pairs", False, likely)
    return lrs, points


def _ends(
    report: Report, answer: Callable, what: str, losses: list[float], wanted: int, low: float, high: float
) -> None:
    lrs, points = _play(report, answer, losses, low, high)
    made, last = len(lrs), losses[wanted - 1]
    if made > wanted and math.isnan(last):
        likely = "It went on after a NaN. Every comparison with NaN is False: ask for it with math.isfinite."
    elif made > wanted and math.isinf(last):
        likely = "It went on after a first loss of inf: inf is not more than twice inf. Ask for it with math.isfinite."
    elif made > wanted:
        likely = "It went on after the network was lost. Compare with the lowest loss so far, not with another."
    elif 0 < made < wanted and losses[made - 1] == 2 * min(losses[:made]):
        likely = "It stopped at just twice the lowest loss. That is not more than twice: the sign is >, not >=."
    elif made < wanted:
        likely = f"It stopped after {made} updates, too early. More than twice the lowest loss so far is the sign."
    elif len(points) < wanted:
        likely = "The loss that ended the test is missing from the list."
    else:
        report.need(what, *_judge_pairs(points, lrs, losses[:wanted]))
        return
    report.need(what, False, likely)


def _judge_sweep(lrs: list[float], low: float, high: float, n: int) -> tuple[bool, str]:
    if _all_near(lrs, [low + (high - low) * i / (n - 1) for i in range(n)]):
        likely = "It rises in equal steps, so nearly all updates are spent on the highest rates. Multiply instead."
    elif _all_near(lrs, [low * (high / low) ** (i / n) for i in range(n)]):
        likely = "It never reaches max_lr: between n_steps rates there are n_steps - 1 multiplications."
    else:
        likely = f"The last lr is {lrs[-1]:.4g}; max_lr is {high:.4g}."
    return _all_near(lrs, [low * (high / low) ** (i / (n - 1)) for i in range(n)]), likely


def _judge_pairs(points: list[tuple], lrs: list[float], losses: list[float]) -> tuple[bool, str]:
    """Whether each pair is an lr that was asked for and its loss, and what is likely if not."""
    first, second = [pair[0] for pair in points], [pair[1] for pair in points]
    likely = "An lr stands beside another loss."
    if len(points) != len(lrs):
        likely = f"It made {len(lrs)} updates, and {len(points)} pairs are in the list."
    elif _all_near(first, losses) and _all_near(second, lrs):
        likely = "The pairs are the wrong way round: (lr, loss) is wanted."
    return _all_near(first, lrs) and _all_near(second, losses), likely


def _all_near(values: list[float], wanted: list[float]) -> bool:
    """The same numbers to within ``LR_TOLERANCE``; NaN is like NaN, and inf like inf."""
    pairs = zip(values, wanted, strict=False)
    same = [math.isclose(a, b, rel_tol=LR_TOLERANCE) or (math.isnan(a) and math.isnan(b)) for a, b in pairs]
    return len(values) == len(wanted) and all(same)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _near(value: float, wanted: float) -> bool:
    return bool(abs(value - wanted) <= TOLERANCE * abs(wanted) + 1e-12)


def _about(value: float, wanted: float) -> bool:
    return _is_number(value) and bool(abs(value - wanted) <= 1e-6)  # a cosine is level at its ends


def _said(warmup_steps: int, total_steps: int) -> str:
    return f"warmup_steps={warmup_steps}, total_steps={total_steps}"


EXERCISES = (
    Exercise(
        number=1,
        title="The flat part of a clipped cosine",
        goal="A half cosine from 1 to 0 is clipped at a floor. What share of it is flat?",
        difficulty="easy",
        minutes=5,
        solution=flat_share,
        check=check_flat_share,
        hints=(
            "Find the progress p at which the multiplier reaches the floor. `math.acos` undoes the cosine.",
            "From 0.5 * (1 + cos(pi * p)) = floor follows cos(pi * p) = 2 * floor - 1. What comes after p is flat.",
        ),
    ),
    Exercise(
        number=2,
        title="A schedule with all its corners",
        goal="Write warmup and cosine as one function, without looking at the package. The check asks for the first "
        "update, the join, the end, what comes after the end, runs without warmup or with nothing else, and a warmup "
        "that is too long.",
        difficulty="medium",
        minutes=15,
        solution=lr_at,
        check=check_lr_at,
        hints=(
            "Ask in this order: is the warmup too long, is the run over, is it still warming up? What is left is the "
            "cosine, and there total_steps is more than warmup_steps, so nothing divides by 0.",
            "Warmup: `max_lr * (step + 1) / warmup_steps`. Cosine: progress is (step - warmup_steps) / (total_steps - "
            "warmup_steps), and the lr is min_lr plus 0.5 * (1 + cos(pi * progress)) of the difference.",
        ),
    ),
    Exercise(
        number=3,
        title="An lr range test",
        goal="Write the loop that raises the lr after every update and stops when the network is lost. It gets a "
        "function that makes one update, so it works with any model.",
        difficulty="medium",
        minutes=15,
        solution=lr_range_test,
        check=check_lr_range_test,
        hints=(
            "From min_lr to max_lr in n_steps rates there are n_steps - 1 multiplications by the same factor.",
            "The factor is (max_lr / min_lr) ** (1 / (n_steps - 1)). Note the pair first, then ask whether to stop; "
            "NaN > anything is False, so ask `math.isfinite` as well.",
        ),
    ),
)
