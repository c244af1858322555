"""Answers to the exercises of notebook 10: wrong ones with what they must be told, and other right ones."""

import math
from statistics import mean, median

import numpy as np

from tinytrain.course.exercise_10 import first_spike, name_it, stop_at


def name_without(which):
    def answer(losses, evals):
        name = name_it(losses, evals)
        return "healthy" if name == which else name

    return answer


def too_good_first(losses, evals):
    return "too good" if median(losses[-20:]) < 0.5 else name_it(losses, evals)


def moves_first(losses, evals):
    return "hardly moves" if median(losses[-20:]) > 0.9 * losses[0] else name_it(losses, evals)


def any_rise(losses, evals):
    name, held_out = name_it(losses, evals), list(evals.values())
    parted = held_out[-1] > median(losses[-20:])
    return "overfitting" if name == "healthy" and parted else name


def any_jump(losses, evals):
    name = name_it(losses, evals)
    return "swings" if name == "healthy" and max(losses[-50:]) - min(losses[-50:]) > 0.05 else name


def flat_end(losses, evals):
    name = name_it(losses, evals)
    return "hardly moves" if name == "healthy" and median(losses[-20:]) > 0.8 * median(losses[-80:-60]) else name


def by_numpy(losses, evals):
    losses, held_out = np.array(losses), np.array(list(evals.values()))
    end = np.median(losses[-20:])
    if np.ptp(losses[-(len(losses) // 4) :]) > 2:
        return "swings"
    if end / losses[0] > 0.9:
        return "hardly moves"
    if held_out[-1] / held_out.min() > 1.1:
        return "overfitting"
    return "too good" if max(end, held_out[-1]) < 0.5 else "healthy"


def named(swings=None, moves=None, over=None, good=None):
    """The solution with one question put otherwise: each a function of losses and held-out losses, true or false."""

    def answer(losses, evals):
        quarter, end, held_out = losses[-(len(losses) // 4) :], median(losses[-20:]), list(evals.values())
        questions = {
            "swings": swings(losses, held_out) if swings else max(quarter) - min(quarter) > 2,
            "hardly moves": moves(losses, held_out) if moves else end > 0.9 * losses[0],
            "overfitting": over(losses, held_out) if over else held_out[-1] > 1.1 * min(held_out),
            "too good": good(losses, held_out) if good else end < 0.5 and held_out[-1] < 0.5,
        }
        return next((name for name, yes in questions.items() if yes), "healthy")

    return answer


def spike(norms, times, window, *, middle=median, own=0, start=None):
    for i in range(window if start is None else start, len(norms)):
        part = norms[max(0, i - window + own) : i + own]
        if part and (not math.isfinite(norms[i]) or norms[i] > times * middle(part)):
            return i
    return None


def spike_of(norms, times, window, length):
    """Compared with the median of ``length`` norms in place of ``window``."""
    places = range(window, len(norms))
    return next((i for i in places if not norms[i] <= times * median(norms[i - length : i])), None)


def above_100(norms, times=5.0, window=20):
    return next((i for i, norm in enumerate(norms) if not norm <= 100), None)


def of_the_whole_run(norms, times=5.0, window=20):
    whole = median([norm for norm in norms if math.isfinite(norm)])
    return next((i for i in range(window, len(norms)) if not norms[i] <= times * whole), None)


def no_nan(norms, times=5.0, window=20):
    places = range(window, len(norms))
    return next((i for i in places if math.inf > norms[i] > times * median(norms[i - window : i])), None)


def step_by_step(norms, times=5.0, window=20):
    return next((i for i in range(window, len(norms)) if not norms[i] <= times * norms[i - 1]), None)


def highest(norms, times=5.0, window=20):
    place = first_spike(norms, times, window)
    return place and max(range(len(norms)), key=lambda i: norms[i] if math.isfinite(norms[i]) else math.inf)


def one_later(norms, times=5.0, window=20):
    place = first_spike(norms, times, window)
    return place and place + 1


def the_value(norms, times=5.0, window=20):
    place = first_spike(norms, times, window)
    return place and norms[place]


def writes(norms, times=5.0, window=20):
    place = first_spike(norms, times, window)
    if place is not None:
        norms[place] = 0.0
    return place


def with_numpy(norms, times=5.0, window=20):
    values = np.array(norms)
    for i in range(window, len(values)):
        if not values[i] <= times * np.median(values[i - window : i]) or np.isinf(values[i]):
            return i
    return None


def numpy_int(norms, times, window):
    place = with_numpy(norms, times, window)
    return None if place is None else np.int64(place)


def walk(evals, patience, *, previous=False, ties=False):
    best, without = 0, 0
    for i in range(1, len(evals)):
        other = evals[i - 1 if previous else best][1]
        better = evals[i][1] <= other if ties else evals[i][1] < other
        without = 0 if better else without + 1
        best = i if evals[i][1] < evals[best][1] else best
        if without == patience:
            return evals[i][0], evals[best][0]
    return evals[-1][0], evals[best][0]


def lowest_of_all(evals):
    return min((e for e in evals if math.isfinite(e[1])), key=lambda e: e[1])[0]


def total_count(evals, patience):
    best_update, best, without = *evals[0], 0
    for update, loss in evals[1:]:
        if loss < best:
            best_update, best = update, loss
        else:
            without += 1
        if without == patience:
            return update, best_update
    return evals[-1][0], best_update


def keeps_last_at_the_end(evals, patience):
    stop, keep = stop_at(evals, patience)
    return stop, (keep if stop != evals[-1][0] else stop)


def least_progress(evals, patience, least=0.03):
    best_update, best, without = *evals[0], 0
    for update, loss in evals[1:]:
        if loss < best - least:
            best_update, best, without = update, loss, 0
        else:
            without += 1
        if without == patience:
            return update, best_update
    return evals[-1][0], best_update


def by_places(evals, patience):
    stop, keep = stop_at([(i, loss) for i, (_, loss) in enumerate(evals)], patience)
    return stop, keep


def from_behind(evals, patience):
    """The same with a list of running minima."""
    lows, since = [evals[0]], [0]
    for pair in evals[1:]:
        lower = pair[1] < lows[-1][1]
        lows.append(pair if lower else lows[-1])
        since.append(0 if lower else since[-1] + 1)
    end = since.index(patience) if patience in since else len(evals) - 1
    return evals[end][0], lows[end][0]


WRONG = {
    1: {
        "too good before held-out": (too_good_first, "held-out loss tells the two apart"),
        "moves before swings": (moves_first, "Ask for the swings first"),
        "held out above training": (any_rise, "ends 10 % above its own lowest"),
        "any jump swings": (any_jump, "A swing is more than 2 nats"),
        "a flat end hardly moves": (flat_end, "Compare the end with the first loss"),
        "all that falls is healthy": (name_without("too good"), "no text can be"),
        "never overfits": (name_without("overfitting"), "Compare the last held-out loss with the lowest"),
        "never stuck": (name_without("hardly moves"), "wins less than a tenth"),
        "swings of the whole run": (
            named(swings=lambda x, e: max(x[20:]) - min(x[20:]) > 2),
            "within the last quarter",
        ),
        "swings by the end alone": (named(swings=lambda x, e: x[-1] > x[0] + 0.3), ""),
        "swings of a nat": (
            named(swings=lambda x, e: max(x[-(len(x) // 4) :]) - min(x[-(len(x) // 4) :]) > 1),
            "more than 2 nats",
        ),
        "swings of the second half": (named(swings=lambda x, e: max(x[len(x) // 2 :]) - min(x[len(x) // 2 :]) > 2), ""),
        "the last loss is the end": (named(moves=lambda x, e: x[-1] > 0.9 * x[0]), ""),
        "a gap is overfitting": (named(over=lambda x, e: e[-1] > median(x[-20:]) + 1), ""),
        "a rise of 2 % is overfitting": (named(over=lambda x, e: e[-1] > 1.02 * min(e)), "so is a small rise"),
        "a rise of 40 % is": (named(over=lambda x, e: e[-1] > 1.4 * min(e)), ""),
        "below 4 nats is moving": (named(moves=lambda x, e: x[-1] > 4), ""),
        "a third must be won": (named(moves=lambda x, e: median(x[-20:]) > 0.7 * x[0]), ""),
        "below 2 nats is too good": (named(good=lambda x, e: median(x[-20:]) < 2), ""),
        "training alone is too good": (named(good=lambda x, e: median(x[-20:]) < 0.5), ""),
        "a name of its own": (lambda losses, evals: "bad", "It returned 'bad'"),
    },
    2: {
        "past 100": (above_100, "It found none, and there is one"),
        "median of the whole run": (of_the_whole_run, ""),
        "mean": (
            lambda n, times=5.0, window=20: spike(n, times, window, middle=mean),
            "median",
        ),
        "NaN is no spike": (no_nan, "ask for finite first"),
        "the norm before": (step_by_step, "right before"),
        "from the first on": (lambda n, times=5.0, window=20: spike(n, times, window, start=1), "never spikes"),
        "highest": (highest, "highest"),
        "one later": (one_later, "off by one"),
        "its value": (the_value, "wanted is the place"),
        "upper middle": (
            lambda n, times=5.0, window=20: spike(n, times, window, middle=lambda x: sorted(x)[len(x) // 2]),
            "",
        ),
        "starts one late": (lambda n, times=5.0, window=20: spike(n, times, window, start=window + 1), ""),
        "ends one early": (lambda n, times=5.0, window=20: spike(n[:-1], times, window), ""),
        "itself among them": (
            lambda n, times=5.0, window=20: spike(n, times, window, own=1),
            "ends right before the norm",
        ),
        "one fewer": (
            lambda n, times=5.0, window=20: spike_of(n, times, window, window - 1),
            "`norms[i - window : i]`",
        ),
        "half the window": (lambda n, times=5.0, window=20: spike_of(n, times, window, window // 2), "not half of it"),
        "window of 20": (lambda n, times=5.0, window=20: spike(n, times, 20), ""),
        "5 times": (lambda n, times=5.0, window=20: spike(n, 5.0, window), ""),
        "a quartile": (
            lambda n, times=5.0, window=20: spike(n, times, window, middle=lambda x: sorted(x)[len(x) // 4]),
            "half of the window lies above it",
        ),
        "writes": (writes, "Something wrote into the list"),
    },
    3: {
        "the evaluation before": (lambda e, p: walk(e, p, previous=True), "compare with the lowest so far"),
        "ties are progress": (lambda e, p: walk(e, p, ties=True), "equal loss as progress"),
        "one more": (lambda e, p: walk(e, p + 1), "waits for one more"),
        "NaN is skipped": (lambda e, p: walk([x for x in e if x[1] == x[1]], p), "A NaN is one without progress"),
        "the last where it did not stop": (keeps_last_at_the_end, ""),
        "progress of 0.03": (least_progress, ""),
        "one less": (lambda e, p: walk(e, p - 1), "stops too early"),
        "keeps the last": (lambda e, p: (walk(e, p)[0],) * 2, "The best ones came earlier"),
        "keeps the lowest of all": (
            lambda e, p: (walk(e, p)[0], lowest_of_all(e)),
            "also of evaluations after the stop",
        ),
        "wrong way round": (lambda e, p: walk(e, p)[::-1], "wrong way round"),
        "lowest of all": (lambda e, p: (lowest_of_all(e),) * 2, "stops at the lowest loss of all"),
        "never set to 0": (total_count, "set the count to 0"),
        "places": (by_places, "It counts evaluations"),
        "only where to stop": (lambda e, p: walk(e, p)[0], "wanted is (update to stop at, update to keep)"),
    },
}

RIGHT = {
    1: {"with numpy": by_numpy},
    2: {"with numpy": with_numpy, "a NumPy int": lambda n, times=5.0, window=20: numpy_int(n, times, window)},
    3: {"running minima": from_behind, "another loop": walk},
}
