"""Updates that were not made, and numbers that are not finite."""

import numpy as np

from tinytrain.watch.doctor.finding import Finding
from tinytrain.watch.doctor.jumps import LOSS_SPREADS, NORM_JUMP
from tinytrain.watch.doctor.loss_scale import longest_row, overflowed, where
from tinytrain.watch.doctor.reading import Reading, history, spread

LOOK_BACK = 50
"""updates before a NaN in which something else may have moved first"""


def skipped(reading: Reading) -> Finding | None:
    """Updates that were not made although loss and gradient were finite, as far as the log tells."""
    explained = reading.not_finite("loss") | reading.not_finite("grad_norm") | overflowed(reading)
    lines = np.flatnonzero(reading.skipped & ~explained).tolist()
    if not lines:
        return None
    evidence = f"{len(lines)} of {reading.n} batches, up to {longest_row(lines)} in a row"
    reasons = [str(reading.records[i].get("reason") or "") for i in lines]
    if any("target" in reason for reason in reasons) or any(reading.records[i].get("tokens") == 0 for i in lines):
        return reading.finding(lines[0], "updates skipped", evidence)
    told = sorted(set(filter(None, reasons)))
    return reading.finding(
        lines[0],
        "updates skipped",
        evidence,
        symptom="updates that were not made",
        cause=f"the log says: {'; '.join(told[:3])}" if told else "the log gives no reason",
        checks=("look at the rule that skips them", "look at the first such batch", "is its loss or its norm odd?"),
    )


def not_finite(reading: Reading) -> Finding | None:
    """NaN or infinity in the loss, in the norm where no loss scale explains it, or in the evaluation."""
    in_loss, in_eval = reading.not_finite("loss"), reading.not_finite("eval_loss")
    in_norm = reading.not_finite("grad_norm") & ~reading.present("loss_scale")
    lines = np.flatnonzero(in_loss | in_norm | in_eval)
    if not len(lines):
        return None
    line = int(lines[0])
    what = "loss" if in_loss[line] else "gradient's norm" if in_norm[line] else "evaluation's loss"
    evidence = f"{len(lines)} of {reading.n} lines, up to {longest_row(lines.tolist())} in a row; "
    evidence += f"{moved_first(reading, line)}{where(reading, line)}"
    told = {"symptom": f"the {what} is NaN or infinite"}
    if cause := _why_not_finite(reading, line, lines, only_eval=not (in_loss | in_norm).any()):
        told["cause"] = cause
    return reading.finding(line, "loss not finite", evidence, **told)


def _why_not_finite(reading: Reading, line: int, lines: np.ndarray, only_eval: bool) -> str:
    if only_eval:
        return "training is finite and evaluation is not: a mask that leaves a position nothing to look at, or its data"
    if "weight" in str(reading.records[line].get("where", "")):
        return "a weight is not finite: it was so from the start, or an update made it so"
    if len(lines) == reading.n:
        return "the first weights or the data: no update was made before it"
    if len(lines) < 0.1 * reading.n and not reading.skipped[line:].all():
        return "the data: it goes away with the batch"
    return ""


def moved_first(reading: Reading, line: int) -> str:
    """What left its usual range before ``line``, the earliest first."""
    if line == 0:
        return "nothing was logged before it"
    early: list[tuple[int, str]] = []
    for name, label in (("grad_norm", "the norm"), ("loss", "the loss")):
        values = reading.column(name)[:line]
        for i in range(max(0, line - LOOK_BACK), line):
            before = history(values, i)
            if len(before) and values[i] > max(
                NORM_JUMP * np.median(before), np.median(before) + LOSS_SPREADS * spread(before)
            ):
                early.append((i, f"{label} rose to {values[i]:.3g} at {reading.place(i)}"))
                break
    return "before it, " + ", then ".join(text for _, text in sorted(early)) if early else "nothing moved before it"
