"""Laws about one update: its gradient, its rate, its rows, its types."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import torch

from tinytrain.course.laws.bench import MAX_LR, Bench, Run, quiet, said
from tinytrain.course.laws.line import Line, holds_if, untested
from tinytrain.course.laws.probe import (
    Batch,
    T,
    cut,
    distance,
    gradient_of,
    mistake_behind,
    model_with,
    ordinary,
    rows_of,
    true_loss,
)

CLOSE = {"fp32": 1e-5, "fp16": 2e-2}
"""how far a gradient may be off the true one, in its own length"""
UNEVEN = (T, 1, 5, 3, 2, 8)
"""targets of the rows of a batch in which every way of counting gives another number"""


def uneven(number: int, sizes: Sequence[int] = (1, 3, 2), *, length: int = T) -> list[Batch]:
    """A batch of rows of very different lengths, cut up unevenly."""
    return cut(rows_of(number, UNEVEN, length=length), sizes)


def without_targets(batch: Batch) -> Batch:
    return batch | {"labels": torch.full_like(batch["labels"], -100)}


def no_update(run: Run) -> Line:
    """Why nothing can be said about the updates of this run."""
    if run.ended:
        return holds_if(False, f"the run ended with {run.ended}")
    if not run.tape.updates and not run.moved and any(not torch.equal(a, run.weights[n]) for n, a in run.began.items()):
        return untested("the weights move, and no step() of a torch optimizer was seen")
    return untested("no update was seen: the weights are as they were")


NOT_FLOAT32 = untested("the weights are not float32, of which law 7 tells")


def in_float32(run: Run) -> bool:
    return all(value.dtype == torch.float32 for update in run.tape.updates for value in update.before.values())


def one_divisor(bench: Bench) -> list[Line]:
    """The gradient, the logged loss and the evaluation against sums over all targets."""
    always = lambda n: uneven(0)  # noqa: E731  # the same batch each time: in which order they come is law 4
    run = bench.run(always, total_steps=3)
    if not run.tape.updates and not run.ended:
        moved = any(not torch.equal(a, run.weights[name]) for name, a in run.began.items())
        return [no_update(run) if moved else holds_if(False, "fit() makes no update: the weights are as they were")]
    if not run.tape.updates:
        return [no_update(run)]
    if not in_float32(run):
        return [NOT_FLOAT32]
    lines = [_gradients(run, always)]
    if lines[0].verdict == "holds":
        empty = lambda n: [uneven(0)[0], without_targets(uneven(90)[1]), *uneven(0)[1:]]  # noqa: E731
        lines.append(_with_an_empty_part(bench.run(empty, total_steps=2), empty))
        lines.append(_logged(run))
    return [*lines, _evaluation(bench)]


def _gradients(run: Run, batches) -> Line:
    """Of each update, against the truth at the weights that it began with."""
    if run.ended:
        return no_update(run)
    worst, cause, before = 0.0, "", None
    for n, update in enumerate(run.tape.updates):
        wanted = gradient_of(update.before, true_loss, batches(n))
        gap = distance(update.gradient, wanted)
        if gap > CLOSE["fp32"] and not cause:
            cause = mistake_behind(update.gradient, update.before, batches(n))
            if n and before is not None and distance(update.gradient, wanted + before) < 1e-4:
                cause = "the gradient of the update before is still in it: call zero_grad() before the first backward()"
        worst, before = max(worst, gap), update.gradient
    return holds_if(
        worst <= CLOSE["fp32"],
        f"the gradient is off by {worst:.1e} of its length, over uneven micro-batches (asked: {CLOSE['fp32']:.0e})",
        cause or "the gradient is not that of the sum of all token losses over the number of all targets",
    )


def _with_an_empty_part(run: Run, batches) -> Line:
    if run.ended or len(run.tape.updates) < 2:
        what = run.ended or f"{len(run.tape.updates)} of 2 updates were made"
        return holds_if(False, f"a micro-batch without a target in the middle: {what}", EMPTY)
    gap = max(
        distance(u.gradient, gradient_of(u.before, true_loss, batches(n))) for n, u in enumerate(run.tape.updates)
    )
    number = f"with a micro-batch that has no target it is off by {gap:.1e}"
    return holds_if(gap <= CLOSE["fp32"], number, EMPTY)


EMPTY = "the mean over no target is 0 / 0, which is NaN: take sums, and divide once"


def _logged(run: Run) -> Line:
    if not run.log or "loss" not in run.log[0]:
        return untested('no trainer.log with "loss" in its lines: is what is logged what was optimized?')
    losses = [line["loss"] for line in run.log]
    wanted = [float(true_loss(model_with(u.before), uneven(0)).detach()) for u in run.tape.updates]
    if len(losses) != len(wanted):
        return holds_if(False, f"the log has {len(losses)} lines after {len(wanted)} updates")
    gap = max(abs(float(a) - b) for a, b in zip(losses, wanted, strict=True))
    if not gap <= 1e-4:
        ratio = float(losses[0]) / wanted[0]
        why = f"the first logged loss is {ratio:.3f} times the loss that was optimized, over the same targets"
    else:
        why = ""
    return holds_if(gap <= 1e-4, f"the logged loss is off by {gap:.1e} nats", why)


def _evaluation(bench: Bench) -> Line:
    run = bench.start()
    if not hasattr(run.trainer, "evaluate"):
        return untested("it has no evaluate(batches)")
    uneven_sets = [uneven(50), uneven(51, (2, 2, 2)), uneven(50, (1,) * 6)]
    line = _evaluated(run, uneven_sets, "three sets of uneven batches", WRONG_MEAN)
    if line.verdict != "holds":
        return line
    return _evaluated(run, [[*uneven(52), without_targets(uneven(53)[1])]], "a set with a batch without targets", EMPTY)


WRONG_MEAN = "it averages the means of batches, or counts padding; or it does not use the model"


def _evaluated(run: Run, sets: Sequence[list[Batch]], what: str, likely: str) -> Line:
    worst = 0.0
    for batches in sets:
        try:
            with quiet():
                found = float(run.trainer.evaluate([dict(batch) for batch in batches]))
        except (Exception, SystemExit) as error:
            return holds_if(False, f"evaluate, on {what}, stopped with {said(error)}")
        if found != found:
            return holds_if(False, f"evaluate, on {what}, gives NaN", likely)
        worst = max(worst, abs(found - float(true_loss(model_with(run.weights), batches).detach())))
    return holds_if(worst <= 1e-5, f"evaluate, on {what}, is off by {worst:.1e} nats per target", likely)


def however_you_cut_it(bench: Bench) -> list[Line]:
    """The same rows in other pieces, in another order, with more padding."""
    wanted, whole = None, rows_of(7, UNEVEN)
    order = [4, 1, 5, 0, 3, 2]
    ways = {
        "all at once": cut(whole, [6]),
        "row by row": cut(whole, [1] * 6),
        "four and two": cut(whole, [4, 2]),
        "in another order": cut({name: value[order] for name, value in whole.items()}, [1, 5]),
        "with more padding": cut({k: torch.nn.functional.pad(v, (0, 9), value=-100 if k == "labels" else 0)
                                  for k, v in whole.items()}, [2, 4]),
    }  # fmt: skip
    gaps = {}
    for way, batches in ways.items():
        run = bench.run(lambda n, batches=batches: batches, total_steps=1, warmup_steps=0)
        if run.ended or not run.tape.updates:
            return [no_update(run)]
        if not in_float32(run):
            return [NOT_FLOAT32]
        found = run.tape.updates[0].gradient
        wanted = found if wanted is None else wanted
        gaps[way] = distance(found, wanted)
    other = bench.run(lambda n: cut(rows_of(8, UNEVEN), [6]), total_steps=1, warmup_steps=0)
    if wanted is None or not wanted.norm() > 0 or not other.tape.updates:
        return [untested("the gradient is 0")]
    apart = distance(other.tape.updates[0].gradient, wanted)
    if not apart > 0.1:
        return [holds_if(False, f"other rows give the same gradient (off by {apart:.1e})", "it does not use its data")]
    way = max(gaps, key=gaps.__getitem__)
    return [
        holds_if(
            gaps[way] <= 1e-6,
            f"{way}, the gradient of the same rows is off by {gaps[way]:.1e} of its length (asked: 1e-06); "
            f"that of other rows by {apart:.1f}",
            "the divisor depends on the pieces: count the targets of the whole update first",
        )
    ]


def step_decides_rate(bench: Bench) -> list[Line]:
    """The first update is not lost; the rate rises to ``max_lr`` over the warmup, and never jumps or rises again."""
    total, warmup = 24, 6
    run = bench.run(total_steps=total, warmup_steps=warmup)
    rates = run.tape.rates
    if run.ended or (not run.moved and not any(rates)):
        return [no_update(run)] if run.ended or not rates else [_first(rates)]
    if len(rates) != total:
        return [
            holds_if(False, f"{len(rates)} updates, where total_steps={total}", "it does not end after total_steps")
        ]
    lines = [_first(rates), _warmup(rates, warmup), _after(rates, warmup)]
    pieces = bench.run(lambda n: cut(rows_of(n, [T] * 6), [1] * 6), total_steps=total, warmup_steps=warmup).tape.rates
    off = sum(a != b for a, b in zip(rates, pieces, strict=False)) + abs(len(pieces) - len(rates))
    why = "the schedule moves with each micro-batch, and not with each update"
    lines.append(holds_if(off == 0, f"cut in six, {off} of {total} rates are others", why))
    return lines


def _first(rates: list[float]) -> Line:
    why = "step / warmup_steps is 0 at the first update: use (step + 1) / warmup_steps"
    if not any(rates):
        why = "the rate stays 0: the count of updates never moves, so the warmup never starts"
    return holds_if(rates[0] > 0, f"the first rate is {rates[0]:.3g}", why)


def _warmup(rates: list[float], warmup: int) -> Line:
    rising = all(a < b for a, b in pairwise(rates[:warmup]))
    peak, at = max(rates), rates.index(max(rates))
    right = abs(peak / MAX_LR - 1) < 1e-6 and at in (warmup - 1, warmup)
    number = f"the highest rate is {peak / MAX_LR:.4g} of max_lr, at update {at + 1}, warmup_steps={warmup}"
    why = "the warmup is left out: the run begins at its highest rate" if at == 0 else "the rate does not reach max_lr"
    if rising and abs(peak / MAX_LR - 1) < 1e-6:
        why = "warmup_steps is not the number of updates in which the rate rises"
    return holds_if(rising and right and rates[0] <= 0.5 * MAX_LR, number, why)


def _after(rates: list[float], warmup: int) -> Line:
    climb = max((b - a for a, b in pairwise(rates[warmup:])), default=0.0) / MAX_LR
    jump = max(abs(b - a) for a, b in pairwise(rates)) / MAX_LR
    ok = climb <= 1e-9 and jump <= 1.5 / warmup
    why = "the rate rises again behind the warmup" if climb > 1e-9 else "the warmup and what follows do not meet"
    return holds_if(
        ok, f"behind it the rate rises by {max(climb, 0):.2g}, and the largest jump is {jump:.2g} of max_lr", why
    )


def order_of_rows(bench: Bench) -> list[Line]:
    """Update n is made of the rows of ``data[n]``, whatever the generators say."""
    wrong, cause, total = 0, "", 8
    for seed in (3, 4):
        run = bench.run(total_steps=total, seed=seed)
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
    if sum(found, Counter()) == sum(wanted, Counter()) or all(each in wanted for each in found):
        return "the batches are shuffled once more: data[n] already is the order, so take n = 0, 1, 2, …"
    if found[1:] == wanted[: len(found) - 1] or found[:-1] == wanted[1 : len(found)]:
        return "it is one batch late or early: the first update takes data[0]"
    if all(not (a - b) for a, b in zip(found, wanted, strict=False)):
        return "rows are left out: an update reads every micro-batch of data[n]"
    return "an update reads every row of data[n] once, and nothing else"


def _as_set(rows) -> Counter:
    return Counter(tuple(row) for row in rows)


def float32(bench: Bench) -> list[Line]:
    """Weights and moments, in every precision that the trainer takes."""
    lines = []
    for precision in bench.precisions:
        run = bench.run(total_steps=3, precision=precision)
        if run.ended or not run.moved or not run.tape.updates:
            lines.append(no_update(run))
            continue
        weights = {str(p.dtype) for p in run.model.parameters()}
        states = [state for u in run.tape.updates for state in u.optimizer.state.values()]
        moments = {str(v.dtype) for state in states for v in state.values() if torch.is_tensor(v) and v.dim() > 0}
        ok = weights | moments <= {"torch.float32", "torch.float64"}
        number = f"{precision}: weights {', '.join(sorted(weights))}; moments {', '.join(sorted(moments)) or 'none'}"
        why = "the model is cast: keep weights in float32 and let autocast cast what it computes"
        lines.append(holds_if(ok, number, why))
    return lines if len(bench.precisions) > 1 else [*lines, untested(f"fp16: {bench.no_fp16}")]


def strangers(bench: Bench) -> list[Line]:
    """What stands beside the ids in a batch reaches the model."""

    def masked(_n: int) -> list[Batch]:
        parts = cut(rows_of(20, [T] * 4), [1, 3])
        for part in parts:
            part["attention_mask"] = torch.ones_like(part["input_ids"])
            part["attention_mask"][0, :5] = 0
            part["labels"][0, :5] = -100
        return parts

    plain, run = (bench.run(batches, total_steps=2) for batches in (lambda _n: uneven(0), masked))
    if plain.ended or not plain.tape.updates:
        return [no_update(plain)]
    if not in_float32(plain):
        return [NOT_FLOAT32]
    if _furthest(plain, uneven(0)) > CLOSE["fp32"]:
        return [untested("the gradient is not the true one without a mask either, of which law 1 tells")]
    if run.ended or not run.tape.updates:
        return [holds_if(False, f"with attention_mask in a batch: {run.ended or 'no update is made'}")]
    gap = _furthest(run, masked(0))
    cause = mistake_behind(run.tape.updates[0].gradient, run.tape.updates[0].before, masked(0))
    number = f"padding on the left, hidden by attention_mask: the gradient is off by {gap:.1e}"
    return [holds_if(gap <= CLOSE["fp32"], number, cause)]


def _furthest(run: Run, batches: list[Batch]) -> float:
    return max(distance(u.gradient, gradient_of(u.before, true_loss, batches)) for u in run.tape.updates)


def clipping(bench: Bench) -> list[Line]:
    """The 2-norm of the whole gradient is bounded, and its direction is kept."""
    lines = []
    for precision in bench.precisions:
        free = bench.run(total_steps=1, precision=precision)
        if free.ended or not free.tape.updates or not float(free.tape.updates[0].gradient.norm()) > 0:
            lines.append(no_update(free))
            continue
        if not in_float32(free):
            return [NOT_FLOAT32]
        true = gradient_of(free.tape.updates[0].before, true_loss, ordinary(0))
        limit = 0.05 * float(free.tape.updates[0].gradient.norm())
        own = distance(free.tape.updates[0].gradient / free.tape.updates[0].gradient.norm(), true / true.norm())
        if own > CLOSE[precision]:
            lines.append(untested(f"{precision}: the unclipped gradient is not the true one, of which law 1 tells"))
            continue
        run = bench.run(total_steps=1, max_grad_norm=limit, precision=precision)
        if run.ended or not run.tape.updates:
            lines.append(no_update(run))
            continue
        found = run.tape.updates[0].gradient
        off = distance(found / found.norm().clamp(min=1e-30), true / true.norm())
        length = float(found.norm()) / limit
        ok = abs(length - 1) < 1e-3 and off <= 2 * CLOSE[precision]
        number = (
            f"{precision}: the clipped gradient is {length:.3g} times the limit long, its direction off by {off:.1e}"
        )
        lines.append(holds_if(ok, number, _likely_clip(length, limit, free.tape.updates[0].gradient)))
    if len(bench.precisions) == 1:
        lines.append(untested(f"fp16: {bench.no_fp16}"))
    return lines


def _likely_clip(length: float, limit: float, free: torch.Tensor) -> str:
    if abs(length * limit / float(free.norm()) - 1) < 1e-3:
        return "it is not clipped before step(): clip_grad_norm_ comes between backward() and step()"
    if length < 0.01:
        return "it was clipped while still multiplied by the loss scale: scaler.unscale_(optimizer) comes first"
    return "each tensor, or each number, is clipped by itself: clip_grad_norm_ takes all parameters together"


def decay(bench: Bench) -> list[Line]:
    """Only matrices decay, and every trained weight is in one group."""
    run = bench.run(total_steps=1)
    if run.ended or not run.tape.updates:
        return [no_update(run)]
    names = {id(p): name for name, p in run.model.named_parameters()}
    groups = [(p, g.get("weight_decay", 0)) for g in run.tape.updates[0].optimizer.param_groups for p in g["params"]]
    if left := sorted(set(names) - {id(p) for p, _ in groups}):
        return [holds_if(False, f"in no group, so never trained: {', '.join(names[i] for i in left)}")]
    wrong = [names[id(p)] for p, share in groups if share and p.dim() < 2 and id(p) in names]
    if not any(share for _, share in groups):
        return [untested("nothing decays")]
    why = "one group for all parameters: put what has one dimension into a group with weight_decay=0"
    return [holds_if(not wrong, f"norms and biases that decay: {', '.join(wrong) or 'none'}", why)]
