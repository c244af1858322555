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
    if step < 0:
        raise ValueError(f"step={step}: completed updates are counted from 0")
    if step >= total_steps:
        return float(min_lr)
    if step < warmup_steps:
        return max_lr * (step + 1) / warmup_steps
    progress = (step - warmup_steps) / (total_steps - warmup_steps)
    return min_lr + 0.5 * (max_lr - min_lr) * (1.0 + math.cos(math.pi * progress))


def check_schedule(*, max_lr: float, min_lr: float, warmup_steps: int, total_steps: int) -> None:
    """Raise ``ValueError`` that names the field, its value and the cure when the four numbers make no schedule."""
    for name, value in (("total_steps", total_steps), ("warmup_steps", warmup_steps)):
        if not isinstance(value, numbers.Integral):
            raise ValueError(f"{name}={value!r} must be a whole number of updates, such as {name}=int(...)")
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
