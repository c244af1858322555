"""Answers to the exercises of notebook 05: wrong ones with what they must be told, and other right ones."""

from itertools import pairwise

import numpy as np
import torch

from tinytrain.batches import collate, padding_waste
from tinytrain.course.exercise_05 import pack_in_order, restarted_positions, rows_to_batch

PAD = -100


def share_of(lengths, batch, longest=None):
    return 1 - sum(lengths[i] for i in batch) / (len(batch) * (longest or max(lengths[i] for i in batch)))


def everything(batches):
    return [i for batch in batches for i in batch]


def changed(batch, **parts):
    return {**batch, **parts}


def by_value(rows, pad_id):
    batch = rows_to_batch(rows, pad_id)
    return changed(batch, labels=batch["labels"].masked_fill(batch["labels"] == pad_id, PAD))


def by_input_value(rows, pad_id):
    batch = rows_to_batch(rows, pad_id)
    return changed(batch, labels=batch["labels"].masked_fill(batch["input_ids"] == pad_id, PAD))


def padding_is_a_target(rows, pad_id):
    batch = rows_to_batch(rows, pad_id)
    return changed(batch, labels=batch["labels"].masked_fill(~batch["attention_mask"], pad_id))


def copies(rows, pad_id):
    batch = rows_to_batch(rows, pad_id)
    return changed(batch, labels=batch["input_ids"].masked_fill(~batch["attention_mask"], PAD))


def moved_by_two(rows, pad_id):
    batch = rows_to_batch(rows, pad_id)
    labels = torch.cat([batch["labels"][:, 1:], torch.full((len(rows), 1), PAD)], dim=1)
    return changed(batch, labels=labels)


def one_too_long(rows, pad_id):
    """Pads all ids first; inputs and labels have a position more than there are pairs."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [pad_id] * (longest - len(row)) for row in rows])
    labels = torch.cat([ids[:, 1:], torch.full((len(rows), 1), PAD)], dim=1)
    return {"input_ids": ids, "labels": labels, "attention_mask": ids != pad_id}


def mask_by_value(rows, pad_id):
    batch = rows_to_batch(rows, pad_id)
    return changed(batch, attention_mask=batch["input_ids"] != pad_id)


def mask_of_targets_only(rows, pad_id):
    batch = rows_to_batch(rows, pad_id)
    return changed(batch, attention_mask=batch["attention_mask"].long())


def on_the_left(rows, pad_id):
    return collate(rows, pad_id=pad_id, side="left")


def whole_row(doc_ids):
    return torch.arange(doc_ids.shape[1]).expand_as(doc_ids).clone()


def with_targets_across(documents, row_length):
    """One stream of ids cut into rows, as for a single long text; each last id predicts a stranger."""
    stream = [token for document in documents for token in document]
    stream += [stream[-1]] * (-(len(stream) - 1) % row_length)
    ids = torch.tensor(stream)
    shape = (-1, row_length)
    owners = torch.tensor([k for k, document in enumerate(documents) for _ in document])
    owners = torch.cat([owners, owners.new_full((len(ids) - len(owners),), -1)])
    input_ids, labels, doc_ids = ids[:-1].view(shape), ids[1:].view(shape), owners[:-1].view(shape)
    return {"input_ids": input_ids, "labels": labels, "doc_ids": doc_ids, "positions": whole_row(input_ids)}


def an_exact_fit_begins_a_new_row(documents, row_length):
    rows, free = [], 0
    for document in documents:
        if len(document) - 1 >= free:
            rows.append([])
            free = row_length
        rows[-1].append(document)
        free -= len(document) - 1
    return stacked([pack_in_order(row, row_length) for row in rows])


def stacked(parts):
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def last_row_lost(documents, row_length):
    return {name: tensor[:-1] for name, tensor in pack_in_order(documents, row_length).items()}


def filler_is_the_first_document(documents, row_length):
    packed = pack_in_order(documents, row_length)
    return changed(packed, doc_ids=packed["doc_ids"].clamp(min=0))


def positions_run_on(documents, row_length):
    packed = pack_in_order(documents, row_length)
    return changed(packed, positions=whole_row(packed["doc_ids"]).masked_fill(packed["doc_ids"] < 0, 0))


def numbered_through(documents, row_length):
    packed = pack_in_order(documents, row_length)
    before = (packed["doc_ids"].amax(1) + 1).cumsum(0) - packed["doc_ids"].amax(1) - 1
    ids = torch.where(packed["doc_ids"] < 0, -1, packed["doc_ids"] + before[:, None])
    return changed(packed, doc_ids=ids)


def one_document_a_row(documents, row_length):
    return stacked([pack_in_order([document], row_length) for document in documents])


def padding_has_targets(documents, row_length):
    packed = pack_in_order(documents, row_length)
    return changed(packed, labels=packed["labels"].clamp(min=0))


def as_int32(answer):
    return lambda *given: {k: t if t.dtype == torch.bool else t.int() for k, t in answer(*given).items()}


def sorts_in_place(lengths, batches):
    for batch in batches:
        batch.sort(key=lengths.__getitem__)
    return padding_waste(lengths, batches)


def pads_in_place(rows, pad_id):
    batch = rows_to_batch(rows, pad_id)
    for row in rows:
        row += [pad_id] * (max(map(len, rows)) - len(row))
    return batch


def across_rows(doc_ids):
    """One long row, so that a document goes on at the start of the row below."""
    return restarted_positions(doc_ids.reshape(1, -1)).reshape(doc_ids.shape)


def new_document_if_larger(doc_ids):
    begins = torch.ones_like(doc_ids, dtype=torch.bool)
    begins[:, 1:] = doc_ids[:, 1:] > doc_ids[:, :-1]
    start = torch.where(begins, whole_row(doc_ids), 0).cummax(1).values
    return (whole_row(doc_ids) - start).masked_fill(doc_ids < 0, 0)


def padding_at_the_end_only(doc_ids):
    """Counts from the row's first position on, whatever it holds, and never asks for padding but at the end."""
    positions = positions_by_counting(doc_ids + 1)
    tail = (doc_ids >= 0).flip(1).cumsum(1).flip(1) == 0
    return positions.masked_fill(tail, 0)


