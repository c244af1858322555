import math

import pytest
import torch
import torch.nn.functional as F
from hunted_models import Root, Where, a_batch, a_model, hunted, root_of_zero, squeezed
from torch import nn

from tinytrain.nonfinite import first_nonfinite
from tinytrain.watch.nan_hunt import NanHunt
from tinytrain.watch.origins import Given, Operation, Origins


def test_the_where_trap_is_led_back_to_the_slope_that_is_infinite():
    first = hunted(squeezed(Where()), lines=True).first
    assert first.phase == "backward" and first.op in ("div", "pow", "mul") and "y.sqrt()" in first.line


class Trap(nn.Module):
    """Operations whose infinities are meant or mended, then one whose NaN is not."""

    def __init__(self, last):
        super().__init__()
        self.last = last

    def forward(self, x):
        waste = torch.empty_like(x)  # filled with NaN where torch.use_deterministic_algorithms is on
        waste.copy_(x)
        scores = (waste @ waste.mT).masked_fill(torch.ones(16, 16).triu(1).bool(), float("-inf"))
        return self.last(scores.softmax(-1) @ x)


LAST = {
    "log": (lambda x: torch.where(x > 1e9, x, (x - x).log()), "torch.where(x > 1e9"),
    "softmax": (lambda x: x.masked_fill(x == x, float("-inf")).softmax(-1), "masked_fill(x == x"),
}


@pytest.mark.parametrize("op", LAST)
def test_masks_and_memory_not_yet_written_are_not_taken_for_the_operation(op):
    function, line = LAST[op]
    model = squeezed(Trap(function))
    torch.use_deterministic_algorithms(True)
    try:
        hunt = NanHunt(model, lines=True)
        with hunt:
            never_written = torch.empty(3)
        assert never_written.isnan().all() and not hunt.found
        with hunt, torch.no_grad():
            model(a_batch()[0])
    finally:
        torch.use_deterministic_algorithms(False)
    assert (hunt.accused, hunt.first.op) == ("blocks.1.feed_forward_norm", op) and line in hunt.first.line


def test_an_infinity_that_is_mended_in_its_module_is_none():
    class Mended(nn.Module):
        def forward(self, x):
            y = x - x
            return x + torch.where(y > 0, 1 / y, y)

    model = squeezed(Mended())
    hunt = NanHunt(model, lines=True)
    with hunt, torch.no_grad():
        model(a_batch()[0])
    assert hunt.first is None and not hunt.found


def test_a_loss_of_nothing_is_found_outside_the_model_with_its_line():
    model, (ids, labels) = a_model(), a_batch()
    ignored = torch.full_like(labels, -100)
    with NanHunt(model, lines=True) as hunt:
        F.cross_entropy(model(ids).flatten(0, 1), ignored.flatten()).backward()
    assert hunt.accused == "" and hunt.first.op == "nll_loss"
    assert "F.cross_entropy(" in hunt.first.line and "outside the model" in str(hunt)


def test_a_healthy_step_accuses_nobody_whatever_its_masks_hold():
    class Masked(nn.Module):
        def forward(self, x):
            scores = (x @ x.mT).masked_fill(torch.ones(16, 16).triu(1).bool(), float("-inf"))
            return scores.softmax(-1) @ x

    hunt = hunted(squeezed(Masked()), lines=True)
    assert not hunt.found and hunt.first is None and hunt.road() == []
    assert str(hunt).startswith("Everything that passed between 27 modules was finite. Nearest to FP16's end: ")


class Masking(nn.Module):
    """Hands scores with minus infinity from module to module, as masks are."""

    def __init__(self):
        super().__init__()
        self.mask, self.softmax = nn.Identity(), nn.Softmax(-1)

    def forward(self, x):
        scores = self.mask((x @ x.mT).masked_fill(torch.ones(16, 16).triu(1).bool(), float("-inf")))
        return self.softmax(scores) @ x


@pytest.mark.parametrize("lines", [False, True])
def test_a_mask_that_is_handed_from_module_to_module_is_no_fault(lines):
    assert not hunted(squeezed(Masking()), lines=lines).found
    ids, labels = a_batch()
    assert first_nonfinite(squeezed(Masking()), [{"input_ids": ids, "labels": labels}]) == ""


def log_mask(n):
    return torch.ones(n, n).tril().log()  # 0 and minus infinity


MENDS = {
    "softmax": lambda x: (x @ x.mT + log_mask(4)).softmax(-1),
    "where": lambda x: torch.where(x > 1e9, 1 / (x - x), x),
    "nan_to_num": lambda x: ((x - x) / (x - x)).nan_to_num(),
    "nan_to_num_": lambda x: ((x - x) / (x - x)).nan_to_num_(),
    "masked_fill": lambda x: (1 / (x - x)).masked_fill(x == x, 0.0),
    "masked_fill_": lambda x: (1 / (x - x)).masked_fill_(x == x, 0.0),
    "clamp": lambda x: (1 / (x - x)).clamp(max=1.0),
    "exp": lambda x: log_mask(4).exp() @ x,
    "index": lambda x: torch.cat([x, x / 0])[:4],
}


class Mending(nn.Module):
    """Makes infinity or NaN and mends it; then, if asked to, breaks for good."""

    def __init__(self, mend, breaks):
        super().__init__()
        self.layer, self.mend, self.breaks = nn.Linear(4, 4), mend, breaks

    def forward(self, x):
        y = self.layer(self.mend(x))
        return y / (y.sum() - y.sum()) if self.breaks else y


