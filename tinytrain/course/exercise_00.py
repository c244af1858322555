"""The exercises of notebook 00: what is checked, and the likely mistake behind a wrong answer."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytrain.course.handwritten import NextTokenLM, lineup


def check_causal_mask(causal_mask: Callable[[int], Tensor]) -> str:
    """Judge a mask for ``scaled_dot_product_attention`` by what attention does with it, at several lengths."""
    for T in (7, 12, 1):
        try:
            mask = causal_mask(T)
        except NotImplementedError:
            return "Exercise 1: not tried yet."
        if not isinstance(mask, Tensor):
            return f"Exercise 1: not yet. causal_mask({T}) returned {type(mask).__name__}; a tensor is wanted."
        if mask.dtype != torch.bool:
            return f"Exercise 1: not yet. The mask is {mask.dtype}; True and False are wanted (torch.bool)."
        if tuple(mask.shape) != (T, T):
            return f"Exercise 1: not yet. causal_mask({T}) has shape {list(mask.shape)}; [{T}, {T}] is wanted."
        if hint := _what_is_wrong(mask):
            return f"Exercise 1: not yet. {hint}"
    return "Exercise 1: right. Attention with your mask equals torch's own causal attention at three lengths."


def _what_is_wrong(mask: Tensor) -> str:
    T = len(mask)
    q, k, v = torch.randn(3, 1, 1, T, 4)
    right = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    off = (F.scaled_dot_product_attention(q, k, v, attn_mask=mask) - right).abs().max().item()
    if off < 1e-5:
        return ""
    if bool(mask.triu(1).any()) and not bool(mask.tril(-1).any()):
        return "It is turned round: position 0 may look at what comes later. In which convention does True mean that?"
    if bool(mask.triu(1).any()):
        return "Some position may look at what comes after it."
    if not bool(mask.diagonal().all()):
        return "A position may look at itself: it does not know its own answer yet."
    return "Some position may not look at all of its past."


def check_find_the_leak(
    find_the_leak: Callable[[dict[str, nn.Module]], str], vocab_size: int, max_positions: int
) -> str:
    """Ask for the guilty one of several fresh line-ups; a guess would fail one of them."""
    for _ in range(4):
        models = lineup(vocab_size, max_positions)
        (guilty,) = (name for name, model in models.items() if isinstance(model, NextTokenLM))
        try:
            accused = find_the_leak(dict(models))
        except NotImplementedError:
            return "Exercise 2: not tried yet."
        if accused not in models:
            return f"Exercise 2: not yet. It returned {accused!r}; one of {', '.join(models)} is wanted."
        if accused != guilty:
            return (
                "Exercise 2: not yet. It accused an honest model in one of four line-ups. Did all three look honest? "
                "A fault may be asleep in one situation and awake in another."
            )
    return "Exercise 2: right, in four line-ups out of four."
