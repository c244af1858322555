"""Logs written by hand, for the tests of the doctor."""

import math
import random

import numpy as np

from tinytrain.config import TrainConfig
from tinytrain.watch.doctor import diagnose

CONFIG = TrainConfig(total_steps=200, max_lr=1e-3, warmup_steps=20)


def lines(losses, **columns):
    """A log with these losses; other columns are a number, or one for each line, None for none."""
    n = len(losses)
    columns = {"grad_norm": 1.0, "lr": 1e-3} | columns
    rows = {k: [v] * n if not isinstance(v, (list, np.ndarray)) else v for k, v in columns.items()}
    return [
        {"batch": i + 1, "step": i + 1, "loss": losses[i]} | {k: v[i] for k, v in rows.items() if v[i] is not None}
        for i in range(n)
    ]


def falling(n, start=5.5, end=2.5, noise=0.03, seed=0):
    t = np.arange(n) / n
    return (end + (start - end) * np.exp(-6 * t) + noise * np.random.default_rng(seed).normal(size=n)).tolist()


def full(n=200, seed=0, **changed):
    """A log with every field, as a healthy run writes it; ``changed`` maps a field to a function of the line from 0."""
    dice = random.Random(seed)
    fields = {
        "loss": lambda i: 2.5 + 3.0 / (1 + i / 12) + dice.gauss(0, 0.04),
        "grad_norm": lambda i: 0.5 + dice.random() / 5,
        "clip_factor": lambda i: 1.0,
        "lr": CONFIG.lr,
        "tokens": lambda i: 1000,
        "positions": lambda i: 1100,
        "padding": lambda i: 0.05,
        "tokens_per_second": lambda i: 1e5 + dice.gauss(0, 5e3),
        "seconds_data": lambda i: 0.001,
        "seconds_step": lambda i: 0.009,
        "memory_bytes": lambda i: 10**9,
        "memory_limit_bytes": lambda i: 10**10,
        "skipped": lambda i: False,
    } | changed
    return [{"batch": i + 1, "step": i + 1} | {k: f(i) for k, f in fields.items() if f} for i in range(n)]


def once(usual, at, value, width=1):
    """A column that has another value at a few lines."""
    return lambda i: value if at <= i < at + width else usual


def fp16(overflows, n=200, growth=None, start=65536.0):
    """A log in which these batches overflow and halve the scale; it doubles after ``growth`` good updates."""
    records, scale, good, step = [], start, 0, 0
    for i, loss in enumerate(falling(n)):
        bad = i in overflows
        step += not bad
        records.append(
            {"batch": i + 1, "step": step, "loss": loss, "grad_norm": math.inf if bad else 1.0, "skipped": bad}
            | {"loss_scale": scale}
        )
        good = 0 if bad else good + 1
        if bad:
            scale /= 2
        elif growth and good == growth:
            scale, good = scale * 2, 0
    return records


def names(records, **settings):
    return diagnose(records, **settings).names()


def places(records, **settings):
    return [(finding.name, finding.since) for finding in diagnose(records, **settings)]
