"""What happens at one moment: spikes, numbers that are not finite, the loss scale, updates that are not made."""

import numpy as np

from tinytrain.watch.doctor.finding import Finding
from tinytrain.watch.doctor.reading import Reading, history, spread

NORM_JUMP = 10.0
"""times the median of the norms before it. In small runs that end well the norm alone jumps by up to 123 times its
median around the end of the warmup; so a jump counts only together with one of the loss. Some such runs have that too,
and mend by themselves: the spike is then real, and told"""
LOSS_JUMP, LOSS_SPREADS = 0.2, 6.0
"""share of the median of the losses before it, and robust standard deviations; both must be passed. Healthy runs on
even rows stay under 0.1 and 5 (a run on lines of mixed lengths has larger spreads, and stays under 5 of its own)"""
FOLLOWS = 3
"""updates after a jump of the norm within which the loss must follow"""
RISE = 1.3
"""times its lowest value so far: a smoothed loss that climbs so far is not noise. Healthy runs stay under 1.12"""
SETTLING = 20
"""batches at the start of an FP16 run in which the scale may fall without harm. It starts at 65,536 and is halved until
gradients fit: 0 to 3 times in the healthy runs, and that within 5 batches"""
HALVINGS = 2
"""of the loss scale behind ``SETTLING`` that are not made good. Healthy runs have 0; one halving comes with each
doubling, every 2,000 updates"""
DOUBLINGS = 8
"""of the loss scale, net, over its start: a gradient 256 times smaller than at first, and usually 0"""
VANISHED = 1e-6
"""a norm below this, or this share of the median of those before: no gradient. Healthy norms end at a tenth or more"""
LOOK_BACK = 50
"""updates before a NaN in which something else may have moved first"""


def skipped(reading: Reading) -> list[Finding]:
    """Updates that were not made although loss and gradient were finite, as far as the log tells."""
    explained = [
        reading.present(name) & ~np.isfinite(reading.column(name)) for name in ("loss", "grad_norm")
    ]  # by what ``scale`` and ``not_finite`` look at
    lines = [int(i) for i in np.flatnonzero(reading.skipped & ~explained[0] & ~explained[1])]
    if not lines:
        return []
    row = longest_row(lines)
    told = [str(reading.records[i].get("reason", "")) for i in lines]
    if not any("target" in reason for reason in told) and not any(reading.records[i].get("tokens") == 0 for i in lines):
        return [_skipped_otherwise(reading, lines, sorted({reason for reason in told if reason}))]
    return [
        reading.finding(
            lines[0],
            name="updates skipped",
            stage="event",
            symptom="batches in which no position is a target",
            evidence=f"{len(lines)} of {reading.n} batches, up to {row} in a row",
            cause="labels that are all ignored (-100): a file without answers, or a mask over the wrong part",
            checks=(
                "print the labels of the first such batch, and count those that are not -100",
                "does the data set -100 at padding and prompts only?",
                "was a document cut so that only its ignored part is left?",
            ),
        )
    ]


def _skipped_otherwise(reading: Reading, lines: list[int], reasons: list[str]) -> Finding:
    return reading.finding(
        lines[0],
        name="updates skipped",
        stage="event",
        symptom="updates that were not made",
        evidence=f"{len(lines)} of {reading.n} batches, up to {longest_row(lines)} in a row",
        cause=f"the log says: {'; '.join(reasons[:3])}" if reasons else "the log gives no reason",
        checks=("look at the rule that skips them", "look at the first such batch", "is its loss or its norm odd?"),
    )


def unstable(reading: Reading) -> list[Finding]:
    """A smoothed loss that climbs: in the warmup, or up and down."""
    if reading.is_sweep():
        return []
    rises = climbs(reading)
    last = reading.smooth[-1] if len(reading.smooth) else 0.0
    away = bool(np.median(reading.smooth) > RISE * reading.first_loss) if len(reading.smooth) else False
    if away and not rises:  # from the first update on
        rises = [(0, reading.first_loss, float(reading.smooth.max()))]
    if not rises or (len(rises) == 1 and not away and last < RISE * rises[0][1]):
        return []  # up once and down again: a spike, if anything
    window, lowest, _ = rises[0]
    line, warmup = reading.lines_of(window), reading.rising()
    lr = reading.column("lr")
    rate = f", at a learning rate of {lr[line]:.3g}" if np.isfinite(lr[line]) else ""
    evidence = f"from {lowest:.3g} up to {max(high for _, _, high in rises):.3g} nats{rate}; {len(rises)} climbs"
    halve = "halve max_lr until the climb is gone, then compare: 1e-4, 3e-4, 1e-3 for a model of usual size"
    checks = (
        halve,
        "is the gradient clipped, and at which norm?",
        "does float32 behave the same?",
        "look at the data there",
    )
    if 1 < warmup < reading.n and line < warmup:
        return [
            reading.finding(
                line,
                name="unstable in warmup",
                stage="event",
                symptom="the loss rises while the learning rate is still rising",
                evidence=f"{evidence}; the warmup ends at {reading.place(warmup - 1)}",
                cause="max_lr is too high: the loss turned at the rate where training broke, and that is the bound",
                checks=checks,
            )
        ]
    return [
        reading.finding(
            line,
            name="swings",
            stage="event",
            symptom="the loss swings up and down, or runs away",
            evidence=evidence,
            cause="the learning rate is too high, or the numbers are too narrow",
            checks=checks,
        )
    ]


