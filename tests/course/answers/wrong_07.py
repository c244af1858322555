"""Answers to the exercises of notebook 07: wrong ones with what the report must say, and right ones of another kind."""

import math
import struct
from fractions import Fraction

import numpy as np
import torch


def rounded(bits, rounding):
    def to_bf16(x):
        if x == 0:
            return 0.0
        gap = 2.0 ** (math.frexp(x)[1] - 1 - bits)
        return float(rounding(x / gap) * gap)

    return to_bf16


def by_bits(x):
    """Adds just under half of the dropped part, plus one where the kept part is odd, and cuts the bits off."""
    (bits,) = struct.unpack("I", struct.pack("f", x))
    bits += 0x7FFF + (bits >> 16 & 1)
    return struct.unpack("f", struct.pack("I", bits & 0xFFFF0000))[0]


def with_ties(*, above, below, top=255):
    """Rounding that differs from the right one in ties only, or just under a power of two."""

    def to_bf16(x):
        if x == 0:
            return 0.0
        gap = 2.0 ** (math.frexp(x)[1] - 8)
        if abs(x / gap) == 255.5:
            return math.copysign(max(top, 255) * gap, x)
        return (above if x > 0 else below)(x / gap) * gap

    return to_bf16


def with_gaps_between(low, high):
    return lambda x: round(x / (gap := min(max(2.0 ** (math.frexp(x)[1] - 8), low), high))) * gap


def by_fractions(x):
    gap = Fraction(2) ** (math.frexp(x)[1] - 8)
    return float(round(Fraction(x) / gap) * gap)


def by_a_large_number(x):
    large = math.ldexp(1.5, math.frexp(x)[1] - 8 + 52)
    return (x + large) - large


def bits_cut_off(x):
    (bits,) = struct.unpack("I", struct.pack("f", x))
    return struct.unpack("f", struct.pack("I", bits & 0xFFFF0000))[0]


def by_logarithm(x):
    if x == 0:
        return 0.0
    gap = 2.0 ** (math.floor(math.log2(abs(x))) - 7)
    multiple = math.floor(abs(x) / gap)
    rest = abs(x) / gap - multiple
    if rest > 0.5 or (rest == 0.5 and multiple % 2):
        multiple += 1
    return math.copysign(multiple * gap, x)


def lives(
    *,
    early=False,
    batches=False,
    keep_on_skip=False,
    keep_on_growth=False,
    late=0,
    growth=2,
    after=False,
    drop=False,
    halved=lambda scale: scale / 2,
    top=math.inf,
    pair=lambda scale, lr: (scale, lr),
):
    def life(overflows, scale, growth_interval, lr_at):
        tried, good, updates = [], 0, 0
        for overflowed in overflows:
            if early and overflowed:
                scale /= 2
            if not after and not (drop and overflowed):
                tried.append(pair(scale, lr_at(updates)))
            if overflowed:
                scale = scale if early else halved(scale)
                good = good if keep_on_skip else 0
                updates += batches
            else:
                good, updates = good + 1, updates + 1
                if good >= growth_interval + late:
                    scale, good = min(scale * growth, top), good if keep_on_growth else 0
            if after:
                tried.append(pair(scale, lr_at(updates)))
        return tried

    return life


def eats_its_list(overflows, scale, growth_interval, lr_at):
    tried, good, updates = [], 0, 0
    while overflows:
        tried.append((scale, lr_at(updates)))
        if overflows.pop(0):
            scale, good = scale / 2, 0
        else:
            good, updates = good + 1, updates + 1
            if good % growth_interval == 0:
                scale *= 2
    return tried


def with_modulo(overflows, scale, growth_interval, lr_at):
    return eats_its_list(list(overflows), scale, growth_interval, lr_at)


def updates(
    *,
    finite=math.isfinite,
    divides=False,
    scaled=True,
    unscale="first",
    clip="whole",
    look=True,
    sign=-1,
    returns="before",
    use_lr=True,
):
    """An update with one thing done differently."""

    def fp16_update(weights, loss, scale, max_norm, lr):
        (loss * scale if scaled else loss).backward()
        gradients = [w.grad.clone() for w in weights]
        if unscale in ("first", "twice"):
            gradients = [g / scale for g in gradients]
        norm = torch.cat(gradients).norm().item()
        reported = norm / scale if unscale == "after, norm mended" else norm
        if clip == "each":
            gradients = [g * min(1.0, max_norm / g.norm().item()) for g in gradients]
        elif clip == "always":
            gradients = [g * (max_norm / norm) for g in gradients]
        elif clip == "whole":
            gradients = [g * min(1.0, max_norm / (norm if norm or divides else 1.0)) for g in gradients]
        if unscale.startswith("after") or unscale == "twice":
            gradients = [g / scale for g in gradients]
        if finite(norm) or not look:
            with torch.no_grad():
                for w, g in zip(weights, gradients, strict=True):
                    w += sign * (lr if use_lr else 1.0) * g
        if returns == "after":
            return torch.cat(gradients).norm().item()
        if returns == "sum":
            return sum(w.grad.norm().item() for w in weights) / scale
        return reported

    return fp16_update


