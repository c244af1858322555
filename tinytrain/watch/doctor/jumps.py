"""A loss that rises: spikes, and a curve that climbs."""

from typing import NamedTuple

import numpy as np

from tinytrain.watch.doctor.curve import MOVED
from tinytrain.watch.doctor.finding import Finding
from tinytrain.watch.doctor.reading import HISTORY, LARGEST_LN_V, NotSeenError, Reading, change_point, history, spread

RISE = 1.3
"""times its lowest value so far: a smoothed loss that climbs so far is not noise. Healthy runs stay under 1.12"""
NOISE_BELOW = 0.15
"""share of the first loss under which changes are measured against it: next to 0 the noise is as large as the loss"""
NORM_JUMP = 10.0
"""times the median of the norms before it. In small runs that end well the norm alone jumps by up to 280 times its
median around the end of the warmup; so a jump counts only together with one of the loss"""
LOSS_JUMP, LOSS_SPREADS = RISE - 1, 6.0
"""share of the median of the losses before it, and robust standard deviations; both must be passed. With the norm 5 of
346 healthy runs rise by 0.58 to 2.0 and mend by themselves: the spike is real, and told. Two rise by 0.22 and 0.29"""
DOUBLED = 1.0
"""share by which a loss must rise in one update to be a spike without its norm: batches of 2 short rows rise by up to
0.87 by chance, two bad batches in a row by 0.9 to 2.4"""
RECENT = 20
"""updates before a jump that say how large the loss was, and how much it wavered"""
FOLLOWS = 3
"""updates after a jump of the norm within which the loss must follow"""

Climb = tuple[int, float, float]
"""(line at which it begins, loss before it, the highest smoothed loss in it)"""


class Jumps(NamedTuple):
    """Where the loss jumps, as positions among the made updates."""

    found: list[int]
    alone: list[int]
    """those that jump without their norm"""
    usual: np.ndarray
    """of each update: the loss before it"""
    top: np.ndarray
    """of each update: the highest loss from it on, ``FOLLOWS`` updates far"""


def unstable_in_warmup(reading: Reading) -> Finding | None:
    """A smoothed loss that climbs before the learning rate is at its top."""
    rises, warmup = _lasting_climbs(reading), reading.rising()
    if not rises or not 1 < warmup < reading.n or rises[0][0] >= warmup:
        return None
    line, lowest, highest = rises[0]
    spiked = [int(reading.made[i]) for i in _jumps(reading).found]
    line = min([i for i in spiked if line - HISTORY < i < line], default=line)  # it announced itself
    evidence = f"{_words(reading, [(line, lowest, highest), *rises[1:]])}; the warmup ends at "
    return reading.finding(line, "unstable in warmup", evidence + reading.place(warmup - 1))


def swings(reading: Reading) -> Finding | None:
    """A smoothed loss that climbs up and down, or away, and not in the warmup."""
    rises = _lasting_climbs(reading)
    if not rises or unstable_in_warmup(reading):
        return None
    return reading.finding(rises[0][0], "swings", _words(reading, rises))


def _words(reading: Reading, rises: list[Climb]) -> str:
    line, lowest, _ = rises[0]
    lr = reading.column("lr")[line]
    rate = f", at a learning rate of {lr:.3g}" if np.isfinite(lr) else ""
    return f"from {lowest:.3g} up to {max(high for _, _, high in rises):.3g} nats{rate}; {len(rises)} climbs"


def _lasting_climbs(reading: Reading) -> list[Climb]:
    if reading.is_sweep():
        raise NotSeenError("the learning rate is a sweep")
    if reading.first_loss < 0:
        raise NotSeenError("a loss below 0 is not measured in nats")
    rises, smooth, first = _climbs(reading), reading.smooth, reading.first_loss
    # Worse than the first weights for most of the run: it ran away with its first updates.
    away = bool(np.median(smooth) > (1 + MOVED) * first + 2 * reading.noise)
    if away and not rises:
        return [(int(reading.made[0]), first, float(smooth.max()))]
    if len(rises) == 1 and not away and smooth[-1] < RISE * rises[0][1]:
        return []  # up once and down again: a spike, if anything
    return rises


