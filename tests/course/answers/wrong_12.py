"""Answers to the exercises of notebook 12: wrong ones with what they must be told, and other right ones."""

import math
import statistics

import numpy as np

from tinytrain.course.exercise_12 import run_on_paper, what_it_did


def on_paper(*, leave=(), rounding=math.ceil, times=1, passes=None):
    def answer(tokens, corpus_tokens, **factors):
        per_update = math.prod(value for name, value in factors.items() if name not in leave)
        updates = rounding(tokens / per_update)
        read = updates * per_update / corpus_tokens
        if passes is not None:
            read = passes(tokens, corpus_tokens, updates * per_update)
        return updates * (factors["accumulation"] if times == "accumulation" else times), read

    return answer


def in_whole_numbers(tokens, corpus_tokens, *, micro_batch_size, accumulation, processes, row_length):
    rows = micro_batch_size * accumulation * processes
    updates, rest = divmod(tokens, rows * row_length)
    updates += rest > 0
    return updates, rows * row_length * updates / corpus_tokens


def judge(gains, times=3, deviation=statistics.stdev, middle=statistics.mean):
    mean = middle(gains)
    if abs(mean) <= times * deviation(gains):
        return "no difference"
    return "better" if mean > 0 else "worse"


def paired(control, changed):
    return [control[seed] - changed[seed] for seed in control if seed in changed]


def by_place(control, changed):
    return judge([a - b for a, b in zip(control.values(), changed.values(), strict=False)])


def shared_by_place(control, changed):
    both = set(control) & set(changed)
    arms = [[loss for seed, loss in arm.items() if seed in both] for arm in (control, changed)]
    return judge([a - b for a, b in zip(*arms, strict=True)])


def of_the_arms(control, changed):
    both = sorted(set(control) & set(changed))
    arms = [[arm[seed] for seed in both] for arm in (control, changed)]
    mean, spread = statistics.mean(arms[0]) - statistics.mean(arms[1]), max(map(statistics.stdev, arms))
    if abs(mean) <= 3 * spread:
        return "no difference"
    return "better" if mean > 0 else "worse"


def mean_of_all(control, changed):
    mean = statistics.mean(control.values()) - statistics.mean(changed.values())
    if abs(mean) <= 3 * statistics.stdev(paired(control, changed)):
        return "no difference"
    return "better" if mean > 0 else "worse"


def only_better(control, changed):
    gains = paired(control, changed)
    return "better" if statistics.mean(gains) > 3 * statistics.stdev(gains) else "no difference"


def no_abs(control, changed):
    gains = paired(control, changed)
    if statistics.mean(gains) <= 3 * statistics.stdev(gains):
        return "no difference"
    return "better" if statistics.mean(gains) > 0 else "worse"


def any_gain(control, changed):
    mean = statistics.mean(paired(control, changed))
    return "better" if mean > 0 else "worse" if mean < 0 else "no difference"


def strictly(control, changed):
    gains = paired(control, changed)
    if abs(statistics.mean(gains)) < 3 * statistics.stdev(gains):
        return "no difference"
    return "better" if statistics.mean(gains) > 0 else "worse"


def divides(control, changed):
    gains = paired(control, changed)
    ratio = statistics.mean(gains) / statistics.stdev(gains)
    return "no difference" if abs(ratio) <= 3 else "better" if ratio > 0 else "worse"


def pops(control, changed):
    said = what_it_did(control, changed)
    control.popitem()
    return said


def swapped(control, changed):
    return what_it_did(changed, control)


def in_numpy(control, changed):
    seeds = sorted(set(control) & set(changed))
    gains = np.array([control[s] for s in seeds]) - np.array([changed[s] for s in seeds])
    size = np.sign(gains.mean()) * (abs(gains.mean()) > 3 * gains.std(ddof=1))
    return {0: "no difference", 1: "better", -1: "worse"}[int(size)]


