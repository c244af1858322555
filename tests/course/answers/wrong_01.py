"""Answers to the exercises of notebook 01: wrong ones with what they must be told, and other right ones."""

import math

import torch
import torch.nn.functional as F


def keep(labels):
    return (labels != -100).float()


def rows_then_rows(losses, labels):
    mask = keep(labels)
    return ((losses * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


def one_by_one(losses, labels):
    counted = [losses[place] for place in map(tuple, (labels != -100).nonzero().tolist())]
    return torch.stack(counted).mean() if counted else losses.sum() * 0


def after_first_end(ids, lengths):
    end, following = ids[0, -1], ids[:, 1:]  # row 0 is padded
    ends = (following == end).long()
    return following.masked_fill(ends.cumsum(1) - ends > 0, -100)


def places(ids, offset):
    return torch.arange(ids.shape[1] - 1)[None, :] + offset


def by_loop(ids, lengths):
    labels = torch.full((ids.shape[0], ids.shape[1] - 1), -100)
    for row, length in enumerate(lengths.tolist()):
        labels[row, : length - 1] = ids[row, 1:length]
    return labels


def smoothed(logits, labels, smoothing, *, even=None, right=None):
    is_target = labels != -100
    minus_ln = -logits.log_softmax(-1)
    even = minus_ln[is_target].mean() if even is None else even(minus_ln, is_target)
    share = 1 - smoothing if right is None else right
    return share * F.cross_entropy(logits, labels) + smoothing * even


def over_the_others(logits, labels, smoothing):
    counted = labels != -100
    minus_ln, labels, V = -logits.log_softmax(-1)[counted], labels[counted], logits.shape[-1]
    target = torch.full_like(minus_ln, smoothing / (V - 1)).scatter(-1, labels[:, None], 1 - smoothing)
    return (target * minus_ln).sum(-1).mean()


WRONG = {
    1: {
        "counts padding": (lambda losses, labels: losses.mean(), "It counts padding like text"),
        "padding in the divisor": (lambda losses, labels: (losses * keep(labels)).mean(), "padding is in the divisor"),
        "mean of the rows' means": (rows_then_rows, "mean of the rows' means"),
        "sum": (lambda losses, labels: (losses * keep(labels)).sum(), "the division is missing"),
        "mask turned round": (lambda losses, labels: losses[labels == -100].mean(), "wrong way round"),
        "drops token 0": (lambda losses, labels: losses[labels > 0].mean(), "leaves out token 0"),
        "0 / 0": (lambda losses, labels: (losses * keep(labels)).sum() / keep(labels).sum(), "It divides 0 by 0"),
        "NaN hidden from the value alone": (
            lambda losses, labels: ((losses * keep(labels)).sum() / keep(labels).sum()).nan_to_num(),
            "The gradient divides 0 by 0",
        ),
        "a plain number": (
            lambda losses, labels: ((losses * keep(labels)).sum() / keep(labels).sum()).item(),
            "It returned float",
        ),
        "keeps the shape": (lambda losses, labels: losses * keep(labels), "It returned a tensor of shape"),
        "float64": (
            lambda losses, labels: (losses.double() * keep(labels)).sum() / keep(labels).sum(),
            "It is torch.float64",
        ),
    },
    2: {
        "by value": (
            lambda ids, lengths: ids[:, 1:].masked_fill(ids[:, 1:] == ids[0, -1], -100),
            "mask by length and not by value",
        ),
        "all after the first end": (after_first_end, "in the middle of a text"),
        "not moved": (
            lambda ids, lengths: ids[:, :-1].masked_fill(places(ids, 0) >= lengths[:, None], -100),
            "The labels are not moved",
        ),
        "nothing masked": (lambda ids, lengths: ids[:, 1:], "Nothing is masked"),
        "one too few": (
            lambda ids, lengths: ids[:, 1:].masked_fill(places(ids, 0) >= lengths[:, None], -100),
            "One too few is masked",
        ),
        "one too many": (
            lambda ids, lengths: ids[:, 1:].masked_fill(places(ids, 2) >= lengths[:, None], -100),
            "One too many is masked",
        ),
        "-1": (
            lambda ids, lengths: ids[:, 1:].masked_fill(places(ids, 1) >= lengths[:, None], -1),
            "It masks with -1",
        ),
        "as long as the ids": (
            lambda ids, lengths: F.pad(by_loop(ids, lengths), (0, 1), value=-100),
            "N tokens give N - 1 labels",
        ),
        "floats": (lambda ids, lengths: by_loop(ids, lengths).float(), "It is torch.float32"),
        "a list": (lambda ids, lengths: by_loop(ids, lengths).tolist(), "It returned list"),
    },
    3: {
        "ln V": (lambda V, D, std: math.log(V), "for very small weights only"),
        "std of a logit": (lambda V, D, std: math.log(V) + std**2 / 2, "a sum over d products"),
        "no half": (lambda V, D, std: math.log(V) + std**2 * D, "The half is missing"),
        "standard deviation": (lambda V, D, std: math.log(V) + std * math.sqrt(D), "adds the standard deviation"),
        "half the standard deviation": (
            lambda V, D, std: math.log(V) + std * math.sqrt(D) / 2,
            "adds half the standard deviation",
        ),
        "wrong sign": (lambda V, D, std: math.log(V) - std**2 * D / 2, "wrong sign"),
        "bits": (lambda V, D, std: math.log2(V) + std**2 * D / 2, "This is in bits"),
        "a tensor": (lambda V, D, std: torch.tensor(math.log(V) + std**2 * D / 2), "It returned Tensor"),
    },
    4: {
        "even part over ignored rows": (
            lambda logits, labels, s: smoothed(logits, labels, s, even=lambda minus_ln, _: minus_ln.mean()),
            "over the ignored rows too",
        ),
        "over the others": (over_the_others, "spreads over the other tokens only"),
        "whole target for the right token": (
            lambda logits, labels, s: smoothed(logits, labels, s, right=1.0),
            "keeps its whole target",
        ),
        "sum over the vocabulary": (
            lambda logits, labels, s: smoothed(
                logits, labels, s, even=lambda minus_ln, kept: minus_ln[kept].sum(-1).mean()
            ),
            "Each token gets smoothing / V",
        ),
        "no smoothing": (lambda logits, labels, s: F.cross_entropy(logits, labels), "without smoothing"),
        "-100 taken for token 0": (
            lambda logits, labels, s: F.cross_entropy(logits, labels.clamp(min=0), label_smoothing=s),
            "as if their label were 0",
        ),
        "divided by all rows": (
            lambda logits, labels, s: F.cross_entropy(logits, labels, label_smoothing=s, reduction="none").mean(),
            "The divisor counts ignored rows",
        ),
        "sum": (
            lambda logits, labels, s: F.cross_entropy(logits, labels, label_smoothing=s, reduction="sum"),
            "the division is missing",
        ),
        "one number per row": (
            lambda logits, labels, s: F.cross_entropy(logits, labels, label_smoothing=s, reduction="none"),
            "It returned a tensor of shape",
        ),
    },
}
RIGHT = {
    1: {"one by one": one_by_one},
    2: {"row by row": by_loop},
    3: {"from the logits' own spread": lambda V, D, std: math.log(V) + (std * math.sqrt(D)) ** 2 / 2},
    4: {
        "torch's own": lambda logits, labels, s: F.cross_entropy(logits, labels, label_smoothing=s),
        "a mixture of targets": lambda logits, labels, s: smoothed(logits, labels, s),
    },
}
