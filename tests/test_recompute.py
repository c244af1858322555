"""Activation checkpointing keeps less and changes nothing."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, PRESETS
from tinytrain.recompute import blocks_of, recompute_activations


def gradient_and_kept_bytes(recompute):
    """The whole gradient, and how many bytes autograd kept for the backward pass."""
    torch.manual_seed(0)
    model = GPT(replace(PRESETS["nano"], dropout=0.1))
    if recompute:
        recompute_activations(model)
    ids = torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(0))
    kept = []

    def keep(tensor):
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = cross_entropy(model(ids[:, :-1]), ids[:, 1:])
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]), sum(kept), list(model.state_dict())


def test_the_gradient_is_the_same_to_the_last_bit_with_dropout_and_less_is_kept():
    (plain, kept, names), (again, kept_again, names_again) = (gradient_and_kept_bytes(r) for r in (False, True))
    assert torch.equal(plain, again)
    assert kept_again < kept / 2
    assert names == names_again


def test_the_blocks_are_the_largest_list():
    model = GPT(PRESETS["nano"])
    model.small = nn.ModuleList([nn.Linear(2, 2)])
    assert blocks_of(model) is model.blocks
    with pytest.raises(ValueError, match=r"Linear has no nn\.ModuleList of blocks"):
        blocks_of(nn.Linear(2, 2))
