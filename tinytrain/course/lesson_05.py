"""Texts of notebook 05, cut in three ways, and five orders in which batches of them can come."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tinytrain.batches import bucket
from tinytrain.corpus import Corpus
from tinytrain.tokenizer import ByteTokenizer

END = 256  # one more kind of token than there are bytes
ORDERS = ("random", "rising", "falling", "windowed", "even")
WINDOW = 10  # batches that are sorted together


def tokens_of(text: str) -> Tensor:
    """The bytes of a text with ``END`` on both sides.

    >>> tokens_of("Ay").tolist()
    [256, 65, 121, 256]
    """
    end = torch.tensor([END])
    return torch.cat([end, ByteTokenizer().encode(text), end])


def lines(corpus: Corpus) -> list[str]:
    """Single printed lines."""
    return [line for play in corpus.documents for line in play.text.split("\n") if line.strip()]


def speeches(corpus: Corpus) -> list[str]:
    """What stands between empty lines: a speech, a stage direction, the heading of a scene."""
    return [part for play in corpus.documents for part in play.text.split("\n\n") if part.strip()]


def passages(corpus: Corpus, at_least: int = 150) -> list[str]:
    """Neighbouring speeches, joined until they have ``at_least`` characters."""
    joined = [""]
    for text in speeches(corpus):
        if len(joined[-1]) < at_least:
            joined[-1] += "\n\n" + text
        else:
            joined.append(text)
    return joined


def draw(texts: Sequence[str], at_least: int, seed: int = 0) -> list[Tensor]:
    """Random texts as token ids, each once, until they have ``at_least`` tokens together."""
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
    documents: list[Tensor] = []
    while sum(map(len, documents)) < at_least:
        documents.append(tokens_of(texts[order[len(documents)]]))
    return documents


def groups(items: Sequence, size: int) -> list[Sequence]:
    """Cut into groups of ``size``; the last may be smaller.

    >>> groups([1, 2, 3, 4, 5], 2)
    [[1, 2], [3, 4], [5]]
    """
    return [items[i : i + size] for i in range(0, len(items), size)]


def batches_in(order: str, sizes: Sequence[int], *, rows: int, seed: int) -> list[list[int]]:
    """The documents of each batch, by number, each document once; ``sizes`` are their targets.

    ``"random"``; all sorted by size, ``"rising"`` or ``"falling"``; ``"windowed"``, sorted inside shuffled windows and
    the batches shuffled; ``"even"``, the same cut into batches of about equal targets. The others have ``rows`` each.
    """
    if order not in ORDERS:
        raise ValueError(f"order={order!r} must be one of {ORDERS}")
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(sizes), generator=generator).tolist()
    if order == "random":
        return groups(shuffled, rows)
    if order in ("rising", "falling"):
        return groups(sorted(shuffled, key=lambda i: sizes[i], reverse=order == "falling"), rows)
    if order == "windowed":
        return bucket(sizes, rows, seed=seed, window_batches=WINDOW)
    windows = [sorted(window, key=lambda i: sizes[i]) for window in groups(shuffled, WINDOW * rows)]
    batches = _even([i for window in windows for i in window], sizes, rows * sum(sizes) / len(sizes))
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def _even(order: Sequence[int], sizes: Sequence[int], targets: float) -> list[list[int]]:
    """Cut where about ``targets`` targets are reached."""
    reached, batches = 0, [[]]
    for i in order:
        if reached + sizes[i] / 2 > targets * len(batches):
            batches.append([])
        batches[-1].append(i)
        reached += sizes[i]
    return batches
