"""Cross-entropy over target tokens, with one convention for labels.

``labels[b, t]`` is the token that position ``t`` must predict. The data shifts once; nothing here shifts again.
Shape letters everywhere in this package: B rows, T positions (time), V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

IGNORE_INDEX = -100
_REDUCTIONS = ("mean", "sum", "none")
_HALF_TYPES = (torch.float16, torch.bfloat16)


def count_targets(labels: Tensor, ignore_index: int = IGNORE_INDEX) -> Tensor:
    """How many positions of ``labels`` (any shape) are targets, as an int64 tensor of shape ``[]``.

    It stays on the device, so counting does not wait for a GPU.

    >>> count_targets(torch.tensor([[5, 6, -100], [7, -100, -100]])).item()
    3
    """
    return (labels.long() != ignore_index).sum()  # widened, for -100 does not fit into uint8


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy in nats per target token.

    ``logits``: ``[..., V]``, unnormalised scores (no softmax). ``labels``: ``[...]``, integers in ``0..V-1``, or
    ``ignore_index`` where nothing is to be predicted. Half-precision logits are widened to float32 first, because a
    sum over V exponentials loses its small terms in 16 bits.

    ``reduction``: ``"mean"`` divides by the number of targets, and is 0 with a zero gradient when there are none
    (torch's own mean is 0/0 = NaN there); ``"sum"`` adds; ``"none"`` keeps the shape of ``labels``, 0 where ignored.
    Logits at ignored positions must be finite: their loss is 0, but a NaN there still reaches the gradient.

    ``label_smoothing`` spreads that share evenly over all V classes (Szegedy et al. 2016, section 7).

    Raises ``ValueError`` for shapes that do not fit and for a label outside the vocabulary, naming it, and
    ``TypeError`` for labels that are not integers.

    >>> logits = torch.zeros(2, 3, 10)
    >>> labels = torch.tensor([[1, 2, -100], [3, -100, -100]])
    >>> round(cross_entropy(logits, labels).item(), 4)  # ln 10
    2.3026
    """
    _check_call(logits, labels, label_smoothing, reduction)
    # Off the CPU a bad label surfaces late and without its name, so it is looked for beforehand there.
    if logits.device.type != "cpu":
        check_labels(labels, logits.shape[-1], ignore_index)
    try:
        losses = _token_losses(logits, labels, ignore_index, label_smoothing, "none" if reduction == "none" else "sum")
    except IndexError:
        check_labels(labels, logits.shape[-1], ignore_index)
        raise
    if reduction != "mean":
        return losses.view(labels.shape) if reduction == "none" else losses
    return losses / count_targets(labels, ignore_index).clamp(min=1)


def unchecked_loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """``cross_entropy(…, reduction="sum")`` for labels that have been checked already; waits for no device."""
    return _token_losses(logits, labels, IGNORE_INDEX, 0.0, "sum")


def chunked_loss_sum(hidden: Tensor, head: nn.Module, labels: Tensor, chunk: int) -> Tensor:
    """``cross_entropy(head(hidden), labels, reduction="sum")`` without ever holding more than ``chunk`` tokens' logits.

    ``hidden`` is ``[..., D]``, ``labels`` ``[...]``, checked already. The logits of a chunk are let go after the
    forward pass and made once more in the backward pass. Raises ``ValueError`` for a chunk under 1.
    """
    if chunk < 1:
        raise ValueError(f"loss_chunk={chunk} must be at least 1 token")

    def of_chunk(states: Tensor, wanted: Tensor) -> Tensor:
        return unchecked_loss_sum(head(states), wanted)

    parts = zip(hidden.flatten(0, -2).split(chunk), labels.flatten().split(chunk), strict=True)
    return torch.stack([checkpoint(of_chunk, *part, use_reentrant=False) for part in parts]).sum()


def check_labels(labels: Tensor, vocab_size: int, ignore_index: int = IGNORE_INDEX) -> None:
    """Raise ``ValueError`` that names the first label outside ``0..vocab_size-1`` other than ``ignore_index``."""
    labels = labels.long()
    bad = ((labels < 0) | (labels >= vocab_size)) & (labels != ignore_index)
    if not bad.any():
        return
    place = tuple(bad.nonzero()[0].tolist())
    raise ValueError(
        f"label {labels[place].item()} at position {list(place)} is outside the vocabulary 0..{vocab_size - 1}. "
        f"Positions without a target carry {ignore_index}: where the data marks them otherwise, pass ignore_index, or "
        f"use labels.masked_fill(labels == mark, {ignore_index}). {int(bad.sum())} labels are outside in all"
    )


def _token_losses(logits: Tensor, labels: Tensor, ignore_index: int, smoothing: float, reduction: str) -> Tensor:
    if logits.dtype in _HALF_TYPES:
        logits = logits.float()
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        labels.reshape(-1).long(),
        ignore_index=ignore_index,
        label_smoothing=smoothing,
        reduction=reduction,
    )


def _check_call(logits: Tensor, labels: Tensor, label_smoothing: float, reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction={reduction!r} is not one of {', '.join(_REDUCTIONS)}")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing={label_smoothing} must lie between 0 and 1")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"labels are {labels.dtype}; they must be integer token ids")
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"logits {list(logits.shape)} do not fit labels {list(labels.shape)}: logits need the labels' shape "
            f"with the vocabulary as one more axis at the end, {[*labels.shape, 'V']}"
        )
