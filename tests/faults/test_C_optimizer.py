"""Group C: the optimizer and its parameter groups.

The kind of fault: the right numbers reach the wrong tensor. Decay on norms and biases, decay on nothing else, a moment
that belongs to another parameter, a finite gradient that becomes zero. The run goes on, only worse than it could.
"""

import math

import pytest
import torch
from torch import nn

from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw, param_groups
from tinytrain.step import train_step
from tinytrain.train import TrainConfig, Trainer

BATCH = {"input_ids": torch.zeros(1, 2, dtype=torch.long), "labels": torch.tensor([[0, 1]])}


def ones_with_zero_gradients():
    model = GPT(PRESETS["nano"])
    for p in model.parameters():
        nn.init.ones_(p)
        p.grad = torch.zeros_like(p)
    return model


def values(model):
    """name -> the one value that all entries of this parameter have"""
    found = {name: p.unique().tolist() for name, p in model.named_parameters()}
    assert all(len(unique) == 1 for unique in found.values())
    return {name: unique[0] for name, unique in found.items()}


def vector_names(model):
    return {name for name, _ in model.named_parameters() if "norm" in name or name.endswith("bias")}


def test_C01_matrices_decay_by_lr_times_decay_and_biases_and_norms_stay():
    """Lightning-AI/lit-llama#254: one group for everything; and Adam's L2 instead of decoupled decay."""
    model = ones_with_zero_gradients()
    build_adamw(model, lr=0.1, weight_decay=0.1).step()
    after, still = values(model), vector_names(model)
    assert {name for name, value in after.items() if value == 1.0} == still
    assert [after[name] for name in after if name not in still] == pytest.approx([0.99] * (len(after) - len(still)))

    naive = ones_with_zero_gradients()
    torch.optim.AdamW(naive.parameters(), lr=0.1, weight_decay=0.1).step()
    assert values(naive)["norm.weight"] == pytest.approx(0.99), "a norm's gain shrinks as well"

    coupled = ones_with_zero_gradients()
    torch.optim.Adam(coupled.parameters(), lr=0.1, weight_decay=0.1).step()
    assert values(coupled)["tokens.weight"] == pytest.approx(0.90), "a whole lr, however small the decay"


def test_C01_every_trainable_parameter_is_in_exactly_one_group_and_the_names_say_so():
    model = GPT(PRESETS["nano"])
    model.positions.weight.requires_grad_(False)
    decays, stays = param_groups(model, 0.1)
    grouped = [id(p) for group in (decays, stays) for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    assert set(stays["names"]) == vector_names(model)
    assert {name.split(".")[-1] for name in decays["names"]} == {"weight"}
    assert {"tokens.weight", "head.weight", "positions.weight"} & set(decays["names"]) == {"tokens.weight"}, (
        "the embeddings decay, by choice; the tied head is the same tensor; a frozen one is in no group"
    )


def test_C02_what_shrinks_is_exactly_what_has_two_axes_and_not_the_reverse():
    """facebookresearch/BalancingGroups#6: the test for the groups, turned round."""
    model = ones_with_zero_gradients()
    shapes = {name: p.dim() for name, p in model.named_parameters()}
    groups = param_groups(model, 0.1)

    def shrunk(optimizer):
        for p in model.parameters():
            nn.init.ones_(p)
        optimizer.step()
        return {name for name, value in values(model).items() if value < 1.0}

    matrices = {name for name, dim in shapes.items() if dim >= 2}
    assert shrunk(build_adamw(model, lr=0.1, weight_decay=0.1)) == matrices

    inverted = [{"params": g["params"], "weight_decay": 0.1 - g["weight_decay"]} for g in groups]
    assert shrunk(torch.optim.AdamW(inverted, lr=0.1)) == vector_names(model)


class InOrder(nn.Module):
    """Two parameters of one shape, defined in the order that is given."""

    def __init__(self, *names):
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.zeros(1)))


def saved_after_gradients(**gradients):
    model = InOrder(*gradients)
    optimizer = build_adamw(model, lr=0.1, betas=(0.9, 0.95))
    for name, gradient in gradients.items():
        model.get_parameter(name).grad = torch.tensor([gradient])
    optimizer.step()
    return optimizer.state_dict()


def moment_of(optimizer, parameter):
    return optimizer.state[parameter]["exp_avg"].item()


def test_C05_a_saved_state_says_by_name_whose_it_is_so_that_it_need_not_be_matched_by_position():
    """pytorch/pytorch#1489: torch matches by position, and swaps two moments without a word.

    Files that are saved and loaded by name belong to checkpoints. What they need is here: names beside the state.
    """
    saved = saved_after_gradients(p1=1.0, p2=5.0)

    other = InOrder("p2", "p1")
    naive = build_adamw(other, lr=0.1)
    naive.load_state_dict(saved)
    assert moment_of(naive, other.p1) == pytest.approx(0.5), "that of p2, and no error"

    names = [name for group in saved["param_groups"] for name in group["names"]]
    places = [place for group in saved["param_groups"] for place in group["params"]]
    by_name = {name: saved["state"][place] for name, place in zip(names, places, strict=True)}
    assert {name: state["exp_avg"].item() for name, state in by_name.items()} == pytest.approx({"p1": 0.1, "p2": 0.5})

    right = build_adamw(other, lr=0.1)
    wanted = [name for group in right.param_groups for name in group["names"]]
    assert wanted == ["p2", "p1"] != names, "so the mismatch can also be seen, and refused"
    state = {place: by_name[name] for place, name in enumerate(wanted)}
    right.load_state_dict({"state": state, "param_groups": right.state_dict()["param_groups"]})
    assert (moment_of(right, other.p1), moment_of(right, other.p2)) == pytest.approx((0.1, 0.5))


class Steep(nn.Module):
    """Its loss is harmless and its gradient is 1e20 in both entries: finite, though not the sum of their squares."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.weight.register_hook(lambda gradient: torch.full_like(gradient, 1e20))

    def forward(self, input_ids):
        return self.weight.expand(*input_ids.shape, 2)


def test_C07_a_norm_that_overflows_skips_the_update_and_does_not_zero_the_gradient_in_silence():
    """pytorch/pytorch#46849. The choice made here: a norm that is not finite makes a step that is not made."""
    naive = nn.Parameter(torch.zeros(2))
    naive.grad = torch.full((2,), 1e20)
    assert nn.utils.clip_grad_norm_([naive], 1.0).item() == math.inf
    assert naive.grad.tolist() == [0.0, 0.0], "an update by nothing, reported as an update"

    model = Steep()
    optimizer = build_adamw(model, lr=0.5)
    report = train_step(model, [BATCH], optimizer, lr=1.0)
    assert report.skipped and report.reason == "the gradient's norm is inf"
    assert report.loss == pytest.approx(math.log(2))
    assert model.weight.tolist() == [0.0, 0.0] and not optimizer.state and optimizer.param_groups[0]["lr"] == 0.5


def test_C07_a_run_counts_the_skipped_update_and_says_why():
    records = []
    config = TrainConfig(total_steps=1, max_lr=1.0)
    Trainer(Steep(), lambda n: [BATCH], config, [records.append, lambda record: False]).fit()
    seen = {name: records[0][name] for name in ("batch", "step", "skipped", "skipped_steps", "reason")}
    assert seen == {"batch": 1, "step": 0, "skipped": True, "skipped_steps": 1, "reason": "the gradient's norm is inf"}
