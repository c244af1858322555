"""Models and batches that are broken as people break them, with the lines that must fail."""

import math

import torch
import torch.nn.functional as F
from preflight_models import (
    CALLS,
    DOCUMENTS,
    DROPOUT,
    EVAL,
    EVAL_MASK,
    FINITE,
    FOUR,
    GRADIENT,
    GROUPS,
    LABELS,
    LEFT,
    LOSS,
    ORDER,
    OVERFIT,
    RAW,
    RIGHT,
    ROWS,
    SHAPES,
    SLOPE,
    TIED,
    TRAIN,
    TRAIN_MASK,
    B,
    D,
    Plain,
    T,
    V,
    at_the_end,
    rows,
    small,
    variant,
)
from torch import nn

from tinytrain.course.handwritten import NextTokenLM, SmallLM
from tinytrain.optimizer import build_adamw


def copied(self):
    self.head.weight = nn.Parameter(self.tokens.weight.detach().clone())


def same_data(self):
    self.head.weight.data = self.tokens.weight.data


def frozen(self):
    self.tokens.weight.requires_grad_(False)


def unused(self):
    self.extra = nn.Linear(D, D)


def not_a_number(self):
    with torch.no_grad():
        self.qkv[1].weight[3, 4] = math.nan


def no_positions(self, input_ids, attention_mask):
    self.positions(torch.arange(1))
    return self.tokens(input_ids)


def only_one_block(self, i, x, allowed):
    return Plain.block(self, i, x, allowed) if i == 0 else x + self.feed(i, x)


def only_the_real(self, T, attention_mask):
    """The mask of padding takes the causal one's place as soon as there is padding."""
    if attention_mask is None or attention_mask.all():
        return self.mask(T)[None, None]
    return (attention_mask != 0)[:, None, None, :].expand(-1, 1, T, T)


def added(self, T, attention_mask):
    """A mask of 0 and 1 that never reaches the scores as minus infinity."""
    return self.mask(T)[None, None]


