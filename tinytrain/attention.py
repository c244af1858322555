"""Who may look at whom: causal attention over whole rows, padded rows, and rows that hold several documents.

Each class below is one way to mix values ``v`` by queries ``q`` and keys ``k``, all ``[B,H,T,K]`` (B rows, H heads,
T positions, K width of a head). ``attention_for`` chooses one for a batch, once for all layers.

In ``scaled_dot_product_attention`` a mask's True means *may look*. In ``nn.TransformerEncoder`` it means the reverse,
which is the subject of notebook 00.
"""

from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Attend(Protocol):
    """Mixes ``[B,H,T,K]`` values; ``dropout`` is the share of attention weights to drop."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor: ...


class Causal:
    """Each position looks at itself and at what came before it in its row."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)


@dataclass(frozen=True)
class Masked:
    """Each position looks where ``allowed`` ``[B,1,T,T]`` is True; a position that may look nowhere gets zeros."""

    allowed: Tensor

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.allowed, dropout_p=dropout)


@dataclass(frozen=True)
class Documents:
    """Causal attention inside each document of packed rows; ``doc_ids`` ``[B,T]`` says which document is where.

    A document is a run of equal ids within a row. On a CPU each is a call of its own, on its own slice: what stands
    beside it cannot reach it, and no T × T mask is filled. On a GPU in half precision it is torch's variable-length
    flash attention, where this torch has it, and otherwise a mask.
    """

    doc_ids: Tensor
    _lengths: list[int] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.doc_ids.device.type == "cpu":
            self._lengths.extend(_run_lengths(self.doc_ids))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        if q.device.type == "cpu":
            return self._one_by_one(q, k, v, dropout)
        if q.device.type == "cuda" and q.dtype in (torch.float16, torch.bfloat16) and dropout == 0.0 and _has_varlen():
            return self._flash(q, k, v)
        return Masked(_same_document(self.doc_ids))(q, k, v, dropout)

    def _one_by_one(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        B, H, T, K = q.shape
        flat = (x.transpose(0, 1).reshape(1, H, B * T, K).split(self._lengths, dim=2) for x in (q, k, v))
        mixed = [
            F.scaled_dot_product_attention(*parts, dropout_p=dropout, is_causal=True)
            for parts in zip(*flat, strict=True)
        ]
        return torch.cat(mixed, dim=2).view(H, B, T, K).transpose(0, 1)

    def _flash(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        B, H, T, K = q.shape
        flat = (x.transpose(1, 2).reshape(B * T, H, K) for x in (q, k, v))
        ends = _boundaries(self.doc_ids)
        mixed = varlen_attn(*flat, ends, ends, T, T, window_size=(-1, 0))
        return mixed.view(B, T, H, K).transpose(1, 2)


@cache
def _has_varlen() -> bool:
    """Whether this torch has variable-length attention; the oldest in the package's range do not."""
    return find_spec("torch.nn.attention.varlen") is not None


def attention_for(attention_mask: Tensor | None, doc_ids: Tensor | None) -> Attend:
    """The way to attend for one batch, all arguments ``[B,T]``.

    ``attention_mask`` is True or 1 at real tokens. Padding on the right needs no mask at all, since a causal query
    never looks that way; this is seen on a CPU, while on a GPU looking would mean to wait for the device.
    """
    if doc_ids is not None:
        return Documents(doc_ids if attention_mask is None else doc_ids.masked_fill(attention_mask == 0, -1))
    if attention_mask is None:
        return Causal()
    if attention_mask.is_floating_point() and attention_mask.device.type == "cpu" and bool((attention_mask < 0).any()):
        raise ValueError("attention_mask holds negative numbers: it marks real tokens by 1, and is not added to scores")
    real = attention_mask.bool()
    if real.device.type == "cpu" and bool((real[:, :-1] >= real[:, 1:]).all()):
        return Causal()
    return Masked(_causal(real.shape[1], real.device) & real[:, None, None, :])


def positions_for(input_ids: Tensor, attention_mask: Tensor | None, doc_ids: Tensor | None) -> Tensor:
    """Positions ``[T]`` or ``[B,T]``: from a document's start, from a row's first real token, or from the row's."""
    T = input_ids.shape[1]
    place = torch.arange(T, device=input_ids.device)
    if doc_ids is not None:
        starts = _starts(doc_ids)
        return place - torch.where(starts, place, 0).cummax(1).values
    if attention_mask is None:
        return place
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


def _causal(T: int, device: torch.device) -> Tensor:
    return torch.ones(T, T, dtype=torch.bool, device=device).tril()


def _same_document(doc_ids: Tensor) -> Tensor:
    """``[B,1,T,T]``: causal, and within one document."""
    runs = _starts(doc_ids).cumsum(1)
    return _causal(doc_ids.shape[1], doc_ids.device) & (runs[:, None, :, None] == runs[:, None, None, :])


def _starts(doc_ids: Tensor) -> Tensor:
    """``[B,T]``, True where a document begins."""
    first = torch.ones_like(doc_ids[:, :1], dtype=torch.bool)
    return torch.cat([first, doc_ids[:, 1:] != doc_ids[:, :-1]], dim=1)


def _run_lengths(doc_ids: Tensor) -> list[int]:
    """Lengths of the documents, row after row, as plain numbers."""
    begins = _starts(doc_ids).flatten().nonzero().flatten()
    return torch.diff(begins, append=torch.tensor([doc_ids.numel()])).tolist()


def _boundaries(doc_ids: Tensor) -> Tensor:
    """``[B*T + 1]`` int32: where documents begin in the flat batch, then its end, repeated to a fixed length.

    The fixed length keeps the host from having to ask the device how many documents there are.
    """
    n = doc_ids.numel()
    place = torch.arange(n, device=doc_ids.device)
    begins = torch.where(_starts(doc_ids).flatten(), place, n).sort().values
    return torch.cat([begins, begins.new_full((1,), n)]).int()
