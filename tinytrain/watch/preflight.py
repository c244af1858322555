"""Is this model healthy before a single update? Each line is one test, its number, and what to do."""

import copy
import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tinytrain.device import device_of, to_device
from tinytrain.forward import forward_logits
from tinytrain.generators import keep_generators
from tinytrain.loss import cross_entropy

MAX_TOKENS = 128
LEAK_TOLERANCE = 1e-5
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
    and the random generators are as before afterwards.
    """
    batch = _cut(to_device(batch, device_of(model)))
    lines = [_initial_loss(model, batch)]
    for mode in ("train", "eval"):
        for with_mask in (False, True):
            lines.append(_leak_line(model, batch["input_ids"], mode, with_mask))
    return Report(tuple(lines))


def future_leak(
    model: nn.Module, input_ids: Tensor, *, mode: str = "eval", attention_mask: Tensor | None = None
) -> float:
    """How much the logits before a position move when the tokens from there on change: 0.0 if the model is causal.

    ``input_ids`` ``[B,T]`` with T at least 2. The second half of each row is replaced by other tokens; what is
    returned is the largest absolute change of a logit in the first half, NaN if the logits there are not finite.
    ``mode`` is ``"train"`` (gradients on, dropout drawn alike both times) or ``"eval"`` (gradients off).
    """
    if input_ids.dim() != 2 or input_ids.shape[1] < 2:
        raise ValueError(f"input_ids have shape {list(input_ids.shape)}; a leak needs rows of two tokens or more")
    half = input_ids.shape[1] // 2
    extras = {} if attention_mask is None else {"attention_mask": attention_mask}
    with _as_before(model, mode):
        seed = torch.initial_seed() % (1 << 63)
        before = _seeded_logits(model, {"input_ids": input_ids} | extras, seed)
        changed = _change_from(input_ids, half, vocab_size=before.shape[-1])
        after = _seeded_logits(model, {"input_ids": changed} | extras, seed)
    difference = (before[:, :half] - after[:, :half]).abs().max().item()
    return difference if math.isfinite(difference) else math.nan


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
    rows = input_ids.repeat(T + 1, 1)  # row s has another token at s; the last row is as it was
    extras = {} if attention_mask is None else {"attention_mask": attention_mask.expand(T + 1, T)}
    with _as_before(model, mode):
        vocab_size = forward_logits(model, {"input_ids": rows[:1]} | {k: v[:1] for k, v in extras.items()}).shape[-1]
        rows[range(T), range(T)] = (rows[range(T), range(T)] + 1) % vocab_size
        logits = _seeded_logits(model, {"input_ids": rows} | extras, torch.initial_seed() % (1 << 63))
    return (logits[:T] - logits[T]).abs().amax(-1).T


def _change_from(input_ids: Tensor, start: int, vocab_size: int) -> Tensor:
    """The same rows with another token at every position from ``start`` on."""
    steps = 1 + torch.arange(input_ids.shape[1] - start, device=input_ids.device) % (vocab_size - 1)
    return torch.cat([input_ids[:, :start], (input_ids[:, start:] + steps) % vocab_size], dim=1)


def _seeded_logits(model: nn.Module, batch: dict[str, Tensor], seed: int) -> Tensor:
    torch.manual_seed(seed)
    return forward_logits(model, batch).detach().float()


def _initial_loss(model: nn.Module, batch: dict[str, Tensor]) -> Line:
    with _as_before(model, "eval"):
        logits = forward_logits(model, {"input_ids": batch["input_ids"]}).detach()
    uniform = math.log(logits.shape[-1])
    loss = cross_entropy(logits, batch["labels"]).item()
    measured = f"{loss:.3f} nats on {batch['labels'].numel()} tokens, ln V = {uniform:.3f}"
    if not math.isfinite(loss):
        return Line("initial loss", False, measured, NOT_FINITE)
    return Line(
        "initial loss",
        abs(loss - uniform) <= INITIAL_LOSS_BAND,
        measured,
        "A fresh model should know nothing. Above ln V: look at the initial scale of embeddings and head. "
        "Below: look at the mask and at the labels.",
    )


def _leak_line(model: nn.Module, input_ids: Tensor, mode: str, with_mask: bool) -> Line:
    name = f"no future leak ({mode}, {'with' if with_mask else 'without'} padding mask)"
    if with_mask and not _takes(model, "attention_mask"):
        return Line(name, None, "not tested: the model takes no attention_mask")
    mask = torch.ones_like(input_ids) if with_mask else None
    leak = future_leak(model, input_ids, mode=mode, attention_mask=mask)
    if math.isnan(leak):
        return Line(name, False, "the logits are not finite", NOT_FINITE)
    return Line(
        name,
        leak <= LEAK_TOLERANCE,
        f"an earlier logit moves by {leak:.3g}",
        "Changing later tokens changes earlier logits: look at the causal mask and at what True means in it.",
    )


def _takes(model: nn.Module, name: str) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _cut(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    rows, length = batch["input_ids"].shape
    length = min(length, MAX_TOKENS)
    return {name: tensor[: min(rows, max(1, MAX_TOKENS // length)), :length] for name, tensor in batch.items()}


@contextmanager
def _as_before(model: nn.Module, mode: str) -> Iterator[None]:
    """Run the model in ``mode``, then put its modes, its buffers and all generators back."""
    if mode not in ("train", "eval"):
        raise ValueError(f"mode={mode!r} is neither 'train' nor 'eval'")
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, copy.deepcopy(buffer)) for buffer in model.buffers()]
    with keep_generators():
        try:
            model.train(mode == "train")
            with torch.set_grad_enabled(mode == "train"):
                yield
        finally:
            for module, training in modes:
                module.training = training
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