def fraction_of_row(self, input_ids, attention_mask):
    T = input_ids.shape[1]
    return self.tokens(input_ids) + self.positions(torch.arange(T) * 16 // T)


def always_dropped(self, x):
    return self.head(F.dropout(x, 0.1))


def batch_norm(self):
    self.between = nn.BatchNorm1d(D)


def through_batch_norm(self, x):
    return self.head(self.between(x.transpose(1, 2)).transpose(1, 2))


class OverTheBatch(nn.Module):
    """batch_first=True forgotten: [B,T,D] is read as [T,B,D]."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, D), nn.Embedding(64, D)
        layer = nn.TransformerEncoderLayer(D, 2, 4 * D, 0.0)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(D, V, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, input_ids):
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        return self.head(self.encoder(x, nn.Transformer.generate_square_subsequent_mask(x.size(0))))


class Buffered(Plain):
    """One output buffer for all calls of a shape."""

    def forward(self, input_ids, attention_mask=None):
        logits = super().forward(input_ids, attention_mask)
        if getattr(self, "kept", None) is None or self.kept.shape != logits.shape:
            self.kept = torch.empty_like(logits)
        self.kept = self.kept.detach()
        return self.kept.copy_(logits)


class Cached(Plain):
    """Keys and values of an earlier call are still there."""

    past = None

    def embed(self, input_ids, attention_mask):
        x = super().embed(input_ids, attention_mask)
        if self.past is not None and self.past.shape == x.shape:
            x = x + 0.1 * self.past
        self.past = x.detach()
        return x


def detached_branch(self, i, x, allowed):
    x = x + self.attend(i, self.norms[2 * i](x), allowed).detach()
    return x + self.feed(i, self.norms[2 * i + 1](x))


def detached_residual(self, i, x, allowed):
    x = x.detach() + self.attend(i, self.norms[2 * i](x), allowed)
    return x + self.feed(i, self.norms[2 * i + 1](x))


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, g):
        return -g


def where_trap(self, i, x):
    h = self.wide[i](x)
    return self.narrow[i](torch.where(h > 0, h.sqrt(), torch.zeros_like(h)))


def mean_over_time(self, x):
    return self.head(x - 0.5 * x.mean(1, keepdim=True))


def documents_ignored():
    class Ignores(Plain):
        def forward(self, input_ids, attention_mask=None, doc_ids=None):
            return super().forward(input_ids, attention_mask)

    return Ignores


def no_gradient_forward():
    class Looks(Plain):
        @torch.no_grad()
        def forward(self, input_ids, attention_mask=None):
            return super().forward(input_ids, attention_mask)

    return Looks


def shifted(by):
    ids = torch.randint(0, V, (B, T + 2), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids[:, :T], "labels": ids[:, by : by + T]}


def build_adamw_with_all(model):
    return torch.optim.AdamW(model.parameters(), weight_decay=0.0)


def one_block_without_positions():
    return variant(embed=no_positions, block=only_one_block)


def plain_adamw(model):
    return torch.optim.AdamW(model.parameters(), weight_decay=0.1)


def without_the_head(model):
    kept = [p for n, p in model.named_parameters() if not n.startswith("head")]
    return torch.optim.AdamW(kept, weight_decay=0.0)


def head_twice(model):
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    optimizer.param_groups[0]["params"].append(model.head.weight)
    return optimizer


def of_another_copy(_model):
    return build_adamw(Plain(), lr=1e-3)


# name: (makes the model, the batch if it is another one, makes the optimizer)
BROKEN = {
    "mask inverted": (small(SmallLM), None, None),
    "mask shifted by one": (small(NextTokenLM), None, None),
    "no causal mask": (variant(mask=lambda s, T: torch.ones(T, T, dtype=torch.bool)), None, None),
    "mask blocks with -2": (variant(blocked=-2.0), None, None),
    "mean over time": (variant(answer=mean_over_time), None, None),
    "labels unshifted": (Plain, shifted(0), None),
    "labels shifted twice": (Plain, shifted(2), None),
    "labels of other rows": (Plain, rows() | {"labels": rows()["labels"].flip(0)}, None),
    "softmax before the loss": (variant(answer=lambda s, x: s.head(x).softmax(-1)), None, None),
    "log_softmax": (variant(answer=lambda s, x: s.head(x).log_softmax(-1)), None, None),
    "head a copy of the embedding": (at_the_end(copied), None, None),
    "head shares .data only": (at_the_end(same_data), None, None),
    "frozen and forgotten": (at_the_end(frozen), None, build_adamw_with_all),
    "a layer never used": (at_the_end(unused), None, None),
    "init far too large": (variant(std=1.0), None, None),
    "all weights zero": (at_the_end(lambda s: [p.data.zero_() for p in s.parameters()]), None, None),
    "positions forgotten, one block attends": (one_block_without_positions(), None, None),
    "positions made and not added": (variant(embed=no_positions), None, None),
    "padding mask takes the causal one's place": (variant(allowed=only_the_real), None, None),
    "positions stretched over the row": (variant(embed=fraction_of_row), None, None),
    "padding mask ignored": (variant(allowed=added), None, None),
    "documents ignored": (documents_ignored(), None, None),
    "dropout on in eval": (variant(answer=always_dropped), None, None),
    "decay on norms": (Plain, None, plain_adamw),
    "a parameter missing from the optimizer": (Plain, None, without_the_head),
    "a parameter twice in the optimizer": (Plain, None, head_twice),
    "the optimizer of another copy": (Plain, None, of_another_copy),
    "BatchNorm": (variant(finish=batch_norm, answer=through_batch_norm), None, None),
    "batch_first forgotten": (OverTheBatch, None, None),
    "output buffer used again": (Buffered, None, None),
    "cache kept between calls": (Cached, None, None),
    "branch detached": (variant(block=detached_branch), None, None),
    "residual detached": (variant(block=detached_residual), None, None),
    "backward of one's own has the wrong sign": (variant(answer=lambda s, x: s.head(Turned.apply(x))), None, None),
    "no_grad around forward": (no_gradient_forward(), None, None),
    "NaN in a weight": (at_the_end(not_a_number), None, None),
    "NaN in backward by where": (variant(feed=where_trap), None, None),
    "float16 weights": (lambda: Plain().half(), None, None),
    "logits transposed": (variant(answer=lambda s, x: s.head(x).transpose(1, 2)), None, None),
    "vocabulary one too small": (variant(vocab_size=V - 1), None, None),
    "an argmax too many": (variant(answer=lambda s, x: s.head(x).argmax(-1)), None, None),
    "labels are floats": (Plain, rows() | {"labels": rows()["labels"].float()}, None),
}  # fmt: skip


# Every line that fails, the likely cause first.
EXPECTED = {
    "mask inverted": (LOSS, TRAIN_MASK, EVAL, EVAL_MASK),
    "mask shifted by one": (TRAIN_MASK, EVAL, EVAL_MASK),
    "no causal mask": (*FOUR,),
    "mask blocks with -2": (*FOUR, RIGHT, LEFT),
    "mean over time": (*FOUR, RIGHT, LEFT),
    "labels unshifted": (LABELS,),
    "labels shifted twice": (LABELS,),
    "labels of other rows": (LABELS,),
    "softmax before the loss": (RAW, OVERFIT),
    "log_softmax": (RAW,),
    "head a copy of the embedding": (TIED,),
    "head shares .data only": (TIED, SLOPE),
    "frozen and forgotten": (GROUPS,),
    "a layer never used": (GRADIENT,),
    "init far too large": (LOSS,),
    "all weights zero": (GRADIENT, OVERFIT),
    "positions forgotten, one block attends": (ORDER, GRADIENT),
    "positions made and not added": (GRADIENT,),
    "padding mask takes the causal one's place": (RIGHT,),
    "positions stretched over the row": (RIGHT,),
    "padding mask ignored": (LEFT,),
    "documents ignored": (DOCUMENTS,),
    "dropout on in eval": (DROPOUT,),
    "decay on norms": (GROUPS,),
    "a parameter missing from the optimizer": (GROUPS,),
    "a parameter twice in the optimizer": (GROUPS,),
    "the optimizer of another copy": (GROUPS,),
    "BatchNorm": (ROWS, TRAIN, TRAIN_MASK, RIGHT, LEFT),
    "batch_first forgotten": (ROWS, RIGHT),
    "output buffer used again": (CALLS,),
    "cache kept between calls": (CALLS,),
    "branch detached": (GRADIENT, SLOPE),
    "residual detached": (SLOPE,),
    "backward of one's own has the wrong sign": (SLOPE, OVERFIT),
    "no_grad around forward": (GRADIENT, OVERFIT),
    "NaN in a weight": (FINITE,),
    "NaN in backward by where": (GRADIENT, OVERFIT),
    "float16 weights": (SHAPES,),
    "logits transposed": (SHAPES,),
    "vocabulary one too small": (SHAPES,),
    "an argmax too many": (SHAPES,),
    "labels are floats": (SHAPES,),
}
