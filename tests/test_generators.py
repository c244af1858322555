import random

import numpy as np
import pytest
import torch

from tinytrain.checkpoint import check_plain
from tinytrain.generators import all_states, keep_generators, restore_all, torch_states


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


def five_draws():
    return [draws() for _ in range(5)], random.gauss(0, 1), np.random.normal(), torch.randn(1).item()


def test_all_generators_go_on_where_they_were_saved():
    seed_all()
    random.gauss(0, 1), np.random.normal()  # each of these keeps a second value for later
    states = all_states()
    expected = five_draws()
    seed_all()
    restore_all(states)
    assert five_draws() == expected


def test_saved_states_survive_a_file_that_may_hold_plain_values_only(tmp_path):
    seed_all()
    states = all_states()
    check_plain(states)
    torch.save(states, tmp_path / "states.pt")
    expected = five_draws()
    restore_all(torch.load(tmp_path / "states.pt", weights_only=True))
    assert five_draws() == expected


def test_saved_states_are_those_of_the_moment():
    seed_all()
    states = all_states()
    expected = five_draws()
    for _ in range(1000):
        draws()
    restore_all(states)
    assert five_draws() == expected
    restore_all(states)
    assert five_draws() == expected


def test_generators_of_gpus_that_are_not_here_are_left_out(monkeypatch):
    seed_all()
    states = all_states()
    states["torch"] |= {"cuda": [torch.zeros(16, dtype=torch.uint8)] * 3, "mps": torch.zeros(3, dtype=torch.uint8)}
    for name in ("cuda.is_available", "backends.mps.is_available"):
        monkeypatch.setattr(f"torch.{name}", lambda: False)
    expected = five_draws()
    restore_all(states)
    assert five_draws() == expected