def climbs(reading: Reading) -> list[tuple[int, float, float]]:
    """(window of the lowest point, its loss, the highest after it) of each climb of the smoothed loss."""
    found: list[tuple[int, float, float]] = []
    low = high = up = 0
    smooth, floor = reading.smooth, 0.15 * reading.first_loss  # under it a run memorises, and relative noise is large
    noise = spread(np.diff(reading.loss))
    for i, value in enumerate(smooth):
        if not up and value < smooth[low]:
            low = i
        elif not up and value > RISE * max(smooth[low], floor) and value > smooth[low] + 2 * noise:
            up, high = 1, i
            found.append((low, float(smooth[low]), float(value)))
        elif up and value > smooth[high]:
            high = i
            found[-1] = (*found[-1][:2], float(value))
        elif up and value * RISE < smooth[high]:
            up, low = 0, i
    return found


def spikes(reading: Reading) -> list[Finding]:
    """The norm jumps and the loss with it."""
    norm = reading.column("grad_norm")[reading.made]
    found = [i for i in range(len(norm)) if _jumps(norm, reading.loss, i)]
    if not found:
        return []
    first = found[0]
    before = float(np.median(history(norm, first)))
    top = float(reading.loss[first : first + FOLLOWS + 1].max())
    return [
        reading.finding(
            int(reading.made[first]),
            name="spike",
            stage="event",
            symptom="the gradient's norm jumps, and the loss with it",
            evidence=f"norm {norm[first]:.3g}, {norm[first] / before:.0f} times its median of {before:.3g}; loss "
            f"{np.median(history(reading.loss, first)):.3g} before, up to {top:.3g} nats; {len(found)} such updates",
            cause="a bad batch or another kind of text there; if it comes again, a learning rate that is too high",
            checks=(
                "print the rows of that batch",
                "clip at a norm of 1, or lower where most updates are larger than that",
                "lower max_lr, or warm up for longer",
            ),
        )
    ]


def _jumps(norm: np.ndarray, loss: np.ndarray, i: int) -> bool:
    norms, losses = history(norm, i), history(loss, i)
    if not len(norms) or not len(losses) or not norm[i] > NORM_JUMP * np.median(norms):
        return False
    usual = float(np.median(losses[-20:]))
    rise = float(loss[i : i + FOLLOWS + 1].max()) - usual
    return rise > LOSS_JUMP * usual and rise > LOSS_SPREADS * spread(losses[-20:])


def scale(reading: Reading) -> list[Finding]:
    """The loss scale of FP16, which falls again and again or grows without end."""
    values = reading.column("loss_scale")
    known = np.flatnonzero(np.isfinite(values) & (values > 0))
    if len(known) < 2:
        return []
    log2 = np.log2(values[known])
    # where the loss itself is NaN, a falling scale is what follows, and no cause
    of_gradient = np.isfinite(reading.column("loss"))
    overflows = np.flatnonzero(reading.skipped & of_gradient & ~np.isfinite(reading.column("grad_norm")))
    row = longest_row(list(overflows))
    settled = log2[min(SETTLING, len(log2) - 1) - 1]
    late = overflows[overflows >= SETTLING]
    first_row = len(overflows) >= 6 and row >= 6  # six halvings in a row: a factor of 64 is no settling
    if first_row or (len(late) > HALVINGS and settled - log2[SETTLING:].min() > HALVINGS - 0.5):
        line = int(late[0] if len(late) and not first_row else overflows[0])
        return [
            reading.finding(
                line,
                name="loss scale collapses",
                stage="event",
                symptom="the loss scale falls again and again: gradients overflow FP16",
                evidence=f"from {values[known[0]]:.6g} down to {values[known].min():.6g}; {len(overflows)} updates "
                f"skipped, up to {row} in a row{_vanished_words(reading)}{_where(reading, line)}",
                cause="an activation or a gradient over 65,504, FP16's largest number",
                checks=(
                    "look at the largest activation and gradient of each module at that batch",
                    "run norms, softmax and sums in float32",
                    "train in BF16, and see whether it goes away",
                ),
            )
        ]
    if log2.max() - log2[0] >= DOUBLINGS:
        line = int(known[np.flatnonzero(log2 > log2[0])[0]])
        return [
            reading.finding(
                line,
                name="loss scale soars",
                stage="event",
                symptom="the loss scale grows without end: there is no gradient that could overflow",
                evidence=f"from {values[known[0]]:.6g} up to {values[known].max():.6g}{_vanished_words(reading)}",
                cause="gradients are 0 or nearly so: something cuts the graph, saturates, or overflowed before",
                checks=(
                    "print the gradient's norm of each parameter",
                    "look for clamps, where, detach and no_grad on the way from the weights to the loss",
                    "run one batch in float32: is the norm 0 there, too?",
                ),
            )
        ]
    return []