def each_tensor_looks_for_itself(weights, loss, scale, max_norm, lr):
    (loss * scale).backward()
    gradients = [w.grad / scale for w in weights]
    norm = torch.cat(gradients).norm().item()
    with torch.no_grad():
        for w, g in zip(weights, gradients, strict=True):
            if g.isfinite().all():
                w -= lr * min(1.0, max_norm / norm if math.isfinite(norm) else 1.0) * g
    return norm


def looks_in_one(which):
    def fp16_update(weights, loss, scale, max_norm, lr):
        (loss * scale).backward()
        gradients = [w.grad / scale for w in weights]
        norm = torch.cat(gradients).norm().item()
        if gradients[which].isfinite().all():
            with torch.no_grad():
                for w, g in zip(weights, gradients, strict=True):
                    w -= lr * (max_norm / norm if norm > max_norm else 1.0) * g
        return norm

    return fp16_update


def puts_new_ones_in_the_list(weights, loss, scale, max_norm, lr):
    (loss * scale).backward()
    gradients = [w.grad / scale for w in weights]
    norm = torch.cat(gradients).norm().item()
    if math.isfinite(norm):
        for i, g in enumerate(gradients):
            weights[i] = weights[i].detach() - lr * (max_norm / norm if norm > max_norm else 1.0) * g
    return norm


def by_autograd(weights, loss, scale, max_norm, lr):
    gradients = torch.autograd.grad(loss * scale, weights)
    norm = torch.cat(gradients).double().norm().item() / scale
    if norm < math.inf:
        for w, g in zip(weights, gradients, strict=True):
            w.data.sub_(lr / scale * (max_norm / norm if norm > max_norm else 1) * g)
    return norm


def by_hypot(weights, loss, scale, max_norm, lr):
    loss.mul(scale).backward()
    norm = math.hypot(*[v / scale for w in weights for v in w.grad.tolist()])
    if math.isfinite(norm):
        for w in weights:
            w.data -= lr / max(1.0, norm / max_norm) * w.grad / scale
    return norm


