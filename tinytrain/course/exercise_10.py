"""The exercises of notebook 10: name unlabelled runs, find the first spike, stop at the right update."""

import math
import random
from collections.abc import Callable
from numbers import Integral
from statistics import median

from tinytrain.course.drawn_10 import (
    BORDERS,
    EVALUATIONS,
    MISTAKES,
    NAMES,
    NORMS,
    bordering,
    draw_evaluations,
    draw_norms,
    pool,
    telling,
)
from tinytrain.course.exercises import Exercise, Report


def name_it(losses: list[float], evals: dict[int, float]) -> str:
    """What a run looks like: "healthy", "swings", "hardly moves", "overfitting" or "too good".

    ``losses`` has the training loss of every update, 200 or more, in nats per byte of English text; the
    first is about ln 256 = 5.55. ``evals`` maps an update to the held-out loss there, in order. The end of
    training is the median of its last 20 losses. Ask in this order:
    "swings": in the last quarter of ``losses`` the highest and the lowest are more than 2 nats apart;
    "hardly moves": the end is above nine tenths of the first loss;
    "overfitting": the last held-out loss is more than a tenth above the lowest one;
    "too good": end and last held-out loss are both below 0.5 nats, where this text cannot be;
    "healthy": all else.
    """
    quarter, end, held_out = losses[-(len(losses) // 4) :], median(losses[-20:]), list(evals.values())
    if max(quarter) - min(quarter) > 2:
        return "swings"
    if end > 0.9 * losses[0]:
        return "hardly moves"
    if held_out[-1] > 1.1 * min(held_out):
        return "overfitting"
    return "too good" if end < 0.5 and held_out[-1] < 0.5 else "healthy"


def check_name_it(answer: Callable[[list[float], dict[int, float]], str], report: Report) -> None:
    """Ask for all kinds: logs drawn near the borders between them, in an order drawn anew, and then real runs."""
    drawn = [(kind, bordering(case)) for kind, cases in BORDERS.items() for case in cases]
    random.shuffle(drawn)
    given = [(kind, answer(list(losses), dict(evals))) for kind, (losses, evals) in drawn]
    for kind in NAMES:  # trained only for an answer that has come so far
        for losses, evals in random.sample(pool(kind), min(2, len(pool(kind)))):
            given.append((kind, answer(list(losses), dict(evals))))
    other = [value for _, value in given if not (isinstance(value, str) and value in NAMES)]
    told = f"It returned {other[0]!r}; wanted is one of {', '.join(NAMES)}." if other else ""
    report.need("returns one of the five names", not other, told)
    for kind in NAMES:
        values = [value for wanted, value in given if wanted == kind]
        wrong = [value for value in values if value != kind]
        told = f"It is in {len(values) - len(wrong)}. {_MIXED.get((kind, wrong[0]), _ORDER)}" if wrong else ""
        report.that(f'"{kind}" is named wherever it should be, in {len(values)} runs', not wrong, told)


_ORDER = "Ask in the order of the text, each time with the numbers that it gives."

_MIXED = {
    ("healthy", "swings"): "A healthy loss jumps, too. A swing is more than 2 nats, and within the last quarter.",
    ("healthy", "overfitting"): "Held-out loss above training loss is normal, and so is a small rise. Look whether it "
    "ends 10 % above its own lowest.",
    ("healthy", "too good"): "Training and held-out loss must both be below 0.5 nats: the held-out loss tells the two "
    "apart.",
    ("healthy", "hardly moves"): "A healthy run is flat at its end. Compare the end with the first loss.",
    ("swings", "hardly moves"): "A run that swings may end above its first loss. Ask for the swings first.",
    ("swings", "overfitting"): "Its held-out loss swings as well. Ask for the swings of training first.",
    ("swings", "healthy"): "Look at the last quarter: how far apart are its highest and lowest loss?",
    ("hardly moves", "healthy"): "It never swings and nothing rises, but it wins less than a tenth of the first loss.",
    (
        "overfitting",
        "too good",
    ): "A training loss near 0 may be learnt by heart. The held-out loss tells the two apart.",
    ("overfitting", "healthy"): "Training falls as it should. Compare the last held-out loss with the lowest.",
    ("overfitting", "swings"): "Only swings of whole nats in the last quarter count.",
    ("too good", "healthy"): "Both losses fall, and that is what is wrong: below half a nat per byte no text can be "
    "predicted by such a model.",
    ("too good", "overfitting"): "Its held-out loss does not rise by a tenth: it is as low as that of training.",
    ("too good", "hardly moves"): "It has won nearly all. Compare the end with the first loss.",
}


def first_spike(norms: list[float], times: float = 5.0, window: int = 20) -> int | None:
    """The place in ``norms`` of the first spike, counted from 0; None if there is none.

    A spike is a norm that is more than ``times`` the median of the ``window`` norms right before it, itself not
    among them. A norm that is NaN or infinite is a spike, too. The first ``window`` norms are never spikes, and are
    finite. ``norms`` may be shorter than that. The list must stay as it is.
    """
    for place in range(window, len(norms)):
        before = median(norms[place - window : place])
        if not norms[place] <= times * before:  # NaN and infinity are not
            return place
    return None


def check_first_spike(answer: Callable[..., int | None], report: Report) -> None:
    """Norms that drift, with one spike at a place drawn anew; then none, too few, NaN, and a spike in the start.

    Between them, for each likely mistake, norms in which it alone finds another place.
    """
    for sort in ("finite", random.choice(["nan", "inf"])):
        _ask_spike(answer, report, NORMS[sort], *draw_norms(sort), by_name=sort == "finite")
    for told in MISTAKES:
        _ask_spike(answer, report, "norms that step up and down", *telling(told), told=told)
    for sort in ("first place", "last place", "even", "none", "short", "slow", "early"):
        _ask_spike(answer, report, NORMS[sort], *draw_norms(sort))


def _ask_spike(
    answer: Callable[..., int | None],
    report: Report,
    what: str,
    norms: list[float],
    times: float,
    window: int,
    wanted: int | None,
    *,
    by_name: bool = False,
    told: str = "",
) -> None:
    kept = list(norms)
    value = answer(norms, times=times, window=window) if by_name else answer(norms, times, window)
    likely = told or _likely_spike(value, kept, times, window, wanted)
    if wanted is None:
        report.need(f"{what}: None", value is None, likely)
    else:
        is_place = isinstance(value, Integral) and not isinstance(value, bool)
        other = f"It returned {value!r}; wanted is the place, counted from 0, as an int."
        report.need(f"{what}: returns an int", is_place, likely if value is None else other)
        report.need(f"{what}: its place", bool(value == wanted), likely)
    unchanged = len(norms) == len(kept) and all(a == b or a != a for a, b in zip(norms, kept, strict=True))
    report.need(f"{what}: the norms are as before", unchanged, "Something wrote into the list.")


def _likely_spike(value: object, norms: list[float], times: float, window: int, wanted: int | None) -> str:
    if wanted is None or not isinstance(value, int):
        if value is None and wanted is not None and not math.isfinite(norms[wanted]):
            return "It found none. Comparing with NaN is never true: ask for finite first."
        if isinstance(value, int) and value < min(window, len(norms)):
            return "The first `window` norms are never spikes: there is nothing yet to compare them with."
        if value is None:
            return "It found none, and there is one. Compare with the median of the `window` norms right before."
        return "There is none: what is large depends on the run. Compare with the norms right before."
    if value < window:
        return "The first `window` norms are never spikes: there is nothing yet to compare them with."
    if value in (wanted + 1, wanted - 1):
        return "It is off by one: places count from 0, and the norm itself is not among those before it."
    if value == max(range(len(norms)), key=lambda i: norms[i] if math.isfinite(norms[i]) else math.inf):
        return "That is the highest norm; wanted is the first that is a spike."
    return (
        "Compare each norm with the median of the `window` norms right before it: not with their mean, not with the "
        "one norm before, and not with the whole run, which nobody knows yet at that update."
    )


def stop_at(evals: list[tuple[int, float]], patience: int) -> tuple[int, int]:
    """(update at which to stop, update whose weights to keep), by patience.

    ``evals`` has (update, held-out loss) in order, at least one. Go through them in order and keep the lowest
    loss so far; an evaluation that is not lower than it, by however little, counts as one without progress,
    also an equal one and NaN. Stop at the evaluation with which ``patience`` of them in a row are without
    progress, or at the last one if that never happens. Keep the update with the lowest loss seen until then.
    The first loss is finite.
    """
    best_update, best = evals[0]
    without = 0
    for update, loss in evals[1:]:
        if loss < best:
            best_update, best, without = update, loss, 0
        else:
            without += 1
        if without == patience:
            return update, best_update
    return evals[-1][0], best_update


def check_stop_at(answer: Callable[[list[tuple[int, float]], int], tuple[int, int]], report: Report) -> None:
    """Real held-out losses, and then drawn ones with a bump, ties, NaN, and a lower minimum after the stop."""
    for sort in ("real", "bump", "tie", "nan", "later", "falling", "unfinished", "one"):
        evals, patience = draw_evaluations(sort)
        wanted, kept = _walk(evals, patience), list(evals)
        value = answer(evals, patience)
        what = EVALUATIONS[sort]
        report.need(
            f"{what}: returns two ints",
            isinstance(value, tuple) and len(value) == 2 and all(type(each) is int for each in value),
            f"It returned {value!r}; wanted is (update to stop at, update to keep).",
        )
        report.need(
            f"{what}: stops at {wanted[0]}", value[0] == wanted[0], _likely_stop(value, evals, patience, wanted)
        )
        report.need(f"{what}: keeps {wanted[1]}", value[1] == wanted[1], _likely_stop(value, evals, patience, wanted))
        report.need(
            f"{what}: the evaluations are as before", repr(evals) == repr(kept), "Something wrote into the list."
        )


def _walk(
    evals: list[tuple[int, float]], patience: int, *, previous: bool = False, ties: bool = False
) -> tuple[int, int]:
    """The right walk, and those of two mistakes: compared with the evaluation before, and equal losses as progress."""
    lowest, without = 0, 0
    for i in range(1, len(evals)):
        other, loss = evals[i - 1 if previous else lowest][1], evals[i][1]
        progress = loss <= other if ties else loss < other
        without = 0 if progress else without + 1
        lowest = i if evals[i][1] < evals[lowest][1] else lowest
        if without == patience:
            return evals[i][0], evals[lowest][0]
    return evals[-1][0], evals[lowest][0]


def _likely_stop(value: tuple[int, int], evals: list[tuple[int, float]], patience: int, wanted: tuple[int, int]) -> str:
    lowest = min((e for e in evals if math.isfinite(e[1])), key=lambda e: e[1])[0]
    places = {update: i for i, (update, _) in enumerate(evals)}
    finite = [pair for pair in evals if math.isfinite(pair[1])]
    if len(finite) < len(evals) and value == _walk(finite, patience) != wanted:
        return "A NaN is one without progress, as any other that is not lower: `loss < best` is False for it."
    if value == (wanted[1], wanted[0]):
        return "The two are the wrong way round: first where to stop, then what to keep."
    if all(each < len(evals) and each not in places for each in value):
        return "It counts evaluations. Updates are wanted, the first of each pair."
    if value[0] == wanted[0] and value[1] == lowest:
        return "It keeps the lowest loss of all, also of evaluations after the stop, which are never made."
    if value[0] == wanted[0] and value[1] == value[0]:
        return "It keeps the weights of the last evaluation. The best ones came earlier."
    if value[0] == value[1] == lowest:
        return "It stops at the lowest loss of all. Nobody knows at that update that it is the lowest."
    guesses = {
        _walk(evals, patience, previous=True)[
            0
        ]: "It compares with the evaluation before. A loss that creeps down from "
        "a bump has made no progress: compare with the lowest so far.",
        _walk(evals, patience, ties=True)[0]: "It counts an equal loss as progress.",
        _walk(evals, patience + 1)[0]: "It waits for one more: stop when `patience` in a row are without progress.",
        _walk(evals, patience - 1)[0]: "It stops too early: `patience` of them in a row are wanted, so "
        "set the count to 0 at each new lowest loss.",
    }
    return guesses.get(value[0], "Count evaluations without progress, and set the count to 0 at each new lowest loss.")


EXERCISES = (
    Exercise(
        number=1,
        title="Three unlabelled runs",
        goal="Write down what your eyes did: a function that names a run from its losses. The check trains runs of all "
        "kinds and asks for each; it takes a few seconds the first time.",
        difficulty="medium",
        minutes=15,
        solution=name_it,
        check=check_name_it,
        hints=(
            "`median(losses[-20:])` is a calm estimate of the end. Which question must come first, for a run that "
            "swings may fit every other description by accident?",
            "In this order: swings in the last quarter; end against first loss; last held-out loss against the "
            "lowest; below half a nat; else healthy.",
        ),
    ),
    Exercise(
        number=2,
        title="The first spike",
        goal="An alarm for the gradient's norm that fits any model: relative to the run's own recent past.",
        difficulty="easy",
        minutes=10,
        solution=first_spike,
        check=check_first_spike,
        hints=(
            "`statistics.median` of a slice. Which slice ends right before place i?",
            "`norms[i - window : i]`. And `math.isfinite` first, since nothing is larger than NaN, and NaN is larger "
            "than nothing.",
        ),
    ),
    Exercise(
        number=3,
        title="When to stop",
        goal="Early stopping: how long to wait for a held-out loss that no longer falls, and which weights to keep.",
        difficulty="medium",
        minutes=10,
        solution=stop_at,
        check=check_stop_at,
        hints=(
            "Keep three things while you go: the lowest loss, its update, and how many evaluations came since.",
            "`if loss < best:` sets all three, and `else` adds one; NaN takes the else branch by itself.",
        ),
    ),
)
