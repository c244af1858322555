"""The exercises of notebook 01: a masked mean, labels of padded rows, how large first weights may be, a smoothed
loss."""

import math

import torch
from torch import Tensor

from tinytrain.course.checks_01 import check_labels_of_rows, check_largest_std, check_masked_mean, check_smoothed_loss
from tinytrain.course.exercises import Exercise


def masked_mean(losses: Tensor, labels: Tensor) -> Tensor:
    """The mean of ``losses`` ``[B,T]`` over the positions whose label is not -100; shape ``[]``.

    ``labels`` ``[B,T]`` are token ids from 0 up, or -100. The losses at -100 may be any finite
    numbers. If no position has a label, the mean is 0. It carries a gradient, which is then 0 too,
    so that ``backward()`` works on every batch.
    """
    is_target = labels != -100
    return (losses * is_target).sum() / is_target.sum().clamp(min=1)


def labels_of_rows(ids: Tensor, lengths: Tensor) -> Tensor:
    """Labels ``[B,N-1]``, int64, of padded rows ``ids`` ``[B,N]``: what each position but the last
    must predict.

    Row b has ``lengths[b]`` real tokens (from 2 up to N), then padding. The padding id is that of
    the end token. A real end stands at the end of every text, and may stand in its middle too. The
    label of position t is the token at t + 1 if that is a real token, and -100 otherwise.
    """
    following = torch.arange(1, ids.shape[1])
    return ids[:, 1:].masked_fill(following[None, :] >= lengths[:, None], -100)


def largest_std(vocab_size: int, d_model: int, max_loss: float) -> float:
    """The ``std`` of the head's weights at which a fresh model's first loss is ``max_loss`` nats.

    The weights are normal, and the head is not tied. Its input has length sqrt(d_model) at each
    position. ``max_loss`` is above ln(vocab_size) by 0.2 to 0.8, small enough for the formula.
    """
    return math.sqrt(2 * (max_loss - math.log(vocab_size)) / d_model)


def smoothed_loss(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The mean smoothed cross-entropy of ``logits`` ``[N,V]``, without ``F.cross_entropy``; shape
    ``[]``.

    The share ``smoothing`` of the target is spread evenly over all V tokens, the right one
    included, as torch does. The mean is over the rows whose label in ``labels`` ``[N]`` is not
    -100, of which there is at least one. Logits may be as large as 200.
    """
    is_target = labels != -100
    minus_ln = -logits.log_softmax(-1)[is_target]
    right = minus_ln.gather(-1, labels[is_target][:, None])[:, 0]
    return ((1 - smoothing) * right + smoothing * minus_ln.mean(-1)).mean()


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
        title="How large may the first weights be?",
        goal="Turn the formula of the first loss round: which size of weights in the head starts a model at a given "
        "loss?",
        difficulty="easy",
        minutes=5,
        solution=largest_std,
        check=check_largest_std,
        hints=(
            "A logit is a sum over d products of an input and a weight. The inputs' squares add up to d, and each "
            "weight has the variance std². What is the variance of the sum?",
            "The section *What should the first loss be?* has the formula: ln V, and half the variance of the logits. "
            "Solve it for std.",
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
