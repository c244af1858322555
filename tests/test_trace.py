import dataclasses
import math

import pytest
import torch
from hunted_models import Beside, Overflowing, Where, hunted, root_of_zero, squeezed, step
from torch import nn

from tinytrain import tensors
from tinytrain.recompute import recompute_activations
from tinytrain.watch import magnitudes, origins
from tinytrain.watch.nan_hunt import NanHunt


class InPlace(nn.Module):
    """Writes over what it was given, and makes a slope that is infinite."""

    def forward(self, x):
        return x.mul_(0).abs_().sqrt_()


@pytest.mark.parametrize("lines", [False, True])
def test_a_module_that_writes_over_its_input_is_accused_and_not_the_one_behind_it(lines):
    layers = nn.Sequential(nn.Linear(4, 4), InPlace(), nn.Linear(4, 4))
    with NanHunt(layers, lines=lines) as hunt:
        layers(torch.randn(2, 4)).sum().backward()
    assert (hunt.accused, hunt.first.phase) == ("1", "backward")


def test_nothing_stays_on_a_parameter_that_is_passed_as_an_argument_and_a_hunt_can_be_used_again(tmp_path):
    class Query(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.layer = nn.Parameter(torch.ones(1, 4)), nn.Linear(4, 1)

        def forward(self, x):
            return self.layer(self.query) * x

    model, seen = Query(), []
    hunt = NanHunt(model)
    for _ in range(2):
        with hunt:
            model(torch.ones(1, 1)).sum().backward()
        seen.append(hunt.modules()["layer"]["backward"].calls)
    assert seen == [1, 1] and vars(model.query) == {} and not model.query._backward_hooks
    torch.save(model.query, tmp_path / "query.pt")
    torch.load(tmp_path / "query.pt", weights_only=True)


def test_two_hunts_at_once_see_the_same():
    model = squeezed(Where())
    with NanHunt(model) as one, NanHunt(model) as other:
        step(model)
    assert one.accused == other.accused == "blocks.1.feed_forward_norm"


def test_a_hook_of_the_users_own_that_fails_is_no_error_of_the_hunt():
    class Trying(nn.Module):
        def __init__(self):
            super().__init__()
            self.guarded, self.layer = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            try:
                return self.guarded(x)
            except ArithmeticError:
                return self.layer(x / 0)

    def fail(_module, _arguments):
        raise ArithmeticError

    model = Trying()
    model.guarded.register_forward_pre_hook(fail)
    with NanHunt(model) as hunt:
        model(torch.ones(1, 2))
    assert hunt.accused == "Trying"


def test_a_module_that_fails_leaves_the_order_of_calls_right():
    class Failing(nn.Module):
        def forward(self, x):
            raise ArithmeticError

    class Trying(nn.Module):
        def __init__(self):
            super().__init__()
            self.failing, self.layer = Failing(), nn.Linear(2, 2)

        def forward(self, x):
            try:
                self.failing(x)
            except ArithmeticError:
                return self.layer(x / 0)

    model = Trying()
    with NanHunt(model) as hunt:
        model(torch.ones(1, 2))
    assert hunt.accused == "Trying" and "what it hands to layer is not finite" in str(hunt)


@pytest.mark.parametrize("lines", [False, True])
def test_sparse_gradients_are_looked_at_too(lines):
    layers = nn.Sequential(nn.Embedding(4, 8, sparse=True), nn.Linear(8, 1))
    with NanHunt(layers, lines=lines) as hunt:
        layers(torch.tensor([[1, 2]])).sum().backward()
    assert not hunt.found
    layers[0].weight.register_hook(lambda gradient: gradient * math.inf)
    with NanHunt(layers, lines=lines) as hunt:
        layers(torch.tensor([[1, 2]])).sum().backward()
    assert hunt.accused == "0"


def test_it_hunts_through_recomputed_blocks():
    model = squeezed(Overflowing())
    recompute_activations(model)
    assert hunted(model).accused == "blocks.1.feed_forward_norm"


def test_the_road_is_that_of_the_call_which_broke():
    class BreaksSmall(nn.Module):
        def forward(self, x):
            return x / (x > 10)

    layers = nn.Sequential(nn.Identity(), BreaksSmall())
    for values in ([1.0, 1e20], [1e20, 1.0]):
        with NanHunt(layers) as hunt:
            for value in values:
                layers(torch.full((1, 2), value))
        assert hunt.accused == "1" and hunt.road() == ["0 passes on at most 1 (float32)"]
    assert hunt.modules()["0"]["forward"].calls == 2 and hunt.modules()["0"]["forward"].largest == pytest.approx(1e20)


def test_the_road_back_is_that_of_the_call_which_broke():
    class Slope(nn.Module):
        def forward(self, x):
            return (x * 1e30).sum() if x.max() > 1 else x.sum()

    layers = nn.Sequential(nn.Linear(2, 2), nn.Identity(), Slope())
    with NanHunt(layers) as hunt:
        losses = [layers(torch.full((1, 2), value)) for value in (1e3, 1e-3)]
        (losses[0] * 1e9 + losses[1] * 3).backward()  # the second call's derivatives come first
    assert hunt.accused == "2" and hunt.road() == []


def test_a_module_may_have_the_name_of_the_models_class():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.Net = nn.Linear(2, 2)

        def forward(self, x):
            return self.Net(x) / 0

    with NanHunt(net := Net()) as hunt:
        net(torch.ones(1, 2))
    assert hunt.accused == "Net itself" and hunt.modules()["Net"]["forward"].nonfinite == 0


def test_a_part_that_was_exchanged_after_the_hunt_was_made_is_seen():
    layers = nn.Sequential(nn.Identity())
    hunt = NanHunt(layers)
    layers[0] = nn.Sequential(Overflowing())
    with hunt:
        layers(torch.ones(1, 1))
    assert hunt.accused == "0.0"


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("lines", [False, True])
def test_code_that_is_computed_again_on_the_way_back_belongs_to_its_module(reentrant, lines):
    class Again(Beside):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.part, x, use_reentrant=reentrant)

    layers = nn.Sequential(nn.Linear(4, 4), Again(), nn.Linear(4, 1))
    with NanHunt(layers, lines=lines) as hunt:
        layers(torch.randn(2, 4)).sum().backward()
    assert (hunt.accused, hunt.first.phase) == ("1", "backward") and "on the way back to 1.lin" in str(hunt)
    assert not lines or "div in SqrtBackward0, backward, 1" in str(hunt)


