"""Law 5: a run that was stopped and resumed is the run that was not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tinytrain.course.laws.bench import Bench, Run
from tinytrain.course.laws.common import no_update
from tinytrain.course.laws.line import HOLDS, Line, holds_if, untested
from tinytrain.course.laws.probe import BAD_BACKWARD, BAD_FORWARD, Batch, ordinary, spoiled
from tinytrain.course.laws.tape import Update, furthest, same

UPDATES = 12
"""more than nine: step_10 comes before step_9 where names are sorted as text"""
Weights = dict[str, torch.Tensor]
Child = Callable[[Path], str]
"""runs the trainer in a child process, with ``KILLED`` as settings, until it is killed; returns how that went"""
KILLED: dict[str, Any] = {"total_steps": UPDATES, "dropout": 0.2}


def resumed(bench: Bench, child: Child | None = None) -> list[Line]:
    """Stopped, and taken up by a new trainer whose weights and generators are others: nothing may differ."""
    probe = bench.start()
    if not hasattr(probe.trainer, "resume"):
        return [untested("it has no resume()")]
    whole = bench.run(**KILLED)
    if whole.ended or not whole.moved:
        return [no_update(whole)]
    if len({str(sorted(update.rows)) for update in whole.tape.updates}) < 2:
        return [untested("it reads the same rows in every update: its place in the data cannot be seen")]
    lines = []
    for stops in ((4,), (1, 11)):
        lines.append(_stopped_at(bench, stops, whole, **KILLED))
        if lines[-1].verdict != HOLDS:
            return lines
    for precision in bench.precisions:
        line = _after_a_skip(bench, precision)
        if line is None and precision == "fp16":  # law 6 is broken; something may still be asked
            settings = KILLED | {"precision": precision}
            line = _stopped_at(bench, (4,), bench.run(**settings), **settings)
        lines += [line] if line else []
    if lines[-1].verdict != HOLDS:
        return lines
    lines += [_at_the_end(bench, whole), *_giving_up(bench)]
    lines.append(_killed(bench, child) if child else untested("kill -9: that needs a module that a child can import"))
    return lines


def _stopped_at(bench: Bench, stops: tuple[int, ...], whole: Run, **settings: Any) -> Line:
    again, left, trouble = _stopped(bench, stops, **settings)
    what = f"{settings.get('precision', 'fp32')}, stopped after update {' and '.join(map(str, stops))}"
    return _compared(what, whole, again, trouble, left)


NOT_READ = "batches are not read in their order, of which law 4 tells"


def _stopped(bench: Bench, stops: tuple[int, ...], batch=ordinary, **settings: Any) -> tuple[Run, Weights, str]:
    """The run that was taken up last, the weights when it was stopped, and what went wrong."""
    folder = bench.new_folder()
    for number, stop in enumerate(stops):
        run = bench.run(batch, folder=folder, pull=stop, resume=number > 0, **_other(number), **settings)
        if run.ended == "" or (number == 0 and run.ended == "pulled" and not run.tape.updates):
            return run, run.weights, NOT_READ
        if run.ended != "pulled":
            return run, run.weights, f"it did not get to batch {stop}: {run.ended or 'it ended'}"
    left = run.weights
    run = bench.run(batch, folder=folder, resume=True, **_other(len(stops)), **settings)
    return run, left, run.ended and f"resumed, it ended with {run.ended}"


def _other(number: int) -> dict[str, int]:
    """Another start for each process: its weights and its generators are not those of the first."""
    return {} if number == 0 else {"model_seed": 40 + number, "seed": 50 + number}


def _compared(what: str, whole: Run, again: Run, trouble: str, left: Weights) -> Line:
    if trouble == NOT_READ:
        return untested(f"{what}: {NOT_READ}")
    if trouble:
        return holds_if(False, f"{what}: {trouble}", "every checkpoint must hold what resume() takes up")
    gap, fork = furthest(whole.state, again.state), _fork(whole.tape.updates, again.tape.updates, left)
    ok = gap == 0 and not fork
    number = f"{what} and resumed: weights and buffers at the end differ by {gap:.2g}"
    if ok and whole.log and again.log:
        tail = [line.get("loss") for line in whole.log][-len(again.tape.updates) :]
        resumed_tail = [line.get("loss") for line in again.log][-len(again.tape.updates) :]
        ok, fork = tail == resumed_tail, "the logged losses differ, though the updates are the same"
    if not fork and furthest(whole.weights, again.weights) == 0:
        fork = "the weights are the same, and a buffer is not: save model.state_dict(), and not the parameters alone"
    return holds_if(ok, number, fork or "the updates are the same, and something behind them changes the weights")


def _fork(whole: list[Update], again: list[Update], left: Weights) -> str:
    """What differs first, which is what was not restored. ``left``: the weights when it was stopped."""
    if not again:
        return "nothing was left to do: the count of updates is not that of the checkpoint"
    start = next((n for n, update in enumerate(whole) if same(update.before, again[0].before)), None)
    if start is None:
        return "the weights are not those of the checkpoint"
    newest = next((n for n, update in enumerate(whole) if same(update.before, left)), start)
    if start < newest:
        return (f"it goes on after update {start}, and not after {newest}, the newest: is every update saved, and are "
                "checkpoints sorted by number? As text, step_9 comes after step_11")  # fmt: skip
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

    settings = KILLED | {"total_steps": 8, "precision": precision}
    whole = bench.run(batch, **settings)
    made = [update for update in whole.tape.updates if update.gradient.isfinite().all()]
    if whole.ended or len(made) != 8 or len(whole.tape.updates) != 8:
        return None  # law 6 tells of it
    again, left, trouble = _stopped(bench, (5,), batch, **settings)
    return _compared(f"{precision}, with a bad batch before, stopped after batch 5", whole, again, trouble, left)


def _at_the_end(bench: Bench, whole: Run) -> Line:
    again = bench.run(folder=whole.folder, resume=True, **_other(1), **KILLED)
    made = len(again.tape.updates)
    return holds_if(
        made == 0 and (bool(again.ended) or furthest(whole.state, again.state) == 0),
        f"a finished run, resumed: {made} updates more (asked: 0)",
        "fit() makes updates while fewer than total_steps are made, and the count of them is restored",
    )


def _giving_up(bench: Bench) -> list[Line]:
    """Bad batches from the third on: a stop between them does not make the run last longer."""

    def batch(n: int) -> list[Batch]:
        return ordinary(n) if n < 2 else spoiled(ordinary(n), BAD_FORWARD)

    whole, folder = bench.run(batch, **KILLED), bench.new_folder()
    bad = len(whole.data.asked) - 2
    if whole.ended in ("", "endless") or bad < 2:
        return []  # law 6 tells of it
    stopped = bench.run(batch, folder=folder, pull=2 + bad // 2, **KILLED)
    if stopped.ended != "pulled":
        return []
    last = bench.run(batch, folder=folder, resume=True, **_other(1), **KILLED).data.asked[-1]
    wanted = whole.data.asked[-1]
    number = f"bad batches only, stopped among them and resumed: it gives up at batch {last} (never stopped: {wanted})"
    return [holds_if(last == wanted, number, "the count of bad batches in a row is not restored")]


def _killed(bench: Bench, child: Child) -> Line:
    """A real one: a child process is killed while it writes a checkpoint, and this process goes on from its folder."""
    whole, folder = bench.run(**KILLED), bench.new_folder()
    how = child(folder)
    if not how.startswith("killed"):
        return untested(f"kill -9: {how}")
    again = bench.run(folder=folder, resume=True, **_other(9), **KILLED)
    if again.ended:
        why = "a save that is cut off takes the last good one with it: write to another name, then os.replace"
        return holds_if(False, f"{how}; resumed, it ended with {again.ended}", why)
    gap = furthest(whole.state, again.state)
    done = UPDATES - len(again.tape.updates)
    why = "the checkpoint in the folder is not that of an update that was made whole"
    return holds_if(
        gap == 0, f"{how}; resumed after update {done}, weights and buffers at the end differ by {gap:.2g}", why
    )
