"""The hand-written model and data set: pieces as one writes them in a first evening, faults included.

The notebooks find the faults by measuring. Each class says at its end which faults it has; the mended ones stand
beside them. Nothing outside the lessons should use this file.
"""

import random

import torch
from torch import Tensor, nn


class SmallLM(nn.Module):
    """A decoder-only model built from ``nn.TransformerEncoder``. Input ``[B,T]``, output ``{"logits": [B,T,V]}``.

    Its fault: the mask is the wrong way round.
    """

    def __init__(self, vocab_size: int, d_model: int, n_layers: int, n_heads: int, max_positions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_positions, d_model)
        layer = nn.TransformerEncoderLayer(d_model, n_heads, 4 * d_model, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, n_layers, nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def causal_mask(self, T: int, device: torch.device) -> Tensor:
        """``[T,T]``, True at and below the diagonal, since there a query may look."""
        return torch.ones(T, T, dtype=torch.bool, device=device).tril()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        T = input_ids.shape[1]
        x = self.tokens(input_ids) + self.positions(torch.arange(T, device=input_ids.device))
        padding = None if attention_mask is None else attention_mask == 0
        mask = self.causal_mask(T, input_ids.device)
        x = self.encoder(x, mask=mask, src_key_padding_mask=padding, is_causal=True)
        return {"logits": self.head(x)}


class MendedLM(SmallLM):
    """The same model with its mask the right way round."""

    def causal_mask(self, T: int, device: torch.device) -> Tensor:
        """``[T,T]``, True above the diagonal: in ``nn.TransformerEncoder`` True means that a query may *not* look."""
        return torch.ones(T, T, dtype=torch.bool, device=device).triu(1)


class ToyLMDataset(torch.utils.data.Dataset):
    """Rows of random tokens, drawn once when the data set is made, so that it is always the same.

    Its fault: nothing seeds the draw, so it is the same within one program and another one in the next.
    """

    def __init__(self, n_rows: int, row_length: int, vocab_size: int, generator: torch.Generator | None = None) -> None:
        self.ids = torch.randint(0, vocab_size, (n_rows, row_length + 1), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[row, :-1], "labels": self.ids[row, 1:]}


class NextTokenLM(SmallLM):
    """The same model with a mask that is off by one: each query may also look at the token right after it."""

    def causal_mask(self, T: int, device: torch.device) -> Tensor:
        return torch.ones(T, T, dtype=torch.bool, device=device).triu(2)


def lineup(vocab_size: int, max_positions: int) -> dict[str, SmallLM]:
    """Three fresh models of one size under neutral names; one of them, chosen at random, can see its next token."""
    sizes = {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_positions": max_positions}
    kinds = [NextTokenLM, MendedLM, MendedLM]
    random.shuffle(kinds)
    return {name: kind(vocab_size, **sizes) for name, kind in zip(("amber", "birch", "coral"), kinds, strict=True)}
