"""What the checks of notebook 10 draw: real runs of each kind, logs near the borders, norms, evaluations.

For each likely mistake there is an input in which it errs, so that no verdict depends on luck.
"""

import math
import random
from collections.abc import Callable
from functools import cache
from statistics import median

from tinytrain.course.lesson_10 import log_of

Log = tuple[list[float], dict[int, float]]
"""training loss of every update; held-out loss by update"""

NAMES = ("healthy", "swings", "hardly moves", "overfitting", "too good")
KINDS = {
    "healthy": ("small", "dropout", "constant lr"),
    "swings": ("lr far too large",),
    "hardly moves": ("lr too small", "clipped to nothing"),
    "overfitting": ("tiny corpus", "same batch always"),
    "too good": ("labels not shifted",),
}


@cache
def pool(kind: str) -> tuple[Log, ...]:
    """Real runs of a kind, trained when they are first asked for, with seeds that nobody knows: a second or two."""
    return tuple(log_of(recipe, random.randrange(10**6)) for recipe in KINDS[kind])


def unlabelled() -> dict[str, Log]:
    """Three runs of different kinds under neutral names, and in an order that nobody knows."""
    kinds = random.sample(NAMES, 3)
    return {letter: random.choice(pool(kind)) for letter, kind in zip("XYZ", kinds, strict=True)}


# Of a drawn log: end of training over the first loss; apart, how far the last quarter swings in nats; the lowest
# held-out loss above the end of training, in nats; the last one over the lowest. "early": a swing before the quarter.
BORDERS: dict[str, tuple[dict[str, float], ...]] = {
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


def bordering(case: dict[str, float]) -> Log:
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


def place_of_spike(
    norms: list[float], times: float, window: int, before: Callable[[int, int], slice] | None = None
) -> int | None:
    """The first spike when each norm is compared with the median of the slice ``before(place, window)``."""
    for place in range(window, len(norms)):
        part = norms[before(place, window) if before else slice(place - window, place)]
        if norms[place] > times * median(part):
            return place
    return None


def place_by_quartile(norms: list[float], times: float, window: int) -> int | None:
    places = range(window, len(norms))
    return next((i for i in places if norms[i] > times * sorted(norms[i - window : i])[window // 4]), None)


def _with(before: Callable[[int, int], slice]) -> Callable[[list[float], float, int], int | None]:
    return lambda norms, times, window: place_of_spike(norms, times, window, before)


MISTAKES: dict[str, Callable[[list[float], float, int], int | None]] = {
    "Wanted is the median: half of the window lies above it.": place_by_quartile,
    "`times` is what it was called with, and not 5.": lambda norms, _times, window: place_of_spike(norms, 5.0, window),
    "`window` is what it was called with, and not 20.": _with(lambda i, _w: slice(max(0, i - 20), i)),
    "The whole window counts, not half of it.": _with(lambda i, w: slice(i - w // 2, i)),
    "The norm itself is not among those before it.": _with(lambda i, w: slice(i - w, i + 1)),
    "The slice ends right before the norm: `norms[i - window : i]`.": _with(lambda i, w: slice(i - w + 1, i + 1)),
    "`window` norms lie before it, and one fewer were taken: `norms[i - window : i]`.": _with(
        lambda i, w: slice(i - w + 1, i)
    ),
}
"""What an answer that makes a mistake is told, and the place that it finds."""


def telling(told: str) -> tuple[list[float], float, int, int]:
    """(norms, times, window, place) for which the mistake ``told`` finds another place, or none; those that stand
    behind it in the list find the right one, so that each is met first in the norms made for it.

    The window before a doubtful norm has levels of 1 and 2, from the oldest to the newest.
    """
    m, times = random.choice([5, 6, 7]), random.choice([3.0, 3.5, 6.5, 8.0])
    w, number = 2 * m + 1, list(MISTAKES).index(told)
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
    wanted = place_of_spike(norms, times, w)
    assert wanted is not None
    return norms, times, w, wanted


NORMS = {
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


def draw_norms(sort: str) -> tuple[list[float], float, int, int | None]:
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


EVALUATIONS = {
    "real": "a run that overfits",
    "bump": "a bump shorter than the patience",
    "tie": "equal losses",
    "nan": "a NaN on the way",
    "later": "a lower loss long after",
    "falling": "a loss that falls to the end",
    "unfinished": "evaluations that end before patience does",
    "one": "one evaluation",
}


def draw_evaluations(sort: str) -> tuple[list[tuple[int, float]], int]:
    patience, every, start = (
        random.randint(1, 4) if sort == "tie" else random.randint(2, 4),
        random.choice([10, 20, 25, 50]),
        random.uniform(3.0, 5.0),
    )
    if sort == "real":
        _, evals = random.choice(pool("overfitting"))
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
