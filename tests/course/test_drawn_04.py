"""What the checks of notebook 04 draw tells every mistake from every other, and from the right answer."""

import random
from itertools import combinations

import pytest
import torch

from tinytrain.course.drawn_04 import (
    close,
    drawn_gradients,
    drawn_speeds,
    likely_mistake,
    mistaken_norms,
    mistaken_speeds,
)


def norms():
    parameters, grads = drawn_gradients()
    return [
        torch.cat([g.flatten() for g in grads]).norm().item(),
        *(number for number, _ in mistaken_norms(parameters, grads)),
    ]


def speeds():
    batches, seconds, right = drawn_speeds()
    return [right, *(number for number, _ in mistaken_speeds(batches, seconds))]


@pytest.mark.parametrize("draw", [norms, speeds])
def test_no_mistake_gives_the_number_of_another_or_the_right_one(draw):
    random.seed(0)
    torch.manual_seed(0)
    for _ in range(100):  # drawn once each, a sixth of the speeds would not pass
        assert not any(close(a, b) for a, b in combinations(draw(), 2))


def test_a_number_is_told_its_mistake_and_a_stranger_nothing():
    mistakes = [(2.0, "doubled"), (0.5, "halved")]
    assert likely_mistake(2.0001, mistakes) == "doubled" and likely_mistake(0.5, mistakes) == "halved"
    assert likely_mistake(1.0, mistakes) == likely_mistake(float("nan"), mistakes) == ""
