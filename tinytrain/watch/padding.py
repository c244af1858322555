"""A batch as a picture: each row a bar, each document in it an ink, padding in grey."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from tinytrain.watch.labels import frame
from tinytrain.watch.svg import INKS

PADDING = "#d4d4d4"
DOCUMENT_INKS = tuple(ink for ink, _, _ in INKS[:4])


def plot_batch(
    ax: Axes,
    batch: Mapping[str, Tensor],
    *,
    title: str,
    x: str = "position in the row",
    y: str = "row",
    letters: Sequence[Sequence[str]] | None = None,
) -> Axes:
    """Rows as bars, from the top; neighbouring documents in different inks, padding in grey.

    ``batch`` is what ``collate`` or ``Packed.batch`` gives: ``attention_mask`` ``[B,T]``, 0 at padding, or ``doc_ids``
    ``[B,T]``, below 0 at padding; with neither, every position is a token. ``letters`` ``[B][T]`` writes a text into
    each position.

    Raises ``ValueError`` if ``letters`` does not have the batch's shape.
    """
    ids = document_ids(batch)
    for row, start, length, document in _stretches(ids):
        ink = PADDING if document < 0 else DOCUMENT_INKS[document % len(DOCUMENT_INKS)]
        ax.barh(row, length, left=start, height=0.82, color=ink, edgecolor="white", linewidth=0.5)
    if letters is not None:
        _write(ax, letters, ids)
    frame(ax, title, x, y)
    ax.grid(False)
    ax.set_xlim(0, ids.shape[1])
    ax.set_ylim(ids.shape[0] - 0.5, -0.5)  # the first row on top
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if bool((ids < 0).any()):
        grey = Patch(color=PADDING, label="padding")
        ax.legend(handles=[grey], frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderpad=0)
    return ax


def document_ids(batch: Mapping[str, Tensor]) -> Tensor:
    """``[B,T]``: which document of its row a position belongs to, -1 at padding. Rows of one document have 0.

    >>> document_ids({"attention_mask": torch.tensor([[True, True, False]])}).tolist()
    [[0, 0, -1]]
    """
    names = ("doc_ids", "attention_mask", "input_ids")
    known = next((batch[name] for name in names if name in batch), None)
    if known is None:
        raise ValueError(f"the batch has none of {', '.join(names)}, only {sorted(batch)}")
    ids, mask = batch.get("doc_ids", torch.zeros_like(known, dtype=torch.long)), batch.get("attention_mask")
    return ids if mask is None else ids.masked_fill(mask == 0, -1)


def _stretches(ids: Tensor) -> list[tuple[int, int, int, int]]:
    """(row, first position, length, document) of each run of equal ids."""
    found = []
    for row, line in enumerate(ids.tolist()):
        start = 0
        for t in range(1, len(line) + 1):
            if t == len(line) or line[t] != line[start]:
                found.append((row, start, t - start, line[start]))
                start = t
    return found


def _write(ax: Axes, letters: Sequence[Sequence[str]], ids: Tensor) -> None:
    if [len(line) for line in letters] != [ids.shape[1]] * ids.shape[0]:
        shape = f"{len(letters)} rows of {sorted({len(line) for line in letters})} texts"
        raise ValueError(f"letters are {shape}; the batch has {ids.shape[0]} rows of {ids.shape[1]} positions")
    for row, line in enumerate(letters):
        for t, letter in enumerate(line):
            ink = "#555555" if ids[row, t] < 0 else "white"
            ax.text(t + 0.5, row, letter, ha="center", va="center", fontsize=10, color=ink)
