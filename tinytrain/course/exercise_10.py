"""The exercises of notebook 10: name unlabelled runs, find the first spike, stop at the right update."""

import math
import random
from collections.abc import Callable
from functools import cache
from numbers import Integral
from statistics import median

from tinytrain.course.exercises import Exercise, Report
from tinytrain.course.lesson_10 import log_of

Log = tuple[list[float], dict[int, float]]
"""training loss of every update; held-out loss by update"""

NAMES = ("healthy", "swings", "hardly moves", "overfitting", "too good")
_KINDS = {
    "healthy": ("small", "dropout", "constant lr"),
    "swings": ("lr far too large",),
    "hardly moves": ("lr too small", "clipped to nothing"),
    "overfitting": ("tiny corpus", "same batch always"),
    "too good": ("labels not shifted",),
}


@cache
def _pool(kind: str) -> tuple[Log, ...]:
    """Real runs of a kind, trained when they are first asked for, with seeds that nobody knows: a second or two."""
    return tuple(log_of(recipe, random.randrange(10**6)) for recipe in _KINDS[kind])


def unlabelled() -> dict[str, Log]:
    """Three runs of different kinds under neutral names, and in an order that nobody knows."""
    kinds = random.sample(NAMES, 3)
    return {letter: random.choice(_pool(kind)) for letter, kind in zip("XYZ", kinds, strict=True)}


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
    """Ask for all kinds in an order drawn anew: real runs, and logs drawn near the borders between the kinds."""
    asked = [(kind, log) for kind in NAMES for log in random.sample(_pool(kind), min(2, len(_pool(kind))))]
    asked += [(kind, _bordering(kind, case)) for kind, cases in _BORDERS.items() for case in cases]
    random.shuffle(asked)
    given = [(kind, answer(list(losses), dict(evals))) for kind, (losses, evals) in asked]
    other = [value for _, value in given if not (isinstance(value, str) and value in NAMES)]
    told = f"It returned {other[0]!r}; wanted is one of {', '.join(NAMES)}." if other else ""
    report.need("returns one of the five names", not other, told)
    for kind in NAMES:
        values = [value for wanted, value in given if wanted == kind]
        wrong = next((value for value in values if value != kind), "")
        report.that(
            f'"{kind}" is named in {len(values)} of {len(values)} runs', not wrong, _MIXED.get((kind, wrong), _ORDER)
        )


_ORDER = "Ask in the order of the text, each time with the numbers that it gives."

# Of a drawn log: end of training over the first loss; apart, how far the last quarter swings in nats; the lowest
# held-out loss above the end of training, in nats; the last one over the lowest. "early": a swing before the quarter.
_BORDERS: dict[str, tuple[dict[str, float], ...]] = {
    "healthy": (
        {"end": 0.86, "apart": 0.3, "gap": 0.1, "rise": 1.0},  # moves just enough
        {"end": 0.5, "apart": 1.7, "gap": 0.2, "rise": 1.0},  # jumps, and not by 2 nats
        {"end": 0.3, "apart": 0.2, "gap": 1.5, "rise": 1.0},  # a gap, and no rise
        {"end": 0.3, "apart": 0.2, "gap": 0.4, "rise": 1.06},  # a rise of less than a tenth
        {"end": 0.13, "apart": 0.2, "gap": 0.2, "rise": 1.0},  # good, and possible
        {"end": 0.07, "apart": 0.1, "gap": 0.5, "rise": 1.0},  # training below 0.5, held out not
        {"end": 0.5, "apart": 0.3, "gap": 0.2, "rise": 1.0, "early": 9.0},  # swings at the start alone
    ),
    "swings": (
        {"end": 0.6, "apart": 2.4, "gap": 0.2, "rise": 1.0},
        {"end": 0.98, "apart": 2.6, "gap": 0.2, "rise": 1.0},
        {"end": 0.4, "apart": 3.0, "gap": 0.2, "rise": 1.4},
    ),
    "hardly moves": (
        {"end": 0.94, "apart": 0.3, "gap": 0.1, "rise": 1.0},
        {"end": 0.95, "apart": 0.3, "gap": 0.1, "rise": 1.2},
    ),
    "overfitting": (
        {"end": 0.3, "apart": 0.2, "gap": 0.2, "rise": 1.14},
        {"end": 0.05, "apart": 0.1, "gap": 0.05, "rise": 1.3},
    ),
    "too good": ({"end": 0.075, "apart": 0.05, "gap": 0.0, "rise": 1.0},),
}


