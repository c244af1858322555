"""Laws 6, 8 and 10: a run that is hit by a bad batch, looked at, handed what cannot work."""

import random
from collections.abc import Callable

import torch

from tinytrain.course.laws.bench import Bench, CannotMakeError, Run, quiet, said
from tinytrain.course.laws.common import no_update, uneven
from tinytrain.course.laws.line import HOLDS, Line, holds_if, untested
from tinytrain.course.laws.probe import BAD_BACKWARD, BAD_FORWARD, Batch, V, ordinary, spoiled
from tinytrain.course.laws.resume import KILLED
from tinytrain.course.laws.tape import Rows, furthest, generator_states, same

UPDATES = 7


def bad_steps(bench: Bench) -> list[Line]:
    """A run with bad batches in it is, update for update and bit for bit, the run without them."""
    lines = []
    for precision in bench.precisions:
        clean = bench.run(_same, total_steps=UPDATES, precision=precision)
        if clean.ended or not clean.moved:
            return [no_update(clean)]
        for token, what in ((BAD_FORWARD, "a loss"), (BAD_BACKWARD, "a gradient")):
            batch = lambda n, token=token: spoiled(_same(n), token) if n in (0, 3, 4) else _same(n)  # noqa: E731
            run = bench.run(batch, total_steps=UPDATES, precision=precision)
            lines.append(_unharmed(f"{precision}, {what} that is not finite, three times", clean, run, precision))
            if lines[-1].verdict != HOLDS:
                return lines
    return [*lines, _counted(bench), _gives_up(bench)]


def _same(_n: int) -> list[Batch]:
    """One batch for all numbers: in which order they come is law 4."""
    return ordinary(0)


def _unharmed(what: str, clean: Run, run: Run, precision: str) -> Line:
    gap, updates = furthest(clean.weights, run.weights), run.tape.updates
    number = f"{what}: weights at the end differ by {gap:.2g} from a run without those batches"
    if any(not update.gradient.isfinite().all() for update in updates):
        return holds_if(False, number, "step() is called though the loss or the gradient is not finite")
    if run.ended:
        return holds_if(False, f"{what}: the run ended with {run.ended}", "skip the update and go on; count it")
    if len(updates) != UPDATES:
        return holds_if(
            False, f"{what}: {len(updates)} updates, and not {UPDATES}", "it counts batches, and not updates"
        )
    off = sum(a != b for a, b in zip(clean.tape.rates, run.tape.rates, strict=True))
    if off:
        return holds_if(
            False, f"{what}: {off} of {UPDATES} rates are others", "the schedule moves on in a skipped update"
        )
    if precision == "fp16":  # the scale is another one, so numbers are rounded elsewhere
        why = "something moves in a skipped update, or the gradient still holds the loss scale when it is clipped"
        return holds_if(gap <= 1e-2, number, why)
    return holds_if(gap == 0, number, "something moves in a skipped update: a moment, or a weight")


def _counted(bench: Bench) -> Line:
    run = bench.run(lambda n: spoiled(ordinary(n), BAD_FORWARD) if n == 1 else ordinary(n), total_steps=3)
    log = run.log
    if not log or "skipped" not in log[0]:
        return untested('no trainer.log with "skipped" in its lines: is the bad batch reported?')
    marks = [bool(line.get("skipped")) for line in log]
    return holds_if(
        sorted(marks) == [False, False, False, True],
        f"one bad batch of four: skipped in the log {marks.count(True)} times, in {len(marks)} lines",
        'a line for each batch that was taken, with "skipped" true where nothing was updated',
    )


def _gives_up(bench: Bench) -> Line:
    run = bench.run(lambda n: spoiled(ordinary(n), BAD_FORWARD), total_steps=3)
    raised = run.ended not in ("", "endless", "pulled")
    end = run.ended if raised else "it had not ended" if run.ended else "it ended without a word"
    number = f"bad batches only: after {min(len(run.data.asked), Rows.MOST)} of them {end}"
    return holds_if(raised, number, f"count those in a row, and raise: within {Rows.MOST} of them")


