"""Text from a model, token by token, without touching its training."""

import math

import torch
from torch import Tensor, nn

from tinytrain.device import device_of
from tinytrain.forward import logits_of
from tinytrain.observe import observing
from tinytrain.tokenizer import Codec

LONGEST_ROW = ("max_positions", "max_position_embeddings", "n_positions", "context_length", "block_size")
"""what configs call it; the first that is there counts, for a ``block_size`` may also be one of sparse attention"""


def generate(
    model: nn.Module,
    ids: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    max_positions: int | None = None,
    vocab_size: int | None = None,
) -> Tensor:
    """Continue each row of ``ids`` ``[B,T]`` by ``max_new_tokens`` tokens; returns ``[B, T + max_new_tokens]``.

    ``temperature`` divides the logits: below 1 the likely tokens get likelier, 0 always takes the likeliest.
    Draws come from a generator of their own, seeded by ``seed``. The model sees the last ``max_positions`` tokens
    (by default as many as its config says, all if it says nothing). With ``vocab_size`` only ids below it are drawn: of
    a padded vocabulary, those that the tokenizer has.

    Raises ``ValueError`` for an empty prompt and for a negative temperature.
    """
    if not isinstance(ids, Tensor):
        raise TypeError(f"ids is a {type(ids).__name__}; a prompt is a tensor [B,T], such as torch.tensor([[1, 2, 3]])")
    if ids.dim() != 2 or ids.shape[1] == 0:
        raise ValueError(f"ids have shape {list(ids.shape)}; a prompt is [B,T] with at least one token")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature={temperature} must be 0 or more, and finite")
    for name, value, least in (("max_new_tokens", max_new_tokens, 0), ("max_positions", max_positions, 1)):
        if value is not None and value < least:
            raise ValueError(f"{name}={value} must be {least} or more")
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed={seed} must fit into 64 bits: at least 0 and less than 2**64, or down to -2**63")
    window = max_positions or longest_row(model) or ids.shape[1] + max_new_tokens
    device = device_of(model)
    generator = torch.Generator(device).manual_seed(seed)
    ids = ids.to(device)
    with observing(model):
        for _ in range(max_new_tokens):
            logits = logits_of(model(ids[:, -window:]))[:, -1, :vocab_size].float()
            ids = torch.cat([ids, _draw(logits, temperature, generator)], dim=1)
    return ids


def longest_row(model: nn.Module) -> int | None:
    """The longest row that the model's config names, under one of the usual names; None if it names none."""
    config = getattr(model, "config", None)
    return next((value for name in LONGEST_ROW if isinstance(value := getattr(config, name, None), int)), None)


def _draw(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if not logits.isfinite().all():
        raise ValueError("the model's logits are not finite: its weights have diverged, so there is nothing to sample")
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits = logits - logits.amax(-1, keepdim=True)  # a tiny temperature must not overflow
    temperature = max(temperature, torch.finfo(logits.dtype).tiny)  # nor be 0 in the width of the logits: 0/0
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)


def sample(
    model: nn.Module,
    tokenizer: Codec,
    prompt: str,
    max_new_tokens: int = 200,
    *,
    temperature: float = 0.8,
    seed: int = 0,
) -> str:
    """The prompt and its continuation, as text. The same seed gives the same text.

    ``tokenizer`` has ``encode``, which gives ids ``[T]`` as a tensor or a list, ``decode``, which takes them back, and
    ``vocab_size``. Raises ``TypeError`` for one that has not.
    """
    if not prompt:
        raise ValueError("prompt is empty: give at least one character to continue")
    ids = generate(
        model,
        _ids_of(tokenizer, prompt)[None],
        max_new_tokens,
        temperature=temperature,
        seed=seed,
        vocab_size=tokenizer.vocab_size,
    )
    return tokenizer.decode(ids[0].cpu())


def _ids_of(tokenizer: Codec, prompt: str) -> Tensor:
    if missing := [name for name in ("encode", "decode", "vocab_size") if not hasattr(tokenizer, name)]:
        gives = f"has no {' and no '.join(missing)}"
    else:
        ids = tokenizer.encode(prompt)
        if isinstance(ids, Tensor) and ids.dim() == 1:
            return ids
        if isinstance(ids, list) and all(isinstance(number, int) for number in ids):
            return torch.tensor(ids)
        gives = f"gives a {type(ids).__name__} for a text"
    raise TypeError(
        f"tokenizer is a {type(tokenizer).__name__}, which {gives}: sample needs encode, which gives ids as a list or "
        f"a tensor [T], decode, which takes them back, and vocab_size. Put yours into a small class that has the three"
    )
