import math

import pytest
import torch
from hunted_models import Root, a_batch, a_model, root_of_zero
from torch import nn

import tinytrain.precision
from tinytrain.nonfinite import first_nonfinite
from tinytrain.precision import Precision


@pytest.fixture
def model():
    return a_model()


def batch_of():
    ids, labels = a_batch()
    return {"input_ids": ids, "labels": labels}


def test_a_healthy_step_has_no_such_place(model):
    assert first_nonfinite(model, [batch_of(), batch_of()]) == ""


def test_a_bad_weight_is_named_first_of_all(model):
    with torch.no_grad():
        model.blocks[1].attention.qkv.weight[3, 4] = math.nan
    assert (
        first_nonfinite(model, [batch_of()])
        == "the weight blocks.1.attention.qkv.weight holds NaN in 1 of 12288 places"
    )


def test_the_first_module_in_the_order_of_the_computation_is_named(model):
    model.blocks[0].feed_forward.inner.register_forward_hook(lambda _m, _i, output: output * math.inf)
    found = first_nonfinite(model, [batch_of()])
    assert found.startswith("the output of blocks.0.feed_forward.inner holds")


def test_the_micro_batch_is_named_where_there_are_several(model):
    calls = iter((1.0, math.inf, 1.0))
    model.norm.register_forward_hook(lambda _m, _i, output: output * next(calls))
    assert first_nonfinite(model, [batch_of()] * 3).startswith("micro-batch 1: the output of norm holds")


def test_a_gradient_that_breaks_on_the_way_back_is_traced_to_its_module(model):
    model.blocks[1].feed_forward_norm = nn.Sequential(model.blocks[1].feed_forward_norm, Root())
    found = first_nonfinite(model, [batch_of()])
    assert found == "the gradient leaves blocks.1.feed_forward_norm.1 non-finite on its way back"


def test_a_gradient_that_breaks_at_a_weight_is_named(model):
    model.tokens.weight.register_hook(lambda gradient: gradient * math.nan)
    assert "tokens.weight holds NaN" in first_nonfinite(model, [batch_of()])


def test_the_scale_of_the_step_is_used_again(model, monkeypatch):
    monkeypatch.setattr(tinytrain.precision, "cpu_supports", lambda dtype: True)
    precision = Precision("fp16")
    assert first_nonfinite(model, [batch_of()], precision=precision, scale=1.0) == ""
    found = first_nonfinite(model, [batch_of()], precision=precision, scale=2.0**40)
    assert found == "the gradient that comes back to head is not finite"


def test_hooks_gradients_and_buffers_are_as_before(model):
    model.norm = nn.Sequential(model.norm, Transposed(nn.BatchNorm1d(64)))
    buffers = [buffer.clone() for buffer in model.buffers()]
    first_nonfinite(model, [batch_of()])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers(), strict=True))


class Transposed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


def test_a_gradient_that_the_bad_step_has_left_is_not_taken_for_one_of_this_batch(model):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    assert first_nonfinite(model, [batch_of()]) == ""


class Between(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.one, self.two, self.factor = nn.Linear(64, 64), nn.Linear(64, 64), factor

    def forward(self, x):
        return self.two(self.factor(self.one(x)))


def test_what_a_modules_own_code_does_between_its_parts_is_laid_to_it(model):
    model.norm = Between(lambda x: x * math.inf)
    found = first_nonfinite(model, [batch_of()])
    assert found.startswith("the input of norm.two holds") and found.endswith(", made in the code of norm")
    model.norm = Between(lambda x: x + root_of_zero(x))
    found = first_nonfinite(model, [batch_of()])
    assert found == "the gradient that comes back to norm.one is not finite: look at the code of norm behind it"


def test_a_buffer_that_is_nan_is_named_where_its_module_breaks(model):
    norm = nn.BatchNorm1d(64)
    norm.running_var[3] = math.nan
    model.norm = nn.Sequential(model.norm, Transposed(norm))
    assert first_nonfinite(model.eval(), [batch_of()]).startswith("the buffer norm.1.inner.running_var holds NaN in 1 ")
    assert first_nonfinite(model.train(), [batch_of()]) == "", "in training nobody reads it"
    norm.running_var[3] = 1.0
    norm.register_buffer("least", torch.tensor(math.inf))
    norm.register_forward_hook(lambda _m, _i, output: output * math.inf)
    assert first_nonfinite(model, [batch_of()]).startswith("the output of norm.1.inner"), "infinite buffers are meant"


class Borrowing(nn.Module):
    def __init__(self):
        super().__init__()
        self.two = nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return self.two(x) + nn.functional.linear(x, root_of_zero(self.two.weight))


def test_code_that_borrows_a_weight_is_named_with_it(model):
    model.norm = Borrowing()
    found = first_nonfinite(model, [batch_of()])
    assert found.startswith("the gradient of norm.two.weight holds NaN") and found.endswith("in the code of norm")
