import random

import numpy as np
import pytest
import torch
from hunted_models import Between, Overflowing, Where, a_batch, a_model, hunted, squeezed, step
from torch import nn

from tinytrain.watch import nan_hunt
from tinytrain.watch.nan_hunt import NanHunt, Place

CASES = {
    "a module's own output": (Overflowing, "blocks.1.feed_forward_norm", "forward", "mul", "return y * 1e30"),
    "the branch not taken": (Where, "blocks.1.feed_forward_norm", "backward", "", ""),
    "code between modules": (Between, "blocks.1.feed_forward_norm", "forward", "exp", "torch.exp(self.one(x)"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("lines", [False, True])
def test_the_module_that_did_it_is_accused(name, lines):
    kind, module, phase, op, line = CASES[name]
    hunt = hunted(squeezed(kind()), lines=lines)
    assert (hunt.accused, hunt.first.phase) == (module, phase)
    if lines and op:
        assert hunt.first.op == op and line in hunt.first.line and "hunted_models.py:" in hunt.first.line
    assert str(hunt).startswith(f"{module}, {phase}")


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


def test_numbers_beyond_float32_are_told_as_they_are():
    layers = nn.Sequential(nn.Linear(2, 2)).double()
    with NanHunt(layers) as hunt:
        layers(torch.full((1, 2), 1e60, dtype=torch.float64))
    assert 1e58 < hunt.modules()["0"]["forward"].largest < 1e61
    assert hunt.headroom().rows[0][3].startswith("-1")


def test_the_road_leads_to_the_first_bad_place_with_growing_numbers():
    class Times1000(nn.Module):
        def forward(self, x):
            return x * 1e13

    model = a_model()
    model.blocks[1].attention_norm = nn.Sequential(Times1000(), Times1000(), Times1000(), Times1000())
    road = hunted(model).road()
    assert [line.split()[0] for line in road[-3:]] == [f"blocks.1.attention_norm.{i}" for i in range(3)]
    assert "blocks.0 " not in " ".join(road), "the parts, and not the whole that they make up"
    largest = [float(line.split("at most ")[1].split(" ")[0].replace(",", "")) for line in road[-3:]]
    assert largest[1] / largest[0] == pytest.approx(1e13, rel=0.01) == largest[2] / largest[1]


def test_the_tables_hold_outputs_and_the_gradients_that_leave():
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


def test_what_broke_stands_first_in_the_headroom():
    rows = hunted(squeezed(Overflowing())).headroom().rows
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
    with hunt:
        hunt.watch("mask", torch.tensor([True, False, False]))
        hunt.watch("ids", torch.tensor([3, 0]))
    assert hunt.modules()["mask"]["forward"].zeros == 2 / 3 and hunt.modules()["ids"]["forward"].smallest == 3
    with pytest.raises(ValueError, match=r"watch\('Attention', …\): a module of the model has this name"), hunt:
        hunt.watch("Attention", torch.ones(1))


def test_it_hunts_in_evaluation_and_again_from_the_start():
    model = squeezed(Overflowing())
    hunt = NanHunt(model)
    with hunt, torch.no_grad():
        model(a_batch()[0])
    assert hunt.accused == "blocks.1.feed_forward_norm"
    model.blocks[1].feed_forward_norm = nn.Identity()
    again = NanHunt(model)
    with again:
        step(model)
    assert not again.found
    with hunt:
        pass
    assert str(hunt) == "Nothing ran inside this hunt's with block." and not hunt.found


def test_models_in_which_hooks_see_nothing_are_refused(monkeypatch):
    model = a_model()
    with pytest.raises(ValueError, match=r"this model is compiled: hunt before torch\.compile"):
        NanHunt(torch.compile(model, backend="eager"))
    compiled = nn.Sequential(nn.Linear(1, 1))
    compiled[0].compile(backend="eager")
    with pytest.raises(ValueError, match=r"this model is compiled: hunt before torch\.compile"):
        NanHunt(compiled)
    with pytest.raises(ValueError, match=r"this model is scripted: hunt before torch\.jit"):
        NanHunt(nn.Sequential(torch.jit.ScriptModule()))
    monkeypatch.setattr(nan_hunt, "is_sharded", lambda model: True)
    with pytest.raises(ValueError, match="this model is sharded"):
        NanHunt(model)


def test_a_place_is_plain():
    assert Place("a", "forward") == Place("a", "forward", "", "")


@pytest.mark.parametrize("lines", [False, True])
def test_hunting_changes_no_bit_of_the_training(lines):
    model, twin = a_model(), a_model()
    optimizers = [torch.optim.AdamW(m.parameters()) for m in (model, twin)]
    for n in range(3):
        with NanHunt(model, lines=lines):
            step(model)
        step(twin)
        if n == 1:
            for a, b in zip(model.parameters(), twin.parameters(), strict=True):
                assert torch.equal(a.grad, b.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("lines", [False, True])
def test_nothing_is_left_behind_also_after_an_exception(lines):
    model = a_model()
    draws = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), NanHunt(model, lines=lines) as hunt:
        loss = model(a_batch()[0]).sum()
        raise ZeroDivisionError
    seen = len(hunt.passages)
    loss.backward()  # the graph outlives the hunt; its hooks are gone
    assert len(hunt.passages) == seen
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    assert not any(p._backward_hooks for p in model.parameters())
    assert not torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == draws[:2]
    assert torch.equal(torch.get_rng_state(), draws[2])