def marks_in_place(doc_ids):
    positions = restarted_positions(doc_ids)
    doc_ids[doc_ids < 0] = 0
    return positions


def goes_back(documents, row_length):
    """First fit: each document into the first row that still has room."""
    rows = []
    for document in documents:
        n = len(document) - 1
        fits = (row for row in rows if sum(len(each) - 1 for each in row) + n <= row_length)
        row = next(fits, None)
        if row is None:
            rows.append([document])
        else:
            row.append(document)
    return stacked([pack_in_order(row, row_length) for row in rows])


def zero_is_no_token(documents, row_length):
    packed = pack_in_order(documents, row_length)
    return changed(packed, labels=packed["labels"].masked_fill(packed["input_ids"] == 0, PAD))


def pops(documents, row_length):
    packed = pack_in_order(documents, row_length)
    while documents:
        documents.pop()
    return packed


def a_row_less_of_labels(documents, row_length):
    packed = pack_in_order(documents, row_length)
    return changed(packed, labels=packed["labels"][:-1])


def positions_by_counting(doc_ids):
    positions = torch.zeros_like(doc_ids)
    for t in range(1, doc_ids.shape[1]):
        same = doc_ids[:, t] == doc_ids[:, t - 1]
        positions[:, t] = torch.where(same & (doc_ids[:, t] >= 0), positions[:, t - 1] + 1, 0)
    return positions


