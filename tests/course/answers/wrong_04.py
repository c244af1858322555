"""Answers to the exercises of notebook 04: wrong ones with what they must be told, and other right ones."""

import math
from itertools import count, cycle, islice

import numpy as np
import torch


def grads(parameters):
    return [p.grad for p in parameters if p.grad is not None]


def scaled_in_place(parameters):
    norm = math.sqrt(sum(g.square().sum().item() for g in grads(parameters)))
    for g in grads(parameters):
        g.mul_(1 / norm)
    return norm


ZERO, FORWARD, LOSS, BACKWARD = (
    "optimizer.zero_grad()",
    "logits = model(input_ids)",
    "loss = cross_entropy(logits, labels)",
    "loss.backward()",
)
CLIP, LR, STEP, COUNT = (
    "clip_grad_norm_(model.parameters(), 1.0)",
    "set_lr(optimizer, lr_at(step))",
    "optimizer.step()",
    "step += 1",
)


def fills_the_gaps(parameters):
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    return math.sqrt(sum(p.grad.square().sum().item() for p in parameters))


def order(*lines):
    return lambda _given: list(lines)


def targets(batch):
    return (batch["labels"] != -100).sum().item()


def per_batch(batches, seconds):
    return sum(targets(b) / s for b, s in zip(batches, seconds, strict=True)) / len(batches)


def skips_the_first(loader, n):
    taken = []
    for epoch in count():
        batches = iter(loader(epoch))
        next(batches)  # "to see whether there is one"
        for batch in batches:
            taken.append(batch)
            if len(taken) == n:
                return taken


def drops_the_last(loader, n):
    taken = []
    for epoch in count():
        for batch in list(loader(epoch))[:-1]:
            taken.append(batch)
            if len(taken) == n:
                return taken


def asks_ahead(loader, n):
    taken, epoch = [], 0
    while len(taken) <= n:
        taken += loader(epoch)
        epoch += 1
    return taken[:n]


def one_too_many(loader, n):
    return list(islice((batch for epoch in count() for batch in loader(epoch)), n + 1))


def three_epochs_at_most(loader, n):
    return list(islice((batch for epoch in range(3) for batch in loader(epoch)), n))


def all_epochs_as_long_as_the_first(loader, n):
    taken = list(islice(loader(0), n))
    length, epoch = len(taken), 0
    while len(taken) < n:
        epoch += 1
        taken += list(loader(epoch))[:length][: n - len(taken)]
        taken += [taken[-1]] * (min(n, (epoch + 1) * length) - len(taken))
    return taken


def looks_how_long_it_is(loader, n):
    length = len(list(loader(0)))
    rest = (batch for epoch in count(1) for batch in loader(epoch))
    return [*islice(loader(0), n), *islice(rest, max(0, n - length))]


def whole_epochs(loader, n):
    taken, epoch = [], 0
    while len(taken) < n:
        taken += loader(epoch)
        epoch += 1
    return taken[:n]