def _bordering(_kind: str, case: dict[str, float]) -> Log:
    """A log whose numbers are those of ``case``; length, noise and places are drawn."""
    n, first = 20 * random.randint(10, 16), random.uniform(5.4, 5.7)
    end = case["end"] * first
    losses = [end + (first - end) * math.exp(-8 * i / n) + random.uniform(-0.02, 0.02) for i in range(n)]
    losses[0] = first
    losses[-20:] = [end + random.uniform(-0.005, 0.005) for _ in range(20)]
    up, down = random.sample(range(n - n // 4 + 2, n - 21), 2)
    losses[up], losses[down] = end + 0.7 * case["apart"], end - 0.3 * min(case["apart"], 2 * end)
    losses[up] = losses[down] + case["apart"]
    if "early" in case:
        losses[n // 10], losses[int(0.65 * n)] = first + case["early"], first + 1
    if end > 0.6:  # one loss is not the end
        losses[-1], losses[-9] = end + 0.35, end - 0.35
    updates = [n * (i + 1) // 10 for i in range(10)]
    lowest = random.randint(3, 6)
    low = end + case["gap"]
    held_out = [low + 0.3 * (lowest - i) if i < lowest else low for i in range(10)]
    for i in range(lowest + 1, 10):
        held_out[i] = low * (1 + (case["rise"] - 1) * (i - lowest) / (9 - lowest))
    return losses, dict(zip(updates, held_out, strict=True))


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
        _ask_spike(answer, report, _ASKED[sort], *_norms(sort), by_name=sort == "finite")
    for told in _MISTAKES:
        _ask_spike(answer, report, "norms that step up and down", *_telling(told), told=told)
    for sort in ("first place", "last place", "even", "none", "short", "slow", "early"):
        _ask_spike(answer, report, _ASKED[sort], *_norms(sort))


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


def _place(
    norms: list[float], times: float, window: int, before: Callable[[int, int], slice] | None = None
) -> int | None:
    """The first spike when each norm is compared with the median of the slice ``before(place, window)``."""
    for place in range(window, len(norms)):
        part = norms[before(place, window) if before else slice(place - window, place)]
        if norms[place] > times * median(part):
            return place
    return None


def _quartile(norms: list[float], times: float, window: int) -> int | None:
    places = range(window, len(norms))
    return next((i for i in places if norms[i] > times * sorted(norms[i - window : i])[window // 4]), None)


_MISTAKES: dict[str, Callable[[list[float], float, int], int | None]] = {
    "Wanted is the median: half of the window lies above it.": _quartile,
    "`times` is what it was called with, and not 5.": lambda n, t, w: _place(n, 5.0, w),
    "`window` is what it was called with, and not 20.": lambda n, t, w: _place(
        n, t, w, lambda i, w: slice(max(0, i - 20), i)
    ),
    "The whole window counts, not half of it.": lambda n, t, w: _place(n, t, w, lambda i, w: slice(i - w // 2, i)),
    "The norm itself is not among those before it.": lambda n, t, w: _place(n, t, w, lambda i, w: slice(i - w, i + 1)),
    "The slice ends right before the norm: `norms[i - window : i]`.": lambda n, t, w: _place(
        n, t, w, lambda i, w: slice(i - w + 1, i + 1)
    ),
    "`window` norms lie before it, and one fewer were taken: `norms[i - window : i]`.": lambda n, t, w: _place(
        n, t, w, lambda i, w: slice(i - w + 1, i)
    ),
}
"""What an answer that makes a mistake is told, and the place that it finds."""


def _telling(told: str) -> tuple[list[float], float, int, int]:
    """(norms, times, window, place) for which the mistake ``told`` finds another place, or none; those that stand
    behind it in the list find the right one, so that each is met first in the norms made for it.

    The window before a doubtful norm has levels of 1 and 2, from the oldest to the newest.
    """
    m, times = random.choice([5, 6, 7]), random.choice([3.0, 3.5, 6.5, 8.0])
    w, number = 2 * m + 1, list(_MISTAKES).index(told)
    fill, doubtful = 1.0, 1.75
    if number == 0:
        levels, fill, times = [2.0] + [1.0] * (w // 4 + 1) + [2.0] * (w - w // 4 - 2), 2.0, 3.0
    elif number == 1:
        levels, doubtful = [1.0] * w, (0.8 if times > 5 else 1.3)
    elif number == 2:
        w = random.randint(5, 8)
        levels, fill = [1.0] * w, 2.0
    elif number == 3:
        levels = [1.0] * (m + 1) + [2.0] * (m - 2) + [1.0] * 2
    elif number == 4:
        levels, doubtful = [2.0] * m + [1.0] * (m + 1), 1.2
    elif number == 5:
        levels = [1.0] * (m + 1) + [2.0] * m
    else:
        levels, fill = [2.0] + [1.0] * m + [2.0] * m, 2.0
    values = [fill] * random.randint(40, 60) + levels + [doubtful * times] + [levels[-1]] * (w + random.randint(5, 15))
    norms = [value * random.uniform(0.99, 1.01) for value in [*values, 40 * times, *[levels[-1]] * 5]]
    wanted = _place(norms, times, w)
    assert wanted is not None
    return norms, times, w, wanted


_ASKED = {
    "first place": "a spike right behind the first window",
    "last place": "a spike at the very end",
    "even": "a window of an even number, half of it low",
    "finite": "a spike in norms that drift down",
    "nan": "a NaN",
    "inf": "an infinite norm",
    "none": "large norms without a jump",
    "short": "fewer norms than the window",
    "slow": "norms that grow slowly, 200 times in all",
    "early": "a jump among the first, and a spike later",
}


def _norms(sort: str) -> tuple[list[float], float, int, int | None]:
    """(norms, times, window, place of the first spike) of one sort."""
    window, times = random.randint(8, 25), random.uniform(3.5, 8.0)
    n = random.randint(90, 140)
    noise = [math.exp(random.uniform(-0.2, 0.2)) for _ in range(n)]
    if sort in ("first place", "last place"):
        place = window if sort == "first place" else n - 1
        calm = [value if i != place else 2.0 * times for i, value in enumerate(noise)]
        return calm, times, window, place
    if sort == "even":
        window += window % 2
        place = window + random.randint(0, 20)
        levels = [1.0] * (place - window // 2) + [2.0] * (window // 2) + [1.75 * times] + [2.0] * window
        return levels, times, window, place
    if sort == "none":
        scale = random.uniform(150, 400)
        return [scale * value for value in noise], times, window, None
    if sort == "short":
        short = noise[: window - random.randint(1, 4)]
        short[-1] *= 50
        return short, times, window, None
    if sort == "slow":  # within one window it grows by a factor of 2 at most, so nothing stands out
        total = 200.0
        n = int(math.log(total) / math.log(2) * window) + 40
        values = [0.2 * total ** (i / n) * math.exp(random.uniform(-0.1, 0.1)) for i in range(n)]
        return values, max(times, 4.0), window, None
    norms = [4.0 * 0.05 ** (i / n) * value for i, value in enumerate(noise)]  # from 4 down to 0.2
    place = random.randint(n // 2 + 5, n - 10)
    if sort == "early":  # a mean of what comes before the spike is lifted by it, a median is not
        early = random.randint(window - 3, window - 1)
        norms[early] *= 200
        place = random.randint(window + 1, early + window - 1)
    norms[place - 1] = 0.55 * times * median(norms[place - window : place - 1])  # high, and no spike yet
    before = median(norms[place - window : place])
    norms[place] = {"nan": math.nan, "inf": math.inf}.get(sort, before * times * random.uniform(1.2, 1.35))
    if sort in ("finite", "early"):  # higher ones follow
        norms[place + 3], norms[place + 6] = 3.5 * norms[place], 7 * norms[place]
    return norms, times, window, place


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
        evals, patience = _evaluations(sort)
        wanted, kept = _walk(evals, patience), list(evals)
        value = answer(evals, patience)
        what = _SORTS[sort]
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


_SORTS = {
    "real": "a run that overfits",
    "bump": "a bump shorter than the patience",
    "tie": "equal losses",
    "nan": "a NaN on the way",
    "later": "a lower loss long after",
    "falling": "a loss that falls to the end",
    "unfinished": "evaluations that end before patience does",
    "one": "one evaluation",
}


def _evaluations(sort: str) -> tuple[list[tuple[int, float]], int]:
    patience, every, start = (
        random.randint(1, 4) if sort == "tie" else random.randint(2, 4),
        random.choice([10, 20, 25, 50]),
        random.uniform(3.0, 5.0),
    )
    if sort == "real":
        _, evals = random.choice(_pool("overfitting"))
        return list(evals.items()), patience
    if sort == "one":
        return [(every, start)], patience
    n_falls = random.randint(3, 6)
    losses = [start - 0.1 * i for i in range(n_falls)]
    if sort == "falling":
        losses += [losses[-1] - 0.002 * i for i in range(1, 7)]
    elif sort == "bump":
        low = losses[-1]
        losses += [low + 0.05 * i for i in range(1, patience)] + [low - 0.1]
        losses += [low - 0.1 + 0.02 * i for i in range(1, patience + 3)]
    elif sort == "unfinished":
        losses += [losses[-1] + 0.1 + 0.01 * i for i in range(patience - 1)]
    elif sort == "tie":
        losses += [losses[-1]] * (patience + 2)
    elif sort == "nan":
        losses += [math.nan] + [losses[-1] + 0.1 - 0.01 * i for i in range(patience + 2)]
    else:
        low = losses[-1]
        losses += [low + 0.2 - 0.02 * i for i in range(patience + 1)] + [low - 0.5, low - 0.6, low - 0.55]
    return [(every * (i + 1), loss) for i, loss in enumerate(losses)], patience


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
        _walk(evals, patience - 1)[0]: "It stops too early: `patience` of them in a row are wanted, and the count is "
        "set to 0 at each new lowest loss.",
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
