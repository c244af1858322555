"""The checks pass on right answers, and say of each wrong one what is wrong with it."""

import pytest
import torch

from tinytrain.course.exercise_00 import check_causal_mask, check_find_the_leak
from tinytrain.watch.preflight import future_leak

V, T = 97, 16


def ones(T, **options):
    return torch.ones(T, T, dtype=torch.bool, **options)


def stub(*_anything):
    raise NotImplementedError


RIGHT_MASKS = {
    "two aranges": lambda T: torch.arange(T)[:, None] >= torch.arange(T),
    "tril": lambda T: ones(T).tril(),
}
WRONG_MASKS = {
    "the other convention": (lambda T: ones(T).triu(1), "turned round"),
    "only the future and itself": (lambda T: ones(T).triu(), "turned round"),
    "off by one": (lambda T: ones(T).tril(1), "may look at what comes after it"),
    "everything": (ones, "may look at what comes after it"),
    "not itself": (lambda T: ones(T).tril(-1), "A position may look at itself"),
    "a window": (lambda T: ones(T).tril() & ones(T).triu(-2), "not look at all of its past"),
    "floats": (lambda T: torch.zeros(T, T).masked_fill(ones(T).triu(1), -torch.inf), r"torch.float32; True and False"),
    "integers": (lambda T: ones(T).tril().long(), "torch.int64"),
    "one size": (lambda T: ones(7).tril(), "causal_mask(12) has shape [7, 7]; [12, 12]"),
    "too large": (lambda T: ones(T + 1).tril(), "[8, 8]; [7, 7] is wanted"),
    "a list": (lambda T: [[True]], "returned list"),
    "nothing": (lambda T: None, "returned NoneType"),
}


@pytest.mark.parametrize("answer", RIGHT_MASKS)
def test_a_right_mask_passes(answer):
    assert check_causal_mask(RIGHT_MASKS[answer]).startswith("Exercise 1: right")


@pytest.mark.parametrize("answer", WRONG_MASKS)
def test_a_wrong_mask_is_told_what_is_wrong(answer):
    mask, hint = WRONG_MASKS[answer]
    said = check_causal_mask(mask)
    assert said.startswith("Exercise 1: not yet") and hint in said, said


def by_masked_leak(models):
    rows, mask = torch.randint(0, V, (8, T)), torch.ones(8, T)
    return max(models, key=lambda name: future_leak(models[name], rows, mode="train", attention_mask=mask))


def by_plain_leak(models):
    return max(models, key=lambda name: future_leak(models[name], torch.randint(0, V, (8, T)), mode="train"))


def test_a_finder_that_asks_in_the_right_situation_passes():
    assert check_find_the_leak(by_masked_leak, V, T).startswith("Exercise 2: right")


@pytest.mark.parametrize(
    ("finder", "hint"),
    [
        (by_plain_leak, "asleep in one situation"),  # all three show 0.0 there
        (lambda models: None, "returned None; one of amber, birch, coral"),
        (lambda models: "Amber", "returned 'Amber'"),
    ],
)
def test_a_wrong_finder_is_told_so(finder, hint):
    said = {check_find_the_leak(finder, V, T) for _ in range(6)}  # a guess is right once in 81 line-ups of four
    assert any("not yet" in line and hint in line for line in said), said


@pytest.mark.parametrize("check", [check_causal_mask, lambda answer: check_find_the_leak(answer, V, T)])
def test_an_open_exercise_says_so(check):
    assert "not tried yet" in check(stub)
