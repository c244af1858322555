"""What judges the answers to the exercises of notebook 01, and names the likely mistake."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytrain.course.exercises import Report

TOLERANCE = 1e-5  # relative; the sums here are of fewer than a hundred float32 numbers
SAME = 2e-6  # two ways to one number, in float32
FIRST_LOSS_TOLERANCE = 0.03  # nats; the formula is exact for a large vocabulary only


def check_masked_mean(answer: Callable[[Tensor, Tensor], Tensor], report: Report) -> None:
    """Compare with a mean over a plain list of the losses that count."""
    B, T = int(torch.randint(4, 7, ())), int(torch.randint(5, 9, ()))
    losses, labels = torch.rand(B, T, dtype=torch.float32) + 0.5, torch.randint(0, 4, (B, T))
    labels[0, 1:] = labels[1, 3:] = labels[3] = -100  # rows of different lengths, and one without any target
    labels[2, :2] = 0  # a token id like any other
    losses[3, 0], losses[3, 1] = 1e30, -7.0
    places = [(b, t) for b in range(B) for t in range(T) if labels[b, t].item() != -100]
    wanted = sum(losses[place].item() for place in places) / len(places)
    copies = losses.clone(), labels.clone()
    value = answer(*copies)
    _need_scalar(report, value)
    report.need("it is the mean over the targets", _close(value, wanted), _likely_mean(value, losses, labels))
    _need_unchanged(report, copies, (losses, labels))
    share = torch.zeros(B, T, dtype=torch.float32)
    for place in places:
        share[place] = 1 / len(places)
    gradient = _gradient(report, answer, losses, labels)
    report.need(
        "each target's loss has the same part in the gradient, all others none",
        bool(((gradient - share).abs() <= TOLERANCE).all()),
        "The value is right and its gradient is not: what is between them?",
    )
    nothing = torch.full((B, T), -100)
    value = answer(losses.clone(), nothing.clone())
    _need_scalar(report, value)
    report.need(
        "with no target at all it is 0",
        value.item() == 0,
        "It divides 0 by 0. Divide by at least 1: clamp(min=1) on the count.",
    )
    gradient = _gradient(report, answer, losses, nothing)
    report.that("and so is its gradient", bool((gradient == 0).all()), "The gradient divides 0 by 0 somewhere.")


def _gradient(report: Report, answer: Callable[[Tensor, Tensor], Tensor], losses: Tensor, labels: Tensor) -> Tensor:
    given = losses.clone().requires_grad_()
    value = answer(given * 1, labels.clone())
    report.need(
        "it carries a gradient",
        isinstance(value, Tensor) and value.requires_grad,
        "It was made anew, or detached, so backward() raises an error. Compute it from `losses` in every case.",
    )
    (gradient,) = torch.autograd.grad(value, given, allow_unused=True, materialize_grads=True)
    return gradient


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
        "A row without a target counts for one. Clamp the whole count, not that of each row.": (
            kept.sum() / mask.sum(1).clamp(min=1).sum()
        ),
    }
    if value.isnan():
        return "It is NaN: a row without a target divides 0 by 0."
    return _explanation(value.item(), mistakes, "Sum the losses of the targets, then divide by how many they are.")


def check_labels_of_rows(answer: Callable[[Tensor, Tensor], Tensor], report: Report) -> None:
    """Compare with labels made one by one from the rows before they were padded."""
    for spare in (0, int(torch.randint(1, 4, ()))):  # the longest row is full, or not
        longest = int(torch.randint(8, 11, ()))
        lengths = [2, *torch.randint(5, 8, (int(torch.randint(2, 5, ())),)).tolist(), longest]
        N, end = longest + spare, int(torch.randint(0, 9, ()))
        others = [token for token in range(9) if token != end]
        rows = [[others[i] for i in torch.randint(0, 8, (n,)).tolist()] for n in lengths]
        for row in rows:
            row[-1] = end
        rows[1][-2] = end  # a text may end twice
        rows[2][1] = end  # a first turn is over, the text goes on
        ids = torch.tensor([row + [end] * (N - len(row)) for row in rows])
        wanted = torch.tensor([row[1:] + [-100] * (N - len(row)) for row in rows])
        copies = ids.clone(), torch.tensor(lengths)
        labels = answer(*copies)
        report.need("returns a tensor", isinstance(labels, Tensor), f"It returned {type(labels).__name__}.")
        report.need(
            f"its shape is {list(wanted.shape)}",
            labels.shape == wanted.shape,
            f"It has shape {list(labels.shape)}. The last position has nothing to predict: N tokens give N - 1 labels, "
            "however long the longest row is.",
        )
        report.need("its type is int64", labels.dtype == torch.int64, f"It is {labels.dtype}.")
        report.need(
            f"N = {N}, lengths {lengths}: each row's labels are right",
            torch.equal(labels, wanted),
            _likely_label(labels, wanted, ids, lengths, end),
        )
        _need_unchanged(report, copies, (ids, torch.tensor(lengths)))


def _likely_label(labels: Tensor, wanted: Tensor, ids: Tensor, lengths: list[int], end: int) -> str:
    after_first_end = (ids[:, 1:] == end).cumsum(1) - (ids[:, 1:] == end).long() > 0
    places, real = torch.arange(ids.shape[1] - 1)[None, :], torch.tensor(lengths)[:, None]
    last_text = torch.where(ids != end, torch.arange(ids.shape[1]), 0).amax(1)[:, None]
    mistakes = {
        "The real ends are gone too: they have the padding's id, so mask by length and not by value.": (
            wanted.masked_fill(ids[:, 1:] == end, -100)
        ),
        "All after the first end is gone. An end token may stand in the middle of a text.": (
            ids[:, 1:].masked_fill(after_first_end, -100)
        ),
        "This guesses the lengths from the ids. A text may end in two real ends: use `lengths`.": (
            ids[:, 1:].masked_fill(places > last_text, -100)
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
    rows = zip(labels.tolist(), wanted.tolist(), strict=True)
    return next(
        (f"Row {b} is {got}, and should be {right}." for b, (got, right) in enumerate(rows) if got != right), ""
    )


def check_largest_std(answer: Callable[[int, int, float], float], report: Report) -> None:
    """Give heads of random weights that size, and measure their loss, averaged over all labels."""
    for low, high in ((0.25, 0.35), (0.65, 0.8), (0.25, 0.8)):  # around 0.5 a variance is hardly told from its root
        V, D = int(torch.randint(1_000, 3_000, ())), int(torch.randint(40, 200, ()))
        max_loss = math.log(V) + float(torch.empty(()).uniform_(low, high))
        value = answer(V, D, max_loss)
        report.need("returns a float", isinstance(value, float), f"It returned {type(value).__name__}.")
        inputs = F.layer_norm(torch.randn(512, D, dtype=torch.float32), (D,))  # each of length sqrt(D)
        logits = inputs @ (torch.randn(V, D, dtype=torch.float32) * value).T
        measured = (logits.logsumexp(-1) - logits.mean(-1)).mean().item()  # the mean over all labels
        report.need(
            f"V = {V}, d = {D}: heads with your std start within {FIRST_LOSS_TOLERANCE} of {max_loss:.2f} nats",
            value > 0 and abs(measured - max_loss) <= FIRST_LOSS_TOLERANCE,
            f"With {value:.4f} the first loss is {measured:.2f}. {_likely_std(value, V, D, max_loss)}",
        )


def _likely_std(value: float, V: int, D: int, max_loss: float) -> str:
    above = max_loss - math.log(V)
    mistakes = {
        "The half is missing: the loss grows by half the logits' variance.": math.sqrt(above / D),
        "The half is on the wrong side: twice the excess is the logits' variance.": math.sqrt(above / 2 / D),
        "This is the variance of a weight. Its root is the standard deviation.": 2 * above / D,
        "This is the logits' standard deviation. Each logit is a sum over d products.": math.sqrt(2 * above),
        "The root is of d as well: the logits' variance is std² d.": math.sqrt(2 * above) / D,
        "This forgets ln V: only what is above it comes from the weights.": math.sqrt(2 * max_loss / D),
    }
    return _explanation(value, mistakes, "Solve max_loss = ln V + std² d / 2 for std.")


def check_smoothed_loss(answer: Callable[[Tensor, Tensor, float], Tensor], report: Report) -> None:
    """Compare with the targets written out, one row at a time."""
    for largest in (0.0, 0.0, 200.0):
        N, V = int(torch.randint(6, 10, ())), int(torch.randint(4, 9, ()))
        logits, labels = 2 * torch.randn(N, V, dtype=torch.float32), torch.randint(0, V, (N,))
        ignored = torch.randperm(N)[: int(torch.randint(2, 5, ()))]
        labels[ignored] = -100
        rows = [row for row in range(N) if labels[row].item() != -100]
        logits[rows[0], 1] += largest
        smoothing = float(torch.empty(()).uniform_(0.1, 0.3))
        wanted = 0.0
        for row in rows:
            target = torch.full((V,), smoothing / V, dtype=torch.float32)
            target[labels[row]] += 1 - smoothing
            wanted -= (target * logits[row].log_softmax(0)).sum().item() / len(rows)
        copies = logits.clone(), labels.clone()
        value = answer(*copies, smoothing)
        _need_scalar(report, value)
        report.need(
            f"V = {V}, smoothing {smoothing:.2f}{', a logit near 200' if largest else ''}: "
            "it is the loss against the smoothed targets",
            _close(value, wanted),
            _likely_smoothed(value, logits, labels, smoothing),
        )
        _need_unchanged(report, copies, (logits, labels))


def _likely_smoothed(value: Tensor, logits: Tensor, labels: Tensor, smoothing: float) -> str:
    if not value.isfinite():
        return f"It is {value.item()}: a chance became 0, and its ln infinite. log_softmax does both in one step."
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


def _need_unchanged(report: Report, copies: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    report.need(
        "it leaves its inputs as they were",
        all(map(torch.equal, copies, given)),
        "It writes into a tensor that it was given. Whoever called it may need that again.",
    )


def _close(value: Tensor, wanted: float) -> bool:
    return abs(value.item() - wanted) <= TOLERANCE * abs(wanted)


def _explanation(value: float, mistakes: Mapping[str, Tensor | float], otherwise: str) -> str:
    """The mistake that gives ``value``."""
    fits = (why for why, wrong in mistakes.items() if abs(value - float(wrong)) <= SAME * max(1.0, abs(value)))
    return next(fits, otherwise)
