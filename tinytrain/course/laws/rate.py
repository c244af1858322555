"""Law 3: the learning rate of each update."""

from itertools import pairwise

from tinytrain.course.laws.bench import MAX_LR, Bench, Run
from tinytrain.course.laws.common import in_six, no_update
from tinytrain.course.laws.line import HOLDS, Line, holds_if, untested

LONG = {"total_steps": 24, "warmup_steps": 6}
"""of the longest run that is made; law 4 reads its rows"""


def step_decides_rate(bench: Bench) -> list[Line]:
    """The first update is not lost; the rate rises to ``max_lr`` over the warmup, and never jumps or rises again."""
    run = bench.run(**LONG)
    rates, total, warmup = run.tape.rates, LONG["total_steps"], LONG["warmup_steps"]
    if run.ended or (not run.moved and not any(rates)):
        return [no_update(run)] if run.ended or not rates else [_first(rates)]
    if len(rates) != total:
        return [
            holds_if(False, f"{len(rates)} updates, where total_steps={total}", "it does not end after total_steps")
        ]
    together = _together(run)
    if together.verdict != HOLDS:
        return [together]
    lines = [_first(rates), _warmup(rates, warmup), _after(rates, warmup), together, _logged(run)]
    pieces = bench.run(in_six, seed=3, **LONG).tape.rates
    off = sum(a != b for a, b in zip(rates, pieces, strict=False)) + abs(len(pieces) - len(rates))
    why = "the schedule moves with each micro-batch, and not with each update"
    lines.append(holds_if(off == 0, f"cut in six, {off} of {total} rates are others", why))
    return lines


def _together(run: Run) -> Line:
    """Groups may have rates of their own, in one proportion for the whole run."""
    first, apart = run.tape.updates[0], set()
    for update in run.tape.updates:
        for name, rate in update.rates.items():
            begun = first.rates.get(name, 0.0) / (first.rate or 1.0)
            if not (update.rate == 0 or (rate > 0 and (first.rate == 0 or abs(rate / update.rate - begun) < 1e-6))):
                apart.add(name)
    number = f"weights whose rate does not follow that of the others: {', '.join(sorted(apart)) or 'none'}"
    return holds_if(not apart, number, "the rate is set in one group alone: set it in every group of every optimizer")


def _logged(run: Run) -> Line:
    log = [line for line in run.log or [] if not line.get("skipped")]
    if not log or any("lr" not in line for line in log) or len(log) != len(run.tape.updates):
        return untested('no trainer.log with "lr" in a line for each update: is what is logged what was used?')
    logged, used = [float(line["lr"]) for line in log], run.tape.rates
    off = sum(not abs(a - b) <= 1e-6 * max(used) for a, b in zip(logged, used, strict=True))
    late = sum(not abs(a - b) <= 1e-6 * max(used) for a, b in zip(logged, used[1:], strict=False))
    why = "log the rate that the update was made with" if late else "what is logged is the rate of the update to come"
    return holds_if(off == 0, f"{off} of {len(used)} rates in the log are not those of their updates", why)


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
