"""Laws 4 and 9: which rows an update is made of, and what of them reaches the model."""

from collections import Counter

import torch

from tinytrain.course.laws.bench import Bench, quiet, said
from tinytrain.course.laws.common import (
    CLOSE,
    NOT_FLOAT32,
    always_uneven,
    furthest_off,
    in_float32,
    in_six,
    no_update,
    uneven,
)
from tinytrain.course.laws.line import Line, holds_if, untested
from tinytrain.course.laws.probe import Batch, T, cut, mistake_behind, model_with, ordinary, rows_of, true_loss
from tinytrain.course.laws.rate import LONG


def order_of_rows(bench: Bench) -> list[Line]:
    """Update n is made of the rows of ``data[n]``, whatever the generators say."""
    wrong, cause, total = 0, "", LONG["total_steps"]
    for batch, seed in ((ordinary, 2), (in_six, 3)):  # the runs of law 3
        run = bench.run(batch, seed=seed, **LONG)
        if run.ended or not run.moved or not run.tape.updates:
            return [no_update(run)]
        wanted = [_as_set(row for part in ordinary(n) for row in part["input_ids"].tolist()) for n in range(total)]
        found = [_as_set(update.rows) for update in run.tape.updates]
        missed = sum(a != b for a, b in zip(found, wanted, strict=False)) + abs(len(found) - total)
        if missed and not cause:
            cause = _likely_order(found, wanted)
        wrong += missed
    number = f"{wrong} of {2 * total} updates are made of other rows than those of data[n]"
    return [holds_if(wrong == 0, number, cause)]


def _likely_order(found: list[Counter], wanted: list[Counter]) -> str:
    period = next((n for n in range(1, len(found)) if found[n:] == found[:-n]), 0)
    if period and found[:period] == wanted[:period]:
        return f"after data[{period - 1}] it begins again with data[0]: data[n] has a batch for every n"
    if sum(found, Counter()) == sum(wanted, Counter()) or all(each in wanted for each in found):
        return "the batches are shuffled once more: data[n] already is the order, so take n = 0, 1, 2, …"
    if found[1:] == wanted[: len(found) - 1] or found[:-1] == wanted[1 : len(found)]:
        return "it is one batch late or early: the first update takes data[0]"
    if all(not (a - b) for a, b in zip(found, wanted, strict=False)):
        return "rows are left out: an update reads every micro-batch of data[n]"
    return "an update reads every row of data[n] once, and nothing else"


def _as_set(rows) -> Counter:
    return Counter(tuple(row) for row in rows)


def masked(_n: int) -> list[Batch]:
    """Padding on the left, which attention_mask hides."""
    parts = cut(rows_of(20, [T] * 4), [1, 3])
    for part in parts:
        part["attention_mask"] = torch.ones_like(part["input_ids"])
        part["attention_mask"][0, :5] = 0
        part["labels"][0, :5] = -100
    return parts


def packed(_n: int) -> list[Batch]:
    """Two or three documents in each row, which doc_ids keeps apart."""
    parts = cut(rows_of(21, [T] * 4), [1, 3])
    for i, part in enumerate(parts):
        at = torch.arange(T).expand_as(part["input_ids"])
        part["doc_ids"] = (at >= 4 + i).long() + (at >= 9)
        part["labels"][:, [3 + i, 8]] = -100  # what comes next there is of another document
    return parts


BESIDE = {"padding on the left, hidden by attention_mask": masked, "packed documents, kept apart by doc_ids": packed}


def strangers(bench: Bench) -> list[Line]:
    """What stands beside the ids in a batch reaches the model, in training and in an evaluation."""
    plain = bench.run(always_uneven, total_steps=3)
    if plain.ended or not plain.tape.updates:
        return [no_update(plain)]
    if not in_float32(plain):
        return [NOT_FLOAT32]
    if furthest_off(plain, uneven(0)) > CLOSE["fp32"]:
        return [untested("the gradient is not the true one without a mask either, of which law 1 tells")]
    lines = []
    for what, batches in BESIDE.items():
        run = bench.run(batches, total_steps=2)
        if run.ended or not run.tape.updates:
            lines.append(holds_if(False, f"{what}: {run.ended or 'no update is made'}"))
            continue
        gap = furthest_off(run, batches(0))
        cause = mistake_behind(run.tape.updates[0].gradient, run.tape.updates[0].before, batches(0))
        lines.append(holds_if(gap <= CLOSE["fp32"], f"{what}: the gradient is off by {gap:.1e}", cause))
    return [*lines, _evaluated(bench)]


def _evaluated(bench: Bench) -> Line:
    run = bench.start()
    if not hasattr(run.trainer, "evaluate"):
        return untested("it has no evaluate(batches)")
    gaps = {}
    for what, batches in {"uneven batches": always_uneven, **BESIDE}.items():
        try:
            with quiet():
                found = float(run.trainer.evaluate([dict(batch) for batch in batches(0)]))
        except (Exception, SystemExit) as error:
            return holds_if(False, f"evaluate, on {what}, stopped with {said(error)}")
        gaps[what] = abs(found - float(true_loss(model_with(run.weights), batches(0)).detach()))
    if not gaps.pop("uneven batches") <= 1e-5:
        return untested("evaluate is wrong without them as well, of which law 1 tells")
    off = [what for what, gap in gaps.items() if not gap <= 1e-5]
    number = f"evaluate, on {' and '.join(off or gaps)}, is off by {max(gaps.values()):.1e} nats per target"
    return holds_if(not off, number, "evaluate hands the model less than training does")
