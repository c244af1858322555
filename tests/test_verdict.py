import math

import pytest
import torch
from torch import nn

from tinytrain.watch.nan_hunt import NanHunt


class Mute(torch.Tensor):
    """A tensor of a kind that answers nothing but what makes it."""

    @staticmethod
    def __new__(cls, shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if "detach" in str(func):
            return cls(args[0].shape)
        raise NotImplementedError(str(func))


class Unheard(nn.Module):
    def forward(self, x):
        return Mute((2,)).detach()


class Nested(nn.Module):
    def forward(self, x):
        return torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged)


UNSEEN = {
    "nested": (Nested(), lambda model: model(torch.ones(2, 3)), "1 tensors nested, of Nested"),
    "meta": (nn.Linear(2, 2, device="meta"), lambda model: model(torch.ones(1, 2, device="meta")), "without data"),
    "vmap": (nn.Linear(2, 1), lambda model: torch.vmap(model)(torch.ones(3, 2)), "2 tensors inside torch.func"),
    "mute": (Unheard(), lambda model: model(torch.ones(2)), "1 tensors of type Mute, of Unheard"),
    "grad": (nn.Linear(2, 1), lambda m: torch.func.grad(lambda x: m(x).sum())(torch.ones(2)), "2 tensors inside"),
}


@pytest.mark.parametrize("kind", UNSEEN)
@pytest.mark.parametrize("lines", [False, True])
def test_what_cannot_be_looked_at_is_said(kind, lines):
    model, run, words = UNSEEN[kind]
    with NanHunt(model, lines=lines) as hunt:
        run(model)
    assert not hunt.found and words in str(hunt) and "could not look at" in str(hunt)


def test_a_bad_weight_that_nothing_reads_is_told_and_accuses_nobody():
    model = nn.Sequential(nn.Linear(2, 2))
    model.unused = nn.Linear(2, 2)
    with torch.no_grad():
        model.unused.bias[0] = math.nan
    with NanHunt(model) as hunt:
        model[0](torch.ones(1, 2))
    assert not hunt.found and "not finite, and nothing that ran was spoilt by it: unused.bias" in str(hunt)


def with_an_old_gradient():
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    model.weight.grad.fill_(math.nan)
    return model


def test_a_gradient_that_an_earlier_backward_has_left_is_named_as_such():
    model = with_an_old_gradient()
    with NanHunt(model) as hunt:
        model(torch.ones(1, 2)).sum().backward()
    assert hunt.found and hunt.accused == "" and hunt.first.phase == "backward"
    assert "an earlier one has left them" in str(hunt) and "1 weights (Linear.weight); zero_grad" in str(hunt)


def test_an_old_gradient_that_is_cleared_in_time_is_no_matter():
    model = with_an_old_gradient()
    with NanHunt(model) as hunt:
        model.zero_grad()
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
    assert not hunt.found and model.weight.grad.tolist() == [[2.0, 2.0]]


def test_an_old_gradient_does_not_hide_who_breaks_now():
    model = with_an_old_gradient()
    with NanHunt(model) as hunt:
        (model(torch.ones(1, 2)).sum() * math.inf).backward()
    assert "came back to Linear was not finite" in str(hunt) and "not finite before: the gradients of 1" in str(hunt)


def test_an_operation_of_before_the_block_has_no_line_and_leaves_no_empty_one():
    model = nn.Linear(2, 2)
    loss = (model(torch.ones(1, 2)) * 0).abs().sqrt().sum()
    with NanHunt(model, lines=True) as hunt:
        loss.backward()
    assert (hunt.first.op, hunt.first.line) == ("div", "") and all(map(str.strip, str(hunt).splitlines()))


def test_a_gradient_that_this_block_has_spoilt_is_not_called_old():
    model = nn.Linear(2, 1)
    with NanHunt(model) as hunt:
        for scale in (1.0, math.inf, 1.0):
            (model(torch.ones(1, 2)).sum() * scale).backward()
    assert "came back to Linear was not finite" in str(hunt) and "not finite before" not in str(hunt)


def test_where_gradients_are_derived_once_more_the_name_is_called_a_guess():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(3, 4, requires_grad=True)
    for broken in (False, True):
        with NanHunt(model) as hunt:
            (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            (slope * (0 if broken else 1)).pow(2).sum().sqrt().backward()
        assert hunt.found == broken == ("a guess: gradients were derived once more" in str(hunt))


def with_bad_statistics():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    model[1].running_var[0] = math.nan
    return model


def with_a_bad_weight_that_its_parent_reads():
    model = nn.Sequential(nn.MultiheadAttention(4, 1))
    with torch.no_grad():
        model[0].out_proj.weight[0, 0] = math.nan
    return model


def with_a_bad_list():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = nn.ParameterList([nn.Parameter(torch.full((4,), math.nan))])

        def forward(self, x):
            return x * self.scales[0]

    return nn.Sequential(nn.Linear(4, 4), Scaled())


KEPT = {
    "a buffer": (with_bad_statistics, "1: its buffer 1.running_var is not finite, since before this step"),
    "a weight of a module that is never called": (
        with_a_bad_weight_that_its_parent_reads,
        "0.out_proj: its weight 0.out_proj.weight is not finite, since before this step",
    ),
    "a weight in a list": (with_a_bad_list, "1.scales: its weight 1.scales.0 is not finite, since before this step"),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_was_bad_before_the_step_is_named_and_not_the_code_that_reads_it(name):
    make, words = KEPT[name]
    model, x = make(), torch.randn(2, 4)
    with NanHunt(model) as hunt:
        model[0](x, x, x) if isinstance(model[0], nn.MultiheadAttention) else model(x)
    assert words in str(hunt)


def test_infinite_buffers_are_meant_and_do_not_excuse_their_module():
    class Observer(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("least", torch.tensor(math.inf))

        def forward(self, x):
            return x / 0

    with NanHunt(model := Observer()) as hunt:
        model(torch.ones(1))
    assert hunt.accused == "Observer" and "its output is not finite" in str(hunt)


def test_a_bad_weight_further_on_does_not_excuse_the_code_that_breaks_before_it():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.between, self.two = nn.Linear(2, 2), nn.Identity(), nn.Linear(2, 2)

        def forward(self, x):
            return self.two(self.between(self.one(x) / 0))

    model = Model()
    with torch.no_grad():
        model.two.weight.fill_(math.nan)
    with NanHunt(model) as hunt:
        model(torch.ones(1, 2))
    assert hunt.accused == "Model"