def _climbs(reading: Reading) -> list[Climb]:
    """Each climb of the smoothed loss. It begins where the losses from its lowest point on fall into two levels."""
    found: list[Climb] = []
    low, high, up = 0, 0, False
    smooth, floor = reading.smooth, NOISE_BELOW * min(reading.first_loss, LARGEST_LN_V)
    for i, value in enumerate(smooth):
        if not up and value < smooth[low]:
            low = i
        elif not up and value > RISE * max(smooth[low], floor) and value > smooth[low] + 2 * reading.noise:
            up, high = True, i
            found.append((_foot(reading, low, i), float(smooth[low]), float(value)))
        elif up and value > smooth[high]:
            high = i
            found[-1] = (*found[-1][:2], float(value))
        elif up and value * RISE < smooth[high]:
            up, low = False, i
    return found


def _foot(reading: Reading, low: int, high: int) -> int:
    """The line at which the losses leave the level of window ``low`` for that of window ``high``."""
    start, stop = (int(np.searchsorted(reading.made, reading.line_of(window))) for window in (low, high + 1))
    losses = reading.loss[start : max(stop, start + 1)].clip(max=reading.smooth[high])  # one outlier is no level
    return int(reading.made[start + change_point(losses)])


def spikes(reading: Reading) -> Finding | None:
    """The norm jumps and the loss with it; or the loss doubles and comes down again, whatever the norm does."""
    found, alone, usual, top = _jumps(reading)
    if not found:
        return None
    i = found[0]
    evidence = f"loss {usual[i]:.3g} before, up to {top[i]:.3g} nats; {len(found)} such updates"
    if i in alone:
        return reading.finding(int(reading.made[i]), "spike", evidence, symptom="the loss jumps, and comes down again")
    norm = reading.column("grad_norm")[reading.made]
    before = float(np.median(history(norm, i)))
    evidence = f"norm {norm[i]:.3g}, {norm[i] / before:.0f} times its median of {before:.3g}; {evidence}"
    return reading.finding(int(reading.made[i]), "spike", evidence)


def _jumps(reading: Reading) -> Jumps:
    loss, norm = reading.loss, reading.column("grad_norm")[reading.made]
    usual = _usual(loss)
    least = np.maximum(usual, NOISE_BELOW * abs(loss[0]))
    top = np.array([loss[i : i + FOLLOWS + 1].max() for i in range(len(loss))])
    with_norm = [int(i) for i in np.flatnonzero(top - usual > LOSS_JUMP * least) if _norm_jumps(norm, int(i))]
    alone = [int(i) for i in np.flatnonzero(loss - usual > DOUBLED * least) if _comes_down(loss, int(i), usual[i])]
    alone = [i for i in alone if not any(0 <= i - other <= FOLLOWS for other in with_norm)]
    found = sorted(i for i in [*with_norm, *alone] if top[i] - usual[i] > LOSS_SPREADS * _noise(loss, i))
    return Jumps(found, alone, usual, top)


def _usual(loss: np.ndarray) -> np.ndarray:
    """The median of the ``RECENT`` losses before each; NaN where there are fewer than half as many."""
    early = [np.median(loss[:i]) if 2 * i >= RECENT else np.nan for i in range(min(RECENT, len(loss)))]
    if len(loss) <= RECENT:
        return np.array(early)
    return np.append(early, np.median(np.lib.stride_tricks.sliding_window_view(loss[:-1], RECENT), axis=-1))


def _noise(loss: np.ndarray, i: int) -> float:
    return spread(loss[max(0, i - RECENT) : i])


def _norm_jumps(norm: np.ndarray, i: int) -> bool:
    norms = history(norm, i)
    return len(norms) > 0 and bool(norm[i] > NORM_JUMP * np.median(norms))


def _comes_down(loss: np.ndarray, i: int, usual: float) -> bool:
    """Within half as many updates as it is compared with; a loss that stays up is no spike."""
    after = loss[i : i + RECENT // 2]
    return bool(np.median(after) < (usual + after[0]) / 2)
