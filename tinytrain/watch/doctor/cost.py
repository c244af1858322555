"""Time and memory: where they go, and whether that grows."""

import numpy as np

from tinytrain.watch.doctor.finding import Finding
from tinytrain.watch.doctor.reading import NotSeenError, Reading

PADDING = 0.30
"""share of positions. Rows sorted by length have 0.01 to 0.05, mixed lines as they come 0.6 and more"""
WAITING = 0.30
"""share of the time of all steps, in the median of the run's quarters: what comes again and again is in each of them,
what came once is not. Healthy runs have 0.01 to 0.13, the most where a step takes 2 ms"""
EXCHANGE = 0.40
"""share of an update's time. Two processes with enough work have less than 0.25 here, on two cores that others use"""
SLOWER, FALLS_IN, STEP = 0.65, 6, 0.8
"""of the first eighth's speed, at the end; in how many of the seven steps from one eighth to the next it must fall,
which comes by chance once in 160 times; and the same share without the largest fall over two steps (one that comes at
once may lie inside an eighth), half of the whole: 0.8 squared is 0.65. One step down is another program or the device's
clock, which no log can tell from a fault. The fastest tenth of each eighth is compared, for other programs make steps
slow and none makes them fast"""
EIGHTHS = 80
"""updates behind the first ``START`` that this needs: ten for each"""
START = 5
"""updates at the start that are slow: memory is taken, kernels are chosen"""
GROWTH, GROWS_IN = 0.05, 3
"""share by which memory grows from a fifth of the run to its end, and in how many quarters of that time it must grow by
a tenth of this. Healthy runs grow by up to 0.02, most of it at the start"""
NEAR = 0.90
"""share of the limit. A batch of longer rows, or a checkpoint, takes the rest"""


def padding(reading: Reading) -> Finding | None:
    share = reading.column("padding")
    share = share[np.isfinite(share)]
    mean = float(share.mean())
    if mean <= PADDING:
        return None
    evidence = f"{mean:.0%} of all positions are padding, up to {share.max():.0%} in a batch"
    return reading.finding(0, "slow: padding", evidence)


def waiting(reading: Reading) -> Finding | None:
    data, step = reading.column("seconds_data"), reading.column("seconds_step")
    known = np.isfinite(data) & np.isfinite(step)
    data, step = data[known], step[known]
    quarters = [part.sum() for part in np.array_split(data, 4)], [part.sum() for part in np.array_split(data + step, 4)]
    shares = np.divide(*quarters, out=np.zeros(4), where=np.array(quarters[1]) > 0)
    if np.median(shares) <= WAITING:
        return None
    long = int((data > WAITING * (data + step)).sum())
    evidence = f"{np.median(shares):.0%} of the time, in the median of the run's quarters; {long} of {len(data)} "
    evidence += f"updates waited, the longest {data.max():.3g} s for a step of {np.median(step):.3g} s"
    return reading.finding(0, "slow: waiting for data", evidence)


def slower(reading: Reading) -> Finding | None:
    """Updates that take longer and longer. A single step down is not told: see ``SLOWER``."""
    speed = reading.column("tokens_per_second")[reading.made][START:]
    speed = speed[np.isfinite(speed) & (speed > 0)]
    if len(speed) < EIGHTHS:
        raise NotSeenError(f"fewer than {EIGHTHS + START} updates with tokens_per_second")
    best = np.array([np.quantile(part, 0.9) for part in np.array_split(speed, 8)])
    whole, at_once = best[-1] / best[0], (best[2:] / best[:-2]).min()
    if whole >= SLOWER or (np.diff(best) < 0).sum() < FALLS_IN or whole / at_once >= STEP:
        return None
    line = int(reading.made[START + len(speed) // 8])
    told = ", ".join(f"{value:,.0f}" for value in best)
    return reading.finding(line, "throughput falls", f"tokens/s in the fastest tenth of each eighth: {told}")


def exchange(reading: Reading) -> Finding | None:
    sent, step = reading.column("seconds_communication"), reading.column("seconds_step")
    share = (sent / step)[reading.made]
    share = share[np.isfinite(share)]
    processes = np.nanmax(reading.column("processes"))
    if processes == 1:
        raise NotSeenError("there was one process")
    if not len(share) or np.median(share) <= EXCHANGE:
        return None
    evidence = f"{np.median(share):.0%} of the update's time with {processes:.0f} processes, "
    return reading.finding(0, "slow: exchange", evidence + "after the last gradient was computed")


def grows(reading: Reading) -> Finding | None:
    memory = reading.column("memory_bytes")
    known = np.flatnonzero(np.isfinite(memory))
    late = memory[known][len(known) // 5 :]
    marks = np.array([np.median(part) for part in np.array_split(late, 5)])
    steps = np.diff(marks) / marks[0]
    if steps.sum() < GROWTH or (steps > GROWTH / 10).sum() < GROWS_IN or (steps < 0).any():
        return None
    evidence = f"{late[0] / 2**20:,.0f} MiB after a fifth of the run, {late[-1] / 2**20:,.0f} at its end; "
    evidence += f"{(late[-1] - late[0]) / len(late) / 1024:,.0f} KiB an update"
    return reading.finding(int(known[len(known) // 5]), "memory grows", evidence)


def near_limit(reading: Reading) -> Finding | None:
    limit = reading.column("memory_limit_bytes")
    share = reading.column("memory_bytes") / limit
    close = np.flatnonzero(share > NEAR)
    if not len(close):
        return None
    evidence = f"{np.nanmax(share):.0%} of {limit[close[0]] / 2**30:.1f} GiB"
    return reading.finding(int(close[0]), "memory near its limit", evidence)
