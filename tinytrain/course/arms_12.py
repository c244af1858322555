"""What the check of exercise 12.2 draws: two arms over seeds, and judges of them, the right one and the mistaken."""

import math
import random
import statistics
from collections.abc import Callable

Arm = dict[int, float]
WORDS = ("better", "worse", "no difference")


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


right = _with()
"""the judge that the exercise asks for"""


def _one_side(control: Arm, changed: Arm) -> str:
    gains = _gains(control, changed)
    return "better" if statistics.mean(gains) > 3 * statistics.stdev(gains) else "no difference"


def _swapped(control: Arm, changed: Arm) -> str:
    return {"better": "worse", "worse": "better"}.get(name := right(control, changed), name)


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


PREDICTED = {0: 3.1, 1: 3.4, 2: 3.7}, {0: 3.0, 1: 3.2, 2: 3.7}
"""the losses in the task"""


def cases_of_arms() -> list[tuple[Arm, Arm]]:
    """The task's, then telling ones, and arms drawn until each mistake errs and no two say the same of all."""
    level = {seed: random.randint(20, 40) / 8 for seed in random.sample(range(100), 4)}
    step = random.randint(1, 8) / 8
    cases = [(dict(level), {seed: loss + by for seed, loss in level.items()}) for by in (0.0, step, -step)]
    cases += _telling()
    judges = [right, *(mistake for _, mistake in _MISTAKES)]
    said = [tuple(judge(*case) for case in cases) for judge in judges]
    while len(set(said)) < len(said):
        case = _draw()
        longer = [(*words, judge(*case)) for words, judge in zip(said, judges, strict=True)]
        if len(set(longer)) > len(set(said)) and _clear(*case):
            cases, said = [*cases, case], longer
    cases += [case for case in (_draw() for _ in range(20)) if _clear(*case)]
    random.shuffle(cases)
    return [PREDICTED, *cases]


def likely_mistake(cases: list[tuple[Arm, Arm]], values: list[str]) -> str:
    """What the mistake is told that says the same of every case; if there is none, the first case that is wrong."""
    for told, mistake in _MISTAKES:
        if all(mistake(*case) == value for case, value in zip(cases, values, strict=True)):
            return told
    for case, value in zip(cases, values, strict=True):
        if value != (wanted := right(*case)):
            gains = _gains(*case)
            told = f"{', '.join(f'{gain:.4g}' for gain in gains)}, mean {statistics.mean(gains):.4g}"
            spread = statistics.stdev(gains)
            return f'Gains {told}, spread {spread:.4g}: wanted is "{wanted}", and it returned "{value}".'
    return ""
