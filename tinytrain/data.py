"""Which rows come when.

A long text is cut into rows once. The order in which rows are visited is a pure function of (seed, epoch, position):
no hidden generator moves, so any batch of any epoch can be asked for at any time, in any process.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from tinytrain.loss import IGNORE_INDEX
from tinytrain.seeds import generator_for
from tinytrain.vocabulary import check_ids


class TokenIds(Protocol):
    """Ids that are not in memory: what ``TokenRows`` needs of them."""

    vocab_size: int
    """they are 0..vocab_size-1, which was looked at when they were written"""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Tensor: ...
    def fingerprint(self) -> str: ...


@dataclass(frozen=True)
class TokenRows:
    """A text of token ids cut into rows of ``row_length`` input tokens.

    Row i reads ``ids[i*T : i*T+T]`` and predicts ``ids[i*T+1 : i*T+T+1]``, so every token but the first is a target
    exactly once. The last row is moved back to full length, and its labels that an earlier row has had are
    ``-100``: no token at the end is lost, and none counts twice.

    >>> rows = TokenRows(torch.arange(11), row_length=4, vocab_size=11)
    >>> len(rows), rows[2]["input_ids"].tolist(), rows[2]["labels"].tolist()
    (3, [6, 7, 8, 9], [-100, -100, 9, 10])
    """

    ids: "Tensor | TokenIds"
    """``[n]``, integer token ids: a tensor, or a file of them that is read where it lies"""
    row_length: int
    """T, input tokens in a row"""
    vocab_size: int
    """V; an id outside 0..V-1 is refused here, before any training"""
    name: str = "text"
    """what error messages call this text"""

    def __post_init__(self) -> None:
        if not isinstance(self.ids, Tensor) and not hasattr(self.ids, "vocab_size"):
            kind = type(self.ids).__name__
            raise TypeError(f"{self.name}: ids are a {kind}; give a tensor, such as torch.tensor(ids), or a TokenFile")
        if isinstance(self.ids, Tensor) and (self.ids.dim() != 1 or self.ids.is_floating_point()):
            raise ValueError(
                f"{self.name}: ids are {self.ids.dtype} {list(self.ids.shape)}; need integers of shape [n]"
            )
        if self.row_length < 1:
            raise ValueError(f"row_length={self.row_length} must be at least 1 token")
        if len(self.ids) <= self.row_length:
            raise ValueError(
                f"{self.name}: {len(self.ids)} tokens are too few for one row of row_length={self.row_length} (a row "
                f"needs one more for its last target). Give more text or a smaller row_length"
            )
        if isinstance(self.ids, Tensor):
            check_ids(self.ids, self.vocab_size, self.name)
        elif self.ids.vocab_size > self.vocab_size:
            raise ValueError(
                f"{self.name}: its ids go up to {self.ids.vocab_size - 1}, outside the vocabulary "
                f"0..{self.vocab_size - 1}. Does the tokenizer belong to this model?"
            )

    def __len__(self) -> int:
        return -(-(len(self.ids) - 1) // self.row_length)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        """``input_ids`` and ``labels`` ``[T]`` of one row."""
        return {name: value[0] for name, value in self.stack([row]).items()}

    def fingerprint(self) -> str:
        """Of all ids: the same for the same ids, wherever they lie and however wide they are."""
        if not isinstance(self.ids, Tensor):
            return self.ids.fingerprint()
        text = hashlib.blake2b(digest_size=8)
        for part in self.ids.split(1 << 20):  # as int64 they may be eight times as large
            text.update(part.to(torch.int64).contiguous().numpy())
        return text.hexdigest()

    def stack(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """``input_ids`` and ``labels`` ``[B,T]`` of several rows: copies, for a batch may be written into."""
        cut = [self._window(row) for row in rows]
        input_ids = torch.stack([window[:-1] for window, _ in cut])
        labels = torch.stack([window[1:] for window, _ in cut])
        for place, (_, had) in enumerate(cut):
            if had:
                labels[place, :had] = IGNORE_INDEX
        return {"input_ids": input_ids, "labels": labels}

    def _window(self, row: int) -> tuple[Tensor, int]:
        """The ids ``[T+1]`` of a row, perhaps a view of the text, and how many of its labels an earlier row has had."""
        if not 0 <= row < len(self):
            raise IndexError(f"{self.name}: row {row} is not one of its {len(self)} rows")
        wanted = row * self.row_length
        start = min(wanted, len(self.ids) - 1 - self.row_length)
        return self.ids[start : start + self.row_length + 1].long(), wanted - start

    def batches(self, batch_size: int, *, limit: int | None = None) -> Iterator[dict[str, Tensor]]:
        """Rows in the order of the text, ``batch_size`` at a time: all, or ``limit`` of them spread evenly over it."""
        if batch_size < 1 or (limit is not None and limit < 1):
            raise ValueError(f"batch_size={batch_size} and limit={limit} must be at least 1 row")
        n = len(self) if limit is None else min(limit, len(self))
        chosen = [i * len(self) // n for i in range(n)]
        for start in range(0, n, batch_size):
            yield self.stack(chosen[start : start + batch_size])


def row_order(n_rows: int, *, seed: int, epoch: int) -> Tensor:
    """The permutation ``[n_rows]`` in which epoch ``epoch`` visits the rows: the same whenever and wherever asked.

    >>> torch.equal(row_order(8, seed=1, epoch=0), row_order(8, seed=1, epoch=0))
    True
    """
    return torch.randperm(n_rows, generator=generator_for("row order", seed=seed, epoch=epoch))


class MicroBatches:
    """Batch number n as micro-batches, whole or shared out: what all batches that are made of rows have in common."""

    batch_size: int
    micro_batch_size: int | None

    @property
    def batches_per_epoch(self) -> int:
        raise NotImplementedError

    def rows_of(self, batch: int) -> list[int]:
        """The row numbers of batch number ``batch``, in order."""
        raise NotImplementedError

    def _batch_of(self, rows: list[int]) -> dict[str, Tensor]:
        raise NotImplementedError

    def place(self, batch: int) -> tuple[int, int]:
        """(epoch, batch within that epoch) of batch number ``batch``."""
        if batch < 0:
            raise IndexError(f"batch {batch}: batches are counted from 0")
        return divmod(batch, self.batches_per_epoch)

    def __getitem__(self, batch: int) -> list[dict[str, Tensor]]:
        rows, size = self.rows_of(batch), self.micro_batch_size or self.batch_size
        return [self._batch_of(rows[i : i + size]) for i in range(0, len(rows), size)]

    def share(self, batch: int, *, rank: int, processes: int) -> list[dict[str, Tensor]]:
        """What process ``rank`` of ``processes`` does of batch number ``batch``; all shares together are the batch.

        Every process has the same number of micro-batches, and one that has no row left has one without a target.
        """
        rows, size = self.rows_of(batch), self.micro_batch_size or self.batch_size
        plan = share_rows(rows, rank=rank, processes=processes, micro_batch_size=size)
        return [self._batch_of(part) if part else without_targets(self._batch_of(rows[:1])) for part in plan]


@dataclass(frozen=True, kw_only=True)
class RowBatches(MicroBatches):
    """Batch number n of a run, as the micro-batches of one update: ``batches[n]``.

    Batches are counted from 0 through all epochs; each epoch visits every row once, in ``row_order``. The last batch
    of an epoch holds the rows that are left. ``micro_batch_size`` cuts a batch into pieces that fit in memory; the
    update is the same. The order of an epoch takes 8 bytes of memory a row.
    """

    rows: TokenRows
    batch_size: int
    """rows in one update"""
    micro_batch_size: int | None = None
    """rows in one forward and backward pass; all of the batch by default"""
    seed: int = 0
    """of the order"""
    shuffle: bool = True
    """False: rows in the order of the text, each epoch alike"""
    _orders: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("batch_size", "micro_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1 row")

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def rows_of(self, batch: int) -> list[int]:
        """The row numbers of batch number ``batch``, in order."""
        epoch, within = self.place(batch)
        return self._order(epoch)[within * self.batch_size : (within + 1) * self.batch_size].tolist()

    def fingerprint(self) -> dict[str, Any]:
        """What decides which tokens come when. How a batch is cut into micro-batches does not."""
        return {
            "batch_size": self.batch_size,
            "row_length": self.rows.row_length,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "text": self.rows.fingerprint(),
        }

    def _batch_of(self, rows: list[int]) -> dict[str, Tensor]:
        return self.rows.stack(rows)

    def _order(self, epoch: int) -> Tensor:
        if epoch not in self._orders:  # a permutation is kept, for it is asked for by every batch of its epoch
            self._orders.clear()
            n = len(self.rows)
            self._orders[epoch] = row_order(n, seed=self.seed, epoch=epoch) if self.shuffle else torch.arange(n)
        return self._orders[epoch]


def share_rows(rows: Sequence[int], *, rank: int, processes: int, micro_batch_size: int) -> list[list[int]]:
    """The micro-batches of process ``rank``: every ``processes``-th row, ``micro_batch_size`` at a time.

    Each row goes to one process, once. All processes have equally many micro-batches, so that none waits for another
    in vain; the last of some may be empty.

    >>> [share_rows(range(5), rank=r, processes=2, micro_batch_size=2) for r in (0, 1)]
    [[[0, 2], [4]], [[1, 3], []]]
    """
    mine, most = list(rows[rank::processes]), len(rows[::processes])
    return [mine[i : i + micro_batch_size] for i in range(0, most, micro_batch_size)]


def share_of(micro_batches: Sequence[dict[str, Tensor]], *, rank: int, processes: int) -> list[dict[str, Tensor]]:
    """The share of process ``rank`` in a batch that was cut into micro-batches without a thought of processes.

    Whole micro-batches are dealt out, or, where there are fewer of them than processes, the rows of each. Every process
    has equally many; a process for which nothing is left has one without a target.

    Raises ``ValueError`` for a tensor of which nobody can tell whether it goes with the rows.
    """
    if len(micro_batches) >= processes:
        most = -(-len(micro_batches) // processes)
        mine = list(micro_batches[rank::processes])
        return mine + [without_targets(micro_batches[0])] * (most - len(mine))
    return [_rows_of_process(batch, rank, processes) for batch in micro_batches]


def _rows_of_process(batch: dict[str, Tensor], rank: int, processes: int) -> dict[str, Tensor]:
    n, length = batch["input_ids"].shape
    of_rows = {name: value for name, value in batch.items() if value.shape[:2] == (n, length) or value.shape == (n,)}
    if unclear := [name for name, value in of_rows.items() if value.shape == (n,) and n == length]:
        raise ValueError(
            f"{unclear[0]} has {n} numbers, as many as there are rows and as there are positions: give the data a "
            f"method share(batch, rank=, processes=), which knows what belongs together"
        )
    if rank >= n:
        return without_targets(batch | {name: value[:1] for name, value in of_rows.items()})
    return batch | {name: value[rank::processes] for name, value in of_rows.items()}


def without_targets(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same batch with nothing to predict: it takes part in a step and changes nothing."""
    return batch | {"labels": torch.full_like(batch["labels"], IGNORE_INDEX)}


def micro_batches_per_step(*, batch_size: int, micro_batch_size: int, processes: int = 1) -> int:
    """How many micro-batches each process adds up for one update of ``batch_size`` rows in all.

    All sizes are in rows; ``processes`` counts those that train together (the world size), whatever the number of
    devices in the machine. So the rows of an update stay the same on one process and on many.

    Raises ``ValueError`` for a number below 1, and where the rows cannot be shared out evenly.

    >>> [micro_batches_per_step(batch_size=64, micro_batch_size=4, processes=n) for n in (1, 2, 4)]
    [16, 8, 4]
    """
    for name, value in (("batch_size", batch_size), ("micro_batch_size", micro_batch_size), ("processes", processes)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    at_once = micro_batch_size * processes
    if batch_size % at_once:
        below = batch_size // at_once * at_once
        nearest = f"{below} or {below + at_once}" if below else f"{at_once}"
        raise ValueError(
            f"batch_size={batch_size} is not a multiple of micro_batch_size={micro_batch_size} times "
            f"processes={processes} ({at_once} rows at once): choose {nearest}"
        )
    return batch_size // at_once
