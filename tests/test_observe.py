import random

import numpy as np
import pytest
import torch
from torch import nn

from tinytrain.observe import observing


def draws():
    return random.random(), np.random.random(), torch.rand(1).item()


@pytest.fixture
def model():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2))
    model[2].eval()  # somebody froze it
    return model


def modes(model):
    return [module.training for module in model.modules()]


def test_inside_everything_is_in_eval_mode_without_gradients(model):
    with observing(model):
        assert not any(modes(model))
        assert not torch.is_grad_enabled()


def test_modes_are_given_back_one_by_one(model):
    before = modes(model)
    with observing(model):
        pass
    assert modes(model) == before == [True, True, True, False]
    assert torch.is_grad_enabled()


def test_modes_and_generators_are_given_back_after_an_error(model):
    before, states = modes(model), (random.getstate(), torch.get_rng_state())
    with pytest.raises(RuntimeError, match="boom"), observing(model):
        draws()
        raise RuntimeError("boom")
    assert modes(model) == before
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])


def test_draws_inside_do_not_move_the_generators_outside(model):
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    expected = draws()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    with observing(model):
        draws()
    assert draws() == expected


def test_a_tensor_cached_while_looking_can_be_trained_with_later():
    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.cache = nn.Parameter(torch.ones(2)), None

        def forward(self, x):
            self.cache = torch.arange(2.0) if self.cache is None else self.cache
            return self.weight * self.cache * x

    model = Caching()
    with observing(model):
        model(torch.ones(2))
    model(torch.ones(2)).sum().backward()
    assert model.weight.grad.tolist() == [0.0, 1.0]


def test_buffers_are_given_back_changed_or_replaced():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("ema", torch.ones(2))
            self.register_buffer("later", None)

        def forward(self, x):
            self.calls += 1
            self.ema = self.ema * 0.9
            self.later = x
            return x

    model = Counting()
    calls, ema = model.calls, model.ema
    with observing(model):
        model(torch.ones(2))
    assert model.calls is calls and model.calls.item() == 0
    assert model.ema is ema and model.ema.tolist() == [1, 1] and model.later is None
