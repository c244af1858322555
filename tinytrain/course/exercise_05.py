"""The exercises of notebook 05: the share of air, a batch from rows, restarted positions, packed rows."""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tinytrain.course.exercises import Exercise, Report
from tinytrain.course.rows_05 import (
    IGNORE,
    Batch,
    need_tensors,
    packed_by_hand,
    positions_by_hand,
    random_ids,
    what,
)

CHANGED = "What was handed in belongs to the caller: work on a copy, such as `sorted(...)` or `list + list` makes."


def padding_share(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> float:
    """The share of all positions, 0 to 1, that are padding when each batch is padded to its own longest row.

    ``lengths[i]`` is the number of positions that row i needs; a batch is a list of such row
    numbers i.
    """
    positions = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    real = sum(lengths[i] for batch in batches for i in batch)
    return (positions - real) / positions


def check_padding_share(answer: Callable[[Sequence[int], Sequence[Sequence[int]]], float], report: Report) -> None:
    """Ask for a case on paper first, then for random batches of unequal size."""
    cases = {"lengths 1, 3, 4, 4, 2 in batches (0, 1), (2, 3, 4)": ([1, 3, 4, 4, 2], [[0, 1], [2, 3, 4]])}
    for number in (1, 2, 3):
        lengths = [random.randint(1, 90) for _ in range(23)]
        rows = random.sample(range(23), 20 - number)  # not all rows are used, so lengths must be looked up
        cases[f"random batches {number}"] = (lengths, [rows[:8], rows[8:11], rows[11:12], rows[12:]])
    cases["no padding at all"] = ([7, 7, 2, 7], [[0], [1, 3]])
    for name, (lengths, batches) in cases.items():
        given = (list(lengths), [list(batch) for batch in batches])
        share = answer(*given)
        report.need(
            f"{name}: returns a number",
            isinstance(share, float | int) and not isinstance(share, bool),
            f"It returned {type(share).__name__}; a plain number is wanted, such as `.item()` makes of a tensor.",
        )
        mask = [[t < lengths[i] for t in range(max(lengths[j] for j in batch))] for batch in batches for i in batch]
        cells = [cell for row in mask for cell in row]
        right = cells.count(False) / len(cells)
        report.need(
            f"{name}: {right:.4f}", bool(abs(share - right) < 1e-6), _likely_share(share, right, lengths, batches)
        )
        report.need(f"{name}: lengths and batches are as before", given == (lengths, batches), CHANGED)


def _likely_share(share: float, right: float, lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> str:
    each = [1 - sum(lengths[i] for i in batch) / (len(batch) * max(lengths[i] for i in batch)) for batch in batches]
    used = [lengths[i] for batch in batches for i in batch]
    guesses = {
        "This is the mean of the batches' own shares. A large batch has more positions than a small one: add up the "
        "positions of all batches first, and divide once.": sum(each) / len(each),
        "This is the share that is real. The padding is the rest.": 1 - right,
        "This is padding for each real position. The share is of all positions.": right / (1 - right),
        "Every batch is padded to the longest row of all. Its own longest row is enough.": 1
        - sum(used) / (len(used) * max(used)),
        "Every batch is padded to the longest row there is. Its own longest row is enough.": 1
        - sum(used) / (len(used) * max(lengths)),
    }
    fits = [text for text, value in guesses.items() if abs(share - value) < 1e-6]
    return fits[0] if fits else f"It returned {share:.4f}, and {right:.4f} is right. Draw the first case on paper."


def rows_to_batch(rows: list[list[int]], pad_id: int) -> Batch:
    """One batch from rows of two or more token ids: a dict of three tensors ``[B,T]``, padded on the right.

    A row of n ids gives n - 1 positions: its first n - 1 ids are inputs, its last n - 1 ids are
    labels. T is the largest n - 1 of the batch. Behind a row's end stand ``pad_id`` in
    ``input_ids``, -100 in ``labels`` and False in ``attention_mask``, which is a bool tensor, True
    at real inputs; the other two are int64. ``pad_id`` may also be a token of the text. The rows
    themselves stay as they are.
    """
    T = max(len(row) - 1 for row in rows)
    batch = {
        "input_ids": torch.full((len(rows), T), pad_id),
        "labels": torch.full((len(rows), T), -100),
        "attention_mask": torch.zeros(len(rows), T, dtype=torch.bool),
    }
    for i, row in enumerate(rows):
        n = len(row) - 1
        batch["input_ids"][i, :n] = torch.tensor(row[:-1])
        batch["labels"][i, :n] = torch.tensor(row[1:])
        batch["attention_mask"][i, :n] = True
    return batch


def check_rows_to_batch(answer: Callable[[list[list[int]], int], Batch], report: Report) -> None:
    """The small case of the lesson, then random rows in which the padding's id is also a token."""
    more = [[random.randint(0, 5) for _ in range(n)] for n in (2, *random.sample(range(4, 12), random.randint(2, 5)))]
    pad = random.randint(0, 5)
    for rows, pad_id, name in (
        ([[5, 6, 2], [5, 6, 7, 8, 2]], 2, "rows [5,6,2] and [5,6,7,8,2]"),
        ([*more, [pad, pad, (pad + 1) % 6]], pad, "random rows"),
    ):
        T = max(map(len, rows)) - 1
        given = [list(row) for row in rows]
        batch = answer(given, pad_id)
        report.need(f"{name}: the rows are as before", given == rows, CHANGED)
        need_tensors(report, name, batch, ("input_ids", "labels", "attention_mask"), (len(rows), T))
        wanted = [row[1:] + [IGNORE] * (T - len(row) + 1) for row in rows]
        labels = batch["labels"].tolist()
        report.need(f"{name}: labels {wanted}", labels == wanted, _likely_labels(labels, wanted, rows, pad_id, T))
        inputs = [row[:-1] + [pad_id] * (T - len(row) + 1) for row in rows]
        report.need(
            f"{name}: input_ids",
            batch["input_ids"].tolist() == inputs,
            f"They are {batch['input_ids'].tolist()}, and should be {inputs}: all ids of a row but its last, then "
            f"pad_id.",
        )
        real = [[t < len(row) - 1 for t in range(T)] for row in rows]
        report.need(
            f"{name}: attention_mask",
            batch["attention_mask"].dtype == torch.bool and batch["attention_mask"].tolist() == real,
            "It should be True at a row's first n - 1 positions and False behind them, as a bool tensor. An id equal "
            "to pad_id inside a row is a token like any other.",
        )


def _likely_labels(labels: list[list[int]], wanted: list[list[int]], rows: list[list[int]], pad_id: int, T: int) -> str:
    def put(parts: list[list[int]]) -> list[list[int]]:
        return [part[:T] + [IGNORE] * (T - len(part)) for part in parts]

    by_value = [[IGNORE if label == pad_id else label for label in line] for line in wanted]
    by_input = [
        [IGNORE if (row[:-1] + [pad_id] * T)[t] == pad_id else label for t, label in enumerate(line)]
        for row, line in zip(rows, wanted, strict=True)
    ]
    guesses = {
        "Labels equal to pad_id were masked, and with them a real token of the text: the model never learns to end a "
        "sentence. Mask by length: what stands behind the row's end.": by_value,
        "Labels were masked where the input is pad_id, and a real token may have that id. Mask by length: what stands "
        "behind the row's end.": by_input,
        "The labels are the inputs themselves, not moved by one: the model only has to copy.": put(
            [row[:-1] for row in rows]
        ),
        "The labels are moved by two: each position must predict the token after the next.": put(
            [row[2:] for row in rows]
        ),
        "Padding is a target: behind a row's end the label must be -100, or the model is trained to write padding.": [
            [pad_id if label == IGNORE else label for label in line] for line in wanted
        ],
        "Each row stands at the right edge. Padding belongs behind the rows here.": [
            [IGNORE] * (T - len(row) + 1) + row[1:] for row in rows
        ],
    }
    fits = [text for text, value in guesses.items() if labels == value]
    return fits[0] if fits else f"They are {labels}. A row's labels are its ids from the second on, then -100."


def restarted_positions(doc_ids: Tensor) -> Tensor:
    """Positions ``[B,T]`` (int64) for packed rows: each counted from 0 at the start of its document.

    ``doc_ids`` ``[B,T]`` says which document of its row a position belongs to. A document is a run
    of equal ids, 0 or more, in no particular order; no two documents of a row share an id. -1 is
    padding, where the position is 0; it may stand at either end of a row. ``doc_ids`` stays as it
    is.
    """
    place = torch.arange(doc_ids.shape[1]).expand_as(doc_ids)
    begins = torch.ones_like(doc_ids, dtype=torch.bool)
    begins[:, 1:] = doc_ids[:, 1:] != doc_ids[:, :-1]
    start = torch.where(begins, place, 0).cummax(1).values
    return torch.where(doc_ids < 0, 0, place - start)


def check_restarted_positions(answer: Callable[[Tensor], Tensor], report: Report) -> None:
    """A row on paper first, then random rows with padding at an end or without, one of them nothing else."""
    cases = {"[0, 0, 0, 1, 1, -1, -1]": torch.tensor([[0, 0, 0, 1, 1, -1, -1]])}
    T = random.randint(15, 20)
    rows = [random_ids(T, pad) for pad in (0, 0, 3, 6)]
    rows[1] = [rows[0][-1] if number == rows[1][0] else number + 90 for number in rows[1]]  # the last id goes on below
    cases["random rows"] = torch.tensor([*rows, [-1] * T, random_ids(T, 4)[::-1]])
    for name, doc_ids in cases.items():
        given = doc_ids.clone()
        positions = answer(given)
        report.need(
            f"{name}: an int64 tensor of the same shape",
            isinstance(positions, Tensor) and positions.shape == doc_ids.shape and positions.dtype == torch.int64,
            f"It returned {what(positions)}; torch.int64 {list(doc_ids.shape)} is wanted.",
        )
        wanted = [positions_by_hand(line) for line in doc_ids.tolist()]
        got = positions.tolist()
        report.need(f"{name}: {wanted[0]}", got == wanted, _likely_positions(got, wanted, doc_ids))
        report.need(f"{name}: doc_ids are as before", torch.equal(given, doc_ids), CHANGED)


def _likely_positions(got: list[list[int]], wanted: list[list[int]], doc_ids: Tensor) -> str:
    B, T = doc_ids.shape
    real = doc_ids >= 0
    if got == [list(range(T))] * B:
        return "They run through the whole row. Each document must begin at 0 again."
    if got == torch.where(real, torch.arange(T), 0).tolist():
        return "They run on from document to document; only padding was set to 0."
    if got == (torch.tensor(wanted) + 1).tolist() or got == torch.where(real, torch.tensor(wanted) + 1, 0).tolist():
        return "A document begins at position 0, not at 1."
    if torch.equal(torch.tensor(got)[real], torch.tensor(wanted)[real]):
        return "The documents are right. At padding, where doc_ids is -1, the position should be 0."
    if got == doc_ids.clamp(min=0).tolist():
        return "That is the number of the document. Wanted is the place inside it."
    return f"The first row gave {got[0]}. Where is the start of the document that a position belongs to?"


def pack_in_order(documents: list[list[int]], row_length: int) -> Batch:
    """Documents of token ids, packed into rows of ``row_length`` positions, in the order in which they come.

    A document of n ids (2 or more, and at most ``row_length + 1``) takes n - 1 positions, its last
    id being a label only. It goes behind the one before it if that row still has n - 1 positions
    free, and otherwise begins a new row. Returns ``input_ids``, ``labels``, ``doc_ids`` and
    ``positions``, each ``[rows, row_length]`` and int64. In each row documents are numbered from 0,
    and positions start at 0 in each document. The rest of a row holds 0, -100, -1 and 0. The
    documents themselves stay as they are.
    """
    names = {"input_ids": 0, "labels": -100, "doc_ids": -1, "positions": 0}
    rows = []
    free, number = 0, 0
    for document in documents:
        n = len(document) - 1
        if n > free:
            rows.append({name: torch.full((row_length,), filler) for name, filler in names.items()})
            free, number = row_length, 0
        place = slice(row_length - free, row_length - free + n)
        rows[-1]["input_ids"][place] = torch.tensor(document[:-1])
        rows[-1]["labels"][place] = torch.tensor(document[1:])
        rows[-1]["doc_ids"][place] = number
        rows[-1]["positions"][place] = torch.arange(n)
        free, number = free - n, number + 1
    return {name: torch.stack([row[name] for row in rows]) for name in names}


def check_pack_in_order(answer: Callable[[list[list[int]], int], Batch], report: Report) -> None:
    """A small case on paper, then random documents whose tokens tell where they came from."""
    width = random.randint(7, 12)
    lengths = [4, width + 1, 3, *(random.randint(2, width + 1) for _ in range(10))]
    random_ones = [[100 * i + k for k in range(n)] for i, n in enumerate(lengths, 1)]
    random_ones.insert(random.randint(3, 13), [0, 7, 0])  # 0 is a token like any other
    for documents, T, name in (
        ([[1, 2, 3], [4, 5, 6], [7, 8]], 4, "[1,2,3], [4,5,6], [7,8] in rows of 4"),
        (random_ones, width, f"14 random documents in rows of {width}"),
    ):
        given = [list(document) for document in documents]
        packed = answer(given, T)
        report.need(f"{name}: the documents are as before", given == documents, CHANGED)
        wanted = packed_by_hand(documents, T)
        rows = len(wanted["labels"])
        need_tensors(report, name, packed, tuple(wanted), (None, T))
        alike = len({packed[key].shape for key in wanted}) == 1
        report.need(f"{name}: all four have the same shape", alike, "They differ in their number of rows.")
        got = {key: packed[key].tolist() for key in wanted}
        pairs = [
            (a, b)
            for ins, outs in zip(got["input_ids"], got["labels"], strict=True)
            for a, b in zip(ins, outs, strict=True)
            if b != IGNORE
        ]
        inside = {pair for document in documents for pair in pairwise(document)}
        report.need(
            f"{name}: no target crosses from one document into the next",
            set(pairs) <= inside,
            "Some position must predict a token of another document, or none at all. A document's last id is a label "
            "only: it is never an input, for what follows it is a stranger.",
        )
        report.need(
            f"{name}: every pair once",
            sorted(pairs) == sorted(inside),
            f"{len(inside)} pairs of neighbours are in the documents, and {len(pairs)} came out.",
        )
        report.need(
            f"{name}: {rows} rows, documents in order",
            got["labels"] == wanted["labels"],
            f"{len(got['labels'])} rows came out. A document that fits exactly still fits; one that does not begins a "
            f"new row, and rows before the last are not gone back to.",
        )
        report.need(f"{name}: input_ids, 0 at the rest", got["input_ids"] == wanted["input_ids"], "Look at the rest.")
        report.need(
            f"{name}: doc_ids {wanted['doc_ids'][:2]}…",
            got["doc_ids"] == wanted["doc_ids"],
            "Documents are numbered from 0 in each row, and the rest is -1. With 0 there, padding would pass for a "
            "part of the first document.",
        )
        report.need(
            f"{name}: positions restart",
            got["positions"] == wanted["positions"],
            f"They begin {got['positions'][0]}, and should begin {wanted['positions'][0]}: from 0 in each document.",
        )


EXERCISES = (
    Exercise(
        number=1,
        title="The share of air",
        goal="From the lengths of rows and the batches they are put into, compute the share of positions that is "
        "padding. It costs nothing to ask before a run, and no tensor is needed.",
        difficulty="easy",
        minutes=5,
        solution=padding_share,
        check=check_padding_share,
        hints=(
            "Lengths 1 and 3 together make 2 × 3 = 6 positions, of which 4 are real. Add up positions and real ones "
            "over all batches.",
            "`len(batch) * max(lengths[i] for i in batch)` are the positions of one batch.",
        ),
    ),
    Exercise(
        number=2,
        title="Rows to a batch",
        goal="Write the function that almost every training program has, and that many have wrong: rows of ids in, a "
        "padded batch out. With pad = eos = 2, rows `[5,6,2]` and `[5,6,7,8,2]` must give labels `[6,2,-100,-100]` and "
        "`[6,7,8,2]`.",
        difficulty="medium",
        minutes=10,
        solution=rows_to_batch,
        check=check_rows_to_batch,
        hints=(
            "Fill three tensors `[B,T]` with what padding looks like, then write each row over the first n - 1 places.",
            "Never ask whether a label *equals* pad_id: `[6,2]` ends in a 2 that is meant. Only the length knows where "
            "a row ends.",
        ),
    ),
    Exercise(
        number=3,
        title="Positions that restart",
        goal="From `doc_ids` alone, compute the positions of a packed row, without a loop over positions if you can.",
        difficulty="medium",
        minutes=10,
        solution=restarted_positions,
        check=check_restarted_positions,
        hints=(
            "A position inside its document is the place in the row minus the place where the document begins. A "
            "document begins where the id differs from the one before it.",
            "Write the place at each beginning and 0 elsewhere; `cummax(1).values` then carries the last beginning "
            "along the row.",
        ),
    ),
    Exercise(
        number=4,
        title="Pack with boundaries",
        goal="Put documents into rows in the order in which they come, so that no target crosses a boundary, and mark "
        "whose position is whose.",
        difficulty="hard",
        minutes=20,
        solution=pack_in_order,
        check=check_pack_in_order,
        hints=(
            "Keep a list of rows and the number of free positions in the last one. Each document changes four tensors "
            "at the same places.",
            "A document of n ids needs n - 1 places. If that is more than are free, append a fresh row, all filler, "
            "and number documents from 0 again.",
        ),
    ),
)
