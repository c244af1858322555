"""Broken models, as people write them, times the lines that must fail; and honest ones, on which none may.

``pytest tests/test_lines.py -k table -s`` prints the table.
"""

import math
import os
import random
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tinytrain.batches import collate, pack
from tinytrain.course.handwritten import MendedLM, NextTokenLM, SmallLM
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.watch.preflight import preflight

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
    "batch_first forgotten": (ROWS,),
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
    "Hugging Face GPT-2": lambda: hugging_face("gpt2"),
    "Hugging Face Llama": lambda: hugging_face("llama"),
}


def report_of(name):
    make, batch, optimizer = BROKEN[name]
    torch.manual_seed(0)
    model = make()
    return preflight(model, batch or rows(), optimizer=optimizer(model) if optimizer else None)


@pytest.fixture(scope="module")
def table():
    found = {}
    for name in BROKEN:
        start = time.perf_counter()
        found[name] = (report_of(name), time.perf_counter() - start)
    return found


@pytest.mark.parametrize("name", HEALTHY)
def test_no_line_fails_on_an_honest_model(name):
    torch.manual_seed(0)
    model = HEALTHY[name]()
    report = preflight(model, rows(), optimizer=build_adamw(model, lr=1e-3))
    assert report.failed == (), str(report)
    assert sum(line.passed is True for line in report.lines) >= 15, str(report)


def test_every_broken_model_fails_in_the_lines_of_the_table_and_in_no_other(table):
    for name, (report, seconds) in table.items():
        untested = sum(line.passed is None for line in report.lines)
        print(f"{name:42}{seconds:5.2f} s  {untested:2} not tested  FAIL: {' | '.join(report.failed)}")
    assert len(table) >= 25
    assert {name: report.failed for name, (report, _) in table.items()} == EXPECTED


def test_the_shape_that_was_wanted_is_named(table):
    assert "wanted as [B,T,V] = [8, 16, V]: is an axis transposed" in str(table["logits transposed"][0])
    assert "is there an argmax?" in str(preflight(variant(answer=lambda s, x: s.head(x).long())(), rows()))
    assert f"ids run from 0 to {V - 1}, and tables have {V - 1}, 64 rows" in str(table["vocabulary one too small"][0])


def everything(model):
    """Weights, gradients, buffers, modes, requires_grad, hooks, attributes and generators, by value and by identity."""
    state = {name: (id(p), p.detach().clone(), id(p.grad), p.requires_grad) for name, p in model.named_parameters()}
    buffers = {name: (id(b), b.clone()) for name, b in model.named_buffers()}
    modules = [(m.training, len(m._forward_hooks), sorted(m.__dict__)) for m in model.modules()]
    draws = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    return state, buffers, modules, draws, [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


class Fails(Plain):
    """Raises in the middle of the updates on one batch."""

    calls = 0

    def forward(self, input_ids, attention_mask=None):
        self.calls += 1
        if torch.is_grad_enabled() and self.head.weight.grad is not None:
            raise RuntimeError("in the middle of an update")
        return super().forward(input_ids, attention_mask)


@pytest.mark.parametrize("kind", ["BatchNorm", "cache kept between calls", "raises", "dropout"])
def test_it_leaves_everything_bit_identical_also_after_an_exception(kind):
    torch.manual_seed(0)
    model = {"raises": Fails, "dropout": HEALTHY["GPT tiny, dropout"]}.get(kind, BROKEN.get(kind, (None,))[0])()
    weights = list(model.parameters())
    for p in weights[:3]:
        p.grad = torch.ones_like(p)
    weights[4].requires_grad_(False)
    next(model.children()).eval()
    before = everything(model)
    optimizer = build_adamw(model, lr=1e-3)
    report = preflight(model, rows(), optimizer=optimizer)
    assert same(everything(model), before)
    assert not optimizer.state
    if kind == "raises":
        assert "in the middle of an update" in report[OVERFIT].measured


def test_a_forward_of_ones_own_is_used_and_says_what_it_takes():
    class Named(Plain):
        def forward(self, batch, attention_mask=None):
            return (Plain.forward(self, batch["tokens"]),)

    def forward(model, batch):
        return model({"tokens": batch["input_ids"]})[0]

    torch.manual_seed(0)
    report = preflight(Named(), rows(), forward=forward)
    assert report.passed and "takes no attention_mask" in report[LEFT].measured
    assert preflight(Named(), rows()).failed == (SHAPES,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": None}, "no tensor labels"),
        ({"input_ids": torch.zeros(2, 3)}, "input_ids are torch.float32"),
        ({"input_ids": torch.zeros(3, dtype=torch.long)}, "shape [3]"),
        ({"labels": torch.zeros(2, 3, dtype=torch.long)}, "do not have the shape"),
        ({"input_ids": torch.full((B, T), -100)}, "input_ids hold -100"),
        ({"labels": torch.full((B, T), V)}, "in the whole batch labels run from"),
        ({"doc_ids": torch.zeros(B, T, dtype=torch.long)}, "takes no doc_ids"),
    ],
)
def test_a_batch_that_does_not_fit_gets_one_line(change, words):
    report = preflight(Plain(), rows() | change)
    assert report.failed == (SHAPES,) and words in str(report)
    with pytest.raises(TypeError, match="batch is list"):
        preflight(Plain(), [rows()])


def test_labels_are_judged_where_they_can_be():
    batch = collate([list(range(n)) for n in (9, 5)], pad_id=0)
    assert preflight(Plain(), batch)[LABELS].measured.startswith("10 of 10")
    at_padding = batch | {"labels": batch["labels"].masked_fill(~batch["attention_mask"], 0)}
    assert "4 targets stand at padding" in preflight(Plain(), at_padding)[LABELS].measured
    same_token = {name: torch.full((2, 8), 3) for name in ("input_ids", "labels")}
    assert "repeat themselves" in preflight(Plain(), same_token)[LABELS].measured
    packed = pack([[1, 2, 3, 4], [5, 6, 7], [9, 8]], 6).batch([0])
    torch.manual_seed(0)
    assert preflight(GPT(PRESETS["nano"]), packed)[LABELS].measured.startswith("3 of 3")


def test_weights_behind_a_projection_that_starts_at_zero_are_no_fault():
    def zero(self):
        for projection in (*self.out, *self.narrow):
            projection.weight.data.zero_()

    torch.manual_seed(0)
    line = preflight(at_the_end(zero)(), rows())[GRADIENT]
    assert line.passed and "from the second update on: norms.0.weight" in line.measured


def test_a_config_that_asks_for_a_tie_is_believed():
    model = Plain()
    assert "separate" in preflight(model, rows())[TIED].measured
    model.config = SimpleNamespace(tie_word_embeddings=True)
    assert preflight(model, rows())[TIED].passed is False
    model.head.weight = model.tokens.weight
    assert "one tensor" in preflight(model, rows())[TIED].measured


def test_a_batch_padded_on_the_left_asks_for_a_model_that_bears_it():
    torch.manual_seed(0)
    batch = collate([list(range(n)) for n in (12, 7)], pad_id=0, side="left")
    assert preflight(GPT(PRESETS["nano"]), batch)[LEFT].passed
    assert preflight(small(MendedLM)(), rows())[LEFT].passed is None
    assert preflight(variant(embed=lambda s, ids, mask: Plain.embed(s, ids, None))(), batch)[LEFT].passed is False
