import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, PRESETS
from tinytrain.nonfinite import first_nonfinite
from tinytrain.recompute import recompute_activations
from tinytrain.tensors import is_bad
from tinytrain.watch import nan_hunt
from tinytrain.watch.nan_hunt import NanHunt, Place


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


@pytest.fixture
def batch():
    ids = torch.randint(0, 256, (2, 17), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:]


def step(model, batch, scale=1.0):
    (cross_entropy(model(batch[0]), batch[1]) * scale).backward()


def hunted(model, batch, *, scale=1.0, lines=False):
    with NanHunt(model, lines=lines) as hunt:
        step(model, batch, scale)
    return hunt


class Overflowing(nn.Module):
    """Finite in, infinite out, in its own code."""

    def forward(self, x):
        y = x * 1e30
        return y * 1e30


class RmsNorm16(nn.Module):
    """A root mean square in FP16 by hand: its forward pass is finite where its derivative is not."""

    def forward(self, x):
        h = x.half()
        inverse = torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-7)
        return (h * inverse).float()


class Where(nn.Module):
    """Protects the way forward only: the branch that was not taken has an infinite slope at 0."""

    def forward(self, x):
        y = x - x.detach()
        return x + torch.where(y > 0, y.sqrt(), torch.zeros_like(y))


class Between(nn.Module):
    """Two modules, and an overflow in the code between them."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return self.two(torch.exp(self.one(x) + 100.0))


def squeezed(model, part):
    """The model with ``part`` in the place of its second block's feed-forward norm."""
    model.blocks[1].feed_forward_norm = part
    return model


