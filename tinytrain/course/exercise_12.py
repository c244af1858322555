"""The exercises of notebook 12: the arithmetic of a run, and what a change did."""

import math
import random
import statistics
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

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


def _on_paper(q: Paper, leave: tuple[str, ...] = ()) -> tuple[int, float]:
    """The answer for a question, with some factors left out of an update."""
    names = ("micro_batch_size", "accumulation", "processes", "row_length")
    per_update = math.prod(q[name] for name in names if name not in leave)
    updates = -(-q["tokens"] // per_update)
    return updates, updates * per_update / q["corpus_tokens"]


def _per_update(q: Paper) -> int:
    return q["micro_batch_size"] * q["accumulation"] * q["processes"] * q["row_length"]


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
    asked = [(kind, _question(kind)) for kind in ("large", "small", "none", "large")]
    single = _question("none")
    asked.append(("small", single | {"tokens": random.randint(1, _per_update(single) // 3)}))
    long_text = _question("large")
    asked.append(("large", long_text | {"corpus_tokens": random.randint(3, 9) * long_text["tokens"]}))
    found: list[tuple[Any, Any]] = []
    for _, q in asked:
        value = answer(q["tokens"], q["corpus_tokens"], **{k: q[k] for k in q if k not in ("tokens", "corpus_tokens")})
        is_pair = isinstance(value, tuple | list) and len(value) == 2
        report.need("returns two numbers", is_pair, "It must return (updates, passes), a tuple of two.")
        updates, passes = value
        whole = isinstance(updates, Integral) and not isinstance(updates, bool)
        told = f"updates is {type(updates).__name__}: it counts something, so an int is wanted."
        report.need("updates is an int", whole, told)
        is_float = isinstance(passes, Real) and not isinstance(passes, Integral)
        told = f"passes is {type(passes).__name__}; a part of a pass counts, so a float is wanted."
        report.need("passes is a float", is_float, told)
        found.append((updates, passes))
    questions = [q for _, q in asked]
    for place, name, mistakes in ((0, "updates", _UPDATES), (1, "passes", _PASSES)):
        values = [each[place] for each in found]
        for (kind, q), value in zip(asked, values, strict=True):
            right = _alike(value, _on_paper(q)[place])
            report.need(f"{name}, with {_RESTS[kind]}", right, "" if right else _nearest(mistakes, questions, values))


_RESTS = {"none": "tokens that fill the last update", "small": "a few tokens over", "large": "most of an update over"}


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


Arm = dict[int, float]
_WORDS = ("better", "worse", "no difference")


def _judged(mean: float, spread: float, times: float = 3.0) -> str:
    if abs(mean) <= times * spread:
        return "no difference"
    return "better" if mean > 0 else "worse"


def _gains(control: Arm, changed: Arm) -> list[float]:
    return [control[seed] - changed[seed] for seed in sorted(control) if seed in changed]


def _unpaired(control: Arm, changed: Arm) -> str:
    arms = [[arm[seed] for seed in control if seed in changed] for arm in (control, changed)]
    return _judged(statistics.mean(arms[0]) - statistics.mean(arms[1]), max(map(statistics.stdev, arms)))


def _by_place(control: Arm, changed: Arm) -> str:
    gains = [a - b for a, b in zip(control.values(), changed.values(), strict=False)]
    return _judged(statistics.mean(gains), statistics.stdev(gains))


def _all_seeds(control: Arm, changed: Arm) -> str:
    mean = statistics.mean(control.values()) - statistics.mean(changed.values())
    return _judged(mean, statistics.stdev(_gains(control, changed)))


def _with(
    times: float = 3.0,
    deviation: Callable[[list[float]], float] = statistics.stdev,
    middle: Callable[[list[float]], float] = statistics.mean,
) -> Callable[[Arm, Arm], str]:
    def judge(control: Arm, changed: Arm) -> str:
        gains = _gains(control, changed)
        return _judged(middle(gains), deviation(gains), times)

    return judge


def _one_side(control: Arm, changed: Arm) -> str:
    gains = _gains(control, changed)
    return "better" if statistics.mean(gains) > 3 * statistics.stdev(gains) else "no difference"


def _swapped(control: Arm, changed: Arm) -> str:
    return {"better": "worse", "worse": "better"}.get(name := _with()(control, changed), name)


def _strictly(control: Arm, changed: Arm) -> str:
    gains = _gains(control, changed)
    if abs(statistics.mean(gains)) < 3 * statistics.stdev(gains):
        return "no difference"
    return "better" if statistics.mean(gains) > 0 else "worse"


def _relative(control: Arm, changed: Arm) -> str:
    gains = [(control[seed] - changed[seed]) / control[seed] for seed in control if seed in changed]
    return _judged(statistics.mean(gains), statistics.stdev(gains))


def _first_three(control: Arm, changed: Arm) -> str:
    gains = [control[seed] - changed[seed] for seed in control if seed in changed][:3]
    return _judged(statistics.mean(gains), statistics.stdev(gains))


def _shared_by_place(control: Arm, changed: Arm) -> str:
    arms = [[loss for seed, loss in arm.items() if seed in control and seed in changed] for arm in (control, changed)]
    return _by_place(*(dict(enumerate(arm)) for arm in arms))


_PAIR = "The two arms list their seeds in another order: pair by seed, not by place."
_MISTAKES: tuple[tuple[str, Callable[[Arm, Arm], str]], ...] = (
    (_PAIR, _by_place),
    (_PAIR, _shared_by_place),
    ("Seeds that only one arm has count nowhere, in the mean neither.", _all_seeds),
    ("Lower is better: the gain is control minus changed.", _swapped),
    ("A change can be worse, too.", _one_side),
    ("Any gain counts here as one. Ask first whether it is more than three spreads.", _with(0.0)),
    ("The spread is that of the gains, pair by pair, not that of an arm.", _unpaired),
    (
        "The spread is not divided by the root of n.",
        _with(deviation=lambda gains: statistics.stdev(gains) / math.sqrt(len(gains))),
    ),
    ("Three spreads, not two.", _with(2.0)),
    ("The spread divides by n - 1 (`statistics.stdev`), not by n.", _with(deviation=statistics.pstdev)),
    ("The mean of the gains is asked for, not their median.", _with(middle=statistics.median)),
    ("The mean of the gains is asked for, not their sum.", _with(middle=sum)),
    ("The spread is the standard deviation, not its square.", _with(deviation=statistics.variance)),
    ("A gain is a difference of losses, not a share of the control's.", _relative),
    ("Every seed that both arms have counts, not only the first three.", _first_three),
    ("Gains that are all 0 have a spread of 0, and that is no difference: at most three spreads.", _strictly),
)
"""What an answer that makes a mistake is told, and what it says."""


def _draw() -> tuple[Arm, Arm]:
    """Two arms: seeds in different orders, some of them in one arm only, and gains of any size."""
    n, luck, spread = random.randint(3, 6), 10 ** random.uniform(-2.5, 0), 10 ** random.uniform(-2.5, -0.5)
    seeds, level = random.sample(range(100), n + 2), random.uniform(2.0, 5.0)
    base = {seed: level + random.gauss(0, luck) for seed in seeds}
    change = random.choice([-1, 1]) * spread * random.choice([0.3, 1.0, 2.4, 2.8, 3.2, 4.0, 9.0])
    control = {seed: base[seed] for seed in random.sample(seeds[:-1], n + 1)}
    both = random.sample([*seeds[:-2], seeds[-1]], n + 1)
    return control, {seed: base[seed] - change + random.gauss(0, spread) for seed in both}


def _clear(control: Arm, changed: Arm) -> bool:
    """Whether the verdict does not hang on the last digits."""
    gains = _gains(control, changed)
    return abs(abs(statistics.mean(gains)) / (3 * statistics.stdev(gains)) - 1) > 0.005


def _at(ratio: float, n: int) -> tuple[Arm, Arm]:
    """Two arms of ``n`` seeds whose mean gain is ``ratio`` spreads."""
    size = 10 ** random.uniform(-2.5, -0.5)
    drawn = [random.gauss(0, 1) for _ in range(n)]
    gains = [size * (ratio + (z - statistics.mean(drawn)) / statistics.stdev(drawn)) for z in drawn]
    return _of(gains, [random.uniform(2.0, 5.0) for _ in gains])


def _of(gains: list[float], levels: list[float], *, mixed: bool = True) -> tuple[Arm, Arm]:
    seeds = random.sample(range(100), len(gains))
    control = dict(zip(seeds, levels, strict=True))
    changed = {seed: control[seed] - gain for seed, gain in zip(seeds, gains, strict=True)}
    return control, {seed: changed[seed] for seed in random.sample(seeds, len(seeds))} if mixed else changed


def _telling() -> list[tuple[Arm, Arm]]:
    """Arms on both sides of three spreads, some at very unequal levels, and some whose first three pairs mislead."""
    sign, size = random.choice([-1, 1]), random.uniform(0.02, 0.1)
    cases = [_at(side * ratio, n) for ratio in (2.2, 2.7, 2.97, 3.03) for side in (-1, 1) for n in (3, 6)]
    near = [size * random.uniform(0.9, 1.1) for _ in range(6)]
    cases.append(_of([sign * g for g in near[:3]] + [-sign * g for g in near[3:]], [3.0] * 6, mixed=False))
    levels = [random.uniform(1, 2), random.uniform(8, 12), random.uniform(1, 2), random.uniform(8, 12)]
    cases.append(_of([sign * g for g in near[:4]], levels))
    cases.append(_of([sign * 0.05 * level * random.uniform(0.95, 1.05) for level in levels], levels))
    return cases


_PREDICTED = {0: 3.1, 1: 3.4, 2: 3.7}, {0: 3.0, 1: 3.2, 2: 3.7}
"""the losses in the task"""


def _cases() -> list[tuple[Arm, Arm]]:
    """The task's, then telling ones, and arms drawn until each mistake errs and no two say the same of all."""
    level = {seed: random.randint(20, 40) / 8 for seed in random.sample(range(100), 4)}
    step = random.randint(1, 8) / 8
    cases = [(dict(level), {seed: loss + by for seed, loss in level.items()}) for by in (0.0, step, -step)]
    cases += _telling()
    judges = [_with(), *(mistake for _, mistake in _MISTAKES)]
    said = [tuple(judge(*case) for case in cases) for judge in judges]
    while len(set(said)) < len(said):
        case = _draw()
        longer = [(*words, judge(*case)) for words, judge in zip(said, judges, strict=True)]
        if len(set(longer)) > len(set(said)) and _clear(*case):
            cases, said = [*cases, case], longer
    cases += [case for case in (_draw() for _ in range(20)) if _clear(*case)]
    random.shuffle(cases)
    return [_PREDICTED, *cases]


def check_what_it_did(answer: Callable[[Arm, Arm], str], report: Report) -> None:
    """Arms drawn anew, about which all likely mistakes err, each in its own way."""
    cases, right = _cases(), _with()
    values, untouched = [], True
    for control, changed in cases:
        given = dict(control), dict(changed)
        try:
            values.append(answer(*given))
        except ZeroDivisionError:
            told = "Gains that are all alike have a spread of 0: nothing can be divided by it."
            report.need("gains may be all alike", False, told)
        untouched &= [list(arm.items()) for arm in given] == [list(control.items()), list(changed.items())]
    odd = [value for value in values if not (isinstance(value, str) and value in _WORDS)]
    told = f"It returned {odd[0]!r}; wanted is one of {', '.join(_WORDS)}." if odd else ""
    report.need("returns one of the three", not odd, told)
    report.need("the arms are as before", untouched, "Something wrote into an arm.")
    likely = _likely(cases, values)
    told = " and ".join(", ".join(map(str, arm.values())) for arm in _PREDICTED)
    report.that(f'the prediction: of {told} it says "{right(*_PREDICTED)}"', values[0] == right(*_PREDICTED), likely)
    for word in _WORDS:
        ours = [value == word for case, value in zip(cases, values, strict=True) if right(*case) == word]
        report.that(f'"{word}" is said in {len(ours)} of {len(ours)} such cases', all(ours), likely)


def _likely(cases: list[tuple[Arm, Arm]], values: list[str]) -> str:
    """What the mistake is told that says the same of every case; if there is none, the first case that is wrong."""
    for told, mistake in _MISTAKES:
        if all(mistake(*case) == value for case, value in zip(cases, values, strict=True)):
            return told
    for case, value in zip(cases, values, strict=True):
        if value != (wanted := _with()(*case)):
            gains = _gains(*case)
            told = f"{', '.join(f'{gain:.4g}' for gain in gains)}, mean {statistics.mean(gains):.4g}"
            spread = statistics.stdev(gains)
            return f'Gains {told}, spread {spread:.4g}: wanted is "{wanted}", and it returned "{value}".'
    return ""


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