WRONG = {
    1: {
        "no root": (lambda ps: float(sum(g.square().sum().item() for g in grads(ps))), "the root is missing"),
        "adds norms": (lambda ps: sum(g.norm().item() for g in grads(ps)), "Lengths do not add up"),
        "a mean": (
            lambda ps: torch.cat([g.flatten() for g in grads(ps)]).square().mean().sqrt().item(),
            "mean of the squares",
        ),
        "the largest": (lambda ps: max(g.abs().max().item() for g in grads(ps)), "largest entry"),
        "the weights": (
            lambda ps: math.sqrt(sum(p.detach().square().sum().item() for p in ps if p.grad is not None)),
            "norm of the weights",
        ),
        "absolute values": (lambda ps: sum(g.abs().sum().item() for g in grads(ps)), "squares are wanted"),
        "clips on the way": (scaled_in_place, "wrote into a gradient"),
        "gives the idle one a gradient": (fills_the_gaps, "wrote into a gradient"),
        "all but the last": (
            lambda ps: math.sqrt(sum(p.grad.square().sum().item() for p in ps[:-1] if p.grad is not None)),
            "Square, add up",
        ),
        "a tensor": (lambda ps: torch.cat([g.flatten() for g in grads(ps)]).norm(), "It returned Tensor"),
    },
    2: {
        "zero after backward": (
            order(FORWARD, LOSS, BACKWARD, ZERO, CLIP, LR, STEP, COUNT),
            "throws the new slopes away",
        ),
        "zero after clipping": (
            order(FORWARD, LOSS, BACKWARD, CLIP, ZERO, LR, STEP, COUNT),
            "throws the new slopes away",
        ),
        "clip before backward": (order(ZERO, FORWARD, LOSS, CLIP, BACKWARD, LR, STEP, COUNT), "Clipping must find"),
        "clip after step": (order(ZERO, FORWARD, LOSS, BACKWARD, LR, STEP, CLIP, COUNT), "Clipping must find"),
        "step before backward": (
            order(ZERO, FORWARD, LOSS, CLIP, LR, STEP, BACKWARD, COUNT),
            "slopes that are not there",
        ),
        "step between forward and backward": (
            order(FORWARD, STEP, COUNT, ZERO, LR, LOSS, CLIP, BACKWARD),
            "slopes that are not there",
        ),
        "lr after step": (
            order(ZERO, FORWARD, LOSS, BACKWARD, CLIP, STEP, LR, COUNT),
            "after the update that it was meant",
        ),
        "counts first": (order(COUNT, ZERO, FORWARD, LOSS, BACKWARD, CLIP, LR, STEP), "the next one's lr"),
        "loss before forward": (order(ZERO, LOSS, FORWARD, BACKWARD, CLIP, LR, STEP, COUNT), "`logits` is used before"),
        "forgets to clip": (order(ZERO, FORWARD, LOSS, BACKWARD, LR, STEP, COUNT), "Not among them: `clip_grad_norm_"),
        "twice": (order(ZERO, ZERO, FORWARD, LOSS, BACKWARD, CLIP, LR, STEP, COUNT), "there twice"),
    },
    3: {
        "every position": (lambda b, s: sum(x["labels"].numel() for x in b) / sum(s), "padding too"),
        "all real tokens": (
            lambda b, s: sum((x["input_ids"] != 0).sum().item() for x in b) / sum(s),
            "some of them are no targets",
        ),
        "the mean of speeds": (per_batch, "It averages the batches' speeds"),
        "updates": (lambda b, s: len(b) / sum(s), "updates per second"),
        "no division": (lambda b, s: float(sum(map(targets, b))), "per second is wanted"),
        "labels that are not 0": (
            lambda b, s: sum((x["labels"] > 0).sum().item() for x in b) / sum(s),
            "A label of 0 is a token",
        ),
        "the last": (lambda b, s: targets(b[-1]) / s[-1], "the last batch alone"),
        "time with targets only": (
            lambda b, s: sum(map(targets, b)) / sum(t for x, t in zip(b, s, strict=True) if targets(x)),
            "also for one without any target",
        ),
        "inputs that are not 0": (
            lambda b, s: sum(((x["labels"] != -100) & (x["input_ids"] != 0)).sum().item() for x in b) / sum(s),
            "An input of 0 may be a token",
        ),
        "an integer": (lambda b, s: sum(map(targets, b)) // round(sum(s) + 1), "It returned int"),
    },
    4: {
        "no new order": (lambda loader, n: list(islice(cycle(loader(0)), n)), "comes again and again"),
        "restarts epoch 0": (
            lambda loader, n: list(islice((batch for _ in count() for batch in loader(0)), n)),
            "comes again and again",
        ),
        "ends with the data": (lambda loader, n: list(islice(loader(0), n)), "ends with the first epoch"),
        "looks first": (skips_the_first, "first batch of an epoch is lost"),
        "drops the last": (drops_the_last, "last batch of each epoch is lost"),
        "asks ahead": (asks_ahead, "was asked for as well"),
        "three epochs at most": (three_epochs_at_most, "are wanted"),
        "all as long as the first": (all_epochs_as_long_as_the_first, "then those of epoch 1"),
        "asks twice": (looks_how_long_it_is, "asked for more than once"),
        "one too many": (one_too_many, "are wanted"),
    },
}
RIGHT = {
    1: {
        "one long list": lambda ps: torch.cat([g.flatten() for g in grads(ps)]).norm().item(),
        "in numpy": lambda ps: np.sqrt(sum(np.square(g.numpy(), dtype=np.float64).sum() for g in grads(ps))),
    },
    2: {
        "zero after the loss": order(FORWARD, LOSS, ZERO, BACKWARD, CLIP, LR, STEP, COUNT),
        "zero before the loss": order(FORWARD, ZERO, LR, LOSS, BACKWARD, CLIP, STEP, COUNT),
        "zero at the end": order(LR, FORWARD, LOSS, BACKWARD, CLIP, STEP, COUNT, ZERO),
        "counts early, with the lr before": order(LR, COUNT, ZERO, FORWARD, LOSS, BACKWARD, CLIP, STEP),
    },
    3: {
        "one long tensor": lambda b, s: (torch.cat([x["labels"].flatten() for x in b]) != -100).sum().item() / sum(s),
        "in numpy": lambda b, s: sum(map(targets, b)) / np.sum(s),
    },
    4: {
        "whole epochs": whole_epochs,
        "a generator": lambda loader, n: list(islice((batch for epoch in count() for batch in loader(epoch)), n)),
    },
}
