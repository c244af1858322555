"""The model whose parts preflight's tests break or exchange, a batch for it, and the names of the lines."""

import math

import torch
import torch.nn.functional as F
from torch import nn

V, T, D, B = 61, 16, 32, 8
FOUR = tuple(
    f"no future leak ({mode}, {mask} padding mask)" for mode in ("train", "eval") for mask in ("without", "with")
)
TRAIN, TRAIN_MASK, EVAL, EVAL_MASK = FOUR
SHAPES, LABELS, LOSS, CALLS = "shapes and dtypes", "labels shifted once", "initial loss", "the same call twice"
RIGHT, LEFT = (f"padding on the {side} changes nothing" for side in ("right", "left"))
ROWS, GRADIENT, OVERFIT = "other rows change nothing", "every weight gets a gradient", "one batch can be overfitted"
SLOPE, GROUPS, TIED, ORDER = "gradients are the loss's slope", "decay groups", "tied weights", "order matters"
DROPOUT, RAW, FINITE, DOCUMENTS = (
    "dropout off in eval", "logits are raw", "weights are finite", "packed documents are strangers",
)  # fmt: skip


def rows(vocab_size=V, length=T):
    ids = torch.randint(0, vocab_size, (B, length + 1), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


class Plain(nn.Module):
    """A GPT of one's own: learned positions, two blocks, attention by hand, a head of its own. Tests break parts."""

    vocab_size, heads, std, scale, blocked = V, 2, 0.02, True, -math.inf

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(self.vocab_size, D), nn.Embedding(64, D)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(5))
        self.qkv = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(D, D) for _ in range(2))
        self.wide = nn.ModuleList(nn.Linear(D, 4 * D) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Linear(4 * D, D) for _ in range(2))
        self.head = nn.Linear(D, self.vocab_size, bias=False)
        for module in (self.tokens, self.positions, self.head):
            nn.init.normal_(module.weight, std=self.std)
        self.finish()

    def finish(self):
        """Whatever a test does at the end of __init__."""

    def mask(self, T):
        return torch.ones(T, T, dtype=torch.bool).tril()  # True: may look

    def allowed(self, T, attention_mask):
        allowed = self.mask(T)[None, None]
        return allowed if attention_mask is None else allowed & (attention_mask != 0)[:, None, None, :]

    def weigh(self, scores, allowed):
        weights = scores.masked_fill(~allowed, self.blocked).softmax(-1)
        return weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)

    def attend(self, i, x, allowed):
        B, T, _ = x.shape
        q, k, v = self.qkv[i](x).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / (math.sqrt(D // self.heads) if self.scale else 1)
        return self.out[i]((self.weigh(scores, allowed) @ v).transpose(1, 2).reshape(B, T, D))

    def feed(self, i, x):
        return self.narrow[i](F.gelu(self.wide[i](x)))

    def embed(self, input_ids, attention_mask):
        T = input_ids.shape[1]
        if attention_mask is None:
            return self.tokens(input_ids) + self.positions(torch.arange(T))
        return self.tokens(input_ids) + self.positions((attention_mask.long().cumsum(1) - 1).clamp(min=0))

    def block(self, i, x, allowed):
        x = x + self.attend(i, self.norms[2 * i](x), allowed)
        return x + self.feed(i, self.norms[2 * i + 1](x))

    def answer(self, x):
        return self.head(x)

    def forward(self, input_ids, attention_mask=None):
        allowed = self.allowed(input_ids.shape[1], attention_mask)
        x = self.embed(input_ids, attention_mask)
        for i in range(2):
            x = self.block(i, x, allowed)
        return self.answer(self.norms[4](x))


def variant(**changes):
    """Plain with some of its attributes and methods replaced."""
    return type("Variant", (Plain,), changes)


def at_the_end(function):
    return variant(finish=function)


def small(kind):
    return lambda: kind(V, d_model=D, n_layers=2, n_heads=2, max_positions=T)
