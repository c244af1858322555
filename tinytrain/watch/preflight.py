"""Is this model healthy before a single update? Each line is one test, its number, and what to do."""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from tinytrain.device import device_of, to_device
from tinytrain.forward import forward_logits
from tinytrain.generators import all_states, keep_generators, restore_all
from tinytrain.loss import IGNORE_INDEX, cross_entropy
from tinytrain.observe import keep_modes_and_buffers

MAX_TOKENS = 128
INFLUENCE_TOKENS = 32  # every pair of positions is looked at among the first tokens of a row
LEAK_TOLERANCE = 1e-4  # of what the past moves: rounding is smaller, and a fresh model's leak may be tiny
INITIAL_LOSS_BAND = 0.2
NOT_FINITE = "Look at the weights, and at the mask: a query that may look at nothing divides 0 by 0."


@dataclass(frozen=True)
class Line:
    """One test: ``passed`` is None where it could not be made."""

    name: str
    passed: bool | None
    measured: str
    advice: str = ""

    def __str__(self) -> str:
        verdict = {True: "pass", False: "FAIL", None: "----"}[self.passed]
        advice = f"\n      {self.advice}" if self.advice and not self.passed else ""
        return f"{verdict}  {self.name}: {self.measured}{advice}"


@dataclass(frozen=True)
class Report:
    """All lines of one preflight. Printing it shows them; ``passed`` is True if none failed."""

    lines: tuple[Line, ...]

    @property
    def passed(self) -> bool:
        return not any(line.passed is False for line in self.lines)

    def __getitem__(self, name: str) -> Line:
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(f"{name!r} is not a line of this report: {', '.join(line.name for line in self.lines)}")

    def __str__(self) -> str:
        return "\n".join(str(line) for line in self.lines)

    __repr__ = __str__


def preflight(model: nn.Module, batch: dict[str, Tensor]) -> Report:
    """Test a fresh model on one batch (``input_ids`` and ``labels`` ``[B,T]``); seconds on any model.

    Lines so far: the initial loss against ln V, and no way from a later token to an earlier logit, in train and in
    eval mode, with and without a padding mask. The batch is cut to 128 tokens. The model's weights, buffers, modes
    and the random generators are as before afterwards. A line that could not be tested says why.
    """
    batch = _cut(to_device(batch, device_of(model)))
    lines = [_guarded("initial loss", lambda: _initial_loss(model, batch))]
    for mode in ("train", "eval"):
        for with_mask in (False, True):
            name = f"no future leak ({mode}, {'with' if with_mask else 'without'} padding mask)"
            lines.append(_guarded(name, partial(_leak_line, name, model, batch["input_ids"], mode, with_mask)))
    return Report(tuple(lines))


