"""The model under test: one way to call it, and the part of the batch that it is called on."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tinytrain.device import device_of, to_device
from tinytrain.forward import fitted, forward_logits, logits_of
from tinytrain.loss import IGNORE_INDEX
from tinytrain.weights import unwrap

MAX_TOKENS = 128
MAX_LENGTH = 64  # so that a batch of long rows still has two of them
PROBE_LENGTH = 32  # rows for the lines that need no labels
LEAK_TOLERANCE = 1e-4  # of what an honest change moves: rounding is smaller, and a fresh model's leak may be tiny
RELATIVE_TOLERANCE = 1e-5  # of the largest logit, between two shapes: torch sums in another order there
NOT_FINITE = "Look at the weights, and at the mask: a query that may look at nothing divides 0 by 0."

FILLED = {"attention_mask": 1, "labels": 0}  # what a ``forward`` of one's own may ask a probe for

Batch = dict[str, Any]
Forward = Callable[[nn.Module, Batch], Any]


class NotTestedError(Exception):
    """This line cannot be tested; the message says why."""


@dataclass
class Subject:
    """``batch`` is cut, and on the model's device. ``logits`` are those of the first call, in eval mode."""

    model: nn.Module
    batch: Batch
    forward: Forward | None = None
    optimizer: torch.optim.Optimizer | None = None
    whole: Batch = field(default_factory=dict)
    """the batch as it came, on the CPU, for what can be told without the model"""
    row: Batch = field(default_factory=dict)
    """its first row, whole, on the model's device; empty if the rows are not cut"""
    logits: Tensor | None = None
    dtype: torch.dtype = torch.float32
    """of the logits, which autocast may make narrower than the weights"""
    noisy: bool = False
    """True: chance is on in eval mode, so that two shapes cannot be compared"""

    @property
    def vocab_size(self) -> int:
        assert self.logits is not None
        return self.logits.shape[-1]

    @property
    def tolerance(self) -> float:
        """Rounding between two shapes, in units of the largest logit; wider where weights are narrower."""
        dtypes = {p.dtype for p in self.model.parameters() if p.is_floating_point()} | {self.dtype}
        return max([RELATIVE_TOLERANCE, *(8 * torch.finfo(dtype).eps for dtype in dtypes if dtype.itemsize < 4)])

    def call(self, batch: Batch) -> Tensor:
        """What the model answers, its gradient kept; ``[B,T,V]`` if all is well.

        A mask or labels that the model cannot do without, and that the batch has, are handed over where a line has
        none to hand over: a mask of ones, and labels that say nothing about the tokens.
        """
        if self.forward is None:
            if "attention_mask" not in batch and "attention_mask" in self.batch and needs(self.model, "attention_mask"):
                batch = batch | {"attention_mask": torch.ones_like(batch["input_ids"])}
            return forward_logits(self.model, batch)
        try:
            return logits_of(self.forward(self.model, batch))
        except KeyError as missing:
            name = missing.args[0] if missing.args else None
            if name not in FILLED or name in batch or name not in self.batch:
                raise
            return self.call(batch | {name: torch.full_like(batch["input_ids"], FILLED[name])})

    def ask(self, input_ids: Tensor, **extras: Tensor) -> Tensor:
        """Logits as float32, detached. Raises ``NotTestedError`` where they are not finite."""
        logits = self.call({"input_ids": input_ids} | extras).detach().float()
        if not logits.isfinite().all():
            raise NotTestedError("the logits are not finite")
        return logits

    def takes(self, name: str) -> bool:
        """Whether the model is known to take ``name``; with ``forward=``, whether the batch brought it."""
        if self.forward is not None:
            return name in self.batch
        return takes(self.model, name)

    def need_full_width(self) -> None:
        """Raises ``NotTestedError`` where rounding would hide what small moves of weights do."""
        if any(p.dtype.itemsize < 4 for p in self.model.parameters() if p.requires_grad):
            raise NotTestedError("weights are narrower than float32")

    def rows(self, count: int = 2) -> Tensor:
        """``[count, L]`` real tokens of the batch, without its padding; L at most 32 and at most a row of the batch."""
        ids, L = self.batch["input_ids"], min(PROBE_LENGTH, self.batch["input_ids"].shape[1])
        real = ids[self.batch["attention_mask"] != 0] if "attention_mask" in self.batch else ids.flatten()
        if len(real) == 0:
            raise NotTestedError("every token of this batch is padding")
        return real.repeat(math.ceil(count * L / len(real)))[: count * L].view(count, L)


def takes(model: nn.Module, name: str) -> bool:
    """Whether ``model.forward`` names ``name``, or takes any name."""
    parameters = inspect.signature(unwrap(model).forward).parameters
    if name in parameters or (name == "positions" and "position_ids" in parameters):
        return True
    return name not in ("doc_ids", "positions") and any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def needs(model: nn.Module, name: str) -> bool:
    """Whether ``model.forward`` cannot be called without ``name``."""
    parameter = inspect.signature(unwrap(model).forward).parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


def subject_of(
    model: nn.Module, batch: Mapping[str, Any], forward: Forward | None, optimizer: torch.optim.Optimizer | None
) -> Subject:
    """Cut the batch, give it the model's own names, and move it to the model's device."""
    here = {name: value.cpu() if isinstance(value, Tensor) else value for name, value in batch.items()}
    whole = {name: value for name, value in here.items() if isinstance(value, Tensor)}

    def ready(part: Batch) -> Batch:
        fit = part if forward else fitted(model, part)
        tensors = {name: value for name, value in fit.items() if isinstance(value, Tensor)}
        return fit | to_device(tensors, device_of(model))

    length = here["input_ids"].shape[1]
    row = {} if length <= MAX_LENGTH else ready(_part(here, torch.arange(1), slice(None)))
    return Subject(model, ready(_cut(here)), forward, optimizer, whole, row)


def _cut(batch: Batch) -> Batch:
    """At most ``MAX_TOKENS`` tokens, from the rows and from the end of them that have the most targets."""
    length = batch["input_ids"].shape[1]
    short = min(length, MAX_LENGTH)
    target = batch["labels"] != IGNORE_INDEX
    columns = slice(0, short) if target[:, :short].sum() >= target[:, length - short :].sum() else slice(-short, None)
    best = target[:, columns].sum(1).argsort(descending=True, stable=True)
    return _part(batch, best[: max(1, MAX_TOKENS // short)], columns)


def _part(batch: Batch, chosen: Tensor, columns: slice) -> Batch:
    """Some rows, and some places of them, of every tensor that has as many as ``input_ids``."""
    rows, length = batch["input_ids"].shape

    def part(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] != rows:
            return value
        return value[chosen][:, columns].contiguous() if value.shape[1:2] == (length,) else value[chosen]

    return {name: part(value) for name, value in batch.items()}


def other_tokens(input_ids: Tensor, start: int = 0) -> Tensor:
    """The same rows with another token at every position from ``start`` on, each one that the rows already use."""
    used = input_ids.unique()
    if len(used) < 2:
        used = torch.cat([used, used + 1 if int(used[0]) == 0 else used - 1]).sort().values
    place = torch.searchsorted(used, input_ids[:, start:].contiguous())
    return torch.cat([input_ids[:, :start], used[(place + 1) % len(used)]], dim=1)


def largest(difference: Tensor) -> float:
    """The largest absolute value; 0.0 of nothing."""
    return difference.abs().max().item() if difference.numel() else 0.0


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
