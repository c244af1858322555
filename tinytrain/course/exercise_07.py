"""The exercises of notebook 07: rounding to BF16, the scaler and the schedule, and an update in FP16."""

import math
import numbers
import random
import struct
from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tinytrain.course.exercises import Exercise, Report


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


def check_to_bf16(answer: Callable[[float], float], report: Report) -> None:
    """Numbers of all sizes and both signs, ties, carries into the next power of two, and 0."""
    ties = [(k + 0.5) * 2.0 ** random.randint(-9, 9) for k in [*_both_parities(), 255]]
    ends = [random.uniform(*between) for between in ((1.05e-30, 2e-30), (5e29, 9.5e29)) for _ in range(5)]
    cases = {
        "numbers near 1": [random.uniform(1, 2) for _ in range(20)],
        "numbers of all sizes": [random.uniform(1, 2) * 2.0 ** random.randint(-90, 90) for _ in range(20)],
        "negative numbers": [-random.uniform(1, 2) * 2.0 ** random.randint(-9, 9) for _ in range(20)],
        "a carry into the next power of two": [random.uniform(1.9975, 1.9999) * 2.0 ** random.randint(-9, 9)],
        "ties": ties,
        "ties below 0": [-tie for tie in ties],
        "the smallest and the largest that were promised": [sign * end for sign in (1, -1) for end in ends],
        "BF16 numbers already": [random.randint(128, 255) * 2.0 ** random.randint(-9, 9) for _ in range(5)],
        "zero": [0.0],
    }
    with _SeesBF16() as seen:
        for case, xs in cases.items():
            xs = [struct.unpack("f", struct.pack("f", x))[0] for x in xs]  # what FP32 holds, so that all ways agree
            values = [answer(x) for x in xs]
            strange = next((value for value in values if not _is_number(value)), 0.0)
            report.need(
                f"{case}: a number", _is_number(strange), f"It returned {type(strange).__name__}; a number is wanted."
            )
            agree = all(bool(value == _nearest(x)) for x, value in zip(xs, values, strict=True))
            report.need(f"{case}: the nearest BF16 number", agree, "" if agree else _likely_rounding(xs, values))
    report.need("by arithmetic", not seen.bf16, "It lets torch round. Do it with the gap between BF16 numbers.")


