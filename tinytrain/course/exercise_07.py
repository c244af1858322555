"""The exercises of notebook 07: rounding to BF16, the scaler and the schedule, and an update in FP16."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tinytrain.course.check_rounding_07 import check_to_bf16
from tinytrain.course.check_scaler_07 import check_life
from tinytrain.course.check_update_07 import check_fp16_update
from tinytrain.course.exercises import Exercise


def to_bf16(x: float) -> float:
    """The BF16 number that is nearest to ``x``, by arithmetic: without ``torch.bfloat16``.

    Where two are equally near, take the one that is an even multiple of the gap between BF16
    numbers there. ``x`` is 0, or between 1e-30 and 1e30 in size, of either sign. The result is
    a number.
    """
    if x == 0:
        return 0.0
    _, exponent = math.frexp(x)  # 2^(exponent - 1) <= |x| < 2^exponent
    gap = 2.0 ** (exponent - 1 - 7)
    return round(x / gap) * gap  # Python's round takes ties to the even side


def scales_and_rates(
    overflows: list[bool], scale: float, growth_interval: int, lr_at: Callable[[int], float]
) -> list[tuple[float, float]]:
    """The (scale, learning rate) with which each batch is tried, in order.

    ``overflows[i]`` says whether batch i's gradient overflows. If it does, its update is
    skipped and the scale halved for the next batch. After ``growth_interval`` (1 or more)
    updates in a row without a skip the scale doubles, and counting begins anew; it begins anew
    after a skip as well. The scale has no lower and no upper limit. ``lr_at(n)`` is the
    learning rate after n updates that were made. The first batch is tried with ``scale``. The
    list that is handed in stays as it is.
    """
    tried, good, updates = [], 0, 0
    for overflowed in overflows:
        tried.append((scale, lr_at(updates)))
        if overflowed:
            scale, good = scale / 2, 0
            continue
        good, updates = good + 1, updates + 1
        if good == growth_interval:
            scale, good = scale * 2, 0
    return tried


def fp16_update(
    weights: list[Tensor],
    loss: Tensor,
    scale: float,
    max_norm: float,
    lr: float,
) -> float:
    """One SGD update: each weight moves by ``-lr`` times its gradient, clipped to ``max_norm``.

    ``weights`` are FP32 tensors that ``loss`` (shape ``[]``) was computed from; each ``.grad``
    is None. Their values change in place. The gradients pass through FP16 on their way back,
    so call ``backward`` on the loss times ``scale``. Returns the 2-norm of the true gradient of
    the loss, over all weights together and before clipping, as a float. If it is longer than
    ``max_norm``, the whole gradient is shortened to that length, and otherwise left as it is;
    it may be 0. If the norm is infinite or NaN, no weight moves.
    """
    (loss * scale).backward()
    gradients = [w.grad / scale for w in weights]
    norm = math.sqrt(sum(g.square().sum().item() for g in gradients))
    if math.isfinite(norm):
        shorten = max_norm / norm if norm > max_norm else 1.0
        with torch.no_grad():
            for w, g in zip(weights, gradients, strict=True):
                w -= lr * shorten * g
    return norm


EXERCISES = (
    Exercise(
        number=1,
        title="Round to BF16 by hand",
        goal="Find the BF16 number that is nearest to a given one, ties included.",
        difficulty="medium",
        minutes=15,
        solution=to_bf16,
        check=check_to_bf16,
        hints=(
            "Between two powers of two, BF16 numbers lie at equal distances. `math.frexp` tells which powers.",
            "Between 2^e and 2^(e+1) the gap is 2^(e−7). Measure x in gaps, round that, and multiply again. "
            "Python's `round` takes ties to the even side.",
        ),
    ),
    Exercise(
        number=2,
        title="The scaler and the schedule",
        goal="Say with which loss scale and which learning rate each batch of an FP16 run is tried.",
        difficulty="easy",
        minutes=10,
        solution=scales_and_rates,
        check=check_life,
        hints=(
            "You need three things that move: the scale, the good updates in a row, and all updates made so far.",
            "Note the pair first, then look whether the batch overflows. Both a skip and a doubling set the count of "
            "good updates in a row back to 0; only an update that was made moves the schedule.",
        ),
    ),
    Exercise(
        number=3,
        title="Unscale, look, clip, step",
        goal="Write the update of an FP16 run, in the one order that works.",
        difficulty="medium",
        minutes=15,
        solution=fp16_update,
        check=check_fp16_update,
        hints=(
            "Four things in order: backward on the scaled loss, division by the scale, the norm, the move.",
            "The norm is the root of the sum of all squares, over all tensors. If it is more than `max_norm`, "
            "multiply by `max_norm / norm`. Move only if the norm is finite, and change the tensors in place under "
            "`torch.no_grad()`.",
        ),
    ),
)