WRONG = {
    1: {
        "no accumulation": (on_paper(leave=("accumulation",)), "`accumulation` is a factor"),
        "no processes": (on_paper(leave=("processes",)), "`processes` is a factor"),
        "rows for tokens": (on_paper(leave=("row_length",)), "`row_length` is a factor"),
        "one row at a time": (on_paper(leave=("micro_batch_size",)), "rows, not one"),
        "counts micro-batches": (on_paper(times="accumulation"), "These are micro-batches"),
        "rounds down": (on_paper(rounding=math.floor), "round up"),
        "rounds to the nearest": (on_paper(rounding=round), "Rounded to the nearest"),
        "always one more": (on_paper(rounding=lambda x: int(x) + 1), "no update more"),
        "not whole": (on_paper(rounding=float), "an int is wanted"),
        "passes of what was asked": (on_paper(passes=lambda n, c, read: n / c), "the last one to its end"),
        "whole passes": (on_paper(passes=lambda n, c, read: float(read // c)), "not rounded"),
        "whole passes, as an int": (on_paper(passes=lambda n, c, read: read // c), "a float is wanted"),
        "passes rounded up": (on_paper(passes=lambda n, c, read: float(-(-read // c))), "not rounded up"),
        "the other way round": (on_paper(passes=lambda n, c, read: c / read), "the other way round"),
        "updates alone": (lambda *given, **named: run_on_paper(*given, **named)[0], "a tuple of two"),
    },
    2: {
        "by place": (by_place, "pair by seed, not by place"),
        "shared seeds, by place": (shared_by_place, "by place"),
        "spread of the arms": (of_the_arms, "not that of an arm"),
        "mean of all seeds": (mean_of_all, "Seeds that only one arm has"),
        "swapped": (swapped, "control minus changed"),
        "never worse": (only_better, "A change can be worse, too"),
        "no abs": (no_abs, "A change can be worse, too"),
        "any gain": (any_gain, "more than three spreads"),
        "standard error": (
            lambda a, b: judge(paired(a, b), deviation=lambda g: statistics.stdev(g) / math.sqrt(len(g))),
            "not divided by the root of n",
        ),
        "population deviation": (lambda a, b: judge(paired(a, b), deviation=statistics.pstdev), "`statistics.stdev`"),
        "two spreads": (lambda a, b: judge(paired(a, b), times=2), "Three spreads, not two"),
        "median": (lambda a, b: judge(paired(a, b), middle=statistics.median), "not their median"),
        "sum": (lambda a, b: judge(paired(a, b), middle=sum), "not their sum"),
        "relative gains": (
            lambda a, b: judge([(a[seed] - b[seed]) / a[seed] for seed in a if seed in b]),
            "not a share of the control's",
        ),
        "first three pairs": (lambda a, b: judge(paired(a, b)[:3]), "not only the first three"),
        "2.9 spreads": (lambda a, b: judge(paired(a, b), times=2.9), 'wanted is "no difference"'),
        "2.5 spreads": (lambda a, b: judge(paired(a, b), times=2.5), 'wanted is "no difference"'),
        "3.2 spreads": (lambda a, b: judge(paired(a, b), times=3.2), 'it returned "no difference"'),
        "half the range": (lambda a, b: judge(paired(a, b), deviation=lambda g: (max(g) - min(g)) / 2), "Gains "),
        "mean deviation": (
            lambda a, b: judge(
                paired(a, b), deviation=lambda g: statistics.mean(abs(x - statistics.mean(g)) for x in g)
            ),
            "spread",
        ),
        "variance": (lambda a, b: judge(paired(a, b), deviation=statistics.variance), "not its square"),
        "divides by the spread": (divides, "all alike have a spread of 0"),
        "writes into an arm": (pops, "wrote into an arm"),
        "strictly": (strictly, "a spread of 0, and that is no difference"),
        "another word": (lambda a, b: "kept", "wanted is one of"),
    },
}
RIGHT = {
    1: {"in whole numbers": in_whole_numbers},
    2: {
        "in NumPy": in_numpy,
        "with room for rounding": lambda a, b: judge(
            paired(a, b), times=1, deviation=lambda g: 3 * statistics.stdev(g) + 1e-12
        ),
    },
}