@pytest.mark.parametrize("place", ["inside", "outside"])
@pytest.mark.parametrize("name", MENDS)
def test_an_operation_whose_result_does_not_stay_bad_is_not_named(name, place):
    mend, x = MENDS[name], torch.rand(4, 4) + 1
    for breaks in (False, True):
        model = Mending(mend if place == "inside" else nn.Identity(), breaks)
        with NanHunt(model, lines=True) as hunt:
            model(mend(x) if place == "outside" else x).sum().item()
        assert hunt.found == breaks
        if breaks:
            assert (hunt.accused, hunt.first.op) == ("Mending", "div") and "y.sum() - y.sum()" in hunt.first.line


def test_a_mend_on_the_way_forward_is_not_named_for_a_fault_on_the_way_back():
    class Masked(nn.Module):
        def forward(self, x):
            mask = torch.tensor([1.0, 0.0]).log().exp()
            return root_of_zero(x) + mask.sum()

    layers = nn.Sequential(nn.Linear(4, 4), Masked())
    with NanHunt(layers, lines=True) as hunt:
        layers(torch.randn(4, 4)).sum().backward()
    assert (hunt.accused, hunt.first.op) == ("1", "div") and "(x * 0).abs().sqrt()" in hunt.first.line


def test_what_backward_makes_infinite_and_mends_is_nobodys_fault():
    layer = nn.Linear(4, 4)
    with NanHunt(layer, lines=True) as hunt:
        (layer(torch.randn(4, 4)) * 0).norm().backward()  # torch fills in 0 where the norm is 0
    assert layer.weight.grad.isfinite().all() and not hunt.found


def test_nan_made_of_a_masks_minus_infinity_names_both():
    class Entropy(nn.Module):
        def forward(self, p):
            log_p = p.log()
            return -(p * log_p).sum()

    with NanHunt(model := Entropy(), lines=True) as hunt:
        model(torch.tensor([0.5, 0.5, 0.0]))
    assert hunt.first.op == "mul" and "p * log_p" in hunt.first.line
    assert "of the minus infinity made by log:" in str(hunt) and "log_p = p.log()" in str(hunt)


def test_an_overflow_beside_a_mask_is_not_laid_to_the_mask():
    class Scores(nn.Module):
        def forward(self, x):
            scores = x + torch.ones(2).sub(torch.tensor([0.0, 1.0])).log()
            return scores * 1e30

    with NanHunt(model := Scores(), lines=True) as hunt:
        model(torch.full((2,), 1e30))
    assert hunt.first.op == "mul" and "scores * 1e30" in hunt.first.line


def test_infinity_stays_with_the_operation_that_made_it_whatever_its_sign_becomes():
    class Loss(nn.Module):
        def forward(self, p):
            return (-(p * 0).log()).mean() * 0

    with NanHunt(model := Loss(), lines=True) as hunt:
        model(torch.ones(2))
    assert hunt.first.op == "log"


def test_a_loss_that_is_looked_at_is_still_named():
    layer = nn.Linear(2, 2)
    with NanHunt(layer, lines=True) as hunt:
        loss = F.cross_entropy(layer(torch.ones(2, 2)), torch.tensor([-100, -100]))
        assert loss.isnan().item() and math.isnan(loss.item())
        torch.ones_like(loss)
        loss.relu().backward()  # its derivative reads NaN and is finite
    assert hunt.found and hunt.first.op == "nll_loss" and layer.weight.grad.isfinite().all()


def test_a_loss_that_breaks_both_ways_is_named_as_it_is_written():
    layer = nn.Linear(2, 2)
    with NanHunt(layer, lines=True) as hunt:
        (-(layer(torch.ones(2, 2)).softmax(-1) * 0).log()).mean().backward()
    assert hunt.accused == "" and (hunt.first.op, hunt.first.phase) == ("log", "backward")


@pytest.mark.parametrize("sign", [1, -1])
def test_backward_nobody_forbids_a_place(sign):
    with NanHunt(model := nn.Sequential(nn.Linear(2, 2), Root()), lines=True) as hunt:
        (sign * model(torch.ones(1, 2))).sum().backward()
    assert hunt.first.op == "div" and "SqrtBackward0" in str(hunt), "which makes infinity of 1 and of -1"


def test_nan_as_a_constant_is_no_excuse():
    class Constant(nn.Module):
        def forward(self, x):
            return x * math.nan

    with NanHunt(model := Constant(), lines=True) as hunt:
        model(torch.ones(1))
    assert hunt.first.op == "mul" and "x * math.nan" in hunt.first.line


def test_the_worst_of_several_is_followed():
    class Sum(nn.Module):
        def forward(self, x):
            mask = log_mask(2)
            broken = (x - x) / (x - x)
            return mask + broken

    with NanHunt(model := Sum(), lines=True) as hunt:
        model(torch.ones(2, 2))
    assert hunt.first.op == "div" and "broken =" in hunt.first.line


def test_what_a_kernel_forbids_for_itself_is_no_fault():
    layer, targets, lengths = (
        nn.Linear(8, 5),
        torch.tensor([[1, 2], [3, 3]]),
        (torch.tensor([6, 6]), torch.tensor([2, 2])),
    )
    with NanHunt(layer, lines=True) as hunt:
        F.ctc_loss(layer(torch.randn(6, 2, 8)).log_softmax(-1), targets, *lengths).backward()
    assert not hunt.found


def test_memory_that_is_used_again_has_no_origin_of_old():
    origins = Origins()
    made = torch.full((2,), math.inf)
    origins.made(made, Given(), lambda: Operation("a", "forward", "full", ""), "a", "forward")
    assert origins.of(made[:1]).op == "full"
    origins.made(made.zero_(), origins.given((made,)), lambda: None, "a", "forward")
    made.fill_(math.inf)
    assert origins.of(made) is None
