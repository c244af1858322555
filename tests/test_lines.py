"""Broken models times the lines that must fail; and honest ones, on which none may.

``pytest tests/test_lines.py -k table -s`` prints the table.
"""

import random
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from preflight_broken import BROKEN, EXPECTED
from preflight_honest import HEALTHY, NeedsMask, Tuple
from preflight_models import (
    GRADIENT,
    LABELS,
    LEFT,
    OVERFIT,
    SHAPES,
    TIED,
    B,
    Plain,
    T,
    V,
    at_the_end,
    rows,
    small,
    variant,
)

from tinytrain.batches import collate, pack
from tinytrain.course.handwritten import MendedLM
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.watch.preflight import preflight


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


def test_a_forward_may_ask_for_what_the_batch_holds():
    """As nanoGPT is called: targets make it answer at all places."""
    torch.manual_seed(0)
    model, mask = Tuple(), {"attention_mask": torch.ones(B, T)}
    assert preflight(model, rows()).failed == (SHAPES,)
    report = preflight(model, rows(), forward=lambda m, b: m(b["input_ids"], b["labels"])[0])
    assert report.failed == () and sum(line.passed is True for line in report.lines) == 16, str(report)
    needs = NeedsMask()
    for forward in (None, lambda m, b: m(b["input_ids"], b["attention_mask"])):
        report = preflight(needs, rows() | mask, forward=forward)
        assert report.failed == () and sum(line.passed is True for line in report.lines) >= 17, str(report)
    assert "missing 1 required positional argument: 'attention_mask'" in str(preflight(needs, rows()))
    for name in ("lengths", "attention_mask"):
        report = preflight(needs, rows(), forward=lambda m, b, name=name: m(b["input_ids"], b[name]))
        assert report.failed == (SHAPES,) and f"KeyError: '{name}'" in str(report)
    report = preflight(needs, rows(), forward=lambda m, b: {}["labels"])
    assert report.failed == (SHAPES,) and "KeyError: 'labels'" in str(report)


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
