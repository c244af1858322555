"""Bits per byte: the loss in a unit that does not depend on the tokenizer.

A token of BPE stands for several bytes and is harder to predict than one byte, so losses per token of two tokenizers
cannot be compared. The same loss, shared out over the bytes of the text, can.
"""

import math
from collections.abc import Iterable

from torch import Tensor

from tinytrain.loss import IGNORE_INDEX


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
    """A loss per token in bits per byte of text.

    The toss of a coin is one bit, and ln 2 nats. If each token holds two tosses and stands for two bytes:

    >>> bits_per_byte(nats_per_token=2 * math.log(2), bytes_per_token=2)
    1.0
    """
    return nats_per_token / math.log(2) / bytes_per_token


def bytes_per_target(batches: Iterable[dict[str, Tensor]], token_bytes: Tensor) -> float:
    """Bytes of text that a target token of ``batches`` stands for, on average over all of their targets.

    ``token_bytes`` ``[V]`` is what ``tokenizer.token_bytes()`` gives. The end of a text is a target of no bytes: it
    must be predicted, too. Raises ``ValueError`` where no target stands for any byte.
    """
    n_bytes = n_targets = 0
    for batch in batches:
        targets = batch["labels"][batch["labels"] != IGNORE_INDEX]
        n_bytes += int(token_bytes[targets].sum())
        n_targets += len(targets)
    if n_bytes == 0:
        raise ValueError(f"the {n_targets} targets stand for no byte of text: bits per byte have no meaning there")
    return n_bytes / n_targets
