"""A small language model whose parts can be exchanged, parts that make it sick in FP16, and the mend of each.

The faulty parts switch autocast off and compute in the type that comes in, so that they behave alike on CPU and GPU:
on a GPU autocast would run ``exp`` and ``rsqrt`` in float32 by itself.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, VOCABULARY, LONGEST = 32, 2, 256, 64
MASKED = -10_000.0  # the score of a byte that may not be seen: finite in FP16, and exp of it is 0
Part = Callable[[], nn.Module]


class HandRMSNorm(nn.Module):
    """Each vector over its root mean square, in the type in which it comes."""

    def __init__(self, eps: float = 1e-8) -> None:
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(WIDTH)), eps

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            mean_square = (x * x).mean(-1, keepdim=True)
            y = x * torch.rsqrt(mean_square + self.eps)
            return y * self.gain.to(x.dtype)


class Float32RMSNorm(HandRMSNorm):
    """The same, computed in float32."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            wide = x.float()
            mean_square = (wide * wide).mean(-1, keepdim=True)
            y = wide * torch.rsqrt(mean_square + self.eps)
            return (y * self.gain).to(x.dtype)


class GuardedRMSNorm(HandRMSNorm):
    """Gives 0 for a vector of zeros, which has no root mean square to divide by."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            mean_square = (x * x).mean(-1, keepdim=True)
            y = x * torch.rsqrt(mean_square)
            y = torch.where(mean_square > 0, y, 0)
            return y * self.gain.to(x.dtype)


class TwiceGuardedRMSNorm(HandRMSNorm):
    """The same, and no root is asked of 0."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            mean_square = (x * x).mean(-1, keepdim=True)
            y = x * torch.rsqrt(torch.where(mean_square > 0, mean_square, 1))
            y = torch.where(mean_square > 0, y, 0)
            return y * self.gain.to(x.dtype)


class HandSoftmax(nn.Module):
    """Exponentials over their sum."""

    def forward(self, scores: Tensor) -> Tensor:
        with torch.autocast(scores.device.type, enabled=False):
            e = torch.exp(scores)
            return e / e.sum(-1, keepdim=True)


class ShiftedSoftmax(nn.Module):
    """The same after the largest score of each row was subtracted: no exponential is above 1."""

    def forward(self, scores: Tensor) -> Tensor:
        with torch.autocast(scores.device.type, enabled=False):
            e = torch.exp(scores - scores.amax(-1, keepdim=True))
            return e / e.sum(-1, keepdim=True)


class SquaredReLU(nn.Module):
    """The square of what is above 0 (So et al. 2021, "Primer")."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x).square()


class Attention(nn.Module):
    """Causal attention; its softmax is a module, so that it can be exchanged and watched."""

    def __init__(self, softmax: Part) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.softmax = softmax()

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(D // HEADS)
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        mixed = self.softmax(scores.masked_fill(future, MASKED)) @ v
        return self.out(mixed.transpose(1, 2).reshape(B, T, D))


class MLP(nn.Module):
    """Two linear maps with an activation between."""

    def __init__(self, activation: Part) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    """Attention, then MLP, each added to what came in."""

    def __init__(self, norm: Part, softmax: Part, activation: Part) -> None:
        super().__init__()
        self.norm1, self.attention = norm(), Attention(softmax)
        self.norm2, self.mlp = norm(), MLP(activation)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Two layers of width 32 over bytes: ids ``[B,T]`` in, logits ``[B,T,256]`` out.

    What passes from layer to layer has autocast's type; weights are float32. ``byte_rms`` is the root mean square of
    the rows of the byte table at first: about it, or with ``even_rows`` exactly. ``pad_is_zero`` makes the row of id
    0 zero at first. Without ``positions`` the first norm sees nothing but rows of the byte table.
    """

    def __init__(
        self,
        *,
        norm: Part = Float32RMSNorm,
        softmax: Part = ShiftedSoftmax,
        activation: Part = nn.GELU,
        byte_rms: float = 0.02,
        even_rows: bool = False,
        pad_is_zero: bool = False,
        positions: bool = True,
    ) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LONGEST, WIDTH) if positions else None
        self.blocks = nn.ModuleList(Block(norm, softmax, activation) for _ in range(2))
        self.norm, self.head = Float32RMSNorm(), nn.Linear(WIDTH, VOCABULARY, bias=False)
        with torch.no_grad():
            for p in (p for p in self.parameters() if p.dim() == 2):
                p.normal_(std=0.02)
            table = self.bytes.weight
            table *= byte_rms / 0.02
            if even_rows:
                table *= byte_rms / table.square().mean(1, keepdim=True).sqrt()
            if pad_is_zero:
                table[0] = 0

    def forward(self, ids: Tensor) -> Tensor:
        x = self.bytes(ids)
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
