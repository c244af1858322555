"""Answers to the exercises of notebook 01: wrong ones with what they must be told, and other right ones."""

import math

import numpy as np
import torch
import torch.nn.functional as F


def keep(labels):
    return (labels != -100).float()


def rows_then_rows(losses, labels):
    mask = keep(labels)
    return ((losses * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


def each_row_counts_for_one(losses, labels):
    return (losses * keep(labels)).sum() / keep(labels).sum(1).clamp(min=1).sum()


def right_mean(losses, labels):
    return (losses * keep(labels)).sum() / keep(labels).sum().clamp(min=1)


def special_case(otherwise):
    return lambda losses, labels: right_mean(losses, labels) if (labels != -100).any() else otherwise


def writes_zeros(losses, labels):
    mean = right_mean(losses, labels)
    losses.data[labels == -100] = 0
    return mean


def one_by_one(losses, labels):
    counted = [losses[place] for place in map(tuple, (labels != -100).nonzero().tolist())]
    return torch.stack(counted).mean() if counted else losses.sum() * 0


def after_first_end(ids, lengths):
    end, following = ids[0, -1], ids[:, 1:]  # row 0 is padded
    ends = (following == end).long()
    return following.masked_fill(ends.cumsum(1) - ends > 0, -100)


def places(ids, offset):
    return torch.arange(ids.shape[1] - 1)[None, :] + offset


def lengths_from_the_ids(ids, lengths):
    end = ids[0, -1]
    last_text = torch.where(ids != end, torch.arange(ids.shape[1]), 0).amax(1)
    return ids[:, 1:].masked_fill(places(ids, 0) > last_text[:, None], -100)


def writes_into_ids(ids, lengths):
    ids[torch.arange(ids.shape[1])[None, :] >= lengths[:, None]] = -100
    return ids[:, 1:].clone()


def by_loop(ids, lengths):
    labels = torch.full((ids.shape[0], ids.shape[1] - 1), -100)
    for row, length in enumerate(lengths.tolist()):
        labels[row, : length - 1] = ids[row, 1:length]
    return labels


def excess(V, loss):
    return loss - math.log(V)


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


def from_chances(logits, labels, smoothing):
    """Softmax, then ln: infinite for a chance that became 0."""
    counted = labels != -100
    minus_ln = -logits.softmax(-1).log()[counted]
    right = minus_ln.gather(-1, labels[counted][:, None])[:, 0]
    return ((1 - smoothing) * right + smoothing * minus_ln.mean(-1)).mean()


def second_half(logits, labels, smoothing):
    half = len(labels) // 2
    kept = labels[half:].clamp(min=0)
    return F.cross_entropy(logits[half:], kept, label_smoothing=smoothing)


def writes_into_labels(logits, labels, smoothing):
    loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
    labels[labels == -100] = 0
    return loss


WRONG = {
    1: {
        "counts padding": (lambda losses, labels: losses.mean(), "It counts padding like text"),
        "padding in the divisor": (lambda losses, labels: (losses * keep(labels)).mean(), "padding is in the divisor"),
        "mean of the rows' means": (rows_then_rows, "mean of the rows' means"),
        "sum": (lambda losses, labels: (losses * keep(labels)).sum(), "the division is missing"),
        "mask turned round": (lambda losses, labels: losses[labels == -100].mean(), "wrong way round"),
        "counts one for an empty row": (each_row_counts_for_one, "Clamp the whole count"),
        "a row's mean of nothing": (
            lambda losses, labels: ((losses * keep(labels)).sum(1) / keep(labels).sum(1)).mean(),
            "a row without a target divides 0 by 0",
        ),
        "detached": (lambda losses, labels: right_mean(losses, labels).detach(), "backward() raises an error"),
        "a tensor of 0 without a gradient": (special_case(torch.tensor(0.0)), "backward() raises an error"),
        "the number 0": (special_case(0.0), "It returned float"),
        "writes into losses": (writes_zeros, "It writes into a tensor"),
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
        "guesses the lengths": (lengths_from_the_ids, "use `lengths`"),
        "only as wide as the longest row": (
            lambda ids, lengths: by_loop(ids, lengths)[:, : int(lengths.max()) - 1],
            "however long the longest row is",
        ),
        "another value in one row": (
            lambda ids, lengths: by_loop(ids, lengths).index_fill(0, torch.tensor([1]), 7),
            "Row 1 is [7, 7",
        ),
        "writes into ids": (writes_into_ids, "It writes into a tensor"),
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
        "no half": (lambda V, D, loss: math.sqrt(excess(V, loss) / D), "The half is missing"),
        "half on the wrong side": (lambda V, D, loss: math.sqrt(excess(V, loss) / 2 / D), "on the wrong side"),
        "variance": (lambda V, D, loss: 2 * excess(V, loss) / D, "This is the variance"),
        "of a logit": (lambda V, D, loss: math.sqrt(2 * excess(V, loss)), "a sum over d products"),
        "d outside the root": (lambda V, D, loss: math.sqrt(2 * excess(V, loss)) / D, "The root is of d as well"),
        "ln V forgotten": (lambda V, D, loss: math.sqrt(2 * loss / D), "This forgets ln V"),
        "the usual 0.02": (lambda V, D, loss: 0.02, "With 0.0200 the first loss is"),
        "negative": (lambda V, D, loss: -math.sqrt(2 * excess(V, loss) / D), "Solve max_loss"),
        "a tensor": (lambda V, D, loss: torch.tensor(math.sqrt(2 * excess(V, loss) / D)), "It returned Tensor"),
    },
    4: {
        "even part over ignored rows": (
            lambda logits, labels, s: smoothed(logits, labels, s, even=lambda minus_ln, _: minus_ln.mean()),
            "over the ignored rows too",
        ),
        "softmax, then ln": (from_chances, "log_softmax does both"),
        "the second half of the rows": (second_half, "(1 - smoothing) times the loss of the right token"),
        "writes into labels": (writes_into_labels, "It writes into a tensor"),
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
    3: {
        "from the logits' own spread": lambda V, D, loss: (2 * (loss - math.log(V))) ** 0.5 / D**0.5,
        "in numpy": lambda V, D, loss: np.sqrt(2 * (loss - np.log(V)) / D),
    },
    4: {
        "torch's own": lambda logits, labels, s: F.cross_entropy(logits, labels, label_smoothing=s),
        "a mixture of targets": lambda logits, labels, s: smoothed(logits, labels, s),
    },
}
