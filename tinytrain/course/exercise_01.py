"""The exercises of notebook 01: a masked mean, labels of padded rows, the first loss, a smoothed loss."""

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytrain.course.exercises import Exercise, Report

TOLERANCE = 1e-5  # relative; the sums here are of fewer than a hundred float32 numbers
SAME = 2e-6  # two ways to one number, in float32
FIRST_LOSS_TOLERANCE = 0.03  # nats; the formula is exact for a large vocabulary only


def masked_mean(losses: Tensor, labels: Tensor) -> Tensor:
    """The mean of ``losses`` ``[B,T]`` over the positions whose label is not -100; a tensor of shape ``[]``.

    ``labels`` ``[B,T]`` are token ids from 0 up, or -100. The losses at -100 may be any finite numbers. If no position
    has a label, the mean is 0, and a gradient through it is 0 as well.
    """
    is_target = labels != -100
    return (losses * is_target).sum() / is_target.sum().clamp(min=1)


def check_masked_mean(answer: Callable[[Tensor, Tensor], Tensor], report: Report) -> None:
    """Compare with a mean over a plain list of the losses that count."""
    B, T = int(torch.randint(3, 7, ())), int(torch.randint(5, 9, ()))
    losses, labels = torch.rand(B, T) + 0.5, torch.randint(0, 4, (B, T))
    labels[0, 1:] = labels[1, 3:] = -100  # rows of different lengths
    labels[2, :2] = 0  # a token id like any other
    losses = losses.where(labels != -100, losses + 3)
    counted = [losses[b, t].item() for b in range(B) for t in range(T) if labels[b, t].item() != -100]
    wanted = sum(counted) / len(counted)
    value = answer(losses.clone(), labels.clone())
    _need_scalar(report, value)
    report.need("it is the mean over the targets", _close(value, wanted), _likely_mean(value, losses, labels))
    given = losses.clone().requires_grad_()
    value = answer(given, torch.full((B, T), -100))
    report.need(
        "with no target at all it is 0",
        isinstance(value, Tensor) and value.shape == () and value.item() == 0,
        "It divides 0 by 0. Divide by at least 1: clamp(min=1) on the count.",
    )
    gradient = torch.autograd.grad(value, given)[0] if value.requires_grad else torch.zeros(B, T)
    report.that("and so is its gradient", bool((gradient == 0).all()), "The gradient divides 0 by 0 somewhere.")


def _likely_mean(value: Tensor, losses: Tensor, labels: Tensor) -> str:
    mask = (labels != -100).float()
    kept = losses * mask
    per_row = kept.sum(1) / mask.sum(1).clamp(min=1)
    mistakes = {
        "It counts padding like text: the losses at -100 are in the sum.": losses.mean(),
        "The sum is right, but padding is in the divisor: (losses * mask).mean() divides by all positions.": (
            kept.mean()
        ),
        "It is the mean of the rows' means. A token of a short row then counts more than one of a long row.": (
            per_row.mean()
        ),
        "It is the sum: the division is missing.": kept.sum(),
        "The mask is the wrong way round: it averages the positions that are to be left out.": (
            losses[labels == -100].mean()
        ),
        "It leaves out token 0 too. Only -100 means that there is no target.": losses[labels > 0].mean(),
    }
    return _explanation(value.item(), mistakes, "Sum the losses of the targets, then divide by how many they are.")


def labels_of_rows(ids: Tensor, lengths: Tensor) -> Tensor:
    """Labels ``[B,N-1]``, int64, for padded rows ``ids`` ``[B,N]``: what each position but the last must predict.

    Row b has ``lengths[b]`` real tokens (at least 2), then padding. The padding id is that of the end token, which
    also stands at the end of every text, and may stand in its middle. The label of position t is the token at t + 1 if
    that is a real token, and -100 otherwise.
    """
    following = torch.arange(1, ids.shape[1])
    return ids[:, 1:].masked_fill(following[None, :] >= lengths[:, None], -100)


