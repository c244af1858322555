"""The exercises of notebook 12: the arithmetic of a run, and what a change did."""

import math
import random
import statistics
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from tinytrain.course.arms_12 import PREDICTED, WORDS, Arm, cases_of_arms, likely_mistake, right
from tinytrain.course.exercises import Exercise, Report


def run_on_paper(
    tokens: int,
    corpus_tokens: int,
    *,
    micro_batch_size: int,
    accumulation: int,
    processes: int,
    row_length: int,
) -> tuple[int, float]:
    """(updates, passes) of a run that is to read at least ``tokens`` tokens.

    For each update, each of ``processes`` adds up ``accumulation`` micro-batches of
    ``micro_batch_size`` rows of ``row_length`` tokens. Updates are whole and as few as will do, so
    the last one may read past ``tokens``. ``passes``, a float, says how often all that is then read
    would fill a text of ``corpus_tokens`` tokens. All six are whole numbers, 1 or more.
    """
    per_update = micro_batch_size * accumulation * processes * row_length
    updates = math.ceil(tokens / per_update)
    return updates, updates * per_update / corpus_tokens


Paper = dict[str, int]
_FACTORS = ("micro_batch_size", "accumulation", "processes", "row_length")


def _on_paper(q: Paper, leave: tuple[str, ...] = ()) -> tuple[int, float]:
    """The answer for a question, with some factors left out of an update."""
    per_update = math.prod(q[name] for name in _FACTORS if name not in leave)
    updates = -(-q["tokens"] // per_update)
    return updates, updates * per_update / q["corpus_tokens"]


def _per_update(q: Paper) -> int:
    return math.prod(q[name] for name in _FACTORS)


_UPDATES: dict[str, Callable[[Paper], int]] = {
    "An update adds up several micro-batches: `accumulation` is a factor.": lambda q: _on_paper(q, ("accumulation",))[
        0
    ],
    "Every process brings rows of its own: `processes` is a factor.": lambda q: _on_paper(q, ("processes",))[0],
    "These are rows, and tokens are asked for: `row_length` is a factor.": lambda q: _on_paper(q, ("row_length",))[0],
    "A micro-batch has `micro_batch_size` rows, not one.": lambda q: _on_paper(q, ("micro_batch_size",))[0],
    "These are micro-batches; an update has `accumulation` of them.": lambda q: _on_paper(q)[0] * q["accumulation"],
    "Rounded to the nearest; the run must read all of `tokens`: round up.": lambda q: round(
        q["tokens"] / _per_update(q)
    ),
    "It reads fewer tokens than were asked for: round up.": lambda q: q["tokens"] // _per_update(q),
    "As few as will do: where the division is exact, no update more.": lambda q: q["tokens"] // _per_update(q) + 1,
}
_PASSES: dict[str, Callable[[Paper], float]] = {
    "Whole updates are read, the last one to its end: not just `tokens`.": lambda q: q["tokens"] / q["corpus_tokens"],
    "A part of a pass counts: a float, not rounded.": lambda q: float(int(_on_paper(q)[1])),
    "A part of a pass counts: a float, not rounded up.": lambda q: float(math.ceil(_on_paper(q)[1])),
    "It is the other way round: what is read, over the text.": lambda q: 1 / _on_paper(q)[1],
}


def _question(kind: str) -> Paper:
    """Factors that differ from each other, and tokens that leave a small rest, a large one, or none."""
    m, a, p = random.sample([2, 3, 4, 5, 6, 7, 8], 3)
    q = {"micro_batch_size": m, "accumulation": a, "processes": p, "row_length": random.randint(20, 200)}
    each = _per_update(q)
    rest = {"none": 0, "small": random.randint(1, each // 4), "large": each - random.randint(1, each // 4)}[kind]
    q["tokens"] = random.randint(50, 400) * each + rest
    q["corpus_tokens"] = random.randint(q["tokens"] // 5, q["tokens"] // 2) | 1
    return q


def check_run_on_paper(answer: Callable[..., tuple[int, float]], report: Report) -> None:
    """Runs drawn anew: with a small rest, with a large one, with none, one update that is enough, and a short text."""
    asked = {
        "most of an update left": _question("large"),
        "a few tokens left": _question("small"),
        "tokens that fill the last update": _question("none"),
    }
    single = _question("none")
    asked["one update that is more than enough"] = single | {"tokens": random.randint(1, _per_update(single) // 3)}
    long_text = _question("large")
    asked["a text longer than the run"] = long_text | {"corpus_tokens": random.randint(3, 9) * long_text["tokens"]}
    questions = list(asked.values())
    found = [answer(q["tokens"], q["corpus_tokens"], **{name: q[name] for name in _FACTORS}) for q in questions]
    pairs = all(isinstance(value, tuple | list) and len(value) == 2 for value in found)
    report.need("returns two numbers", pairs, "It must return (updates, passes), a tuple of two.")
    for place, (name, why) in enumerate((("updates", "it counts something"), ("passes", "a part of a pass counts"))):
        kind, odd = _KINDS[place], [value[place] for value in found if not _is_of(_KINDS[place], value[place])]
        told = f"{name} is {type(odd[0]).__name__}; {why}, so {kind} is wanted." if odd else ""
        report.need(f"{name} is {kind}", not odd, told)
    for place, name, mistakes in ((0, "updates", _UPDATES), (1, "passes", _PASSES)):
        values = [each[place] for each in found]
        for (what, q), value in zip(asked.items(), values, strict=True):
            ok = _alike(value, _on_paper(q)[place])
            report.need(f"{name}, with {what}", ok, "" if ok else _nearest(mistakes, questions, values))


_KINDS = "an int", "a float"


def _is_of(kind: str, value: Any) -> bool:
    if kind == "an int":
        return isinstance(value, Integral) and not isinstance(value, bool)
    return isinstance(value, Real) and not isinstance(value, Integral)


def _alike(value: Any, wanted: float) -> bool:
    return bool(abs(value - wanted) <= 1e-6 * abs(wanted))


def _nearest(mistakes: dict[str, Callable[[Paper], float]], questions: list[Paper], values: list[Any]) -> str:
    """What that likely mistake is told which gives most of the values; else what is read in an update."""
    agree = {
        told: sum(_alike(value, of(q)) for q, value in zip(questions, values, strict=True))
        for told, of in mistakes.items()
    }
    best = max(agree, key=agree.__getitem__)
    if agree[best] == len(questions):
        return best
    q = questions[0]
    return f"An update reads {_per_update(q):,} tokens in the first of these; the run is to read {q['tokens']:,}."


def what_it_did(control: dict[int, float], changed: dict[int, float]) -> str:
    """ "better", "worse" or "no difference": what a change did to the held-out loss.

    Both arms map a seed to the loss of its run, in any order. Only seeds that are in both count, as
    pairs; there are at least three. The gain of a pair is its control's loss minus the changed
    run's, and the spread is the standard deviation of the gains (n - 1). If the mean gain is at
    most three spreads away from 0, on either side, it is "no difference".
    """
    gains = [control[seed] - changed[seed] for seed in control if seed in changed]
    mean = statistics.mean(gains)
    if abs(mean) <= 3 * statistics.stdev(gains):
        return "no difference"
    return "better" if mean > 0 else "worse"


def check_what_it_did(answer: Callable[[Arm, Arm], str], report: Report) -> None:
    """Arms drawn anew, about which all likely mistakes err, each in its own way."""
    cases, values, untouched = cases_of_arms(), [], True
    for control, changed in cases:
        given = dict(control), dict(changed)
        try:
            values.append(answer(*given))
        except ZeroDivisionError:
            told = "Gains that are all alike have a spread of 0: nothing can be divided by it."
            report.need("gains may be all alike", False, told)
        untouched &= [list(arm.items()) for arm in given] == [list(control.items()), list(changed.items())]
    odd = [value for value in values if not (isinstance(value, str) and value in WORDS)]
    told = f"It returned {odd[0]!r}; wanted is one of {', '.join(WORDS)}." if odd else ""
    report.need("returns one of the three", not odd, told)
    report.need("the arms are as before", untouched, "Something wrote into an arm.")
    likely = likely_mistake(cases, values)
    told = " and ".join(", ".join(map(str, arm.values())) for arm in PREDICTED)
    report.that(f'the prediction: of {told} it says "{right(*PREDICTED)}"', values[0] == right(*PREDICTED), likely)
    for word in WORDS:
        ours = [value == word for case, value in zip(cases, values, strict=True) if right(*case) == word]
        told = f"It is in {sum(ours)}. {likely}"
        report.that(f'"{word}" is said wherever it should be, in {len(ours)} cases', all(ours), told)


EXERCISES = (
    Exercise(
        number=1,
        title="A run on paper",
        goal="Before a run begins, say how many updates it makes and how often it reads its text.",
        difficulty="easy",
        minutes=5,
        solution=run_on_paper,
        check=check_run_on_paper,
        hints=(
            "First the tokens of one update: four factors.",
            "Round the updates up, and only then multiply back: what is read is whole updates.",
        ),
    ),
    Exercise(
        number=2,
        title="What did the change do?",
        goal="One variable was changed, and both arms were trained over seeds. Write the judge. Before you run the "
        "check, predict what it says of the losses 3.1, 3.4, 3.7 and 3.0, 3.2, 3.7, seed by seed.",
        difficulty="medium",
        minutes=10,
        solution=what_it_did,
        check=check_what_it_did,
        hints=(
            "Go through the seeds of one arm, and keep those that the other has as well. Subtract within each pair.",
            "`statistics.stdev` of the gains is the spread. Compare `abs(mean)` with three of them before you look at "
            "the sign.",
        ),
    ),
)
