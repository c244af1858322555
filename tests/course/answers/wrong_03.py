"""Answers to the exercises of notebook 03: wrong ones with what they must be told, and other right ones."""

import math

import numpy as np
import torch

from tinytrain.schedule import warmup_cosine


def counted(n):
    """A count over ``n`` points is not exact."""
    return lambda floor: sum(half((i + 0.5) / n) < floor for i in range(n)) / n


def exact(floor):
    return 1 - math.acos(2 * floor - 1) / math.pi


def bisected(floor):
    """Find the place by halving."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 * (1 + math.cos(math.pi * middle)) > floor else (low, middle)
    return 1 - (low + high) / 2


def schedule(warm=None, cosine=None, end=None, refuse=True):
    """``lr_at`` with one part exchanged. Without ``end``, the lr after the end is ``min_lr``."""

    def lr_at(step, max_lr, min_lr, warmup_steps, total_steps):
        if refuse and warmup_steps > total_steps:
            raise ValueError
        if end is None and step >= total_steps:
            return min_lr
        if step < warmup_steps:
            rise = warm or (lambda step, max_lr, min_lr, warmup_steps: max_lr * (step + 1) / warmup_steps)
            return rise(step, max_lr, min_lr, warmup_steps)
        fall = cosine or (lambda p, max_lr, min_lr: min_lr + (max_lr - min_lr) * half(p))
        return fall((step - warmup_steps) / (total_steps - warmup_steps), max_lr, min_lr)

    return lr_at


def half(progress):
    return 0.5 * (1 + math.cos(math.pi * progress))


def hand_written(step, max_lr, min_lr, warmup_steps, total_steps):
    """As the hand-written model has it: lr 0 first, and a clipped cosine."""
    if step < warmup_steps:
        return max_lr * step / warmup_steps
    return max_lr * max(min_lr / max_lr, half((step - warmup_steps) / (total_steps - warmup_steps)))


def progress_from_the_start(step, max_lr, min_lr, warmup_steps, total_steps):
    if step < warmup_steps:
        return max_lr * (step + 1) / warmup_steps
    return min_lr if step >= total_steps else min_lr + (max_lr - min_lr) * half(step / total_steps)


def one_early(step, max_lr, min_lr, warmup_steps, total_steps):
    if step < warmup_steps:
        return max_lr * (step + 1) / warmup_steps
    progress = (step + 1 - warmup_steps) / (total_steps - warmup_steps)
    return min_lr if step >= total_steps else min_lr + (max_lr - min_lr) * half(progress)


def divided_by(extra):
    """``lr_at`` whose progress is divided by ``extra`` steps more than it should be."""

    def lr_at(step, max_lr, min_lr, warmup_steps, total_steps):
        if warmup_steps <= step < total_steps:
            progress = (step - warmup_steps) / max(1, total_steps - warmup_steps + extra)
            return min_lr + (max_lr - min_lr) * half(min(1.0, progress))
        return by_min(step, max_lr, min_lr, warmup_steps, total_steps)

    return lr_at


def too_long_a_warmup(step, max_lr, min_lr, warmup_steps, total_steps):
    if step == warmup_steps < total_steps:
        return max_lr * (step + 1) / max(1, warmup_steps)
    return by_min(step, max_lr, min_lr, warmup_steps, total_steps)


def all_warmup_ends_high(step, max_lr, min_lr, warmup_steps, total_steps):
    if step >= warmup_steps == total_steps:
        return max_lr
    return by_min(step, max_lr, min_lr, warmup_steps, total_steps)


def divides_by_0(step, max_lr, min_lr, warmup_steps, total_steps):
    return (
        max_lr * min(1, (step + 1) / warmup_steps)
        if step < 1
        else by_min(step, max_lr, min_lr, warmup_steps, total_steps)
    )


def refuses_all_warmup(step, max_lr, min_lr, warmup_steps, total_steps):
    if warmup_steps >= total_steps:
        raise ValueError
    return by_min(step, max_lr, min_lr, warmup_steps, total_steps)


def none_for_a_long_warmup(step, max_lr, min_lr, warmup_steps, total_steps):
    return None if warmup_steps > total_steps else by_min(step, max_lr, min_lr, warmup_steps, total_steps)


def the_end_first(step, max_lr, min_lr, warmup_steps, total_steps):
    """The question for the end slips in before the one for a warmup that is too long."""
    return min_lr if step >= total_steps else by_min(step, max_lr, min_lr, warmup_steps, total_steps)


def in_numpy(step, max_lr, min_lr, warmup_steps, total_steps):
    if warmup_steps > total_steps:
        raise ValueError
    rise = max_lr * np.arange(1, warmup_steps + 1) / max(1, warmup_steps)
    progress = np.arange(total_steps - warmup_steps) / max(1, total_steps - warmup_steps)
    plan = np.concatenate([rise, min_lr + (max_lr - min_lr) * (1 + np.cos(np.pi * progress)) / 2, [min_lr]])
    return plan[min(step, total_steps)]


def by_min(step, max_lr, min_lr, warmup_steps, total_steps):
    """Another right way: progress is held below 1, and the divisor above 0."""
    if warmup_steps > total_steps:
        raise ValueError("the warmup is longer than the run")
    if step < min(warmup_steps, total_steps):
        return (step + 1) * (max_lr / warmup_steps)
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return min_lr if step >= total_steps else max_lr - (max_lr - min_lr) * (1 - math.cos(math.pi * progress)) / 2


def the_package(step, *numbers):
    return warmup_cosine(step, **dict(zip(("max_lr", "min_lr", "warmup_steps", "total_steps"), numbers, strict=True)))


def sweep(lr_of, lost):
    """``lr_range_test`` with its rates and its sign of a lost network exchanged."""

    def lr_range_test(update, min_lr, max_lr, n_steps):
        points = []
        for step in range(n_steps):
            lr = lr_of(step, min_lr, max_lr, n_steps)
            points.append((lr, update(lr)))
            if lost([loss for _, loss in points]):
                break
        return points

    return lr_range_test


def geometric(step, low, high, n):
    return low * (high / low) ** (step / (n - 1))


def is_lost(losses):
    return not math.isfinite(losses[-1]) or losses[-1] > 2 * min(losses)


def drops_the_last(update, min_lr, max_lr, n_steps):
    points = []
    for step in range(n_steps):
        lr = geometric(step, min_lr, max_lr, n_steps)
        loss = update(lr)
        if not math.isfinite(loss) or (points and loss > 2 * min(seen for _, seen in points)):
            break
        points.append((lr, loss))
    return points


def late_pairs(update, min_lr, max_lr, n_steps):
    """Each lr beside the loss of the update before."""
    lrs = [geometric(step, min_lr, max_lr, n_steps) for step in range(n_steps)]
    losses = [update(lr) for lr in lrs]
    return list(zip(lrs[1:] + lrs[:1], losses, strict=True))


def with_a_running_best(lost):
    """Multiply as one goes, remember the best."""

    def lr_range_test(update, min_lr, max_lr, n_steps):
        points, lr, best = [], min_lr, math.inf
        factor = math.exp(math.log(max_lr / min_lr) / (n_steps - 1))
        while len(points) < n_steps:
            loss = update(lr)
            points.append((lr, loss))
            best = min(best, loss)
            if lost(loss) or loss > 2 * best:
                return points
            lr *= factor
        return points

    return lr_range_test


def changed(change):
    """The right ``lr_range_test``, with its list changed at the end; ``change`` also gets whether it ended early."""

    def lr_range_test(update, min_lr, max_lr, n_steps):
        points = sweep(geometric, is_lost)(update, min_lr, max_lr, n_steps)
        return change(points, len(points) < n_steps)

    return lr_range_test


def one_too_many(update, min_lr, max_lr, n_steps):
    return [(lr, update(lr)) for lr in (geometric(step, min_lr, max_lr, n_steps) for step in range(n_steps + 1))]


def at_least_three(update, min_lr, max_lr, n_steps):
    return sweep(geometric, is_lost)(update, min_lr, max_lr, max(3, n_steps))


def with_logspace(as_float):
    """Another right way: all rates beforehand, in float32."""

    def lr_range_test(update, min_lr, max_lr, n_steps):
        points, best = [], math.inf
        for lr in torch.logspace(math.log10(min_lr), math.log10(max_lr), n_steps, dtype=torch.float32):
            rate = as_float(lr)
            loss = update(rate)
            points.append((rate, loss))
            best = min(best, loss)
            if not math.isfinite(loss) or loss > 2 * best:
                break
        return points

    return lr_range_test


WRONG = {
    1: {
        "where it begins": (lambda floor: math.acos(2 * floor - 1) / math.pi, "where the floor is reached"),
        "a straight line": (lambda floor: floor, "straight line"),
        "forgets the half": (lambda floor: 1 - math.acos(floor) / math.pi, "2 * floor - 1"),
        "a whole turn": (lambda floor: 1 - math.acos(2 * floor - 1) / (2 * math.pi), "ends at pi"),
        "forgets pi": (lambda floor: 1 - math.acos(2 * floor - 1), "divide by pi"),
        "negative": (lambda floor: -exact(floor), "It is negative"),
        "counts few points": (counted(10), "Solve 0.5"),
        "counts many points": (counted(50_000), "near, but not exact"),
        "rounded": (lambda floor: round(exact(floor), 4), "near, but not exact"),
        "wrong in the middle": (lambda floor: 0.5 if 0.3 < floor < 0.6 else exact(floor), "Solve 0.5"),
        "nothing at 0": (lambda floor: exact(floor) if floor else None, "At floor 0"),
        "not all at 1": (lambda floor: exact(floor) if floor < 1 else 0.0, "At floor 1"),
        "the number from the text": (lambda floor: 0.2048327646991335, "Solve 0.5"),
        "not a number": (lambda floor: math.nan, "Solve 0.5"),
        "nothing": (lambda floor: None, "a share such as 0.2"),
    },
    2: {
        "the first update is wasted": (schedule(warm=lambda s, hi, lo, w: hi * s / w), "thrown away"),
        "as the hand-written model has it": (hand_written, "thrown away"),
        "rises from min_lr": (schedule(warm=lambda s, hi, lo, w: lo + (hi - lo) * (s + 1) / w), "rises from min_lr"),
        "one part too few": (schedule(warm=lambda s, hi, lo, w: hi * (s + 1) / (w + 1)), "rises too slowly"),
        "ends at 0": (schedule(cosine=lambda p, hi, lo: hi * half(p)), "It ends at 0"),
        "clipped": (schedule(cosine=lambda p, hi, lo: max(lo, hi * half(p))), "is clipped at min_lr"),
        "a straight line": (schedule(cosine=lambda p, hi, lo: lo + (hi - lo) * (1 - p)), "straight line"),
        "climbs again": (schedule(end="climbs"), "climbs again"),
        "progress from step 0": (progress_from_the_start, "counts from step 0"),
        "one update early": (one_early, "one update early"),
        "at the end one update early": (divided_by(-1), "one update too soon"),
        "falls too slowly": (divided_by(1), "falls too slowly"),
        "begins at min_lr": (schedule(warm=lambda s, hi, lo, w: lo + (hi - lo) * s / w), "begins at min_lr"),
        "warmup one update too long": (too_long_a_warmup, "one update too long"),
        "all warmup ends high": (all_warmup_ends_high, "even if all of it was warmup"),
        "divides by 0": (divides_by_0, "divides by 0 at step 0 with warmup_steps=0"),
        "refuses a run that is all warmup": (refuses_all_warmup, "which is allowed"),
        "takes any warmup": (schedule(refuse=False), "say so with a ValueError"),
        "None for a warmup too long": (none_for_a_long_warmup, "it returned None. The run would end"),
        "asks for the end first": (the_end_first, "no step slips past"),
        "nothing": (lambda *numbers: None, "It gave None"),
    },
    3: {
        "equal steps": (sweep(lambda s, lo, hi, n: lo + (hi - lo) * s / (n - 1), is_lost), "Multiply instead"),
        "never reaches the top": (
            sweep(lambda s, lo, hi, n: lo * (hi / lo) ** (s / n), is_lost),
            "never reaches max_lr",
        ),
        "never stops": (sweep(geometric, lambda losses: False), "after the network was lost"),
        "compares with the one before": (
            sweep(geometric, lambda losses: not losses[-1] <= 2 * losses[max(0, len(losses) - 2)]),
            "the lowest loss so far",
        ),
        "deaf to NaN": (sweep(geometric, lambda losses: losses[-1] > 2 * min(losses)), "math.isfinite"),
        "stops at any rise": (sweep(geometric, lambda losses: not losses[-1] <= min(losses)), "too early"),
        "at twice": (
            sweep(geometric, lambda seen: not math.isfinite(seen[-1]) or seen[-1] >= 2 * min(seen[:-1] or [9e9])),
            "not more than twice",
        ),
        "compares with the first": (
            sweep(geometric, lambda seen: not seen[-1] <= 2 * seen[0]),
            "the lowest loss so far",
        ),
        "deaf to a first inf": (with_a_running_best(math.isnan), "a first loss of inf"),
        "no list where it stops": (changed(lambda points, early: None if early else points), "return the list"),
        "nothing": (changed(lambda points, early: None), "It returned NoneType"),
        "lists for pairs": (changed(lambda points, early: [list(pair) for pair in points]), "In the list is a list"),
        "only losses": (changed(lambda points, early: [loss for _, loss in points]), "In the list is a float"),
        "three in a pair": (changed(lambda points, early: [(*pair, 0) for pair in points]), "tuple of 3"),
        "the wrong way round": (changed(lambda points, early: [pair[::-1] for pair in points]), "the wrong way round"),
        "a pair is missing": (changed(lambda points, early: points[1:]), "pairs are in the list"),
        "another loss at the end": (
            changed(lambda points, early: [*points[:-1], (points[-1][0], 0.0)] if early else points),
            "beside another loss",
        ),
        "one too many": (one_too_many, "updates of"),
        "three at least": (at_least_three, "With n_steps=2"),
        "begins after min_lr": (sweep(lambda s, lo, hi, n: geometric(s + 1, lo, hi, n), is_lost), "The first lr is"),
        "drops the last": (drops_the_last, "missing from the list"),
        "pairs shifted": (late_pairs, "beside another loss"),
        "two lists": (lambda update, lo, hi, n: ([lo], [update(lo)]), "A list of tuples"),
    },
}
RIGHT = {
    1: {
        "by halving": bisected,
        "by a half angle": lambda floor: 1 - 2 * math.acos(math.sqrt(floor)) / math.pi,
        "in numpy": lambda floor: 1 - np.arccos(2 * floor - 1) / np.pi,
    },
    2: {"held below 1": by_min, "the package's own": the_package, "in numpy": in_numpy},
    3: {
        "a running best": with_a_running_best(lambda loss: not math.isfinite(loss)),
        "logspace": with_logspace(float),
        "logspace, as tensors": with_logspace(lambda lr: lr),
    },
}
