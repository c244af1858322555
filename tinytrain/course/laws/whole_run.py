"""Laws about a whole run: resumed, hit by a bad batch, looked at, handed what cannot work."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tinytrain.course.laws.bench import Bench, Run, pull_at, quiet, said
from tinytrain.course.laws.line import HOLDS, Line, holds_if, untested
from tinytrain.course.laws.probe import BAD_BACKWARD, BAD_FORWARD, Batch, V, ordinary, spoiled
from tinytrain.course.laws.tape import Update, furthest, generator_states, same
from tinytrain.course.laws.update import no_update, uneven

UPDATES = 7
Child = Callable[[Path], str]
"""runs the trainer in a child process, with ``KILLED`` as settings, until it is killed; returns how that went"""
KILLED: dict[str, Any] = {"total_steps": UPDATES, "dropout": 0.2}


def resumed(bench: Bench, child: Child | None = None) -> list[Line]:
    """Stopped, and taken up by a new trainer whose weights and generators are others: nothing may differ."""
    probe = bench.start()
    if not hasattr(probe.trainer, "resume"):
        return [untested("it has no resume()")]
    lines = []
    for precision in bench.precisions:
        settings = KILLED | {"precision": precision}
        whole = bench.run(**settings)
        if whole.ended or not whole.moved:
            return [no_update(whole)]
        if len({str(sorted(update.rows)) for update in whole.tape.updates}) < 2:
            return [untested("it reads the same rows in every update: its place in the data cannot be seen")]
        for stops in ((4,), (1, 5)):
            again, trouble = _stopped(bench, stops, **settings)
            what = f"{precision}, stopped after update {' and '.join(map(str, stops))}"
            lines.append(_compared(what, whole, again, trouble))
            if lines[-1].verdict != HOLDS:
                return lines
        lines.append(_after_a_skip(bench, precision))
    lines.append(_killed(bench, child) if child else untested("kill -9: that needs a module that a child can import"))
    return [line for line in lines if line is not None]


def _stopped(bench: Bench, stops: tuple[int, ...], batch=ordinary, **settings) -> tuple[Run, str]:
    folder = bench.folder()
    for number, stop in enumerate(stops):
        run = bench.run(batch, folder=folder, at=pull_at(stop), resume=number > 0, **_other(number), **settings)
        if run.ended != "pulled":
            return run, f"it did not get to batch {stop}: {run.ended or 'it ended'}"
    run = bench.run(batch, folder=folder, resume=True, **_other(len(stops)), **settings)
    return run, run.ended and f"resumed, it ended with {run.ended}"


def _other(number: int) -> dict[str, int]:
    """Another start for each process: its weights and its generators are not those of the first."""
    return {} if number == 0 else {"model_seed": 40 + number, "seed": 50 + number}


def _compared(what: str, whole: Run, again: Run, trouble: str) -> Line:
    if trouble:
        return holds_if(False, f"{what}: {trouble}", "every checkpoint must hold what resume() takes up")
    gap, fork = furthest(whole.weights, again.weights), _fork(whole.tape.updates, again.tape.updates)
    ok = gap == 0 and not fork
    number = f"{what} and resumed: weights at the end differ by {gap:.2g}"
    if ok and whole.log and again.log:
        tail = [line.get("loss") for line in whole.log][-len(again.tape.updates) :]
        resumed_tail = [line.get("loss") for line in again.log][-len(again.tape.updates) :]
        ok, fork = tail == resumed_tail, "the logged losses differ, though the updates are the same"
    return holds_if(ok, number, fork or "the updates are the same, and something behind them changes the weights")


def _fork(whole: list[Update], again: list[Update]) -> str:
    """What differs first, which is what was not restored."""
    if not again:
        return "nothing was left to do: the count of updates is not that of the checkpoint"
    start = next((n for n, update in enumerate(whole) if same(update.before, again[0].before)), None)
    if start is None:
        return "the weights are not those of the checkpoint"
    for a, b in zip(whole[start:], again, strict=False):
        if not same(a.before, b.before):
            return "the optimizer's moments are not restored: save and load optimizer.state_dict()"
        if sorted(a.rows) != sorted(b.rows):
            first = sorted(b.rows) == sorted(whole[0].rows)
            place = "it begins again with data[0]" if first else "it is counted in updates, and not in batches taken"
            return f"the place in the data is not restored: {place}"
        if a.rate != b.rate:
            return f"the count of updates is not restored: the rate is {b.rate:.3g} where it was {a.rate:.3g}"
        if a.scaled != b.scaled and torch.equal(a.gradient, b.gradient):
            return "the loss scale is not restored: save and load scaler.state_dict()"
        if not torch.equal(a.gradient, b.gradient):
            return "the generators are not restored: dropout draws other numbers. Put them back last, in fit()"
    if len(whole) - start != len(again):
        return f"{len(again)} updates were left to do, and not {len(whole) - start}: their count is not restored"
    return ""


def _after_a_skip(bench: Bench, precision: str) -> Line | None:
    """A bad batch before the stop: batches and updates are no longer the same number, and the loss scale has moved."""

    def batch(n: int) -> list[Batch]:
        return spoiled(ordinary(n), BAD_BACKWARD) if n == 2 else ordinary(n)

    settings = KILLED | {"precision": precision}
    whole = bench.run(batch, **settings)
    made = [update for update in whole.tape.updates if update.gradient.isfinite().all()]
    if whole.ended or len(made) != UPDATES or len(whole.tape.updates) != UPDATES:
        return None  # law 6 tells of it
    again, trouble = _stopped(bench, (5,), batch, **settings)
    return _compared(f"{precision}, with a bad batch before, stopped after batch 5", whole, again, trouble)


def _killed(bench: Bench, child: Child) -> Line:
    """A real one: a child process is killed while it writes a checkpoint, and this process goes on from its folder."""
    whole, folder = bench.run(**KILLED), bench.folder()
    how = child(folder)
    if not how.startswith("killed"):
        return untested(f"kill -9: {how}")
    again = bench.run(folder=folder, resume=True, **_other(9), **KILLED)
    if again.ended:
        why = "a save that is cut off takes the last good one with it: write to another name, then os.replace"
        return holds_if(False, f"{how}; resumed, it ended with {again.ended}", why)
    gap = furthest(whole.weights, again.weights)
    done = UPDATES - len(again.tape.updates)
    why = "the checkpoint in the folder is not that of an update that was made whole"
    return holds_if(gap == 0, f"{how}; resumed after update {done}, weights at the end differ by {gap:.2g}", why)


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
        return holds_if(gap <= 1e-2, number, "something moves in a skipped update")
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
    end = run.ended if raised else "it never ended" if run.ended else "it ended without a word"
    return holds_if(
        raised, f"bad batches only: after {len(run.data.asked)} of them {end}", "count those in a row, and raise"
    )


def looking(bench: Bench) -> list[Line]:
    """``evaluate`` is called before each batch, in a run with dropout; then once with the modes looked at."""
    if not hasattr(bench.start().trainer, "evaluate"):
        return [untested("it has no evaluate(batches)")]
    blind = bench.run(total_steps=UPDATES, dropout=0.2)
    if blind.ended or not blind.moved:
        return [no_update(blind)]
    causes: list[str] = []

    def look(_n: int) -> None:
        before, modes, generators = run.weights, [m.training for m in run.model.modules()], generator_states()
        with quiet():
            run.trainer.evaluate(uneven(60))
        after = generator_states()
        if modes != [m.training for m in run.model.modules()]:
            causes.append("the model is left in eval mode, so its dropout stays off: put its mode back")
        if moved := [name for name in after if after[name] != generators[name]]:
            why = "is the model in eval mode while it looks?" if "torch's" in moved else "does it shuffle?"
            causes.append(f"{' and '.join(moved)} generator moves: {why}")
        if not same(before, run.weights):
            causes.append("evaluate changes weights")

    run = bench.start(total_steps=UPDATES, dropout=0.2, at=look)
    bench.go(run)
    if run.ended:
        return [holds_if(False, f"with an evaluation before each batch the run ended with {run.ended}")]
    gap = furthest(blind.weights, run.weights)
    ok = gap == 0 and not causes
    number = f"with {len(run.data.asked)} evaluations in between, weights at the end differ by {gap:.2g}"
    likely = causes[0] if causes else "evaluate leaves something behind: a gradient, or a buffer"
    return [holds_if(ok, number, likely)] if not ok or _depends_on_draws(bench) else [BLIND]


BLIND = untested("one draw from torch's generator before each batch changes nothing: is dropout ever on?")


def _depends_on_draws(bench: Bench) -> bool:
    """A control: the run does depend on torch's generator, or its being the same would prove nothing."""

    def draw(_n: int) -> None:
        torch.rand(1), random.random()

    blind, drawn = (bench.run(total_steps=UPDATES, dropout=0.2, at=at) for at in (None, draw))
    return not same(blind.weights, drawn.weights)


def refused(bench: Bench) -> list[Line]:
    """What cannot work is refused with an error, and early."""
    lines = []
    run = bench.start()
    if hasattr(run.trainer, "resume"):
        lines.append(
            _raises("resume() in an empty folder", run.trainer.resume, "it begins anew as if nothing were lost")
        )
        folder = bench.folder()
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
    except (Exception, SystemExit) as error:
        return holds_if(True, f"{what}: {said(error)[:90]}")
    return holds_if(False, f"{what}: nothing is said", likely)
