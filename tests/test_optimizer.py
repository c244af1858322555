import pytest
import torch
from torch import nn

from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw, param_groups
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
