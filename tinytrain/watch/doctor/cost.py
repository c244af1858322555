"""Time and memory: where they go, and whether that grows."""

import numpy as np

from tinytrain.watch.doctor.finding import Finding
from tinytrain.watch.doctor.reading import Reading

PADDING = 0.30
"""share of positions. Rows sorted by length have 0.01 to 0.05, mixed lines as they come 0.6 and more"""
WAITING = 0.30
"""share of a step's time. Healthy runs have 0.01 to 0.13, the most where a step takes 2 ms"""
EXCHANGE = 0.40
"""share of an update's time. Two processes with enough work have less than 0.25 here, on two cores that others use"""
SLOWER = 0.65
"""of the first quarter's speed, at the end. The fastest tenth of each quarter is compared, for other programs make a
step slow and none makes it fast: healthy runs stay over 0.8"""
GROWTH, GROWS_IN = 0.05, 3
"""share by which memory grows from a fifth of the run to its end, and in how many quarters of that time it must grow by
a tenth of this. Healthy runs grow by up to 0.02, most of it at the start"""
NEAR = 0.90
"""share of the limit. A batch of longer rows, or a checkpoint, takes the rest"""


def padding(reading: Reading) -> list[Finding]:
    share = reading.column("padding")
    share = share[np.isfinite(share)]
    mean = float(share.mean())
    if mean <= PADDING:
        return []
    return [
        reading.finding(
            0,
            name="slow: padding",
            stage="cost",
            symptom="much of each batch carries no token",
            evidence=f"{mean:.0%} of all positions are padding, up to {share.max():.0%} in a batch",
            cause="rows of mixed lengths, each padded to the longest of its batch",
            checks=(
                "sort rows by length (bucketed), or pack several into one",
                "is one row far longer than the others?",
            ),
        )
    ]


def waiting(reading: Reading) -> list[Finding]:
    data, step = reading.column("seconds_data"), reading.column("seconds_step")
    share = data / (data + step)
    share = share[np.isfinite(share)]
    if not len(share) or np.median(share) <= WAITING:
        return []
    return [
        reading.finding(
            0,
            name="slow: waiting for data",
            stage="cost",
            symptom="each update waits for its batch",
            evidence=f"{1e3 * np.nanmedian(data):.3g} ms of {1e3 * np.nanmedian(data + step):.3g} ms in the median "
            f"({np.median(share):.0%})",
            cause="the data is read, decoded or tokenized while the device waits",
            checks=("time data[n] alone", "tokenize once and store the ids", "make batches in another process"),
        )
    ]


def slower(reading: Reading) -> list[Finding]:
    speed = reading.column("tokens_per_second")[reading.made][5:]
    speed = speed[np.isfinite(speed)]
    if len(speed) < 40:
        return []
    best = [float(np.quantile(part, 0.9)) for part in np.array_split(speed, 4)]
    if not (best[3] < SLOWER * best[0] and best[0] > best[1] > best[2] > best[3]):
        return []
    return [
        reading.finding(
            int(reading.made[5 + len(speed) // 4]),
            name="throughput falls",
            stage="cost",
            symptom="each update takes longer than the one before",
            evidence="tokens/s in the fastest tenth of each quarter: " + ", ".join(f"{value:,.0f}" for value in best),
            cause="something grows with every update: hooks, lists, a graph that is kept; or the device gets hot",
            checks=(
                "does seconds_data grow, or seconds_step?",
                "count the hooks of the modules, and the length of whatever is collected",
                "temperature and clock of the device, other programs on it",
            ),
        )
    ]


def exchange(reading: Reading) -> list[Finding]:
    sent, step = reading.column("seconds_communication"), reading.column("seconds_step")
    share = (sent / step)[reading.made]
    share = share[np.isfinite(share)]
    processes = reading.column("processes")
    if not len(share) or not np.nanmax(processes) > 1 or np.median(share) <= EXCHANGE:
        return []
    return [
        reading.finding(
            0,
            name="slow: exchange",
            stage="cost",
            symptom="processes spend much of each update on exchanging gradients",
            evidence=f"{np.median(share):.0%} of the update's time with {np.nanmax(processes):.0f} processes, "
            "after the last gradient was computed",
            cause="too little work in each update for its exchange, a slow network, or one process that is slower",
            checks=(
                "more rows in each update, or accumulation: one exchange for more work",
                "is each process as fast as the others alone?",
                "the bandwidth between them",
            ),
        )
    ]


def grows(reading: Reading) -> list[Finding]:
    memory = reading.column("memory_bytes")
    memory = memory[np.isfinite(memory)]
    late = memory[len(memory) // 5 :]
    if len(late) < 20:
        return []
    marks = np.array([np.median(part) for part in np.array_split(late, 5)])
    steps = np.diff(marks) / marks[0]
    if steps.sum() < GROWTH or (steps > GROWTH / 10).sum() < GROWS_IN or (steps < 0).any():
        return []
    per_update = (late[-1] - late[0]) / len(late)
    return [
        reading.finding(
            len(memory) // 5,
            name="memory grows",
            stage="cost",
            symptom="the memory in use grows with every update",
            evidence=f"{late[0] / 2**20:,.0f} MiB after a fifth of the run, {late[-1] / 2**20:,.0f} at its end; "
            f"{per_update / 1024:,.0f} KiB an update",
            cause="something is kept: a loss or output without detach() or item(), with its graph",
            checks=(
                "what is appended to a list in each update?",
                "log loss.item(), not loss",
                "does it stop without evaluation, without callbacks?",
            ),
        )
    ]


def near_limit(reading: Reading) -> list[Finding]:
    share = reading.column("memory_bytes") / reading.column("memory_limit_bytes")
    close = np.flatnonzero(share > NEAR)
    if not len(close):
        return []
    limit = reading.column("memory_limit_bytes")[close[0]]
    return [
        reading.finding(
            int(close[0]),
            name="memory near its limit",
            stage="cost",
            symptom="hardly any memory is left",
            evidence=f"{np.nanmax(share):.0%} of {limit / 2**30:.1f} GiB",
            cause="the batch, activations, or a copy that saving makes",
            checks=(
                "smaller micro-batches with accumulation: the update stays the same",
                "activation checkpointing",
                "does the peak come with evaluation or with a checkpoint?",
            ),
        )
    ]
