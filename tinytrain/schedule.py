"""The learning rate as a pure function of completed updates.

Nothing here has a state, so nothing can be saved too early, loaded in the wrong order or stepped twice.
"""

import math
import numbers


def warmup_cosine(step: int, *, max_lr: float, min_lr: float, warmup_steps: int, total_steps: int) -> float:
    """The learning rate of the update that follows ``step`` completed updates.

    It rises linearly, ``max_lr * (step + 1) / warmup_steps``, while ``step < warmup_steps``; then it falls along half
    a cosine to ``min_lr`` at ``total_steps`` and stays there. The first update is never wasted on a rate of 0, and
    the two pieces meet at ``max_lr``. With ``warmup_steps=0`` the run starts at ``max_lr``; with
    ``warmup_steps == total_steps`` it never falls before its end.

    Raises ``ValueError`` for ``warmup_steps > total_steps``, ``min_lr > max_lr`` and values below zero.
    Source of the shape: Loshchilov and Hutter 2017 (cosine), Goyal et al. 2017 (linear warmup).

    >>> [round(warmup_cosine(s, max_lr=1, min_lr=0.1, warmup_steps=4, total_steps=10), 3) for s in (0, 3, 4, 7, 10, 99)]
    [0.25, 1.0, 1.0, 0.55, 0.1, 0.1]
    """
    check_schedule(max_lr=max_lr, min_lr=min_lr, warmup_steps=warmup_steps, total_steps=total_steps)
    _check_step(step)
    if step >= total_steps:
        return float(min_lr)
    if step < warmup_steps:
        return max_lr * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / (total_steps - warmup_steps)
    return min_lr + 0.5 * (max_lr - min_lr) * (1.0 + math.cos(math.pi * progress))


def warmup_stable_decay(
    step: int, *, max_lr: float, min_lr: float, warmup_steps: int, decay_steps: int, total_steps: int
) -> float:
    """The learning rate of the update that follows ``step`` completed updates: up, level, down.

    It rises as ``warmup_cosine`` does, stays at ``max_lr``, and over the last ``decay_steps`` updates falls in a
    straight line to ``min_lr``, which it reaches at ``total_steps`` and keeps. Before the decay begins nothing depends
    on ``total_steps``, so the end of the run may be chosen, or moved, until then. With ``decay_steps=0`` it stays at
    ``max_lr`` to the end.

    Raises ``ValueError`` for ``warmup_steps + decay_steps > total_steps``, and where ``warmup_cosine`` does.
    Source of the shape: Hu et al. 2024 (MiniCPM), section 4.

    >>> [warmup_stable_decay(s, max_lr=1, min_lr=0, warmup_steps=2, decay_steps=4, total_steps=9) for s in range(10)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    check_schedule(max_lr=max_lr, min_lr=min_lr, warmup_steps=warmup_steps, total_steps=total_steps)
    _check_whole("decay_steps", decay_steps)
    if decay_steps < 0:
        raise ValueError(f"decay_steps={decay_steps} must be 0 or more updates")
    if warmup_steps + decay_steps > total_steps:
        raise ValueError(
            f"warmup_steps={warmup_steps} and decay_steps={decay_steps} are more than total_steps={total_steps} "
            f"together: the decay would begin before max_lr is reached. Lower one of them or raise total_steps"
        )
    _check_step(step)
    if step >= total_steps:
        return float(min_lr)
    if step < warmup_steps:
        return max_lr * (step + 1) / warmup_steps
    if step <= total_steps - decay_steps:
        return float(max_lr)
    return min_lr + (max_lr - min_lr) * (total_steps - step) / decay_steps


def lr_sweep(step: int, *, min_lr: float, max_lr: float, total_steps: int) -> float:
    """The learning rate of an lr range test: from ``min_lr`` up to ``max_lr``, each a fixed multiple of the one before.

    The first of ``total_steps`` updates has ``min_lr``, the last ``max_lr``, and so have those after it. Each power of
    ten gets the same number of updates. Source: Smith 2017 (there in a straight line).

    Raises ``ValueError`` for ``min_lr`` of 0 or less (no multiple of 0 ever leaves 0), ``min_lr > max_lr`` and fewer
    than two updates.

    >>> [round(lr_sweep(s, min_lr=0.001, max_lr=1.0, total_steps=4), 9) for s in range(5)]
    [0.001, 0.01, 0.1, 1.0, 1.0]
    """
    check_schedule(max_lr=max_lr, min_lr=min_lr, warmup_steps=0, total_steps=total_steps)
    _check_step(step)
    if min_lr <= 0:
        raise ValueError(f"min_lr={min_lr} must be more than 0: every rate is a multiple of the one before")
    if total_steps < 2:
        raise ValueError(f"total_steps={total_steps} must be at least 2 updates: one for each end of the sweep")
    if step >= total_steps - 1:
        return float(max_lr)
    return min_lr * (max_lr / min_lr) ** (step / (total_steps - 1))


def check_schedule(*, max_lr: float, min_lr: float, warmup_steps: int, total_steps: int) -> None:
    """Raise ``ValueError`` that names the field, its value and the cure when the four numbers make no schedule."""
    for name, value in (("total_steps", total_steps), ("warmup_steps", warmup_steps)):
        _check_whole(name, value)
    if total_steps < 1:
        raise ValueError(f"total_steps={total_steps} must be at least 1 update")
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps={warmup_steps} must be 0 or more updates")
    if warmup_steps > total_steps:
        raise ValueError(
            f"warmup_steps={warmup_steps} is more than total_steps={total_steps}: the run would end before max_lr is "
            f"reached. Lower warmup_steps or raise total_steps"
        )
    if not (math.isfinite(max_lr) and 0.0 <= min_lr <= max_lr):
        raise ValueError(f"min_lr={min_lr} and max_lr={max_lr} must be finite, with 0 <= min_lr <= max_lr")


def _check_whole(name: str, value: object) -> None:
    if not isinstance(value, numbers.Integral):
        raise ValueError(f"{name}={value!r} must be a whole number of updates, such as {name}=int(...)")


def _check_step(step: int) -> None:
    if step < 0:
        raise ValueError(f"step={step}: completed updates are counted from 0")
