"""Documents of mixed lengths as the batches of a run: padded at random, bucketed by length, or packed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tinytrain.batches import Batch, Document, Packed, bucket, collate, pack, padding_waste, pieces_of
from tinytrain.data import MicroBatches, row_order
from tinytrain.vocabulary import check_ids

WAYS = ("random", "bucketed", "packed")


@dataclass(frozen=True, kw_only=True)
class DocumentBatches(MicroBatches):
    """Batch number n of a run over documents, as the micro-batches of one update: ``batches[n]``.

    ``way="random"`` pads each micro-batch to its longest row; ``"bucketed"`` puts rows of like length together first;
    ``"packed"`` fills rows of ``row_length`` with several documents that do not see each other. Each way trains every
    target exactly once an epoch, and what comes when is a pure function of (seed, epoch, position). A document with
    more than ``row_length + 1`` tokens is cut into pieces, and none is lost.

    Raises ``ValueError`` for ids outside the vocabulary and where there is nothing to predict.

    >>> batches = DocumentBatches(documents=[[1, 2, 3], [4, 5]], row_length=8, batch_size=2, vocab_size=6, way="packed")
    >>> batches[0][0]["labels"].tolist()
    [[2, 3, 5, -100, -100, -100, -100, -100]]
    """

    documents: Sequence[Document]
    """sequences of token ids"""
    row_length: int
    """longest row, in positions; all rows are of this length if packed"""
    batch_size: int
    """rows in one update"""
    vocab_size: int
    """V; an id outside 0..V-1 is refused here"""
    way: str = "bucketed"
    """random, bucketed or packed"""
    micro_batch_size: int | None = None
    """rows in one forward and backward pass; all of the batch by default"""
    pad_id: int = 0
    """what stands at positions without a token"""
    seed: int = 0
    """of the order"""
    _pieces: list[Tensor] = field(default_factory=list, init=False, repr=False, compare=False)
    _packed: list[Packed] = field(default_factory=list, init=False, repr=False, compare=False)
    _plans: dict[int, list[list[int]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"way={self.way!r} is not one of {', '.join(WAYS)}")
        for name in ("row_length", "batch_size", "micro_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        for number, document in enumerate(self.documents):
            check_ids(torch.as_tensor(document, dtype=torch.long), self.vocab_size, f"document {number}")
        if self.way == "packed":
            self._packed.append(pack(self.documents, self.row_length, pad_id=self.pad_id))
        else:
            self._pieces.extend(piece for document in self.documents for piece in pieces_of(document, self.row_length))
            if not self._pieces:
                raise ValueError(f"none of the {len(self.documents)} documents has two tokens or more to predict from")

    @property
    def n_rows(self) -> int:
        """Rows in an epoch: packed rows, or pieces of documents."""
        return len(self._packed[0]) if self.way == "packed" else len(self._pieces)

    @property
    def batches_per_epoch(self) -> int:
        return -(-self.n_rows // self.batch_size)

    def rows_of(self, batch: int) -> list[int]:
        """The row numbers of batch number ``batch``, in order."""
        epoch, within = self.place(batch)
        return self._plan(epoch)[within]

    def waste(self, epoch: int = 0) -> float:
        """Share of positions in an epoch that are padding, 0 to 1."""
        if self.way == "packed":
            return self._packed[0].statistics.waste
        size = self.micro_batch_size or self.batch_size
        cut = [rows[i : i + size] for rows in self._plan(epoch) for i in range(0, len(rows), size)]
        return padding_waste(self._lengths(), cut)

    def fingerprint(self) -> dict[str, Any]:
        """What decides which tokens come when."""
        text = hashlib.blake2b(digest_size=8)
        for document in self.documents:
            text.update(torch.as_tensor(document, dtype=torch.long).numpy().tobytes() + b"|")
        names = ("batch_size", "row_length", "seed", "way")
        return {name: getattr(self, name) for name in names} | {"text": text.hexdigest()}

    def _batch_of(self, rows: list[int]) -> Batch:
        if self.way == "packed":
            return self._packed[0].batch(rows)
        return collate([self._pieces[row] for row in rows], pad_id=self.pad_id)

    def _plan(self, epoch: int) -> list[list[int]]:
        """The rows of each batch of an epoch; kept while that epoch lasts."""
        if epoch not in self._plans:
            self._plans.clear()
            self._plans[epoch] = self._make_plan(epoch)
        return self._plans[epoch]

    def _make_plan(self, epoch: int) -> list[list[int]]:
        if self.way == "bucketed":
            return bucket(self._lengths(), self.batch_size, seed=self.seed, epoch=epoch)
        order = row_order(self.n_rows, seed=self.seed, epoch=epoch).tolist()
        return [order[i : i + self.batch_size] for i in range(0, self.n_rows, self.batch_size)]

    def _lengths(self) -> list[int]:
        return [len(piece) - 1 for piece in self._pieces]
