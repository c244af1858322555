"""A decoder-only transformer, small enough to read in one sitting.

Pre-LN blocks, learned positions, an output head tied to the token embedding (Radford et al. 2019; Press and Wolf
2017). Shape letters: B rows, T positions, V vocabulary, D model width, H heads, K width of a head.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tinytrain.attention import Attend, attention_for, positions_for
from tinytrain.loss import chunked_loss_sum
from tinytrain.vocabulary import check_ids


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The sizes of a GPT. Every field is checked when the config is made."""

    vocab_size: int
    """V, token ids 0..V-1"""
    d_model: int
    """D, width of the residual stream"""
    n_layers: int
    """number of blocks"""
    n_heads: int
    """H, attention heads; D must be a multiple of it"""
    max_positions: int
    """longest row, in tokens"""
    dropout: float = 0.0
    """share of activations dropped in training, 0 to 1"""
    init_std: float = 0.02
    """standard deviation of the initial weights"""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "max_positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"ModelConfig.{name}={getattr(self, name)} must be at least 1")
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model={self.d_model} is not a multiple of n_heads={self.n_heads}")
        if not self.init_std > 0:
            raise ValueError(f"init_std={self.init_std} must be more than 0")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and less than 1")


PRESETS: dict[str, ModelConfig] = {
    "nano": ModelConfig(vocab_size=256, d_model=64, n_layers=2, n_heads=4, max_positions=64),
    "tiny": ModelConfig(vocab_size=256, d_model=128, n_layers=4, n_heads=4, max_positions=128),
    "27m": ModelConfig(vocab_size=32_000, d_model=512, n_layers=4, n_heads=8, max_positions=256),
    "120m": ModelConfig(vocab_size=30_000, d_model=768, n_layers=12, n_heads=12, max_positions=512),
    "350m": ModelConfig(vocab_size=32_000, d_model=1024, n_layers=24, n_heads=16, max_positions=1024),
    "7b": ModelConfig(vocab_size=32_000, d_model=4096, n_layers=32, n_heads=32, max_positions=2048),
}


def find_preset(name: str) -> ModelConfig:
    """The sizes called ``name``. Raises ``ValueError`` that lists the names there are."""
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} is not one of {', '.join(PRESETS)}")
    return PRESETS[name]


class Attention(nn.Module):
    """Self-attention with H heads; ``attend`` says who may look at whom."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads, self.dropout = config.n_heads, config.dropout
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.out = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, D // self.n_heads).permute(2, 0, 3, 1, 4)  # each [B,H,T,K]
        mixed = attend(q, k, v, self.dropout if self.training else 0.0)
        return self.out(mixed.transpose(1, 2).reshape(B, T, D))


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them, four times as wide inside."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, 4 * config.d_model)
        self.out = nn.Linear(4 * config.d_model, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.inner(x)))


class Block(nn.Module):
    """Pre-LN: each half normalises its input and adds its output to the residual stream ``[B,T,D]``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(config.d_model), Attention(config)
        self.feed_forward_norm, self.feed_forward = nn.LayerNorm(config.d_model), FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), attend))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class GPT(nn.Module):
    """Token ids in, logits over the next token out.

    >>> model = GPT(PRESETS["nano"])
    >>> import torch
    >>> model(torch.zeros(2, 10, dtype=torch.long)).shape
    torch.Size([2, 10, 256])
    >>> model.num_parameters()
    120576
    """

    loss_chunk: int | None = None
    """tokens whose logits are held at one time in training; all of a micro-batch if None. Each chunk's logits are made
    twice: 6.5 % more operations in the 120M preset"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_positions, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self._tie()
        self.register_load_state_dict_pre_hook(_accept_one_name_of_the_tie)
        self.register_load_state_dict_post_hook(lambda model, _keys: model._tie())
        self._init_weights()

    def _tie(self) -> None:
        """The output head is the token embedding: one tensor, one update, stored once."""
        self.head.weight = self.tokens.weight

    def _apply(self, *arguments: Any, **named: Any) -> "GPT":
        """Moves and converts parameters; some ways of doing so (``to_empty``) make two tensors of a tied one."""
        super()._apply(*arguments, **named)
        self._tie()
        return self

    def _init_weights(self) -> None:
        """N(0, std) for matrices, 0 for biases; the 2 * n_layers outputs that add up in the residual stream are
        scaled by 1/sqrt(2 * n_layers), so that their sum keeps its size (Radford et al. 2019, section 2.3)."""
        residual_std = self.config.init_std / math.sqrt(2 * self.config.n_layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=residual_std if name.endswith("out.weight") else self.config.init_std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        doc_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """Logits ``[B,T,V]`` for ids ``[B,T]``; the other arguments are ``[B,T]`` too.

        With ``labels`` (the token that each position must predict) the summed loss in nats instead, made in chunks of
        ``loss_chunk`` tokens, so that the logits of one chunk are all that is ever held.

        ``attention_mask``: True or 1 at real tokens, False or 0 at padding, on either side of a row. ``doc_ids``: for
        rows that hold several documents, which of them a position belongs to; no document sees another. Positions
        are counted from a document's start, or from a row's first real token, unless ``positions`` sets them.
        Raises ``ValueError`` for rows longer than ``max_positions`` and for ids outside the vocabulary.
        """
        self._check_rows(input_ids, attention_mask=attention_mask, positions=positions, doc_ids=doc_ids, labels=labels)
        attend = attention_for(attention_mask, doc_ids)
        if positions is None:
            positions = positions_for(input_ids, attention_mask, doc_ids)
        x = self.dropout(self._embed(input_ids) + self._embed_positions(positions))
        for block in self.blocks:
            x = block(x, attend)
        if labels is not None:
            return chunked_loss_sum(self.norm(x), self.head, labels, self.loss_chunk or labels.numel())
        return self.head(self.norm(x))

    def _embed(self, input_ids: Tensor) -> Tensor:
        try:
            return self.tokens(input_ids)
        except IndexError:
            check_ids(input_ids, self.config.vocab_size)
            raise

    def _embed_positions(self, positions: Tensor) -> Tensor:
        try:
            return self.positions(positions)
        except IndexError:
            low, high = int(positions.min()), int(positions.max())
            raise ValueError(
                f"positions run from {low} to {high}; the model has 0..{self.config.max_positions - 1}"
            ) from None

    def _check_rows(self, input_ids: Tensor, **extras: Tensor | None) -> None:
        if input_ids.dim() != 2:
            raise ValueError(f"input_ids have shape {list(input_ids.shape)}; they must be [B,T]")
        if input_ids.shape[1] > self.config.max_positions:
            raise ValueError(
                f"a row of {input_ids.shape[1]} tokens is longer than the model's max_positions="
                f"{self.config.max_positions}: cut shorter rows, or build the model with more positions"
            )
        for name, tensor in extras.items():
            if tensor is not None and tensor.shape != input_ids.shape:
                raise ValueError(
                    f"{name} {list(tensor.shape)} does not have the shape of input_ids {list(input_ids.shape)}"
                )

    def num_parameters(self) -> int:
        """Number of parameters, the tied head counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


def _accept_one_name_of_the_tie(_model: nn.Module, state: dict[str, Tensor], prefix: str, *_rest: Any) -> None:
    """Weights stored once, under either name of the tied matrix, are complete."""
    tokens, head = f"{prefix}tokens.weight", f"{prefix}head.weight"
    if tokens in state or head in state:
        state.setdefault(head, state.get(tokens))
        state.setdefault(tokens, state.get(head))
