"""Laws 1 and 2: what is summed, and what it is divided by."""

from collections.abc import Sequence

import torch

from tinytrain.course.laws.bench import Bench, Run, quiet, said
from tinytrain.course.laws.common import (
    CLOSE,
    NOT_FLOAT32,
    UNEVEN,
    always_uneven,
    in_float32,
    no_update,
    uneven,
    without_targets,
)
from tinytrain.course.laws.line import HOLDS, Line, holds_if, untested
from tinytrain.course.laws.probe import (
    Batch,
    cut,
    distance,
    gradient_of,
    mistake_behind,
    model_with,
    rows_of,
    true_loss,
)


def one_divisor(bench: Bench) -> list[Line]:
    """The gradient, the logged loss and the evaluation against sums over all targets."""
    run = bench.run(always_uneven, total_steps=3)
    if not run.tape.updates and not run.ended:
        moved = any(not torch.equal(a, run.weights[name]) for name, a in run.began.items())
        return [no_update(run) if moved else holds_if(False, "fit() makes no update: the weights are as they were")]
    if not run.tape.updates:
        return [no_update(run)]
    if not in_float32(run):
        return [NOT_FLOAT32]
    lines = [_gradients(run, always_uneven)]
    if lines[0].verdict == HOLDS:
        empty = lambda n: [uneven(0)[0], without_targets(uneven(90)[1]), *uneven(0)[1:]]  # noqa: E731
        lines.append(_with_an_empty_part(bench.run(empty, total_steps=2), empty))
    return [*lines, _logged(run), _evaluation(bench)]


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
    if run.ended or not run.log or "loss" not in run.log[0]:
        return untested('no trainer.log with "loss" in its lines: is what is logged what was optimized?')
    losses = [line["loss"] for line in run.log]
    wanted = [float(true_loss(model_with(u.before), uneven(0)).detach()) for u in run.tape.updates]
    if len(losses) != len(wanted):
        return holds_if(False, f"the log has {len(losses)} lines after {len(wanted)} updates")
    gap = max(abs(float(a) - b) for a, b in zip(losses, wanted, strict=True))
    if not gap <= 1e-4:
        ratio = float(losses[0]) / wanted[0]
        why = f"the first logged loss is {ratio:.3f} times the loss of all targets of that update"
    else:
        why = ""
    return holds_if(gap <= 1e-4, f"the logged loss is off by {gap:.1e} nats", why)


def _evaluation(bench: Bench) -> Line:
    run = bench.start()
    if not hasattr(run.trainer, "evaluate"):
        return untested("it has no evaluate(batches)")
    uneven_sets = [uneven(50), uneven(51, (2, 2, 2)), uneven(50, (1,) * 6)]
    line = _evaluated(run, uneven_sets, "three sets of uneven batches", WRONG_MEAN)
    if line.verdict != HOLDS:
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
        run = bench.run(lambda n, batches=batches: batches, total_steps=2)
        if run.ended or not run.tape.updates:
            return [no_update(run)]
        if not in_float32(run):
            return [NOT_FLOAT32]
        found = run.tape.updates[0].gradient
        wanted = found if wanted is None else wanted
        gaps[way] = distance(found, wanted)
    other = bench.run(lambda n: cut(rows_of(8, UNEVEN), [6]), total_steps=2)
    if wanted is None or not wanted.norm() > 0 or not other.tape.updates:
        return [untested("the gradient is 0")]
    apart = distance(other.tape.updates[0].gradient, wanted)
    if not apart > 0.1:
        return [holds_if(False, f"other rows give the same gradient (off by {apart:.1e})", "it does not use its data")]
    way = max(gaps, key=gaps.__getitem__)
    ok = gaps[way] <= 1e-6
    number = f"{way}, the gradient of the same rows is off by {gaps[way]:.1e} of its length (asked: 1e-06)"
    why = "the divisor depends on the pieces: count the targets of the whole update first"
    return [holds_if(ok, number + (f"; that of other rows by {apart:.1f}" if ok else ""), why)]
