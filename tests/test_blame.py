import math

import pytest
import torch
from hunted_models import Beside, Root, a_model, hunted, root_of_zero, squeezed
from torch import nn
from torch.nn import functional as F

from tinytrain.watch.nan_hunt import NanHunt


def test_bad_data_that_is_changed_in_place_is_nobodys_fault():
    layers = nn.Sequential(nn.Linear(2, 2))
    x = torch.tensor([[1.0, math.inf]])
    with NanHunt(layers, lines=True) as hunt:
        layers(x.mul_(2))
    assert hunt.accused == "" and hunt.first.op == ""


def test_bad_data_accuses_nobody():
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    x = torch.ones(2, 4)
    x[0, 0] = math.nan
    hunt = NanHunt(layers)
    with hunt:
        layers(x)
    assert hunt.found and hunt.accused == "" and "look at the data" in str(hunt)


def test_a_bad_weight_is_named():
    model = a_model()
    with torch.no_grad():
        model.blocks[1].attention.qkv.weight[3, 4] = math.nan
    hunt = hunted(model)
    assert hunt.accused == "blocks.1.attention.qkv"
    assert "its weight blocks.1.attention.qkv.weight is not finite, since before this step" in str(hunt)


def test_a_weights_gradient_that_overflows_alone_accuses_its_module():
    layers = nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 1))
    layers[0].weight.register_hook(lambda gradient: gradient * math.inf)
    with NanHunt(layers) as hunt:
        layers(torch.tensor([[1, 2]])).sum().backward()
    assert (hunt.accused, hunt.first.phase) == ("0", "backward")
    assert "the gradient of its weight 0.weight" in str(hunt)


def test_a_loss_scale_that_is_too_large_is_no_fault_of_the_model():
    hunt = hunted(a_model(), scale=1e39)
    assert hunt.found and hunt.accused == "" and "look at the loss and its scale" in str(hunt)


def test_a_module_off_the_road_is_not_accused():
    class Probed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.probe = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            y = self.one(x)
            return y + root_of_zero(y) + self.probe(y).detach()

    assert hunted(squeezed(Probed())).accused == "blocks.1.feed_forward_norm"


class Reading(Beside):
    """Reads a tensor of its own, with an infinite slope, and hands it to a module, before or after."""

    def __init__(self, before):
        super().__init__()
        self.before = before

    def forward(self, x):
        h = x * 2
        first = self.lin(root_of_zero(h)) if self.before else 0
        return self.act(h) + (first if self.before else root_of_zero(h))


class Borrowing(nn.Module):
    """Reads the weight of one of its modules, with an infinite slope."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return self.two(F.linear(self.one(x), root_of_zero(self.two.weight)))


class Keeping(nn.Module):
    """Keeps a loss of its own for later, as routers of experts do."""

    def __init__(self):
        super().__init__()
        self.lin, self.act = nn.Linear(4, 4), nn.Tanh()

    def forward(self, x):
        h = self.lin(x)
        self.kept = root_of_zero(h).sum()
        return self.act(h)


class Collecting(nn.Sequential):
    def forward(self, x):
        return super().forward(x).sum() + self[1].kept


READERS = {
    "code beside a module": (
        nn.Sequential(nn.Linear(4, 4), Beside(), nn.Linear(4, 4)),
        "1",
        "on the way back to 1.lin",
    ),
    "code before a module": (
        nn.Sequential(nn.Linear(4, 4), Reading(True)),
        "1",
        "on the way back to 1.act",
    ),
    "code behind a module": (
        nn.Sequential(nn.Linear(4, 4), Reading(False)),
        "1",
        "1, backward: not finite, in",
    ),
    "code that borrows a weight": (nn.Sequential(nn.Linear(4, 4), Borrowing()), "1", "of the weight 1.two.weight"),
    "code whose result is kept": (Collecting(nn.Linear(4, 4), Keeping()), "1", "on the way back to 1.lin"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("lines", [False, True])
def test_who_spoils_the_gradient_of_a_tensor_that_several_read_is_accused(name, lines):
    model, accused, words = READERS[name]
    model.zero_grad()
    with NanHunt(model, lines=lines) as hunt:
        model(torch.randn(2, 4)).sum().backward()
    assert (hunt.accused, hunt.first.phase) == (accused, "backward") and words in str(hunt)
    if lines:
        assert hunt.first.line.endswith("return (x * 0).abs().sqrt()")
        assert f"the operation: div in SqrtBackward0, backward, {accused}" in str(hunt)


def test_a_loss_that_spoils_the_gradient_of_what_a_module_reads_too_is_outside():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            h = self.body(x)
            return self.head(h), h

    model = Hidden()
    with NanHunt(model) as hunt:
        y, h = model(torch.randn(2, 4))
        (y.sum() + root_of_zero(h).sum()).backward()
    assert hunt.found and hunt.accused == "" and "came back to body was not finite: look at the loss" in str(hunt)


def test_a_weight_that_is_handed_to_a_module_is_its_input():
    class Handing(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.root = nn.Parameter(torch.ones(2)), Root()

        def forward(self):
            return self.root(self.query)

    with NanHunt(model := Handing()) as hunt:
        model().sum().backward()
    assert str(hunt).startswith("root, backward: the gradient came in finite and left it not finite")


@pytest.mark.parametrize("lines", [False, True])
def test_a_loss_on_what_a_hook_has_taken_from_inside_is_outside(lines):
    layers, taken = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), []
    layers[0].register_forward_hook(lambda _m, _i, output: taken.append(output))
    with NanHunt(layers, lines=lines) as hunt:
        (layers(torch.randn(2, 4)).sum() + root_of_zero(taken[0]).sum()).backward()
    assert hunt.found and hunt.accused == "" and "came back to 0 was not finite: look at the loss" in str(hunt)


@pytest.mark.parametrize("listed", [False, True])
def test_a_loss_that_a_module_keeps_is_of_the_module_also_where_only_the_loss_reads_it(listed):
    class InAList(Keeping):
        def forward(self, x):
            y = super().forward(x)
            self.kept = [self.kept]
            return y

    layers = nn.Sequential(nn.Linear(4, 4), InAList() if listed else Keeping())
    with NanHunt(layers) as hunt:
        y = layers(torch.randn(2, 4))
        (y.sum() + (layers[1].kept[0] if listed else layers[1].kept)).backward()
    assert hunt.accused == "1" and "on the way back to 1.lin, in its own code" in str(hunt)


def test_a_penalty_on_a_weight_that_breaks_is_outside():
    model = nn.Linear(2, 2)
    with NanHunt(model) as hunt:
        (model(torch.ones(1, 2)).sum() + root_of_zero(model.weight).sum()).backward()
    assert hunt.found and hunt.accused == "" and "Linear.weight is not finite, and no module handed on" in str(hunt)