def check_labels_of_rows(answer: Callable[[Tensor, Tensor], Tensor], report: Report) -> None:
    """Compare with labels made one by one from the rows before they were padded."""
    end, lengths = int(torch.randint(0, 9, ())), [4, *torch.randint(5, 8, (2,)).tolist(), 8]
    others = [token for token in range(9) if token != end]
    rows = [[others[i] for i in torch.randint(0, 8, (n,)).tolist()] for n in lengths]
    for row in rows:
        row[-1] = end
    rows[2][1] = end  # a first turn is over, the text goes on
    ids = torch.tensor([row + [end] * (8 - len(row)) for row in rows])
    wanted = torch.tensor([row[1:] + [-100] * (8 - len(row)) for row in rows])
    labels = answer(ids.clone(), torch.tensor(lengths))
    report.need("returns a tensor", isinstance(labels, Tensor), f"It returned {type(labels).__name__}.")
    report.need(
        f"its shape is {list(wanted.shape)}",
        labels.shape == wanted.shape,
        f"It has shape {list(labels.shape)}. The last position has nothing to predict: N tokens give N - 1 labels.",
    )
    report.need("its type is int64", labels.dtype == torch.int64, f"It is {labels.dtype}.")
    for number, (got, right) in enumerate(zip(labels.tolist(), wanted.tolist(), strict=True)):
        likely = _likely_label(labels, wanted, ids, lengths, end)
        report.need(f"row {number} of {lengths[number]} tokens is {right}", got == right, likely)


def _likely_label(labels: Tensor, wanted: Tensor, ids: Tensor, lengths: list[int], end: int) -> str:
    after_first_end = (ids[:, 1:] == end).cumsum(1) - (ids[:, 1:] == end).long() > 0
    places, real = torch.arange(7)[None, :], torch.tensor(lengths)[:, None]
    mistakes = {
        "The real ends are gone too: they have the padding's id, so mask by length and not by value.": (
            wanted.masked_fill(ids[:, 1:] == end, -100)
        ),
        "All after the first end is gone. An end token may stand in the middle of a text.": (
            ids[:, 1:].masked_fill(after_first_end, -100)
        ),
        "The labels are not moved: position t must predict the token at t + 1.": ids[:, :-1].masked_fill(
            places >= real, -100
        ),
        "Nothing is masked: padding would be learnt.": ids[:, 1:],
        "One too few is masked: position t is padding's from t + 1 = length on, for its label is token t + 1.": (
            ids[:, 1:].masked_fill(places >= real, -100)
        ),
        "One too many is masked: the last real token, the end, is a target.": (
            ids[:, 1:].masked_fill(places + 2 >= real, -100)
        ),
    }
    for likely, mistake in mistakes.items():
        if torch.equal(labels, mistake):
            return likely
    if bool((labels == -1).any()):
        return "It masks with -1. Here only -100 means that there is no target."
    return "The label of position t is ids[:, t + 1] if t + 1 < length, else -100."


def first_loss(vocab_size: int, d_model: int, std: float) -> float:
    """The loss in nats, a float, of a fresh model with a head of its own, whose weights are normal with ``std``.

    The head's input has length sqrt(d_model) at each position. ``std * sqrt(d_model)`` is at most 1.3, small enough
    for the formula.
    """
    return math.log(vocab_size) + std**2 * d_model / 2


def check_first_loss(answer: Callable[[int, int, float], float], report: Report) -> None:
    """Compare with heads of random weights, averaged over all labels."""
    for low, high in ((0.7, 0.85), (1.15, 1.3), (0.7, 1.3)):  # around 1 a number is hardly told from its square
        V, D = int(torch.randint(1_000, 3_000, ())), int(torch.randint(40, 200, ()))
        std = float(torch.empty(()).uniform_(low, high)) / math.sqrt(D)
        inputs = F.layer_norm(torch.randn(512, D), (D,))  # each of length sqrt(D)
        logits = inputs @ (torch.randn(V, D) * std).T
        wanted = (logits.logsumexp(-1) - logits.mean(-1)).mean().item()  # the mean over all labels
        value = answer(V, D, std)
        report.need("returns a float", type(value) is float, f"It returned {type(value).__name__}.")
        report.need(
            f"V = {V}, d = {D}, std = {std:.3f}: measured {wanted:.2f} nats, yours is within {FIRST_LOSS_TOLERANCE}",
            abs(value - wanted) <= FIRST_LOSS_TOLERANCE,
            _likely_first_loss(value, V, D, std),
        )