def by_torch(weights, loss, scale, max_norm, lr):
    optimizer = torch.optim.SGD(weights, lr=lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(weights, max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm.item()


WRONG = {
    1: {
        "cuts off": (rounded(7, math.trunc), "cuts the extra digits off"),
        "cuts bits off": (bits_cut_off, "cuts the extra digits off"),
        "always up": (rounded(7, math.ceil), "always rounds up"),
        "ties away from zero": (
            rounded(7, lambda x: math.copysign(math.floor(abs(x) + 0.5), x)),
            "Ties go away from 0",
        ),
        "frexp's exponent taken as it is": (rounded(6, round), "twice what it should be"),
        "one bit too many": (rounded(8, round), "half of what it should be"),
        "FP16's mantissa": (rounded(10, round), "Ten bits of mantissa are FP16's"),
        "one gap for all": (lambda x: round(x * 128) / 128, "doubles with each power of two"),
        "nothing": (lambda x: x, "Nothing was rounded"),
        "a tensor": (lambda x: torch.tensor(x).to(torch.bfloat16), "It returned Tensor"),
        "ties towards zero": (
            rounded(7, lambda x: math.copysign(math.ceil(abs(x) - 0.5), x)),
            "Ties go towards 0",
        ),
        "torch rounds": (lambda x: torch.tensor(x).to(torch.bfloat16).item(), "It lets torch round"),
        "torch makes it": (lambda x: torch.tensor(x, dtype=torch.bfloat16).item(), "It lets torch round"),
        "torch, by its method": (lambda x: float(torch.tensor(x).bfloat16()), "It lets torch round"),
        "a tie under a power of two stays below": (with_ties(above=round, below=round, top=255), "the nearest is"),
        "ties below 0 go up": (
            with_ties(above=round, below=lambda x: math.floor(x + 0.5), top=256),
            "DOES NOT HOLD  ties below 0",
        ),
        "no gap under 2^-97": (with_gaps_between(2.0**-97, math.inf), "the nearest is"),
        "no gap over 2^84": (with_gaps_between(0.0, 2.0**84), "the nearest is"),
        "the sign is lost": (lambda x: abs(by_logarithm(x)), "the nearest is -"),
    },
    2: {
        "the schedule moves on a skip": (lives(batches=True), "although the update was skipped"),
        "halved at once": (lives(early=True), "for the batch that overflowed itself"),
        "a skip does not reset": (lives(keep_on_skip=True), "A skip did not set the count"),
        "growth does not reset": (lives(keep_on_growth=True), "counting did not begin anew"),
        "one late": (lives(late=1), "one update late"),
        "after the batch": (lives(after=True), "It gives the scale after the batch"),
        "skipped batches left out": (lives(drop=True), "A skipped batch was tried too"),
        "never grows": (lives(growth=1), "DOES NOT HOLD  no overflow: the scale"),
        "grows by four": (lives(growth=4), "DOES NOT HOLD  no overflow: the scale"),
        "eats its list": (eats_its_list, "belongs to the caller"),
        "a floor of 1": (lives(halved=lambda scale: max(scale / 2, 1.0)), "It has no lower limit"),
        "whole numbers only": (lives(halved=lambda scale: scale // 2), "cuts off what is under 1"),
        "no more than 2^24": (lives(top=2.0**24), "stops growing at a limit"),
        "no more than 2^32": (lives(top=2.0**32), "stops growing at a limit"),
        "scales only": (lives(pair=lambda scale, _lr: scale), "It returned a list of float"),
        "a tuple of pairs": (lambda *given: tuple(lives()(*given)), "It returned tuple"),
        "tensors in it": (lives(pair=lambda scale, lr: (scale, torch.tensor(lr))), "A value in it is Tensor"),
    },
    3: {
        "clip before unscale": (updates(unscale="after"), "norm of the scaled gradient"),
        "clip before unscale, norm mended": (
            updates(unscale="after, norm mended"),
            "clipped while still scaled, or divided twice",
        ),
        "never unscaled": (updates(unscale="never"), "norm of the scaled gradient"),
        "never scaled": (updates(scaled=False, unscale="never"), "vanished on its way back"),
        "unscaled, not scaled": (updates(scaled=False), "divides by the scale once too often"),
        "unscaled twice": (updates(unscale="twice"), "clipped while still scaled, or divided twice"),
        "each tensor by itself": (updates(clip="each"), "clipped by itself"),
        "not clipped": (updates(clip="none"), "Nothing was clipped"),
        "stretched": (updates(clip="always"), "stretched"),
        "does not look": (updates(look=False), "look at the norm first"),
        "each tensor looks for itself": (each_tensor_looks_for_itself, "look at the norm first"),
        "looks in the first tensor only": (looks_in_one(0), "look at the norm first"),
        "looks in the last tensor only": (looks_in_one(-1), "look at the norm first"),
        "only infinity stops it": (updates(finite=lambda norm: norm != math.inf), "look at the norm first"),
        "long is infinite": (updates(finite=lambda norm: norm < 1000), "long but finite is none to skip"),
        "new tensors in the list": (puts_new_ones_in_the_list, "The tensors themselves must change"),
        "divides by a norm of 0": (updates(divides=True), "the norm can be 0"),
        "uphill": (updates(sign=1), "uphill"),
        "without lr": (updates(use_lr=False), "learning rate is missing"),
        "norm after clipping": (updates(returns="after"), "norm after clipping"),
        "sum of norms": (updates(returns="sum"), "were added up"),
    },
}
RIGHT = {
    1: {
        "by the bits of FP32": by_bits,
        "by the logarithm": by_logarithm,
        "by fractions": by_fractions,
        "by adding and subtracting": by_a_large_number,
        "0 as a whole number": lambda x: by_bits(x) if x else 0,
        "numpy's float32": lambda x: np.float32(by_bits(x)),
    },
    2: {
        "with modulo": with_modulo,
        "whole numbers where they are whole": lives(),
        "lists for pairs": lives(pair=lambda scale, lr: [scale, lr]),
        "rates in numpy's float32": lives(pair=lambda scale, lr: (scale, np.float32(lr))),
    },
    3: {
        "by torch's scaler": by_torch,
        "with torch's norm": updates(),
        "by autograd": by_autograd,
        "by hypot": by_hypot,
    },
}
