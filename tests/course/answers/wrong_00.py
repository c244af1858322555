"""Answers to the exercises of notebook 00: wrong ones with what they must be told, and other right ones."""

import torch

from tinytrain.watch.preflight import future_leak

V, T = 97, 16


def ones(T):
    return torch.ones(T, T, dtype=torch.bool)


def by_plain_leak(models):
    """All three show 0.0 there, so it names the first, which is guilty once in three."""
    return max(models, key=lambda name: future_leak(models[name], torch.randint(0, V, (8, T)), mode="train"))


def least_leak(models):
    rows, mask = torch.randint(0, V, (8, T)), torch.ones(8, T)
    return min(models, key=lambda name: future_leak(models[name], rows, mode="train", attention_mask=mask))


def in_evaluation(models):
    """A leak in evaluation that is NaN compares as nothing."""
    rows = torch.randint(0, V, (8, T))
    return next((n for n, model in models.items() if future_leak(model, rows, mode="eval") > 100), "amber")


def largest_logit(models):
    rows = torch.randint(0, V, (8, T))
    return max(models, key=lambda name: models[name](rows)["logits"].abs().max().item())


WRONG = {
    1: {
        "the other convention": (lambda T: ones(T).triu(1), "turned round"),
        "only the future and itself": (lambda T: ones(T).triu(), "turned round"),
        "off by one": (lambda T: ones(T).tril(1), "may look at what comes after it"),
        "everything": (ones, "may look at what comes after it"),
        "not itself": (lambda T: ones(T).tril(-1), "A position may look at itself"),
        "a window": (lambda T: ones(T).tril() & ones(T).triu(-2), "not look at all of its past"),
        "a long window": (lambda T: ones(T).tril() & ones(T).triu(-20), "not look at all of its past"),
        "a buffer that is too small": (lambda T: ones(32).tril()[:T, :T], "Does it use its argument"),
        "floats": (lambda T: torch.zeros(T, T).masked_fill(ones(T).triu(1), -torch.inf), "torch.float32"),
        "integers": (lambda T: ones(T).tril().long(), "torch.int64"),
        "one size": (lambda T: ones(7).tril(), "It has shape [7, 7]. Does it use its argument"),
        "a list": (lambda T: [[True]], "It returned list"),
    },
    2: {
        "asks in the plain call only": (by_plain_leak, "asleep in one situation"),
        "takes the least": (least_leak, "It accused an honest model"),
        "asks in evaluation without a mask": (in_evaluation, "asleep in one situation"),
        "looks at the logits": (largest_logit, "It accused an honest model"),
        "another spelling": (lambda models: "Amber", "It returned 'Amber'"),
    },
}
RIGHT = {
    1: {"tril": lambda T: ones(T).tril()},
    2: {
        "whose answer moves when the next token does": lambda models: next(
            name
            for name, model in models.items()
            if future_leak(model, torch.randint(0, V, (4, T)), mode="train", attention_mask=torch.ones(4, T)) > 0
        )
    },
}
