"""Models and batches that are broken as people break them, with the lines that must fail; and honest ones."""

import math
import os
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tinytrain.course.handwritten import MendedLM, NextTokenLM, SmallLM
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}  # read when transformers is imported, further down

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


def small(kind):
    return lambda: kind(V, d_model=D, n_layers=2, n_heads=2, max_positions=T)


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
    "mask inverted": (
        LOSS,
        TRAIN_MASK,
        EVAL,
        EVAL_MASK,
    ),
    "mask shifted by one": (
        TRAIN_MASK,
        EVAL,
        EVAL_MASK,
    ),
    "no causal mask": (*FOUR,),
    "mask blocks with -2": (
        *FOUR,
        RIGHT,
        LEFT,
    ),
    "mean over time": (
        *FOUR,
        RIGHT,
        LEFT,
    ),
    "labels unshifted": (LABELS,),
    "labels shifted twice": (LABELS,),
    "labels of other rows": (LABELS,),
    "softmax before the loss": (
        RAW,
        OVERFIT,
    ),
    "log_softmax": (RAW,),
    "head a copy of the embedding": (TIED,),
    "head shares .data only": (
        TIED,
        SLOPE,
    ),
    "frozen and forgotten": (GROUPS,),
    "a layer never used": (GRADIENT,),
    "init far too large": (LOSS,),
    "all weights zero": (
        GRADIENT,
        OVERFIT,
    ),
    "positions forgotten, one block attends": (
        ORDER,
        GRADIENT,
    ),
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
    "BatchNorm": (
        ROWS,
        TRAIN,
        TRAIN_MASK,
        RIGHT,
        LEFT,
    ),
    "batch_first forgotten": (
        ROWS,
        RIGHT,
    ),
    "output buffer used again": (CALLS,),
    "cache kept between calls": (CALLS,),
    "branch detached": (
        GRADIENT,
        SLOPE,
    ),
    "residual detached": (SLOPE,),
    "backward of one's own has the wrong sign": (
        SLOPE,
        OVERFIT,
    ),
    "no_grad around forward": (
        GRADIENT,
        OVERFIT,
    ),
    "NaN in a weight": (FINITE,),
    "NaN in backward by where": (
        GRADIENT,
        OVERFIT,
    ),
    "float16 weights": (SHAPES,),
    "logits transposed": (SHAPES,),
    "vocabulary one too small": (SHAPES,),
    "an argmax too many": (SHAPES,),
    "labels are floats": (SHAPES,),
}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.lstm, self.head = nn.Embedding(V, D), nn.LSTM(D, D, batch_first=True), nn.Linear(D, V)

    def forward(self, input_ids):
        return self.head(self.lstm(self.tokens(input_ids))[0])


class Experts(nn.Module):
    """A router and the best two of ``count`` experts; ``moving``: its bias follows the load in training."""

    def __init__(self, count, moving):
        super().__init__()
        self.router, self.moving = nn.Linear(D, count, bias=False), moving
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(count))
        self.register_buffer("bias", torch.zeros(count))

    def forward(self, x):
        flat = x.reshape(-1, D)
        gates = self.router(flat).sigmoid()
        chosen = (gates + self.bias).topk(2, -1).indices
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            token, _ = (chosen == e).nonzero(as_tuple=True)
            if len(token):
                out = out.index_add(0, token, expert(flat[token]) * gates[token, e, None])
        if self.training and self.moving:
            load = chosen.flatten().bincount(minlength=len(self.experts)).float()
            self.bias += 0.05 * (load.mean() - load).sign()
        return out.view_as(x)


def mixture(count, moving=False):
    class Mixture(Plain):
        def finish(self):
            self.wide = self.narrow = None
            self.experts = nn.ModuleList(Experts(count, moving) for _ in range(2))

        def feed(self, i, x):
            return self.experts[i](x)

    return Mixture


class Rounded(Plain):
    """A straight-through estimator: rounded forward, as if it were not backward."""

    def answer(self, x):
        return self.head(x + ((4 * x).round() / 4 - x).detach())


class Recomputed(Plain):
    """Checkpointing in its old way, which knows ``backward()`` only."""

    def block(self, i, x, allowed):
        if not torch.is_grad_enabled():
            return super().block(i, x, allowed)
        return checkpoint(super().block, i, x, allowed, use_reentrant=True)


class Scaled(Plain):
    """Divides by a running scale, which training moves after each use."""

    def finish(self):
        self.register_buffer("size", torch.ones(()))

    def answer(self, x):
        scaled = self.head(x / self.size)
        if self.training:
            self.size = 0.9 * self.size + 0.1 * x.detach().std()
        return scaled


def own_generator(self):
    self.draws = torch.Generator().manual_seed(3)


def dropped(self, x):
    keep = torch.rand(x.shape, generator=self.draws) > 0.1
    return self.head(x * keep / 0.9 if self.training else x)


class NeedsMask(Plain):
    def forward(self, input_ids, attention_mask):
        return super().forward(input_ids, attention_mask)


class Tuple(Plain):
    """As nanoGPT is called: ids and targets in, logits and loss out."""

    def forward(self, idx, targets=None):
        logits = super().forward(idx)
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return (logits if targets is not None else logits[:, [-1]]), loss


def hugging_face(kind):
    pytest.importorskip("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    special = {"vocab_size": V, "bos_token_id": None, "eos_token_id": None}
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=32, n_layer=2, n_head=2, **special))
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 32, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=2, num_key_value_heads=1, **sizes, **special))


HEALTHY = {
    "GPT nano": lambda: GPT(PRESETS["nano"]),
    "GPT tiny, dropout": lambda: GPT(replace(PRESETS["tiny"], dropout=0.2)),
    "plain nn.Module": Plain,
    "TransformerEncoder": small(MendedLM),
    "LSTM": Recurrent,
    "mixture of 4 experts": mixture(4),
    "mixture of 32 experts, some unused": mixture(32),
    "a router's bias follows the load": mixture(8, moving=True),
    "straight-through estimator": Rounded,
    "checkpointing with use_reentrant": Recomputed,
    "running scale": Scaled,
    "a generator of its own": variant(finish=own_generator, answer=dropped),
    "head starts at zero": at_the_end(lambda s: nn.init.zeros_(s.head.weight)),
    "float64": lambda: Plain().double(),
    "bfloat16 by autocast": variant(forward=torch.autocast("cpu", torch.bfloat16)(Plain.forward)),
    "Hugging Face GPT-2": lambda: hugging_face("gpt2"),
    "Hugging Face Llama": lambda: hugging_face("llama"),
}
