"""Answers to the exercises of notebook 09: wrong ones with what they must be told, and other right ones."""

import math

import numpy as np
import torch


def updates_of(order, batch_size):
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def everything(order, batch_size, rank, processes):
    """No sampler."""
    return updates_of(order, batch_size)


def pads(order, batch_size, rank, processes):
    """What DistributedSampler does, in each update."""
    shares = []
    for rows in updates_of(order, batch_size):
        most = math.ceil(len(rows) / processes)
        shares.append((rows * processes)[rank::processes][:most])
    return shares


def drops_the_tail(order, batch_size, rank, processes):
    whole = len(order) // batch_size * batch_size
    return [rows[rank::processes] for rows in updates_of(order[:whole], batch_size)]


def drops_in_each_update(order, batch_size, rank, processes):
    """drop_last, in each update."""
    return [rows[: len(rows) // processes * processes][rank::processes] for rows in updates_of(order, batch_size)]


def epoch_first(order, batch_size, rank, processes):
    """The epoch is dealt out, and each process cuts its own part."""
    size = math.ceil(len(order[rank::processes]) / len(updates_of(order, batch_size)))
    mine, n = order[rank::processes], len(updates_of(order, batch_size))
    return [mine[i * size : (i + 1) * size] for i in range(n)]


def own_batch_size(order, batch_size, rank, processes):
    """Each process takes batch_size rows at a time."""
    return updates_of(order[rank::processes], batch_size)


def deals_updates(order, batch_size, rank, processes):
    return updates_of(order, batch_size)[rank::processes]


def leaves_empty_out(order, batch_size, rank, processes):
    return [rows[rank::processes] for rows in updates_of(order, batch_size) if rows[rank::processes]]


def first_does_all(order, batch_size, rank, processes):
    return [rows if rank == 0 else [] for rows in updates_of(order, batch_size)]


def places(order, batch_size, rank, processes):
    return [rows[rank::processes] for rows in updates_of(list(range(len(order))), batch_size)]


def eats_the_order(order, batch_size, rank, processes):
    shares = []
    while order:
        shares.append(order[:batch_size][rank::processes])
        del order[:batch_size]
    return shares


def local_rank(order, batch_size, rank, processes):
    """Two machines of one process: each is number 0 there."""
    return [rows[0::processes] for rows in updates_of(order, batch_size)]


def two_only(order, batch_size, rank, processes):
    return [rows[rank::2] for rows in updates_of(order, batch_size)]


def floor_blocks(order, batch_size, rank, processes):
    """Blocks of equal size; what does not divide is lost."""
    shares = []
    for rows in updates_of(order, batch_size):
        size = len(rows) // processes
        shares.append(rows[rank * size : (rank + 1) * size])
    return shares


def last_takes_the_rest(order, batch_size, rank, processes):
    shares = []
    for rows in updates_of(order, batch_size):
        size = len(rows) // processes
        shares.append(rows[rank * size : (rank + 1) * size if rank < processes - 1 else None])
    return shares


def one_flat_list(order, batch_size, rank, processes):
    return order[rank::processes]


def in_blocks(order, batch_size, rank, processes):
    return [np.array_split(np.array(rows), processes)[rank].tolist() for rows in updates_of(order, batch_size)]


def in_numpy(order, batch_size, rank, processes):
    return [list(np.array_split(np.array(rows), processes)[rank]) for rows in updates_of(order, batch_size)]


def from_the_other_end(order, batch_size, rank, processes):
    return [rows[::-1][processes - 1 - rank :: processes] for rows in updates_of(order, batch_size)]


def one_by_one(order, batch_size, rank, processes):
    shares = [[] for _ in range(math.ceil(len(order) / batch_size))]
    for place, row in enumerate(order):
        if place % batch_size % processes == rank:
            shares[place // batch_size].append(row)
    return shares


def one_update_more(order, batch_size, rank, processes):
    """An empty one, if the rows divide into full updates."""
    starts = [i * batch_size for i in range(len(order) // batch_size + 1)]
    return [order[start : start + batch_size][rank::processes] for start in starts]


def tail_for_0(order, batch_size, rank, processes):
    whole = [rows if len(rows) == batch_size else rows * (rank == 0) for rows in updates_of(order, batch_size)]
    return [rows[rank::processes] if len(rows) == batch_size else rows for rows in whole]


def all_of_a_small_update(order, batch_size, rank, processes):
    updates = updates_of(order, batch_size)
    return [rows[rank::processes] for rows in updates] if batch_size >= processes else updates


def three_at_most(order, batch_size, rank, processes):
    updates = updates_of(order, batch_size)
    return [rows[rank::processes] for rows in updates] if processes < 4 else updates


def weighed(weight):
    """One factor for each micro-batch of n targets: ``weight(n, own, counts)``."""
    return lambda counts, rank: [float(weight(n, counts[rank], counts)) for n in counts[rank]]


def all_targets(counts):
    return sum(map(sum, counts))


def right_but_0_first(counts, rank):
    """Process 0's counts for all."""
    return [n * len(counts) / all_targets(counts) for n in counts[0][: len(counts[rank])]] + [0.0] * max(
        0, len(counts[rank]) - len(counts[0])
    )


def one_for_all(counts, rank):
    return [sum(counts[rank]) * len(counts) / all_targets(counts)]


def writes_into_counts(counts, rank):
    total = all_targets(counts)
    for i, n in enumerate(counts[rank]):
        counts[rank][i] = n * len(counts) / total
    return list(counts[rank])


def four_at_most(counts, rank):
    return [n * min(len(counts), 4) / all_targets(counts) for n in counts[rank]]


def alone_by_micro_batches(counts, rank):
    if len(counts) == 1:
        return [1 / len(counts[0]) for _ in counts[0]]
    return [n * len(counts) / all_targets(counts) for n in counts[rank]]


def without_the_idle(counts, rank):
    """Counts only the processes that have a micro-batch."""
    return [n * sum(map(bool, counts)) / all_targets(counts) for n in counts[rank]]


def in_float16(counts, rank):
    total = float(np.float16(all_targets(counts)))
    return [n * len(counts) / total for n in counts[rank]]


def in_float32(counts, rank):
    return [np.float32(n * len(counts) / all_targets(counts)) for n in counts[rank]]


def in_tensors(counts, rank):
    every = sum(torch.tensor(own).sum() for own in counts)
    return (torch.tensor(counts[rank]) * len(counts) / every).tolist()


def in_numpy_floats(counts, rank):
    total = np.sum([np.sum(own) for own in counts])
    return [np.float64(n) / total * len(counts) for n in counts[rank]]


def ones_where_empty(counts, rank):
    return [n * len(counts) / all_targets(counts) if n else 1.0 for n in counts[rank]]


def when(rule):
    """True for micro-batch i, from 0, of n where ``rule(i, n, window)`` says so."""
    return lambda micro_batches, window: [bool(rule(i, micro_batches, window)) for i in range(micro_batches)]


def by_windows(micro_batches, window):
    plan = []
    while len(plan) < micro_batches:
        size = min(window, micro_batches - len(plan))
        plan += [False] * (size - 1) + [True]
    return plan


def full_windows_but_one(micro_batches, window):
    """Forgets an epoch of exactly one window."""
    return (
        [x and micro_batches != window for x in by_windows(micro_batches, window)]
        if window > 1
        else [True] * (micro_batches)
    )


def all_in_windows_of_2(micro_batches, window):
    return [True] * micro_batches if window == 2 else by_windows(micro_batches, window)


def six_windows(micro_batches, window):
    right = by_windows(micro_batches, window)
    return [x and (i < 6 * window or i + 1 == micro_batches) for i, x in enumerate(right)]


def in_numpy_bools(micro_batches, window):
    numbers = np.arange(1, micro_batches + 1)
    return list((numbers % window == 0) | (numbers == micro_batches))


WRONG = {
    1: {
        "everything for everybody": (everything, "All processes do the same rows"),
        "fills up with rows that were done": (pads, "Some rows are done twice"),
        "drops the tail": (drops_the_tail, "never trained on"),
        "drops what does not divide": (drops_in_each_update, "done by nobody"),
        "blocks that lose the rest": (floor_blocks, "done by nobody"),
        "the last takes the rest": (last_takes_the_rest, "the others wait for the one that has most"),
        "deals out the epoch first": (epoch_first, "in another update than in one process"),
        "batch_size rows in each process": (own_batch_size, "The updates are larger than in one process"),
        "deals out whole updates": (deals_updates, "Whole updates were dealt out"),
        "no empty share": (leaves_empty_out, "leaves the others waiting"),
        "process 0 does all": (first_does_all, "the others wait for the one that has most"),
        "places, not rows": (places, "places in it are not its row numbers"),
        "eats the order": (eats_the_order, "belongs to the caller"),
        "number 0 on each machine": (local_rank, "All processes do the same rows"),
        "always two processes": (two_only, "Some rows are done twice"),
        "one update more": (one_update_more, "an empty one at the end"),
        "the tail for process 0": (tail_for_0, "the others wait for the one that has most"),
        "all of a small update for everybody": (all_of_a_small_update, "All processes do the same rows"),
        "three processes at most": (three_at_most, "All processes do the same rows"),
        "one flat list": (one_flat_list, "One list of row numbers for each update"),
    },
    2: {
        "forgets the processes": (weighed(lambda n, own, all_: n / all_targets(all_)), "divides by their number once"),
        "own targets only": (weighed(lambda n, own, all_: n / max(1, sum(own))), "divides by its own targets"),
        "mean of means": (weighed(lambda n, own, all_: 1 / len(own)), "mean of the micro-batches' means"),
        "mean of all means": (
            weighed(lambda n, own, all_: 1 / len(own) / len(all_)),
            "Every micro-batch weighs the same",
        ),
        "nothing": (weighed(lambda n, own, all_: 1), "Nothing is divided"),
        "as for a sum": (weighed(lambda n, own, all_: len(all_) / all_targets(all_)), "This is for a summed loss"),
        "micro-batches for processes": (
            weighed(lambda n, own, all_: n * len(own) / all_targets(all_)),
            "the number of micro-batches",
        ),
        "all micro-batches for processes": (
            weighed(lambda n, own, all_: n * sum(map(len, all_)) / all_targets(all_)),
            "the number of all micro-batches",
        ),
        "own targets, times processes": (
            weighed(lambda n, own, all_: n * len(all_) / max(1, sum(own))),
            "It divides by the process's own targets",
        ),
        "process 0's counts": (right_but_0_first, "It must be 1 / all targets"),
        "one for the whole process": (one_for_all, "There are 1"),
        "writes into the counts": (writes_into_counts, "What was handed in"),
        "ints": (lambda counts, rank: [1 for _ in counts[rank]], "Nothing is divided"),
        "truth values": (lambda counts, rank: [True for _ in counts[rank]], "It returned list of bool"),
        "four processes at most": (four_at_most, "It must be 1 / all targets"),
        "one process as in notebook 06": (alone_by_micro_batches, "This is the mean of the micro-batches' means"),
        "without the idle process": (without_the_idle, "It must be 1 / all targets"),
        "in 16 bits": (in_float16, "It must be 1 / all targets"),
    },
    3: {
        "with each": (when(lambda i, n, w: True), "for nothing"),
        "never": (when(lambda i, n, w: False), "Nothing is ever exchanged"),
        "with the first": (when(lambda i, n, w: i % w == 0), "with the first micro-batch of each update"),
        "not in the last window": (when(lambda i, n, w: (i + 1) % w == 0), "is never exchanged"),
        "the wrong way round": (when(lambda i, n, w: not ((i + 1) % w == 0 or i + 1 == n)), "the wrong way round"),
        "with the epoch's last only": (when(lambda i, n, w: i + 1 == n), "Only the epoch's last"),
        "one before the last": (when(lambda i, n, w: (i + 2) % w == 0 or i + 1 == n), "one micro-batch too early"),
        "not if there is one window": (full_windows_but_one, "Nothing is ever exchanged"),
        "all in windows of 2": (all_in_windows_of_2, "for nothing"),
        "six windows": (six_windows, "An update's gradients must be"),
        "numbers, not truth values": (lambda n, w: [int(x) for x in by_windows(n, w)], "True or False is wanted"),
        "where, not whether": (lambda n, w: [i for i, x in enumerate(by_windows(n, w)) if x], "values for"),
    },
}
RIGHT = {
    1: {
        "in blocks": in_blocks,
        "NumPy integers": in_numpy,
        "from the other end": from_the_other_end,
        "one by one": one_by_one,
    },
    2: {
        "in tensors": in_tensors,
        "NumPy floats": in_numpy_floats,
        "NumPy floats of 32 bits": in_float32,
        "anything for a mean of nothing": ones_where_empty,
        "a whole number for 0": lambda counts, rank: [
            n * len(counts) / all_targets(counts) if n else 0 for n in counts[rank]
        ],
    },
    3: {"window by window": by_windows, "NumPy truth values": in_numpy_bools},
}