def _vanished_words(reading: Reading) -> str:
    line, count = _vanished(reading)
    return f"; the norm is 0 or nearly so in {count} updates, since {reading.place(line)}" if count else ""


def _vanished(reading: Reading) -> tuple[int, int]:
    """(first line, number) of updates with hardly any gradient."""
    norm = reading.column("grad_norm")[reading.made]
    usual = float(np.median(norm[norm > 0])) if (norm > 0).any() else 1.0
    gone = np.flatnonzero(norm <= VANISHED * min(usual, 1.0))
    return (int(reading.made[gone[0]]), len(gone)) if len(gone) else (0, 0)


def vanished(reading: Reading) -> list[Finding]:
    """A norm of 0, where no loss scale says it already."""
    line, count = _vanished(reading)
    if count < 3 or scale(reading):
        return []
    return [
        reading.finding(
            line,
            name="no gradient",
            stage="event",
            symptom="the gradient's norm is 0 or nearly so",
            evidence=f"in {count} of {len(reading.made)} updates",
            cause="something cuts the graph, saturates, or all is frozen; in FP16, gradients too small for it",
            checks=(
                "print the gradient's norm of each parameter",
                "look for clamps, where, detach and no_grad on the way from the weights to the loss",
            ),
        )
    ]


def not_finite(reading: Reading) -> list[Finding]:
    """NaN or infinity in the loss, in the norm where no loss scale explains it, or in the evaluation."""
    loss, norm = reading.column("loss"), reading.column("grad_norm")
    in_loss = reading.present("loss") & ~np.isfinite(loss)
    in_norm = reading.present("grad_norm") & ~np.isfinite(norm) & ~reading.present("loss_scale")
    in_eval = reading.present("eval_loss") & ~np.isfinite(reading.column("eval_loss"))
    lines = np.flatnonzero(in_loss | in_norm | in_eval)
    if not len(lines):
        return []
    line = int(lines[0])
    what = "loss" if in_loss[line] else "gradient's norm" if in_norm[line] else "evaluation's loss"
    only_eval = not (in_loss | in_norm).any()
    return [
        reading.finding(
            line,
            name="loss not finite",
            stage="event",
            symptom=f"the {what} is NaN or infinite",
            evidence=f"{len(lines)} of {reading.n} lines, up to {longest_row(list(lines))} in a row; "
            f"{moved_first(reading, line)}{_where(reading, line)}",
            cause=_why_not_finite(reading, line, lines, only_eval),
            checks=(
                "look at the batch: ids, labels, masks, numbers from files",
                "look at the learning rate and at the norm before it",
                "look at the loss scale; run the same batch in float32 or BF16",
                "hunt the first module whose output is not finite",
            ),
        )
    ]


def _why_not_finite(reading: Reading, line: int, lines: np.ndarray, only_eval: bool) -> str:
    if only_eval:
        return "training is finite and evaluation is not: a mask that leaves a position nothing to look at, or its data"
    if "weight" in str(reading.records[line].get("where", "")):
        return "a weight is not finite: it was so from the start, or an update made it so"
    if len(lines) == reading.n:
        return "the first weights or the data: no update was made before it"
    if len(lines) < 0.1 * reading.n and not reading.skipped[line:].all():
        return "the data: it goes away with the batch"
    return "numbers that grew too large: the learning rate, or FP16"


def moved_first(reading: Reading, line: int) -> str:
    """What left its usual range before ``line``, the earliest first."""
    if line == 0:
        return "nothing was logged before it"
    early: list[tuple[int, str]] = []
    for name, label in (("grad_norm", "the norm"), ("loss", "the loss")):
        values = reading.column(name)[:line]
        for i in range(max(0, line - LOOK_BACK), line):
            before = history(values, i)
            if len(before) and values[i] > max(NORM_JUMP * np.median(before), np.median(before) + 6 * spread(before)):
                early.append((i, f"{label} rose to {values[i]:.3g} at {reading.place(i)}"))
                break
    return "before it, " + ", then ".join(text for _, text in sorted(early)) if early else "nothing moved before it"


def _where(reading: Reading, line: int) -> str:
    where = reading.records[line].get("where")
    return f"; first in: {where}" if where else ""


def longest_row(lines: list[int]) -> int:
    """The most lines that follow each other.

    >>> longest_row([1, 2, 5, 6, 7])
    3
    """
    best = row = 0
    for i, line in enumerate(lines):
        row = row + 1 if i and line == lines[i - 1] + 1 else 1
        best = max(best, row)
    return best