WRONG = {
    1: {
        "mean of shares": (lambda L, B: sum(share_of(L, b) for b in B) / len(B), "mean of the batches' own shares"),
        "what is real": (lambda L, B: 1 - padding_waste(L, B), "the share that is real"),
        "over the real ones": (
            lambda L, B: padding_waste(L, B) / (1 - padding_waste(L, B)),
            "padding for each real position",
        ),
        "longest of all": (
            lambda L, B: share_of(L, everything(B), max(L)),
            "Its own longest row is enough",
        ),
        "longest of all that are used": (
            lambda L, B: share_of(L, everything(B)),
            "Its own longest row is enough",
        ),
        "a tensor": (lambda L, B: torch.tensor(padding_waste(L, B)), "It returned Tensor"),
        "sorts in place": (sorts_in_place, "belongs to the caller"),
        "nothing": (lambda L, B: 0.0, "Draw the first case on paper"),
    },
    2: {
        "labels masked by value": (by_value, "the model never learns to end a sentence"),
        "labels masked by the input's value": (by_input_value, "masked where the input is pad_id"),
        "padding is a target": (padding_is_a_target, "Padding is a target"),
        "not moved": (copies, "the model only has to copy"),
        "moved twice": (moved_by_two, "moved by two"),
        "a position too many": (one_too_long, "n ids give n - 1 positions"),
        "attention by value": (mask_by_value, "An id equal to pad_id inside a row is a token"),
        "attention as integers": (mask_of_targets_only, "as a bool tensor"),
        "left padding": (on_the_left, "at the right edge"),
        "int32": (as_int32(rows_to_batch), "torch.int64 is what"),
        "pads in place": (pads_in_place, "belongs to the caller"),
        "no mask": (lambda rows, pad_id: {"input_ids": 0, "labels": 0}, "It returned ['input_ids', 'labels']"),
    },
    3: {
        "the whole row": (whole_row, "run through the whole row"),
        "only padding is 0": (lambda ids: whole_row(ids).masked_fill(ids < 0, 0), "run on from document to document"),
        "from one": (lambda ids: (restarted_positions(ids) + 1).masked_fill(ids < 0, 0), "begins at position 0"),
        "padding counts on": (
            lambda ids: restarted_positions(ids - ids.min()),
            "At padding, where doc_ids is -1",
        ),
        "the number of the document": (lambda ids: ids.clamp(min=0), "the number of the document"),
        "since the start of the row's last document": (
            lambda ids: (whole_row(ids) - (ids == ids.amax(1, keepdim=True)).int().argmax(1)[:, None]).clamp(min=0),
            "Where is the start of the document",
        ),
        "across rows": (across_rows, "Where is the start of the document"),
        "larger ids only": (new_document_if_larger, "Where is the start of the document"),
        "padding only at the end": (padding_at_the_end_only, "At padding, where doc_ids is -1"),
        "marks in place": (marks_in_place, "belongs to the caller"),
        "floats": (lambda ids: restarted_positions(ids).float(), "torch.float32"),
    },
    4: {
        "targets cross": (with_targets_across, "Some position must predict a token of another document"),
        "padding has targets": (padding_has_targets, "or none at all"),
        "last row lost": (last_row_lost, "pairs of neighbours are in the documents"),
        "an exact fit is refused": (an_exact_fit_begins_a_new_row, "A document that fits exactly still fits"),
        "one a row": (one_document_a_row, "rows came out"),
        "filler belongs to document 0": (filler_is_the_first_document, "padding would pass for a part"),
        "numbered through": (numbered_through, "numbered from 0 in each row"),
        "positions run on": (positions_run_on, "from 0 in each document"),
        "goes back": (goes_back, "are not gone back to"),
        "0 is no token": (zero_is_no_token, "pairs of neighbours are in the documents"),
        "pops": (pops, "belongs to the caller"),
        "int32": (as_int32(pack_in_order), "torch.int64 is what"),
        "a row less of labels": (a_row_less_of_labels, "differ in their number of rows"),
        "a list": (lambda documents, row_length: documents, "It returned list"),
    },
}


def packed_from_lists(documents, row_length):
    lines = []
    for document in documents:
        if not lines or len(lines[-1]) + len(document) - 1 > row_length:
            lines.append([])
        number = lines[-1][-1][2] + 1 if lines[-1] else 0
        pairs = pairwise(document)
        lines[-1] += [(a, b, number, k) for k, (a, b) in enumerate(pairs)]
    cells = torch.tensor([line + [(0, -100, -1, 0)] * (row_length - len(line)) for line in lines])
    return dict(zip(("input_ids", "labels", "doc_ids", "positions"), cells.unbind(-1), strict=True))


RIGHT = {
    1: {
        "the package's": padding_waste,
        "in numpy": lambda L, B: (
            1 - np.sum([L[i] for b in B for i in b]) / np.sum([len(b) * max(L[i] for i in b) for b in B])
        ),
        "in float32": lambda L, B: torch.tensor(padding_waste(L, B), dtype=torch.float32).item(),
    },
    2: {"the package's": lambda rows, pad_id: collate(rows, pad_id=pad_id)},
    3: {
        "one column after the other": positions_by_counting,
        "counts equals before": lambda ids: ((ids[:, :, None] == ids[:, None, :]).tril().sum(-1) - 1).masked_fill(
            ids < 0, 0
        ),
    },
    4: {"from lists of four numbers": packed_from_lists},
}
