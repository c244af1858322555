import random

import numpy as np
import pytest
import torch

from tinytrain.generators import keep_generators, torch_states


def draws():
    return random.random(), np.random.random(), torch.rand(1).item()


def seed_all():
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)


def test_what_is_drawn_inside_does_not_move_what_is_drawn_outside():
    seed_all()
    expected = draws()
    seed_all()
    with keep_generators():
        draws()
    assert draws() == expected


def test_the_generators_are_given_back_after_an_error():
    seed_all()
    expected = draws()
    seed_all()
    with pytest.raises(RuntimeError), keep_generators():
        draws()
        raise RuntimeError
    assert draws() == expected


def test_captured_torch_states_bring_the_same_draws_again():
    states = torch_states()
    first = torch.rand(3)
    states.restore()
    assert torch.equal(torch.rand(3), first)
