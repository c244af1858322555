"""Weights that start at zero switch off what stands behind them: moved a little, for lines on who sees whom."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from tinytrain.seeds import generator_for
from tinytrain.watch.preflight.state import as_before
from tinytrain.watch.preflight.subject import Subject, largest, other_tokens

STD = 0.02  # GPT-2's first weights; any number would do, for no weight's value changes who may see whom


@contextmanager
def nudged(subject: Subject) -> Iterator[list[str]]:
    """Gives the names of weights that are all zero and, inside, are not. They are zero again afterwards.

    None if no matrix is all zero and tokens do move the logits behind them: zero biases hide nothing. A head, a gate
    or a projection that starts at zero hides a leak until the first update.
    """
    zero = {n: p for n, p in subject.model.named_parameters() if _all_zero(p)}
    if zero and not any(p.dim() >= 2 for p in zero.values()) and _tokens_move_logits(subject):
        zero = {}
    kept = {n: p.detach().clone() for n, p in zero.items()}
    draws = generator_for("nudge")
    try:
        with torch.no_grad():
            for p in zero.values():
                p.copy_(STD * torch.randn(p.shape, generator=draws))
        yield sorted(zero, key=lambda n: -zero[n].dim())  # matrices first: they hide the most
    finally:
        with torch.no_grad():
            for n, p in zero.items():
                p.copy_(kept[n])


def _all_zero(p: nn.Parameter) -> bool:
    return p.is_floating_point() and p.numel() > 0 and not p.any()


def _tokens_move_logits(subject: Subject) -> bool:
    """Whether the last logits move as the tokens before them change; True where that cannot be told."""
    try:
        ids = subject.rows(1)
        with as_before(subject.model, "eval") as draw_again:
            before = subject.ask(ids)[:, -1]
            draw_again()
            others = torch.cat([other_tokens(ids[:, :-1]), ids[:, -1:]], dim=1)
            return largest(subject.ask(others)[:, -1] - before) > 0
    except Exception:  # the line itself will say what is wrong
        return True