def test_what_is_computed_again_is_the_modules_also_where_its_part_is_a_list_of_others():
    class Again(Beside):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.part, x, use_reentrant=True)

    layers = nn.Sequential(nn.Linear(4, 4), Again(), nn.Linear(4, 1))
    layers[1].lin = nn.Sequential(layers[1].lin)
    with NanHunt(layers) as hunt:
        layers(torch.randn(2, 4)).sum().backward()
    assert hunt.accused == "1" and "on the way back to 1.lin.0, in its own code" in str(hunt)


def test_what_is_computed_again_beside_a_module_belongs_to_the_module_around_both():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4))

        def part(self, x):
            return self.inner(x) + root_of_zero(x)

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.part, x, use_reentrant=True)

    class Borrowing(Inner):
        def part(self, x):
            return self.inner(nn.functional.linear(x, root_of_zero(self.inner[0].weight)))

    for kind in (Inner, Borrowing):
        layers = nn.Sequential(nn.Linear(4, 4), kind())
        with NanHunt(layers) as hunt:
            layers(torch.randn(2, 4)).sum().backward()
        assert hunt.accused == "1"


def test_a_lazy_module_is_watched_once_it_has_weights():
    layers = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1))
    with NanHunt(layers) as hunt:
        layers(torch.ones(2, 3)).sum().backward()
    assert not hunt.found and hunt.modules()["0"]["forward"].calls == 1


def test_complex_numbers_and_8_bit_floats_are_looked_at():
    class Spectrum(nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x) / 0

    class Size(nn.Module):
        def forward(self, x):
            return x.abs()

    class Eight(nn.Module):
        def forward(self, x):
            return (x / 0).to(torch.float8_e5m2)

    with NanHunt(layers := nn.Sequential(nn.Linear(4, 4), Spectrum(), Size())) as hunt:
        layers(torch.randn(2, 4))
    assert hunt.accused == "1"
    with NanHunt(eight := Eight()) as hunt:
        eight(torch.ones(2))
    assert hunt.accused == "Eight" and hunt.modules()["Eight"]["forward"].nonfinite == 1


def test_a_slotted_dataclass_is_looked_into():
    @dataclasses.dataclass(slots=True)
    class Output:
        logits: torch.Tensor

    class Model(nn.Module):
        def forward(self, x):
            return Output(x / 0)

    with NanHunt(model := Model()) as hunt:
        model(torch.ones(1))
    assert hunt.accused == "Model"


@pytest.mark.parametrize("lines", [False, True])
def test_a_device_that_is_not_waited_for_tells_the_same(lines, monkeypatch):
    model = squeezed(Where())
    told = []
    for _ in range(2):
        model.zero_grad()
        told.append(str(hunt := hunted(model, lines=lines)) + str(hunt.table()) + str(hunt.headroom()))
        for module in (tensors, origins):
            monkeypatch.setattr(module, "surely_finite", lambda tensor: False)
        monkeypatch.setattr(magnitudes, "_on_cpu", lambda size: None)
    assert told[0] == told[1] and "blocks.1.feed_forward_norm, backward" in told[0]