def _likely_first_loss(value: float, V: int, D: int, std: float) -> str:
    chance = math.log(V)
    mistakes = {
        "This is ln V, which holds for very small weights only. These add to it.": chance,
        "This takes std for the logits' own standard deviation. Each logit is a sum over d products.": (
            chance + std**2 / 2
        ),
        "The half is missing: the loss grows by half the logits' variance.": chance + std**2 * D,
        "This adds the standard deviation. It is half the variance, its square, that counts.": (
            chance + std * math.sqrt(D)
        ),
        "This adds half the standard deviation. It is half the variance, its square, that counts.": (
            chance + std * math.sqrt(D) / 2
        ),
        "The growth has the wrong sign: wrong guesses cost more than lucky ones gain.": chance - std**2 * D / 2,
        "This is in bits: log2. A nat needs the natural logarithm, math.log.": math.log2(V) + std**2 * D / 2,
    }
    return _explanation(value, mistakes, "ln V, and half the variance of the logits.")


def smoothed_loss(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The mean smoothed cross-entropy of ``logits`` ``[N,V]`` over the labels ``[N]`` that are not -100; shape ``[]``.

    The share ``smoothing`` of the target is spread evenly over all V tokens, the right one included, as torch does.
    At least one label is not -100.
    """
    is_target = labels != -100
    minus_ln = -logits.log_softmax(-1)[is_target]
    right = minus_ln.gather(-1, labels[is_target][:, None])[:, 0]
    return ((1 - smoothing) * right + smoothing * minus_ln.mean(-1)).mean()


def check_smoothed_loss(answer: Callable[[Tensor, Tensor, float], Tensor], report: Report) -> None:
    """Compare with the targets written out, one row at a time."""
    for _ in range(2):
        N, V = int(torch.randint(5, 9, ())), int(torch.randint(4, 9, ()))
        logits, labels = 2 * torch.randn(N, V), torch.randint(0, V, (N,))
        labels[: N // 2] = -100
        smoothing = float(torch.empty(()).uniform_(0.1, 0.3))
        wanted = 0.0
        for row in range(N // 2, N):
            target = torch.full((V,), smoothing / V)
            target[labels[row]] += 1 - smoothing
            wanted -= (target * logits[row].log_softmax(0)).sum().item() / (N - N // 2)
        value = answer(logits.clone(), labels.clone(), smoothing)
        _need_scalar(report, value)
        report.need(
            f"V = {V}, smoothing {smoothing:.2f}: it is the loss against the smoothed targets",
            _close(value, wanted),
            _likely_smoothed(value, logits, labels, smoothing),
        )


def _likely_smoothed(value: Tensor, logits: Tensor, labels: Tensor, smoothing: float) -> str:
    V, is_target = logits.shape[-1], labels != -100
    minus_ln = -logits.log_softmax(-1)
    right, even = F.cross_entropy(logits, labels), minus_ln[is_target].mean()
    mistakes = {
        "The even part is averaged over the ignored rows too.": (1 - smoothing) * right + smoothing * minus_ln.mean(),
        "It spreads over the other tokens only. As torch does it, the right one gets its part of smoothing / V too.": (
            F.cross_entropy(logits, labels, label_smoothing=smoothing * V / (V - 1))
        ),
        "The right token keeps its whole target: it should have 1 - smoothing, and smoothing / V of what is spread.": (
            right + smoothing * even
        ),
        "The even part is a sum over the vocabulary. Each token gets smoothing / V: a mean.": (
            (1 - smoothing) * right + smoothing * even * V
        ),
        "This is the loss without smoothing.": right,
        "Rows with -100 count as if their label were 0.": F.cross_entropy(
            logits, labels.clamp(min=0), label_smoothing=smoothing
        ),
        "The divisor counts ignored rows: divide by the number of targets.": (
            F.cross_entropy(logits, labels, label_smoothing=smoothing) * is_target.float().mean()
        ),
        "It is the sum over the rows: the division is missing.": (
            F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
        ),
    }
    otherwise = "(1 - smoothing) times the loss of the right token, and smoothing times the mean over the vocabulary."
    return _explanation(value.item(), mistakes, otherwise)


def _need_scalar(report: Report, value: Tensor) -> None:
    is_scalar = isinstance(value, Tensor) and value.shape == ()
    what = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    report.need("returns a tensor of shape []", is_scalar, f"It returned {what}.")
    report.need("its type is float32", value.dtype == torch.float32, f"It is {value.dtype}.")


def _close(value: Tensor, wanted: float) -> bool:
    return abs(value.item() - wanted) <= TOLERANCE * abs(wanted)


def _explanation(value: float, mistakes: Mapping[str, Tensor | float], otherwise: str) -> str:
    """The mistake that gives ``value``."""
    fits = (why for why, wrong in mistakes.items() if abs(value - float(wrong)) <= SAME * max(1.0, abs(value)))
    return next(fits, otherwise)


EXERCISES = (
    Exercise(
        number=1,
        title="A masked mean",
        goal="Average the losses of a padded batch over its targets, and survive a batch that has none.",
        difficulty="easy",
        minutes=5,
        solution=masked_mean,
        check=check_masked_mean,
        hints=(
            "`labels != -100` is True at targets. A sum of True and False counts the True ones.",
            "Multiply, sum, divide by the count: `(losses * is_target).sum() / is_target.sum()`. Which count must not "
            "be a divisor, and what does `clamp(min=1)` do to it?",
        ),
    ),
    Exercise(
        number=2,
        title="Padding that equals the end",
        goal="Make the labels of rows that are padded with the end token, so that no real end is lost and no padding "
        "is a target.",
        difficulty="medium",
        minutes=10,
        solution=labels_of_rows,
        check=check_labels_of_rows,
        hints=(
            "The ids cannot tell you what padding is, the lengths can. Number the positions with `torch.arange` and "
            "compare them with `lengths[:, None]`.",
            "The labels before masking are `ids[:, 1:]`. The one at position t is the token at t + 1, so it is real if "
            "t + 1 < length. `masked_fill(condition, -100)` puts −100 where the condition is True.",
        ),
    ),
    Exercise(
        number=3,
        title="Predict the first loss",
        goal="Say what a fresh model's loss will be, from its vocabulary, its width and the size of its head's "
        "weights, without building it.",
        difficulty="easy",
        minutes=5,
        solution=first_loss,
        check=check_first_loss,
        hints=(
            "A logit is a sum over d products of an input and a weight. The inputs' squares add up to d, and each "
            "weight has the variance std². What is the variance of the sum?",
            "The section *What should the first loss be?* has the formula: ln V, and half the variance of the logits.",
        ),
    ),
    Exercise(
        number=4,
        title="A smoothed loss by hand",
        goal="Write the smoothed cross-entropy that torch computes, on a batch in which some rows are ignored. A "
        "version of torch once counted those rows in the even part (pytorch issue 73205).",
        difficulty="medium",
        minutes=10,
        solution=smoothed_loss,
        check=check_smoothed_loss,
        hints=(
            "Take the rows that count first: `logits[labels != -100]`. What is −ln of all chances of a row? "
            "`-logits.log_softmax(-1)`.",
            "The target is (1 − smoothing) at the right token, and smoothing / V everywhere. So a row's loss is (1 − "
            "smoothing) times its −ln at the label, and smoothing times the *mean* of its −ln over the vocabulary.",
        ),
    ),
)
