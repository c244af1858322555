import pytest
import torch
from torch import nn

from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw, load_optimizer_state, optimizer_state, param_groups
from tinytrain.schedule import warmup_cosine


def test_matrices_decay_and_vectors_do_not_and_each_is_in_one_group_once():
    model = GPT(PRESETS["nano"])
    decays, rest = param_groups(model, 0.1)
    assert (decays["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert all(p.dim() >= 2 for p in decays["params"])
    assert all(p.dim() == 1 for p in rest["params"])
    grouped = [id(p) for group in (decays, rest) for p in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(p) for p in model.parameters()}


def test_a_tied_matrix_appears_once_under_its_first_name():
    names = param_groups(GPT(PRESETS["nano"]), 0.1)[0]["names"]
    assert "tokens.weight" in names
    assert "head.weight" not in names


def test_names_stand_beside_their_tensors():
    model = GPT(PRESETS["nano"])
    for group in param_groups(model, 0.1):
        assert all(model.get_parameter(n) is p for n, p in zip(group["names"], group["params"], strict=True))


def test_frozen_parameters_are_left_out_and_an_empty_group_is_not_returned():
    layer = nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    assert [group["names"] for group in param_groups(layer, 0.1)] == [["weight"]]


def test_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="Linear has no trainable parameter"):
        param_groups(nn.Linear(3, 2).requires_grad_(False), 0.1)


def test_with_a_zero_gradient_only_the_decaying_tensor_shrinks():
    layer = nn.Linear(1, 1)
    nn.init.ones_(layer.weight)
    nn.init.ones_(layer.bias)
    optimizer = build_adamw(layer, lr=0.1, weight_decay=0.1)
    for p in layer.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert layer.weight.item() == pytest.approx(0.99, abs=1e-7)  # 1 - lr * decay; Adam with L2 would give 0.90
    assert layer.bias.item() == 1.0


def test_the_first_move_is_the_learning_rate():
    layer = nn.Linear(1, 1, bias=False)
    before = layer.weight.item()
    optimizer = build_adamw(layer, lr=0.01, weight_decay=0.0)
    layer.weight.grad = torch.full_like(layer.weight, 3.0)
    optimizer.step()
    assert before - layer.weight.item() == pytest.approx(0.01, abs=1e-6)


def test_without_a_word_the_settings_are_those_common_for_language_models():
    group = build_adamw(nn.Linear(1, 1), lr=0.01).param_groups[0]
    assert (group["weight_decay"], group["betas"], group["eps"]) == (0.1, (0.9, 0.95), 1e-8)


def test_eps_is_added_to_the_root_of_the_second_moment():
    layer = nn.Linear(1, 1, bias=False)
    before = layer.weight.item()
    optimizer = build_adamw(layer, lr=0.01, weight_decay=0.0, eps=3.0)
    layer.weight.grad = torch.full_like(layer.weight, 3.0)
    optimizer.step()
    assert before - layer.weight.item() == pytest.approx(0.005, abs=1e-6)  # lr * 3 / (3 + eps)


def test_the_loop_version_is_taken_for_a_device_without_the_kernel():
    assert build_adamw(nn.Linear(2, 2, device="meta"), lr=0.1).defaults["fused"] is False


def test_one_kernel_adamw_is_chosen_where_torch_has_it():
    assert build_adamw(nn.Linear(2, 2), lr=0.1).defaults["fused"] is True
    assert build_adamw(nn.Linear(2, 2), lr=0.1, fused=False).defaults["fused"] is False


def adamw_by_hand(weight, gradients, rates, *, decay, betas=(0.9, 0.95), eps=1e-8):
    """Loshchilov and Hutter 2019, algorithm 2, in float64."""
    first = second = torch.zeros_like(weight)
    for t, (gradient, lr) in enumerate(zip(gradients, rates, strict=True), 1):
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        weight = weight * (1 - lr * decay)
        weight = weight - lr * (first / (1 - betas[0] ** t)) / ((second / (1 - betas[1] ** t)).sqrt() + eps)
    return weight


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("fused", [True, False])
def test_a_hundred_steps_equal_adamw_written_by_hand(dtype, tolerance, fused):
    torch.manual_seed(0)
    layer = nn.Linear(5, 4).to(dtype)
    steps = [1e-2 * warmup_cosine(s, max_lr=1, min_lr=0.1, warmup_steps=10, total_steps=100) for s in range(100)]
    pairs = {
        name: (p.detach().double().clone(), torch.randn(100, *p.shape, dtype=dtype))
        for name, p in layer.named_parameters()
    }
    optimizer = build_adamw(layer, lr=1.0, weight_decay=0.1, fused=fused)
    for t, lr in enumerate(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for name, p in layer.named_parameters():
            p.grad = pairs[name][1][t]
        optimizer.step()
    for name, p in layer.named_parameters():
        start, gradients = pairs[name]
        expected = adamw_by_hand(start, gradients.double(), steps, decay=0.1 if p.dim() == 2 else 0.0)
        assert (p.double() - expected).abs().max().item() <= tolerance


class InOrder(nn.Module):
    """Parameters of one shape, made in the order of ``names``."""

    def __init__(self, names, shape=(2, 2)):
        super().__init__()
        for name in names:
            setattr(self, name, nn.Parameter(torch.ones(shape)))


def updated(names=("first", "second"), gradients=(("first", 1.0), ("second", 5.0)), **options):
    """(model, optimizer) after one update with these gradients."""
    model = InOrder(names)
    optimizer = build_adamw(model, lr=0.1, **options)
    for name, value in gradients:
        model.get_parameter(name).grad = torch.full((2, 2), value)
    optimizer.step()
    return model, optimizer


def test_moments_go_to_their_names_and_not_to_their_places():
    states = optimizer_state(*reversed(updated()))
    other = InOrder(["second", "first"])
    optimizer = build_adamw(other, lr=0.1)
    load_optimizer_state(optimizer, other, states)
    assert optimizer.state[other.first]["exp_avg"][0, 0].item() == pytest.approx(0.1)
    assert optimizer.state[other.second]["exp_avg"][0, 0].item() == pytest.approx(0.5)


@pytest.mark.parametrize("fused", [True, False])
def test_an_optimizer_that_was_loaded_goes_on_as_the_one_that_was_saved(fused):
    model, optimizer = updated(fused=fused)
    other = InOrder(["first", "second"])
    other.load_state_dict(model.state_dict())
    resumed = build_adamw(other, lr=0.1, fused=fused)
    load_optimizer_state(resumed, other, optimizer_state(optimizer, model))
    for m, o in ((model, optimizer), (other, resumed)):
        m.first.grad = m.second.grad = torch.full((2, 2), -2.0)
        o.step()
    assert torch.equal(model.first, other.first) and torch.equal(model.second, other.second)
    assert resumed.state[other.first]["step"].item() == 2.0


def test_what_was_loaded_is_a_copy():
    model, optimizer = updated()
    states = optimizer_state(optimizer, model)
    other = InOrder(["first", "second"])
    resumed = build_adamw(other, lr=0.1)
    load_optimizer_state(resumed, other, states)
    other.first.grad = other.second.grad = torch.ones(2, 2)
    resumed.step()
    assert optimizer.state[model.first]["exp_avg"][0, 0].item() == pytest.approx(0.1)


def test_options_stay_the_optimizers_own():
    model, optimizer = updated(betas=(0.5, 0.6))
    other = InOrder(["first", "second"])
    resumed = build_adamw(other, lr=0.7)
    load_optimizer_state(resumed, other, optimizer_state(optimizer, model))
    assert resumed.param_groups[0]["lr"] == 0.7 and resumed.param_groups[0]["betas"] == (0.9, 0.95)


def test_a_parameter_without_a_gradient_so_far_has_an_empty_state_and_does_not_stop_the_loading():
    model, optimizer = updated(gradients=[("first", 1.0)])
    states = optimizer_state(optimizer, model)
    assert list(states) == ["first", "second"] and states["second"] == {}
    other, resumed = updated()
    load_optimizer_state(resumed, other, states)
    assert "exp_avg" in resumed.state[other.first] and not resumed.state.get(other.second)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(third=s["first"]), "the saved optimizer state has third, which this model does not train"),
        (lambda s: s.pop("second"), "the saved optimizer state has nothing for second"),
        (lambda s: s.clear(), "the saved optimizer state has nothing for first, second"),
        (
            lambda s: s["first"].update(exp_avg=torch.ones(2, 3)),
            r"exp_avg of first has shape \[2, 3\]; first has \[2, 2\]",
        ),
        (
            lambda s: s["second"].update(exp_avg_sq=torch.ones(2, 2).bfloat16()),
            "exp_avg_sq of second is torch.bfloat16; second is torch.float32, and would round it",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name_with_nothing_loaded(change, words):
    model, optimizer = updated()
    states = optimizer_state(optimizer, model)
    change(states)
    other, resumed = updated(gradients=[("first", 3.0), ("second", 4.0)])
    with pytest.raises(ValueError, match=words):
        load_optimizer_state(resumed, other, states)
    assert resumed.state[other.first]["exp_avg"][0, 0].item() == pytest.approx(0.3)


def test_all_names_that_only_the_saved_state_has_are_listed():
    model, optimizer = updated()
    states = optimizer_state(optimizer, model)
    with pytest.raises(ValueError, match="has fourth, third, which this model does not train"):
        load_optimizer_state(optimizer, model, states | {"third": {}, "fourth": {}})


def test_a_vectors_moments_of_another_length_are_refused():
    layer = nn.Linear(1, 3)
    optimizer = build_adamw(layer, lr=0.1)
    states = {"weight": {}, "bias": {"exp_avg": torch.zeros(2)}}
    with pytest.raises(ValueError, match=r"exp_avg of bias has shape \[2\]; bias has \[3\]"):
        load_optimizer_state(optimizer, layer, states)


def test_an_optimizer_of_another_model_is_refused():
    _, optimizer = updated()
    with pytest.raises(ValueError, match="2 of the optimizer's 2 parameters are not the model's"):
        optimizer_state(optimizer, InOrder(["first", "second"]))


def test_moments_that_are_smaller_than_their_weight_by_design_are_taken():
    model = InOrder(["first"])
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.1)
    model.first.grad = torch.ones(2, 2)
    optimizer.step()
    other = InOrder(["first"])
    resumed = torch.optim.Adafactor(other.parameters(), lr=0.1)
    load_optimizer_state(resumed, other, optimizer_state(optimizer, model))
    assert torch.equal(resumed.state[other.first]["row_var"], optimizer.state[model.first]["row_var"])