CASES = {
    "a module's own output": (Overflowing, "blocks.1.feed_forward_norm", "forward", "mul", "return y * 1e30"),
    "the branch not taken": (Where, "blocks.1.feed_forward_norm", "backward", "", ""),
    "code between modules": (Between, "blocks.1.feed_forward_norm", "forward", "exp", "torch.exp(self.one(x)"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("lines", [False, True])
def test_the_module_that_did_it_is_accused(name, lines, model, batch):
    kind, module, phase, op, line = CASES[name]
    hunt = hunted(squeezed(model, kind()), batch, lines=lines)
    assert (hunt.accused, hunt.first.phase) == (module, phase)
    if lines and op:
        assert hunt.first.op == op and line in hunt.first.line and "test_nan_hunt.py:" in hunt.first.line
    assert str(hunt).startswith(f"{module}, {phase}")


def test_a_derivative_that_overflows_in_fp16_is_named_with_its_forward_line(model, batch):
    squeezed(model, nn.Sequential(RmsNorm16()))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.02)
    assert hunted(model, batch).accused == "blocks.1.feed_forward_norm.0"
    first = hunted(model, batch, lines=True).first
    assert (first.module, first.phase, first.op) == ("blocks.1.feed_forward_norm.0", "backward", "pow")
    assert "inverse = torch.rsqrt(" in first.line


def test_the_where_trap_is_led_back_to_the_slope_that_is_infinite(model, batch):
    first = hunted(squeezed(model, Where()), batch, lines=True).first
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
def test_masks_and_memory_not_yet_written_are_not_taken_for_the_operation(op, model, batch):
    function, line = LAST[op]
    squeezed(model, Trap(function))
    torch.use_deterministic_algorithms(True)
    try:
        hunt = NanHunt(model, lines=True)
        with hunt, torch.no_grad():
            model(batch[0])
    finally:
        torch.use_deterministic_algorithms(False)
    assert (hunt.accused, hunt.first.op) == ("blocks.1.feed_forward_norm", op) and line in hunt.first.line


def test_an_infinity_that_is_mended_in_its_module_is_none(model, batch):
    class Mended(nn.Module):
        def forward(self, x):
            y = x - x
            return x + torch.where(y > 0, 1 / y, y)

    hunt = NanHunt(squeezed(model, Mended()), lines=True)
    with hunt, torch.no_grad():
        model(batch[0])
    assert hunt.first is None and not hunt.found


def test_a_module_off_the_road_is_not_accused(model, batch):
    class Probed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.probe = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            y = self.one(x)
            return y + (y * 0).abs().sqrt() + self.probe(y).detach()

    assert hunted(squeezed(model, Probed()), batch).accused == "blocks.1.feed_forward_norm"


def test_outputs_of_every_form_are_seen():
    class Result:
        def __init__(self, x):
            self.logits, self.note = x, "text"

    class Odd(nn.Module):
        def __init__(self, wrap):
            super().__init__()
            self.wrap = wrap

        def forward(self, x):
            return self.wrap(x / 0)

    for wrap in (Result, lambda x: {"logits": x}, lambda x: (x > 0, [x])):
        with NanHunt(model := Odd(wrap)) as hunt:
            model(torch.ones(1))
        assert hunt.accused == "Odd" and hunt.modules()["Odd"]["forward"].calls == 1


def test_bad_data_that_is_changed_in_place_is_nobodys_fault():
    layers = nn.Sequential(nn.Linear(2, 2))
    x = torch.tensor([[1.0, math.inf]])
    with NanHunt(layers, lines=True) as hunt:
        layers(x.mul_(2))
    assert hunt.accused == "" and hunt.first.op == ""


def test_bad_data_accuses_nobody(batch):
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    x = torch.ones(2, 4)
    x[0, 0] = math.nan
    hunt = NanHunt(layers)
    with hunt:
        layers(x)
    assert hunt.found and hunt.accused == "" and "look at the data" in str(hunt)


def test_a_bad_weight_is_named(model, batch):
    with torch.no_grad():
        model.blocks[1].attention.qkv.weight[3, 4] = math.nan
    hunt = hunted(model, batch)
    assert hunt.accused == "blocks.1.attention.qkv"
    assert "its weight blocks.1.attention.qkv.weight is not finite, since before this step" in str(hunt)


def test_a_weights_gradient_that_overflows_alone_accuses_its_module():
    layers = nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 1))
    layers[0].weight.register_hook(lambda gradient: gradient * math.inf)
    with NanHunt(layers) as hunt:
        layers(torch.tensor([[1, 2]])).sum().backward()
    assert (hunt.accused, hunt.first.phase) == ("0", "backward")
    assert "the gradient of its weight 0.weight" in str(hunt)


def test_a_loss_scale_that_is_too_large_is_no_fault_of_the_model(model, batch):
    hunt = hunted(model, batch, scale=1e39)
    assert hunt.found and hunt.accused == "" and "look at the loss and its scale" in str(hunt)


def test_a_loss_of_nothing_is_found_outside_the_model_with_its_line(model, batch):
    ignored = torch.full_like(batch[1], -100)
    with NanHunt(model, lines=True) as hunt:
        F.cross_entropy(model(batch[0]).flatten(0, 1), ignored.flatten()).backward()
    assert hunt.accused == "" and hunt.first.op == "nll_loss"
    assert "F.cross_entropy(" in hunt.first.line and "outside the model" in str(hunt)


def test_a_healthy_step_accuses_nobody_whatever_its_masks_hold(model, batch):
    class Masked(nn.Module):
        def forward(self, x):
            scores = (x @ x.mT).masked_fill(torch.ones(16, 16).triu(1).bool(), float("-inf"))
            return scores.softmax(-1) @ x

    hunt = hunted(squeezed(model, Masked()), batch, lines=True)
    assert not hunt.found and hunt.first is None and hunt.road() == []
    assert str(hunt).startswith("Everything that passed between 27 modules was finite. Nearest to FP16's end: ")