class _SeesBF16(TorchFunctionMode):
    """Notes whether a tensor in BF16 is made."""

    bf16 = False

    def __torch_function__(self, func, _types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.bf16 |= isinstance(result, Tensor) and result.dtype == torch.bfloat16
        return result


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _both_parities() -> list[int]:
    return [random.choice(range(first, 255, 2)) for first in (128, 129) for _ in range(6)]


def _nearest(x: float) -> float:
    """The truth, by the bits of FP32: half of what is dropped is added, less one where the kept part is even."""
    (bits,) = struct.unpack("I", struct.pack("f", x))
    return struct.unpack("f", struct.pack("I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0]


def _likely_rounding(xs: list[float], values: list[float]) -> str:
    def with_bits(bits: int, rounding: Callable[[float], float]) -> Callable[[float], float]:
        def way(x: float) -> float:
            gap = 2.0 ** (math.frexp(x)[1] - 1 - bits) if x else 1.0
            return rounding(x / gap) * gap

        return way

    def away(x: float) -> float:
        return math.copysign(math.floor(abs(x) + 0.5), x)

    def towards(x: float) -> float:
        return math.copysign(math.ceil(abs(x) - 0.5), x)

    ways = [
        (with_bits(7, away), "Ties go away from 0, or all up: take the even multiple of the gap."),
        (with_bits(7, lambda x: math.floor(x + 0.5)), "Ties all go up: take the even multiple of the gap."),
        (with_bits(7, towards), "Ties go towards 0, or all down: take the even multiple of the gap."),
        (with_bits(7, math.trunc), "It cuts the extra digits off. Round to the nearer neighbour."),
        (with_bits(7, math.floor), "It always rounds down. Round to the nearer neighbour."),
        (with_bits(7, math.ceil), "It always rounds up. Round to the nearer neighbour."),
        (with_bits(8, round), "The gap is half of what it should be: 7 bits of mantissa, below 2^(exponent - 1)."),
        (with_bits(6, round), "The gap is twice what it should be: the 1 before the point is not stored."),
        (with_bits(10, round), "Ten bits of mantissa are FP16's. BF16 has seven."),
        (lambda x: round(x * 128) / 128, "The gap is 1/128 only between 1 and 2: it doubles with each power of two."),
        (lambda x: x, "Nothing was rounded."),
    ]
    for way, words in ways:
        if all(value == way(x) for x, value in zip(xs, values, strict=True)):
            return words
    return next(
        (
            f"For {x!r} it returned {value!r}; the nearest is {_nearest(x)!r}."
            for x, value in zip(xs, values, strict=True)
            if value != _nearest(x)
        ),
        "",
    )


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


def check_life(answer: Callable[..., list[tuple[float, float]]], report: Report) -> None:
    """Runs without an overflow, with many, that begin with some, far down, far up, and a growth interval of 1."""
    interval = random.randint(3, 5)
    cases = {
        "no overflow": ([False] * random.randint(3 * interval, 20), interval),
        "overflows at the start": ([True] * random.randint(2, 4) + [False] * (2 * interval + 1), interval),
        "overflows in between": (_mixed(interval), interval),
        "doubling after each good update": ([random.random() < 0.5 for _ in range(12)] + [False, True, False], 1),
        "down from a scale of 1": ([True] * random.randint(3, 5) + [False] * (interval + 1), interval),
        "up from 2^23": ([False] * random.randint(20, 25), 1),
    }
    starts = {"down from a scale of 1": 1.0, "up from 2^23": 2.0**23}
    top, fall = random.uniform(0.5, 2), random.uniform(0.5, 0.95)

    def lr_at(n: int) -> float:
        return top * fall**n

    for case, (overflows, interval) in cases.items():
        scale = starts.get(case, 2.0 ** random.randint(8, 20))
        given = list(overflows)
        found = answer(given, scale, interval, lr_at)
        kind = type(found).__name__
        report.need(f"{case}: a list", isinstance(found, list), f"It returned {kind}; a list of pairs is wanted.")
        odd = [each for each in found if not (isinstance(each, tuple | list) and len(each) == 2)]
        inside = f"a list of {type(odd[0]).__name__}" if odd else ""
        report.need(f"{case}: a list of pairs", not odd, f"It returned {inside}; a list of pairs is wanted.")
        odd = [value for pair in found for value in pair if not _is_number(value)]
        inside = f"A value in it is {type(odd[0]).__name__}; a plain number is wanted." if odd else ""
        report.need(f"{case}: numbers in it", not odd, inside)
        report.need(
            f"{case}: one pair for each batch",
            len(found) == len(overflows),
            "A skipped batch was tried too: it has its pair.",
        )
        right = _life(overflows, scale, interval, lr_at)
        for column, name in enumerate(("scale", "learning rate")):
            mine, truth = ([pair[column] for pair in pairs] for pairs in (found, right))
            agree = all(_same(a, b) for a, b in zip(mine, truth, strict=True))
            likely = "" if agree else _likely_life(column, mine, overflows, scale, interval, lr_at)
            report.need(f"{case}: the {name} of each batch", agree, likely)
        report.need(f"{case}: the list is as before", given == overflows, "What was handed in belongs to the caller.")


def _mixed(interval: int) -> list[bool]:
    """Streaks of good updates of many lengths, so that each way of counting them shows."""
    streaks = [interval - 1, interval - 1, 2 * interval, interval, interval + 1]
    random.shuffle(streaks)
    return [flag for n in streaks for flag in [False] * n + [True] * random.randint(1, 2)] + [False]


def _same(a: object, b: float) -> bool:
    return _is_number(a) and bool(abs(a - b) <= 1e-6 * abs(b))


def _life(
    overflows: list[bool],
    scale: float,
    interval: int,
    lr_at: Callable[[int], float],
    *,
    slip: str = "",
    top: float = math.inf,
) -> list[tuple[float, float]]:
    """The truth, or what a usual slip makes of it."""
    tried, good, updates = [], 0, 0
    for overflowed in overflows:
        if slip == "early" and overflowed:
            scale, good = scale / 2, 0
        tried.append((scale, lr_at(updates)))
        updates += slip == "batches" or not overflowed
        if overflowed:
            scale = scale if slip == "early" else scale // 2 if slip == "whole" else scale / 2
            scale = max(scale, 1.0) if slip == "floor" else scale
            good = good if slip == "no reset by a skip" else 0
        else:
            good += 1
        if not overflowed and good >= interval + (slip == "late"):
            scale, good = min(scale * 2, top), good if slip == "no reset by growth" else 0
    if slip == "next rate":
        made = [sum(not flag for flag in overflows[: i + 1]) for i in range(len(overflows))]
        return [(pair[0], lr_at(n)) for pair, n in zip(tried, made, strict=True)]
    if slip == "next scale":
        return [*tried[1:], (scale, 0.0)]
    if slip == "same rate":
        return [(pair[0], lr_at(0)) for pair in tried]
    if slip == "same scale":
        return [(tried[0][0], pair[1]) for pair in tried]
    return tried


def _likely_life(column: int, mine: list[float], overflows: list[bool], scale: float, interval: int, lr_at) -> str:
    slips = {
        "batches": "The schedule moved on although the update was skipped.",
        "next rate": "It gives the rate after the batch. Wanted is the one with which it is tried.",
        "next scale": "It gives the scale after the batch. Wanted is the one with which it is tried.",
        "early": "The scale is halved for the batch that overflowed itself. It counts from the next one on.",
        "no reset by a skip": "A skip did not set the count of good updates back to 0.",
        "no reset by growth": "After doubling, counting did not begin anew.",
        "late": "It doubles one update late: after `growth_interval` good ones, not one more.",
        "same rate": "The learning rate never moves.",
        "same scale": "The scale never moves.",
        "floor": "The scale stops at 1. It has no lower limit.",
        "whole": "`//` cuts off what is under 1; `/` halves.",
        "top": "The scale stops growing at a limit. It has none.",
    }
    fits = []
    for slip, words in slips.items():
        top = max(mine) if slip == "top" else math.inf
        values = [pair[column] for pair in _life(overflows, scale, interval, lr_at, slip=slip, top=top)]
        if all(_same(a, b) for a, b in zip(mine, values, strict=True)):
            fits.append(words)
    return fits[0] if len(fits) == 1 else ""


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


class _ThroughFP16(torch.autograd.Function):
    """Passes values on, and gradients only as FP16 would hold them."""

    @staticmethod
    def forward(_ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient: Tensor) -> Tensor:
        return gradient.half().float()


def check_fp16_update(answer: Callable[..., float], report: Report) -> None:
    """Long gradients, a short one, one that vanishes without a scale, overflows, NaN, and 0."""
    sizes = {"a short gradient": 0.01, "a gradient too small for FP16": 4e-8, "a gradient of thousands": 4000.0}
    broken = {"an overflow in the first tensor": 0, "an overflow in the last tensor": -1, "a NaN": -1}
    for case in ("a gradient to clip", *sizes, *broken, "a gradient of 0"):
        size = sizes.get(case, 1.0)
        low = {"a gradient too small for FP16": 13, "a gradient of thousands": 1}.get(case, 13 if case in broken else 9)
        scale = 2.0 ** random.randint(low, low + 2)
        numel = [random.randint(2, 5) for _ in range(random.randint(2, 3))]
        slopes = [size * (0.5 + torch.rand(n, dtype=torch.float32)) for n in numel]
        slopes = [slope * torch.where(torch.rand_like(slope) < 0.5, -1.0, 1.0) for slope in slopes]
        if case in broken:
            slopes[broken[case]][0] *= math.nan if case == "a NaN" else 1000  # one element of one tensor
        if case == "a gradient of 0":
            slopes = [0 * slope for slope in slopes]
        starts = [torch.randn(len(slope), dtype=torch.float32) for slope in slopes]
        norm = math.sqrt(sum(slope.double().square().sum().item() for slope in slopes))
        clips = case in ("a gradient to clip", "a gradient of thousands")
        limit = norm * (random.uniform(0.3, 0.6) if clips else random.uniform(2, 3))
        limit = 1.0 if math.isnan(norm) else max(limit, 1e-3)  # torch's clipping adds 1e-6 to the norm
        lr = random.uniform(0.5, 1.5) / size
        weights = [start.clone().requires_grad_() for start in starts]
        pairs = zip(weights, slopes, strict=True)
        loss = torch.stack([(_ThroughFP16.apply(w) * slope).sum() for w, slope in pairs]).sum()
        try:
            value = answer(list(weights), loss, scale, limit, lr)
        except ZeroDivisionError:
            if case != "a gradient of 0":
                raise
            report.need(f"{case}: a float", False, "It divides by the norm, and the norm can be 0.")
        report.need(
            f"{case}: a float",
            isinstance(value, float),
            f"It returned {type(value).__name__}; `.item()` makes a float.",
        )
        moved = [w.detach() - start for w, start in zip(weights, starts, strict=True)]
        if case in broken:
            report.need(
                f"{case}: no weight moves",
                all(bool((m == 0).all()) for m in moved),
                "The gradient was not finite and the weights moved all the same: look at the norm first.",
            )
            report.need(f"{case}: the norm says so", not math.isfinite(value), "The norm is infinite or NaN here.")
            continue
        near = bool(abs(value - norm) <= 5e-3 * norm)
        report.need(f"{case}: the true norm", near, "" if near else _likely_norm(value, norm, scale, limit, slopes))
        wanted = [-lr * slope * (limit / norm if norm > limit else 1.0) for slope in slopes]
        near = _near(moved, wanted)
        likely = "" if near else _likely_move(moved, wanted, lr, scale, limit, norm, slopes)
        report.need(f"{case}: how the weights move", near, likely)


def _near(found: list[Tensor], wanted: list[Tensor]) -> bool:
    a, b = torch.cat(found), torch.cat(wanted)
    return bool((a - b).norm() <= 5e-3 * b.norm())


def _likely_norm(value: float, norm: float, scale: float, limit: float, slopes: list[Tensor]) -> str:
    lengths = [slope.norm().item() for slope in slopes]
    candidates = [
        (norm * scale, "This is the norm of the scaled gradient. Divide by the scale before you measure."),
        (norm / scale, "It divides by the scale once too often, or the loss was not multiplied by it."),
        (limit, "This is the norm after clipping. Wanted is the one before."),
        (limit * scale, "This is the norm after clipping, and still scaled."),
        (norm**2, "The root is missing."),
        (sum(lengths), "The norms of the tensors were added up. The whole gradient has one length."),
        (max(lengths), "This is one tensor's norm. The whole gradient has one length."),
        (lengths[0], "This is one tensor's norm. The whole gradient has one length."),
        (lengths[-1], "This is one tensor's norm. The whole gradient has one length."),
    ]
    if value == 0 or norm < 1e-5:
        return "Part of the gradient vanished on its way back: was the loss multiplied by the scale before `backward`?"
    fits = [words for other, words in candidates if abs(value - other) <= 5e-3 * other]
    return fits[0] if fits else ""


def _likely_move(
    moved: list[Tensor],
    wanted: list[Tensor],
    lr: float,
    scale: float,
    limit: float,
    norm: float,
    slopes: list[Tensor],
) -> str:
    if norm == 0:
        return "The gradient is 0, and the weights moved."
    each = [-lr * min(1.0, limit / slope.norm().item()) * slope for slope in slopes]
    candidates = [
        (
            [w / scale for w in wanted],
            "The update is too short by the scale: it was clipped while still scaled, or divided twice.",
        ),
        ([-lr * min(1.0, limit / norm / scale) * s for s in slopes], "It clips while the gradient is still scaled."),
        ([-lr * limit / norm / scale * s for s in slopes], "It clips while the gradient is still scaled."),
        ([w * scale for w in wanted], "The gradient was never divided by the scale."),
        ([-w for w in wanted], "It goes uphill: an update subtracts."),
        ([w / lr for w in wanted], "The learning rate is missing."),
        ([-lr * s for s in slopes], "Nothing was clipped."),
        ([-lr * limit / norm * s for s in slopes], "A gradient shorter than the limit was stretched to it."),
        (each, "Each tensor was clipped by itself. The whole gradient has one length."),
        (
            [0 * w for w in wanted],
            "No weight moved. The tensors themselves must change; and what is long but finite is none to skip.",
        ),
    ]
    return next((words for values, words in candidates if _near_or_zero(moved, values)), "")


def _near_or_zero(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return _near(found, wanted) if any(bool((w != 0).any()) for w in wanted) else not torch.cat(found).any()


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
