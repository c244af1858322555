"""Rows to tensors: pad them, bucket them by length, or pack several into one row.

A *document* here is a sequence of n token ids. It gives n - 1 pairs of an input and the token that must be predicted
from it; its last token is a target only. All three ways keep every pair exactly once.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytrain.loss import IGNORE_INDEX
from tinytrain.seeds import generator_for

Document = Sequence[int] | Tensor
Batch = dict[str, Tensor]
"""``input_ids`` and ``labels`` ``[B,T]``, and what else the model takes by name (``attention_mask`` ``[B,T]``)"""


def collate(
    documents: Sequence[Document],
    *,
    pad_id: int,
    length: int | None = None,
    side: str = "right",
    ignore_index: int = IGNORE_INDEX,
) -> Batch:
    """Documents to one batch ``[B,T]``, each padded to the longest of them, or to ``length``.

    ``input_ids`` holds ``pad_id`` where a document has ended, ``labels`` ``ignore_index``, ``attention_mask`` False.
    Labels are masked by length and not by value, so ``pad_id`` may also be a token that the text uses (the end of
    sentence, say) and its real occurrences stay targets. A document of one token has no target; its row is padding.

    Raises ``ValueError`` if there are no documents, or one does not fit into ``length``.

    >>> collate([[5, 6, 2], [5, 6, 7, 8, 2]], pad_id=2)["labels"].tolist()
    [[6, 2, -100, -100], [6, 7, 8, 2]]
    """
    if side not in ("right", "left"):
        raise ValueError(f"side={side!r} is neither 'right' nor 'left'")
    if len(documents) == 0:
        raise ValueError("collate needs at least one document")
    rows = [torch.as_tensor(document, dtype=torch.long) for document in documents]
    T = max(1, *(len(row) - 1 for row in rows)) if length is None else length
    batch = {
        "input_ids": torch.full((len(rows), T), pad_id),
        "labels": torch.full((len(rows), T), ignore_index),
        "attention_mask": torch.zeros(len(rows), T, dtype=torch.bool),
    }
    for i, row in enumerate(rows):
        n = max(len(row) - 1, 0)
        if n > T:
            raise ValueError(f"document {i} has {len(row)} tokens; a row of length={T} holds {T + 1}")
        place = slice(0, n) if side == "right" else slice(T - n, T)
        batch["input_ids"][i, place], batch["labels"][i, place] = row[:n], row[1 : n + 1]
        batch["attention_mask"][i, place] = True
    return batch


def bucket(
    lengths: Sequence[int], batch_size: int, *, seed: int = 0, epoch: int = 0, window_batches: int = 50
) -> list[list[int]]:
    """Batches of indices into ``lengths`` in which lengths are alike, for little padding; each index exactly once.

    All indices are shuffled, cut into windows of ``window_batches`` batches, sorted by length inside each window and
    cut into batches; then the batches are shuffled. So an epoch does not go from short to long, and batches differ
    from epoch to epoch. A pure function of its arguments. One batch, somewhere, is smaller if they do not divide.

    >>> batches = bucket([3, 90, 4, 80], 2)
    >>> sorted(sorted(batch) for batch in batches)
    [[0, 2], [1, 3]]
    """
    for name, value in (("batch_size", batch_size), ("window_batches", window_batches)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    generator = generator_for("buckets", seed=seed, epoch=epoch)
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()
    window = window_batches * batch_size
    batches: list[list[int]] = []
    for start in range(0, len(shuffled), window):
        alike = sorted(shuffled[start : start + window], key=lambda i: lengths[i])
        batches += [alike[i : i + batch_size] for i in range(0, len(alike), batch_size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def padding_waste(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> float:
    """Share of positions that are padding, 0 to 1, if each batch is padded to its own longest row.

    >>> padding_waste([1, 3, 4, 4], [[0, 1], [2, 3]])  # 2 of the first 6 + 8 positions
    0.14285714285714285
    """
    positions = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    real = sum(lengths[i] for batch in batches for i in batch)
    return (positions - real) / positions if positions else 0.0


def count_positions(batches: Sequence[Batch]) -> list[Tensor]:
    """[all positions, those that carry no token]: ``attention_mask`` is 0 there, or ``doc_ids`` below 0.

    Both ``[]``, int64, where the batches are; on a GPU nothing waits for them.
    """
    device, positions = batches[0]["input_ids"].device, sum(batch["input_ids"].numel() for batch in batches)
    padded = torch.zeros((), dtype=torch.int64, device=device)
    for batch in batches:
        if "attention_mask" in batch:
            padded += (batch["attention_mask"] == 0).sum()
        if "doc_ids" in batch:
            padded += (batch["doc_ids"] < 0).sum()
    return [torch.full_like(padded, positions), padded]


@dataclass(frozen=True)
class PackStatistics:
    """What packing did, counted on the tensors it made."""

    documents: int
    """documents given"""
    rows: int
    """rows made"""
    targets: int
    """positions with a target: one less than its tokens for each document"""
    split_documents: int
    """documents longer than a row, cut into pieces; no target is lost"""
    documents_without_target: int
    """documents of fewer than two tokens, which have nothing to predict"""
    waste: float
    """share of positions that are padding, 0 to 1"""


@dataclass(frozen=True)
class Packed:
    """Rows of several documents each. ``batch(rows)`` gives tensors, all ``[B,T]``."""

    input_ids: Tensor
    labels: Tensor
    doc_ids: Tensor
    """which piece of a document a position belongs to, counted within its row; -1 at padding"""
    positions: Tensor
    """place within that piece, from 0; 0 at padding"""
    statistics: PackStatistics

    def __len__(self) -> int:
        return len(self.input_ids)

    def batch(self, rows: Sequence[int]) -> Batch:
        """The rows with these numbers, as a batch for ``GPT``."""
        index = torch.as_tensor(rows, dtype=torch.long)
        names = ("input_ids", "labels", "doc_ids", "positions")
        return {name: getattr(self, name)[index] for name in names}


def pack(documents: Sequence[Document], row_length: int, *, pad_id: int = 0) -> Packed:
    """Put several documents into each row of ``row_length`` positions, the longest first, each where it fits best.

    No target crosses from one document into the next, positions restart, and ``doc_ids`` tells the model who may look
    at whom. A document with more pairs than a row has positions is cut into pieces, all kept; a piece does not see
    the pieces before it.

    Raises ``ValueError`` if no document has a target.

    >>> packed = pack([[1, 2, 3], [7, 8], [4, 5, 6]], 4)
    >>> packed.labels.tolist(), packed.doc_ids.tolist()
    ([[2, 3, 5, 6], [8, -100, -100, -100]], [[0, 0, 1, 1], [0, -1, -1, -1]])
    """
    if row_length < 1:
        raise ValueError(f"row_length={row_length} must be at least 1 position")
    tokens = [torch.as_tensor(document, dtype=torch.long) for document in documents]
    pieces = [piece for row in tokens for piece in pieces_of(row, row_length)]
    if not pieces:
        raise ValueError(f"none of the {len(tokens)} documents has two tokens or more: there is nothing to predict")
    rows = _best_fit([len(piece) - 1 for piece in pieces], row_length)
    shape = (len(rows), row_length)
    input_ids, labels = torch.full(shape, pad_id), torch.full(shape, IGNORE_INDEX)
    doc_ids, positions = torch.full(shape, -1), torch.zeros(shape, dtype=torch.long)
    for r, members in enumerate(rows):
        start = 0
        for number, p in enumerate(members):
            n = len(pieces[p]) - 1
            place = slice(start, start + n)
            input_ids[r, place], labels[r, place] = pieces[p][:-1], pieces[p][1:]
            doc_ids[r, place], positions[r, place] = number, torch.arange(n)
            start += n
    statistics = PackStatistics(
        documents=len(tokens),
        rows=len(rows),
        targets=int((labels != IGNORE_INDEX).sum()),
        split_documents=sum(len(row) - 1 > row_length for row in tokens),
        documents_without_target=sum(len(row) < 2 for row in tokens),
        waste=float((doc_ids < 0).float().mean()),
    )
    return Packed(input_ids, labels, doc_ids, positions, statistics)


def pieces_of(document: Document, row_length: int) -> list[Tensor]:
    """Cut a document into pieces of at most ``row_length`` pairs; neighbours share a token, so no pair is lost.

    A document of fewer than two tokens has no pair, and gives no piece.
    """
    ids = torch.as_tensor(document, dtype=torch.long)
    return [ids[i : i + row_length + 1] for i in range(0, len(ids) - 1, row_length)]


def _best_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Put pieces into rows, the largest first, each into the fullest row that still has room for it."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (room left, row), sorted
    for piece in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        at = bisect_left(free, (sizes[piece], -1))
        if at < len(free):
            room, row = free.pop(at)
        else:
            room, row = capacity, len(rows)
            rows.append([])
        rows[row].append(piece)
        if room > sizes[piece]:
            insort(free, (room - sizes[piece], row))
    return rows
