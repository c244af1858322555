"""The exercises of notebook 00: a causal mask, and finding the model that sees its next token."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinytrain.course.exercises import Exercise, Report
from tinytrain.course.handwritten import NextTokenLM, lineup
from tinytrain.watch.preflight import future_leak

V, T = 97, 16  # the sizes of the line-up's models, as in the notebook


def causal_mask(T: int) -> Tensor:
    """A bool tensor ``[T, T]`` for ``scaled_dot_product_attention``: True where query t may look at key s."""
    places = torch.arange(T)
    return places[:, None] >= places[None, :]


def check_causal_mask(answer: Callable[[int], Tensor], report: Report) -> None:
    """Judge a mask by what attention does with it, at several lengths."""
    for length in (7, int(torch.randint(8, 20, ())), 1, int(torch.randint(60, 90, ()))):
        mask = answer(length)
        report.need(f"T={length}: returns a tensor", isinstance(mask, Tensor), f"It returned {type(mask).__name__}.")
        report.need(
            f"T={length}: True and False",
            mask.dtype == torch.bool,
            f"The mask is {mask.dtype}; torch.bool is wanted. A float mask is added to the scores instead.",
        )
        report.need(
            f"T={length}: shape [{length}, {length}]",
            tuple(mask.shape) == (length, length),
            f"It has shape {list(mask.shape)}. Does it use its argument?",
        )
        q, k, v = torch.randn(3, 1, 1, length, 4)
        right = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        off = (F.scaled_dot_product_attention(q, k, v, attn_mask=mask) - right).abs().max().item()
        report.need(f"T={length}: attention with it is torch's causal attention", off < 1e-5, _likely_mask(mask))


def _likely_mask(mask: Tensor) -> str:
    if bool(mask.triu(1).any()) and not bool(mask.tril(-1).any()):
        return "It is turned round: position 0 may look at what comes later. In which convention does True mean that?"
    if bool(mask.triu(1).any()):
        return "Some position may look at what comes after it."
    if not bool(mask.diagonal().all()):
        return "A position may look at itself: it does not know its own answer yet."
    return "Some position may not look at all of its past."


def find_the_leak(models: dict[str, nn.Module]) -> str:
    """The name of the one model that can see its next token.

    Each is called as ``model(rows)`` or ``model(rows, attention_mask=mask)``, with rows ``[B, 16]`` of ids below 97.
    """
    rows, mask = torch.randint(0, 97, (8, 16)), torch.ones(8, 16)
    return max(models, key=lambda name: future_leak(models[name], rows, mode="train", attention_mask=mask))


def check_find_the_leak(answer: Callable[[dict[str, nn.Module]], str], report: Report) -> None:
    """Ask for the guilty one of several fresh line-ups; a guess would fail one of them."""
    for number in range(1, 7):
        models = lineup(V, T)
        (guilty,) = (name for name, model in models.items() if isinstance(model, NextTokenLM))
        accused = answer(dict(models))
        report.need(
            f"line-up {number}: returns a name",
            isinstance(accused, str) and accused in models,
            f"It returned {accused!r}; one of {', '.join(models)} is wanted.",
        )
        report.need(
            f"line-up {number}: accuses the guilty one",
            accused == guilty,
            "It accused an honest model. Did all three look honest? A fault may be asleep in one situation and awake "
            "in another.",
        )


EXERCISES = (
    Exercise(
        number=1,
        title="Write a causal mask",
        goal="Write the mask that lets each position look at itself and at its past, for `scaled_dot_product_attention`"
        ", where True means *may look*. Try it without `tril` and `triu`.",
        difficulty="easy",
        minutes=5,
        solution=causal_mask,
        check=check_causal_mask,
        hints=(
            "Position t may look at position s if s is not later than t. Number the positions with `torch.arange(T)`.",
            "Compare a column of positions with a row of positions: `places[:, None]` has shape `[T, 1]`, and "
            "`places[None, :]` has shape `[1, T]`.",
        ),
    ),
    Exercise(
        number=2,
        title="Find the leak",
        goal="You get three fresh models by name: `amber`, `birch` and `coral`. One of them can see its next token. "
        "Return its name. The tools above are enough.",
        difficulty="medium",
        minutes=10,
        solution=find_the_leak,
        check=check_find_the_leak,
        hints=(
            "`future_leak(model, rows, mode=...)` measures how far earlier logits move. Print it for all three models. "
            "Are they all 0? Then you asked in the one situation in which the fault sleeps.",
            "Pass `attention_mask=torch.ones(8, 16)` as well, and return the name with the largest number: "
            "`max(models, key=...)`.",
        ),
    ),
)