def _guarded(name: str, test: Callable[[], Line]) -> Line:
    """A model that cannot be called in one situation still gets its other lines."""
    try:
        return test()
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Line(name, None, f"not tested: {type(error).__name__}: {first}")


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
    T = input_ids.shape[1]
    extras = {} if attention_mask is None else {"attention_mask": attention_mask}
    largest = 0.0
    with _as_before(model, mode), _same_draws() as draw_again:
        before = _logits(model, {"input_ids": input_ids} | extras)
        for cut in sorted({1, T // 2, T - T // 4 - 1, T - 1} - {0, T}):
            draw_again()
            after = _logits(model, {"input_ids": _change_from(input_ids, cut)} | extras)
            moved = (before[:, :cut] - after[:, :cut]).abs().max().item()
            largest = max(largest, moved) if math.isfinite(moved) else math.nan
    return largest


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
    others = _change_from(input_ids, 0)
    extras = {} if attention_mask is None else {"attention_mask": attention_mask}
    columns = []
    with _as_before(model, mode), _same_draws() as draw_again:
        before = _logits(model, {"input_ids": input_ids} | extras)
        for s in range(T):
            changed = input_ids.clone()
            changed[0, s] = others[0, s]
            draw_again()  # one row at a time: in a batch, dropout would be drawn differently for each
            columns.append((_logits(model, {"input_ids": changed} | extras) - before).abs().amax(-1)[0])
    return torch.stack(columns, dim=1)


def _change_from(input_ids: Tensor, start: int) -> Tensor:
    """The same rows with another token at every position from ``start`` on, each one that the rows already use."""
    used = input_ids.unique()
    if len(used) < 2:
        used = torch.cat([used, used + 1 if int(used[0]) == 0 else used - 1]).sort().values
    place = torch.searchsorted(used, input_ids[:, start:].contiguous())
    return torch.cat([input_ids[:, :start], used[(place + 1) % len(used)]], dim=1)


def _logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return forward_logits(model, batch).detach().float()


def _initial_loss(model: nn.Module, batch: dict[str, Tensor]) -> Line:
    targets = int((batch["labels"] != IGNORE_INDEX).sum())
    if targets == 0:
        return Line("initial loss", None, "not tested: no position of this batch is a target")
    extras = {} if "attention_mask" not in batch else {"attention_mask": batch["attention_mask"]}
    with _as_before(model, "eval"):
        logits = _logits(model, {"input_ids": batch["input_ids"]} | extras)
    uniform = math.log(logits.shape[-1])
    loss = cross_entropy(logits, batch["labels"]).item()
    measured = f"{loss:.3f} nats on {targets} tokens, ln V = {uniform:.3f}"
    if not math.isfinite(loss):
        return Line("initial loss", False, measured, NOT_FINITE)
    return Line(
        "initial loss",
        abs(loss - uniform) <= INITIAL_LOSS_BAND,
        measured,
        "A fresh model should know nothing. Above ln V: look at the initial scale of embeddings and head. "
        "Below: look at the mask and at the labels.",
    )


def _leak_line(name: str, model: nn.Module, input_ids: Tensor, mode: str, with_mask: bool) -> Line:
    if with_mask and not _takes(model, "attention_mask"):
        return Line(name, None, "not tested: the model takes no attention_mask")
    mask = torch.ones_like(input_ids) if with_mask else None
    if not _deterministic(model, input_ids, mode, mask):
        return Line(name, None, "not tested: the same tokens give other logits when asked again")
    leak = future_leak(model, input_ids, mode=mode, attention_mask=mask)
    row = input_ids[:1, :INFLUENCE_TOKENS]
    seen = influence(model, row, mode=mode, attention_mask=None if mask is None else mask[:1, :INFLUENCE_TOKENS])
    if math.isnan(leak) or not seen.isfinite().all():
        return Line(name, False, "the logits are not finite", NOT_FINITE)
    leak, past = max(leak, seen.triu(1).max().item()), seen.tril(-1).max().item()
    if leak == past == 0.0:
        return Line(name, None, "not tested: no token moves the logits of another position yet")
    return Line(
        name,
        leak <= LEAK_TOLERANCE * past,
        f"an earlier logit moves by {leak:.3g}, a later one by {past:.3g}",
        "Changing later tokens changes earlier logits: look at the causal mask and at what True means in it.",
    )


def _deterministic(model: nn.Module, input_ids: Tensor, mode: str, attention_mask: Tensor | None) -> bool:
    extras = {} if attention_mask is None else {"attention_mask": attention_mask}
    with _as_before(model, mode), _same_draws() as draw_again:
        first = _logits(model, {"input_ids": input_ids} | extras)
        draw_again()
        second = _logits(model, {"input_ids": input_ids} | extras)
    return torch.equal(first.nan_to_num(), second.nan_to_num())


@contextmanager
def _same_draws() -> Iterator[Callable[[], None]]:
    """Gives a function that sets all generators back to where they stand now."""
    states = all_states()
    yield lambda: restore_all(states)


def _takes(model: nn.Module, name: str) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _cut(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """At most ``MAX_TOKENS`` tokens, from the rows with the most targets."""
    rows, length = batch["input_ids"].shape
    length = min(length, MAX_TOKENS)
    best = (batch["labels"][:, :length] != IGNORE_INDEX).sum(1).argsort(descending=True, stable=True)
    chosen = best[: max(1, MAX_TOKENS // length)]
    return {
        name: tensor[chosen, :length]
        for name, tensor in batch.items()
        if tensor.shape[:2] == (rows, batch["input_ids"].shape[1])
    }


@contextmanager
def _as_before(model: nn.Module, mode: str) -> Iterator[None]:
    """Run the model in ``mode``, then put its modes, its buffers and all generators back."""
    if mode not in ("train", "eval"):
        raise ValueError(f"mode={mode!r} is neither 'train' nor 'eval'")
    with keep_generators(), keep_modes_and_buffers(model):
        model.train(mode == "train")
        with torch.set_grad_enabled(mode == "train"):
            yield
