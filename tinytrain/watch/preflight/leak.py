"""No way from a later token to an earlier logit, in train and in eval mode, with and without a padding mask."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from tinytrain.forward import forward_logits
from tinytrain.watch.preflight.report import Line
from tinytrain.watch.preflight.state import as_before, equal
from tinytrain.watch.preflight.subject import LEAK_TOLERANCE, NOT_FINITE, PROBE_LENGTH, Subject, other_tokens

LONGEST = 1024  # tokens of a whole row, beside the batch whose rows are cut; behind them no leak is seen

Call = Callable[[Tensor], Tensor]


def future_leak(
    model: nn.Module, input_ids: Tensor, *, mode: str = "eval", attention_mask: Tensor | None = None
) -> float:
    """How much the logits before a position move when the tokens from there on change: 0.0 if the model is causal.

    ``input_ids`` ``[B,T]`` with T at least 2. Every second half, last quarter and last token of a row is replaced in
    turn; what is returned is the largest absolute change of a logit before it, NaN if the logits are not finite.
    ``mode`` is ``"train"`` (gradients on, dropout drawn alike each time) or ``"eval"`` (gradients off).
    """
    if input_ids.dim() != 2 or input_ids.shape[1] < 2:
        raise ValueError(f"input_ids have shape {list(input_ids.shape)}; a leak needs rows of two tokens or more")
    with as_before(model, mode) as draw_again:
        return _leak(partial(_logits, model, attention_mask), input_ids, draw_again)


def influence(
    model: nn.Module, input_ids: Tensor, *, mode: str = "eval", attention_mask: Tensor | None = None
) -> Tensor:
    """Who can see whom: ``[T,T]``, entry [t, s] is how far the logits at t move when the token at s changes.

    ``input_ids`` ``[1,T]``. In a causal model nothing stands above the diagonal, and something stands everywhere
    else. Entries are the largest absolute change over the vocabulary; NaN where logits are not finite.
    """
    T = input_ids.shape[1]
    if tuple(input_ids.shape) != (1, T):
        raise ValueError(f"input_ids have shape {list(input_ids.shape)}; influence is measured on one row, [1,T]")
    with as_before(model, mode) as draw_again:
        return _influence(partial(_logits, model, attention_mask), input_ids, draw_again)


def _logits(model: nn.Module, attention_mask: Tensor | None, input_ids: Tensor) -> Tensor:
    extras = {} if attention_mask is None else {"attention_mask": attention_mask}
    return forward_logits(model, {"input_ids": input_ids} | extras).detach().float()


def _leak(call: Call, input_ids: Tensor, draw_again: Callable[[], None]) -> float:
    T, largest = input_ids.shape[1], 0.0
    before = call(input_ids)
    for cut in sorted({1, T // 2, T - T // 4 - 1, T - 1} - {0, T}):
        draw_again()
        moved = (before[:, :cut] - call(other_tokens(input_ids, cut))[:, :cut]).abs().max().item()
        largest = max(largest, moved) if math.isfinite(moved) else math.nan
    return largest


def _influence(call: Call, input_ids: Tensor, draw_again: Callable[[], None]) -> Tensor:
    others, columns = other_tokens(input_ids), []
    before = call(input_ids)
    for s in range(input_ids.shape[1]):
        changed = input_ids.clone()
        changed[0, s] = others[0, s]
        draw_again()  # one row at a time: in a batch, dropout would be drawn differently for each
        columns.append((call(changed) - before).abs().amax(-1)[0])
    return torch.stack(columns, dim=1)


def leak_line(subject: Subject, name: str, mode: str, with_mask: bool) -> Line:
    """One of the four situations: what later tokens move, against what earlier ones do.

    Within the first 32 places of a row, any leak is seen. Behind them, and in the row that is not cut, it is seen where
    it crosses a cut: the first token's end, the middle, three quarters, or the last token's beginning.
    """
    if with_mask and not subject.takes("attention_mask"):
        return Line(name, None, "not tested: the model takes no attention_mask")
    ids = subject.batch["input_ids"]
    if ids.shape[1] < 2:
        return Line(name, None, "not tested: a leak needs rows of two tokens or more")

    def call(input_ids: Tensor) -> Tensor:
        extras = {"attention_mask": torch.ones_like(input_ids)} if with_mask else {}
        return subject.call({"input_ids": input_ids} | extras).detach().float()

    with as_before(subject.model, mode) as draw_again:
        first = call(ids)
        draw_again()
        if not equal(first, call(ids)):
            return Line(name, None, "not tested: the same tokens give other logits when asked again")
        draw_again()
        leak = _leak(call, ids, draw_again)
        draw_again()
        place = ""
        if subject.row:
            row = subject.row["input_ids"][:, :LONGEST]
            behind = _leak(call, row, draw_again)
            if not behind <= leak:
                leak, place = behind, f" in a row of {row.shape[1]} tokens"
            draw_again()
        seen = _influence(call, ids[:1, :PROBE_LENGTH], draw_again)
    if math.isnan(leak) or not seen.isfinite().all():
        return Line(name, False, f"the logits are not finite{place}", NOT_FINITE)
    past = seen.tril(-1).max().item()
    if seen.triu(1).max() > leak:
        leak, place = seen.triu(1).max().item(), ""
    if leak == past == 0.0:
        return Line(name, None, "not tested: no token moves the logits of another position yet")
    return Line(
        name,
        leak <= LEAK_TOLERANCE * past,
        f"an earlier logit moves by {leak:.3g}{place}, a later one by {past:.3g}",
        "Changing later tokens changes earlier logits: look at the causal mask and at what True means in it.",
    )
