"""Answers to exercise 08.3: the place where a run goes on, wrong and right."""

import numpy as np
import torch


def from_batch(first, *, keep_short=True):
    """Batches one after the other, from ``first(done, per_epoch)`` on."""

    def answer(order, n_rows, batch_size, done, count):
        per_epoch = -(-n_rows // batch_size)
        batches = [order(e)[i : i + batch_size] for e in range(done + count + 4) for i in range(0, n_rows, batch_size)]
        batches = [batch for batch in batches if keep_short or len(batch) == batch_size]
        start = first(done, per_epoch)
        return batches[start : start + count]

    return answer


def one_order(which):
    def answer(order, n_rows, batch_size, done, count):
        per_epoch = -(-n_rows // batch_size)
        found = []
        for batch in range(done, done + count):
            _, place = divmod(batch, per_epoch)
            found.append(order(which)[place * batch_size : (place + 1) * batch_size])
        return found

    return answer


def runs_over_the_end(order, n_rows, batch_size, done, count):
    epoch, place = divmod(done, -(-n_rows // batch_size))
    rows = order(epoch)
    return [rows[i * batch_size : (i + 1) * batch_size] for i in range(place, place + count)]


def one_long_stream(order, n_rows, batch_size, done, count):
    rows = [row for epoch in range(done + count) for row in order(epoch)]
    return [rows[i * batch_size : (i + 1) * batch_size] for i in range(done, done + count)]


def two_epochs_only(order, n_rows, batch_size, done, count):
    epoch, place = divmod(done, -(-n_rows // batch_size))
    batches = [order(e)[i : i + batch_size] for e in (epoch, epoch + 1) for i in range(0, n_rows, batch_size)]
    return batches[place : place + count]


def asked_for(change):
    """The solution, with what it is asked for changed first."""

    def answer(order, n_rows, batch_size, done, count):
        given = {"order": order, "n_rows": n_rows, "batch_size": batch_size, "done": done, "count": count}
        return generator(**given | change(**given))

    return answer


def splits_a_tensor(order, n_rows, batch_size, done, count):
    batches, epoch = [], 0
    while len(batches) < done + count:
        batches += [part.tolist() for part in torch.tensor(order(epoch)).split(batch_size)]
        epoch += 1
    return batches[done : done + count]


def every_epoch_first(order, n, size, done, count):
    return [order(e)[i : i + size] for e in range(done + count) for i in range(0, n, size)][done : done + count]


def splits_an_array(order, n_rows, batch_size, done, count):
    batches, epoch = [], 0
    while len(batches) < done + count:
        batches += [list(part) for part in np.split(np.array(order(epoch)), range(batch_size, n_rows, batch_size))]
        epoch += 1
    return batches[done : done + count]


def of_tensors(*given):
    return [list(torch.tensor(batch)) for batch in generator(*given)]


def generator(order, n_rows, batch_size, done, count):
    def forever():
        epoch = 0
        while True:
            rows = order(epoch)
            while rows:
                yield rows[:batch_size]
                rows = rows[batch_size:]
            epoch += 1

    batches = forever()
    for _ in range(done):
        next(batches)
    return [next(batches) for _ in range(count)]


WRONG = {
    "the epoch begins again": (from_batch(lambda done, n: done // n * n), "The epoch begins again"),
    "jumps to the next epoch": (from_batch(lambda done, n: -(-done // n) * n), "jumps to the next epoch"),
    "the run begins again": (from_batch(lambda done, n: 0), "begins again"),
    "one too far": (from_batch(lambda done, n: done + 1), "passed over"),
    "one too few": (from_batch(lambda done, n: max(0, done - 1)), "comes twice"),
    "drops the short batch": (from_batch(lambda done, n: done, keep_short=False), "short batch"),
    "the first epoch's order": (one_order(0), "that of epoch 0"),
    "runs over the end": (runs_over_the_end, "stays in one epoch's order"),
    "one long stream": (one_long_stream, "rows of two epochs"),
    "one list of rows": (lambda o, n, b, d, c: o(0), "It returned a list of int"),
    "lists of tensors": (of_tensors, "list of list of Tensor"),
    "two epochs only": (two_epochs_only, "batches were asked for"),
    "three batches at least": (asked_for(lambda count, **_: {"count": max(3, count)}), "0 batches were asked for"),
    "one batch at least": (asked_for(lambda count, **_: {"count": max(1, count)}), "0 batches were asked for"),
    "six orders for ever": (asked_for(lambda order, **_: {"order": lambda e: order(e % 6)}), "far into the run"),
    "two rows at least": (asked_for(lambda batch_size, **_: {"batch_size": max(2, batch_size)}), "of one row"),
    "two batches at least": (
        asked_for(lambda n_rows, batch_size, **_: {"batch_size": min(batch_size, n_rows - 1)}),
        "holds an epoch",
    ),
}
RIGHT = {
    "a generator": generator,
    "all batches, then a slice": from_batch(lambda done, n: done),
    "as many epochs as batches": every_epoch_first,
    "torch splits": splits_a_tensor,
    "NumPy splits": splits_an_array,
}