def looking(bench: Bench) -> list[Line]:
    """``evaluate`` is called before each batch, in a run with dropout; then once with the modes looked at."""
    if not hasattr(bench.start().trainer, "evaluate"):
        return [untested("it has no evaluate(batches)")]
    blind = bench.run(**KILLED)
    if blind.ended or not blind.moved:
        return [no_update(blind)]
    causes: list[str] = []

    def look(_n: int) -> None:
        run.model.norm.eval()  # as somebody may have frozen it; it computes the same in both modes
        before, modes, generators = run.state, [m.training for m in run.model.modules()], generator_states()
        gradients = _gradients(run)
        with quiet():
            run.trainer.evaluate(uneven(60))
        now, after = [m.training for m in run.model.modules()], generator_states()
        if modes != now and not any(now):
            causes.append("the model is left in eval mode, so its dropout stays off: put its mode back")
        elif modes != now:
            causes.append("all modules are put into one mode, and one was in eval mode before: keep the mode of each")
        if moved := [name for name in after if after[name] != generators[name]]:
            why = "is the model in eval mode while it looks?" if "torch's" in moved else "does it shuffle?"
            causes.append(f"{' and '.join(moved)} generator moves: {why}")
        if not same(before, run.state):
            causes.append("evaluate changes weights, or a buffer: is the model in eval mode while it looks?")
        if not same(gradients, _gradients(run)):
            causes.append("evaluate changes gradients: they are those of the training")

    run = bench.start(**KILLED, at=look)
    bench.go(run)
    if run.ended:
        return [holds_if(False, f"with an evaluation before each batch the run ended with {run.ended}")]
    gap = furthest(blind.state, run.state)
    ok = gap == 0 and not causes
    number = f"with {len(run.data.asked)} evaluations in between, weights at the end differ by {gap:.2g}"
    likely = causes[0] if causes else "evaluate leaves something behind: a gradient, or a buffer"
    return [holds_if(ok, number, likely)] if not ok or _depends_on_draws(bench) else [BLIND]


def _gradients(run: Run) -> dict[str, torch.Tensor]:
    return {name: p.grad.detach().clone() for name, p in run.model.named_parameters() if p.grad is not None}


BLIND = untested("one draw from torch's generator before each batch changes nothing: is dropout ever on?")


def _depends_on_draws(bench: Bench) -> bool:
    """A control: the run does depend on torch's generator, or its being the same would prove nothing."""

    def draw(_n: int) -> None:
        torch.rand(1), random.random()

    return not same(bench.run(**KILLED).weights, bench.run(**KILLED, at=draw).weights)


def refused(bench: Bench) -> list[Line]:
    """What cannot work is refused with an error, and early."""
    lines = []
    run = bench.start()
    if hasattr(run.trainer, "resume"):
        lines.append(
            _raises("resume() in an empty folder", run.trainer.resume, "it begins anew as if nothing were lost")
        )
        folder = bench.new_folder()
        bench.run(total_steps=3, folder=folder)
        if bench.run(total_steps=3, folder=folder, resume=True).ended == "":
            other = bench.start(total_steps=3, folder=folder, width=10)
            why = "is strict=False used, or are shapes passed over?"
            lines.append(_raises("a checkpoint of a wider model", other.trainer.resume, why))
    too_long = lambda: bench.start(total_steps=4, warmup_steps=9)  # noqa: E731
    lines.append(_raises("warmup_steps=9 with total_steps=4", too_long, "check the settings when the trainer is made"))

    def outside() -> None:
        def batch(n: int) -> list[Batch]:
            parts = ordinary(n)
            parts[0]["labels"][0, 5] = V + 3
            return parts

        run = bench.run(batch, total_steps=2)
        if run.ended not in ("", "pulled", "endless"):
            raise ValueError(run.ended)

    lines.append(_raises(f"a label of {V + 3} where the vocabulary ends at {V - 1}", outside, "is it clamped?"))
    return lines


def _raises(what: str, call: Callable[[], object], likely: str) -> Line:
    try:
        with quiet():
            call()
    except CannotMakeError as error:
        return holds_if(True, f"{what}: {said(error.__cause__ or error)[:90]}")
    except (Exception, SystemExit) as error:
        return holds_if(True, f"{what}: {said(error)[:90]}")
    return holds_if(False, f"{what}: nothing is said", likely)
