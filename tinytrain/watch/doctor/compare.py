"""Training compared with evaluation, and both with what can be."""

from contextlib import suppress

import numpy as np

from tinytrain.watch.doctor.catalogue import CATALOGUE
from tinytrain.watch.doctor.finding import Finding
from tinytrain.watch.doctor.reading import NotSeenError, Reading, medians, spread, window_starts

TOO_GOOD = 0.10
"""share of the first loss. Bytes of English end at 0.6 to 0.7 nats with the best compressors, 0.11 to 0.13 of ln 256;
subwords at 2 nats or more, 0.18 of ln 50,000"""
TURNED = 0.02
"""share by which the evaluation must have risen over its lowest. In the healthy runs it rises by 0.01 at most"""
APART = 0.20
"""share by which evaluation lies above training while no row was seen twice. Healthy runs: up to 0.13"""
BEHIND = 0.05
"""share by which the loss lies above that of the run it is compared with. The healthy small run differs by up to 0.02
between seeds at its end"""
COMMON = 20
"""updates that two runs must share to be compared"""
PADDED = 1.001
"""targets over positions that carry a token; more than 1 cannot be"""


def padding_trained(reading: Reading) -> Finding | None:
    tokens, positions, padding = (reading.column(name) for name in ("tokens", "positions", "padding"))
    real = positions * (1 - padding)
    wrong = np.flatnonzero(tokens > PADDED * real + 0.5)
    if len(wrong) < 0.1 * reading.n:
        return None
    return reading.finding(
        int(wrong[0]),
        "padding is trained on",
        f"{np.median(tokens[wrong]):.0f} targets on {np.median(real[wrong]):.0f} tokens and "
        f"{np.median((positions - real)[wrong]):.0f} padded positions, in {len(wrong)} of {reading.n} batches",
    )


def behind(reading: Reading, other: Reading) -> Finding | None:
    """A loss that lies above another run's at the same update: what a log alone cannot show."""
    mine, its = _by_step(reading), _by_step(other)
    common = sorted(set(mine) & set(its))
    if len(common) < COMMON:
        raise NotSeenError(f"the two runs share {len(common)} updates, fewer than {COMMON}")
    a = reading.column("loss")[[mine[step] for step in common]]
    b = other.column("loss")[[its[step] for step in common]]
    late = slice(-max(10, len(common) // 5), None)
    ends, noise = (float(np.median(a[late])), float(np.median(b[late]))), spread(a[late] - b[late])
    if ends[0] - ends[1] <= max(BEHIND * ends[1], 3 * noise / np.sqrt(len(a[late]))):
        return None
    ratio = medians(a, reading.width) / medians(b, reading.width)
    near = np.flatnonzero(ratio <= 1 + BEHIND)
    behind_from = int(near[-1]) + 1 if len(near) else 0
    starts = window_starts(len(common), reading.width)
    start = common[starts[behind_from] if behind_from < len(starts) else -1]
    return reading.finding(
        mine[start],
        "behind the other run",
        f"{ends[0]:.3f} nats against {ends[1]:.3f} ({ends[0] / ends[1] - 1:+.1%}) at {reading.unit} {common[-1]}",
    )


def _by_step(reading: Reading) -> dict[int, int]:
    """What ``since`` says of each made update: its line."""
    return {reading.at(line): line for line in reading.made.tolist()}


def evaluations(reading: Reading) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(lines, evaluation losses, training losses just before) where an evaluation was made."""
    values = reading.column("eval_loss")
    lines = np.flatnonzero(np.isfinite(values))
    near = [reading.loss[(reading.made <= i) & (reading.made > i - max(5, reading.n // 20))] for i in lines]
    return lines, values[lines], np.array([np.median(part) if len(part) else np.nan for part in near])


def apart(reading: Reading) -> Finding | None:
    lines, held, train = evaluations(reading)
    epoch = reading.column("epoch")[lines]
    fresh = epoch < 1 if np.isfinite(epoch).all() else np.arange(len(lines)) == 0  # later ones may follow many epochs
    if not (fresh & np.isfinite(train)).any():
        raise NotSeenError("no evaluation in the first epoch, next to a training loss")
    above = held > (1 + APART) * train
    far = np.flatnonzero(above & fresh & ~(train <= _next_to_nothing(reading)))
    if not len(far) or (fresh.sum() > 2 and len(far) < 2) or not above[far[0] :].all():
        return None
    i = far[0]
    return reading.finding(
        int(lines[i]),
        "evaluation apart",
        f"{held[i]:.3f} nats against {train[i]:.3f} in training ({held[i] / train[i] - 1:+.0%}); "
        f"at the last evaluation {held[-1]:.3f} against {train[-1]:.3f}",
    )


def overfitting(reading: Reading) -> Finding | None:
    lines, held, train = evaluations(reading)
    if len(held) < 3:
        raise NotSeenError("fewer than 3 evaluations")
    if reading.level > reading.first_loss:
        return None  # a loss that ran away is another matter
    with suppress(NotSeenError):
        if apart(reading):
            return None  # it was away before any row came twice: that is nothing learnt by heart
    low = int(held.argmin())
    rise = float(np.median(held[-min(2, len(held)) :]) - held[low])
    falls = train[low] - train[-1]
    noise = spread(np.diff(held[: low + 1])) if low > 3 else 0.0
    if low == len(held) - 1 or rise < TURNED * held[low] or rise < noise or falls < TURNED * train[low]:
        return None
    epoch = reading.column("epoch")[lines[-1]]
    return reading.finding(
        int(lines[low]),
        "overfitting",
        f"evaluation lowest with {held[low]:.3f} nats, {held[-1]:.3f} at the end; "
        f"training {train[low]:.3f} then {train[-1]:.3f}" + (f"; epoch {epoch:.0f}" if np.isfinite(epoch) else ""),
    )


def very_low(reading: Reading) -> Finding | None:
    """A loss next to 0: learnt by heart, or seen beforehand."""
    least = _next_to_nothing(reading)
    if np.isnan(least):
        raise NotSeenError(
            f"a first loss of {reading.first_loss:.3g} is no measure of a low one: tell vocab_size"
            if reading.first_loss > 0
            else "a loss below 0 is not measured in nats"
        )
    low = np.flatnonzero(reading.smooth <= least)
    if not len(low) or reading.level > least:
        return None
    line = reading.line_of(int(low[0]))
    _, held, _ = evaluations(reading)
    epoch = reading.column("epoch")[line]
    numbers = f"{reading.first_loss:.3g} nats at first, {reading.level:.3g} at the end"
    numbers += f"; evaluation {held[-1]:.3g}" if len(held) else "; no evaluation"
    numbers += f"; epoch {epoch:.0f} when it was reached" if np.isfinite(epoch) else ""
    leak = held[-1] <= 2 * least if len(held) else epoch < 1
    if leak or reading.first_loss == 0:
        return reading.finding(line, "too good to be true", numbers)
    told = {} if len(held) else {"cause": CATALOGUE["memorising"].cause + "; or a leak"}
    return reading.finding(line, "memorising", numbers, **told)


def _next_to_nothing(reading: Reading) -> float:
    """nats; NaN where it is not known what a model that knows nothing would have."""
    return TOO_GOOD * reading.ignorance()