class Masking(nn.Module):
    """Hands scores with minus infinity from module to module, as masks are."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.mask, self.softmax, self.scale = nn.Identity(), nn.Softmax(-1), scale

    def forward(self, x):
        scores = (self.scale * x) @ x.mT
        scores = self.mask(scores.masked_fill(torch.ones(16, 16).triu(1).bool(), float("-inf")))
        return self.softmax(scores) @ x


@pytest.mark.parametrize("lines", [False, True])
def test_a_mask_that_is_handed_from_module_to_module_is_no_fault(lines, model, batch):
    assert not hunted(squeezed(model, Masking()), batch, lines=lines).found
    assert first_nonfinite(squeezed(model, Masking()), [dict(zip(("input_ids", "labels"), batch, strict=True))]) == ""


def test_minus_infinity_is_a_fault_beside_huge_numbers_and_where_nothing_else_is_left():
    assert not is_bad(torch.tensor([1.0, -math.inf]), "forward")
    assert is_bad(torch.tensor([1.0, -math.inf]), "backward")
    assert is_bad(torch.tensor([1e37, -math.inf]), "forward") and is_bad(torch.full((2,), -math.inf), "forward")
    assert is_bad(torch.tensor([1.0, math.inf]), "forward") and is_bad(torch.tensor([math.nan, -math.inf]), "forward")
    assert is_bad(torch.tensor([700.0, -math.inf]).half(), "forward") and not is_bad(torch.empty(0), "forward")
    assert is_bad(torch.tensor([1.0, math.inf], device="meta"), "forward").device.type == "meta", "no device waits"


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


def test_two_hunts_at_once_see_the_same(model, batch):
    squeezed(model, Where())
    with NanHunt(model) as one, NanHunt(model) as other:
        step(model, batch)
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


def test_numbers_beyond_float32_are_told_as_they_are():
    layers = nn.Sequential(nn.Linear(2, 2)).double()
    with NanHunt(layers) as hunt:
        layers(torch.full((1, 2), 1e60, dtype=torch.float64))
    assert 1e58 < hunt.modules()["0"]["forward"].largest < 1e61
    assert hunt.headroom().rows[0][3].startswith("-1")


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


def test_the_road_leads_to_the_first_bad_place_with_growing_numbers(model, batch):
    class Times1000(nn.Module):
        def forward(self, x):
            return x * 1e13

    model.blocks[1].attention_norm = nn.Sequential(Times1000(), Times1000(), Times1000(), Times1000())
    road = hunted(model, batch).road()
    assert [line.split()[0] for line in road[-3:]] == [f"blocks.1.attention_norm.{i}" for i in range(3)]
    assert "blocks.0 " not in " ".join(road), "the parts, and not the whole that they make up"
    largest = [float(line.split("at most ")[1].split(" ")[0].replace(",", "")) for line in road[-3:]]
    assert largest[1] / largest[0] == pytest.approx(1e13, rel=0.01) == largest[2] / largest[1]


def test_the_tables_hold_outputs_and_the_gradients_that_leave(batch):
    layers = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        layers[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
        layers[1].weight.copy_(torch.tensor([[8.0, -2.0]]))
    with NanHunt(layers) as hunt:
        layers(torch.tensor([[3.0, 5.0]])).sum().backward()
    sizes = hunt.modules()
    assert list(sizes) == ["0", "1", "Sequential"]
    assert (sizes["0"]["forward"].largest, sizes["0"]["forward"].zeros) == (3.0, 0.5)
    assert (sizes["1"]["forward"].largest, sizes["1"]["backward"].largest) == (24.0, 8.0)
    assert sizes["1"]["backward"].smallest == 2.0 and sizes["0"]["backward"].calls == 0
    assert hunt.headroom().rows[0][:4] == ["1", "forward", "24", "11.4"]


def test_what_broke_stands_first_in_the_headroom(model, batch):
    rows = hunted(squeezed(model, Overflowing()), batch).headroom().rows
    broken = [row[0] for row in rows if row[4] != "0"]
    assert rows[0][3] == "none"
    assert broken == [row[0] for row in rows[: len(broken)]] and "blocks.1.feed_forward_norm" in broken


def test_headroom_of_bf16_and_fp32_says_what_fp16_would_lose():
    class Loud(nn.Module):
        def forward(self, x):
            return x * torch.tensor([1e6, 1.0, 1e-9, 1e-9])

    layers = nn.Sequential(Loud(), nn.Linear(4, 1))
    with NanHunt(layers) as hunt:
        layers(torch.ones(1, 4))
    assert hunt.headroom().rows[0] == ["0", "forward", "1e+06", "-3.9", "0", "25.00%", "50.00%"]


def test_a_tensor_of_the_models_own_code_can_be_watched():
    class Attention(nn.Module):
        def forward(self, x):
            scores = x * 7
            hunt.watch("scores", scores)
            return scores.sum()

    model = Attention()
    hunt = NanHunt(model)
    with hunt:
        model(torch.ones(2, requires_grad=True)).backward()
    assert hunt.modules()["scores"]["forward"].largest == 7 and hunt.modules()["scores"]["backward"].largest == 1
    x = torch.ones(2, requires_grad=True)
    model(x).backward()
    assert hunt.modules()["scores"]["forward"].calls == 1 and not x._backward_hooks, "outside the block: nothing"
    with pytest.raises(ValueError, match=r"watch\('Attention', …\): a module of the model has this name"), hunt:
        hunt.watch("Attention", torch.ones(1))


@pytest.mark.parametrize("lines", [False, True])
def test_hunting_changes_no_bit_of_the_training(lines, model, batch):
    twin = GPT(PRESETS["nano"])
    twin.load_state_dict(model.state_dict())
    optimizers = [torch.optim.AdamW(m.parameters()) for m in (model, twin)]
    for n in range(3):
        with NanHunt(model, lines=lines):
            step(model, batch)
        step(twin, batch)
        if n == 1:
            for a, b in zip(model.parameters(), twin.parameters(), strict=True):
                assert torch.equal(a.grad, b.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("lines", [False, True])
def test_nothing_is_left_behind_also_after_an_exception(lines, model, batch):
    draws = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), NanHunt(model, lines=lines) as hunt:
        loss = cross_entropy(model(batch[0]), batch[1])
        raise ZeroDivisionError
    seen = len(hunt.passages)
    loss.backward()  # the graph outlives the hunt; its hooks are gone
    assert len(hunt.passages) == seen
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    assert not any(p._backward_hooks for p in model.parameters())
    assert not torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == draws[:2]
    assert torch.equal(torch.get_rng_state(), draws[2])


def test_a_module_that_fails_leaves_the_order_of_calls_right(batch):
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


def test_it_hunts_through_recomputed_blocks(model, batch):
    recompute_activations(squeezed(model, Overflowing()))
    assert hunted(model, batch).accused == "blocks.1.feed_forward_norm"


def test_it_hunts_in_evaluation_and_again_from_the_start(model, batch):
    hunt = NanHunt(squeezed(model, Overflowing()))
    with hunt, torch.no_grad():
        model(batch[0])
    assert hunt.accused == "blocks.1.feed_forward_norm"
    model.blocks[1].feed_forward_norm = nn.Identity()
    again = NanHunt(model)
    with again:
        step(model, batch)
    assert not again.found
    with hunt:
        pass
    assert str(hunt) == "Nothing ran inside this hunt's with block." and not hunt.found


def test_models_in_which_hooks_see_nothing_are_refused(model, monkeypatch):
    with pytest.raises(ValueError, match=r"this model is compiled: hunt before torch\.compile"):
        NanHunt(torch.compile(model, backend="eager"))
    monkeypatch.setattr(nan_hunt, "is_sharded", lambda model: True)
    with pytest.raises(ValueError, match="this model is sharded"):
        NanHunt(model)


def test_a_place_is_plain():
    assert Place("a", "forward") == Place("a", "forward", "", "")
