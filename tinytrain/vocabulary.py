"""Token ids that no vocabulary has are named before they do harm; vocabularies of a size that suits a GPU."""

import torch
from torch import Tensor


def rounded_up(vocab_size: int, multiple: int) -> int:
    """The next multiple of ``multiple``, for a model whose matrices are to fit a GPU's tiles.

    >>> rounded_up(50_257, 64), rounded_up(256, 64), rounded_up(300, 1)
    (50304, 256, 300)
    """
    if multiple < 1:
        raise ValueError(f"pad_vocab_to={multiple} must be at least 1")
    return -(-vocab_size // multiple) * multiple


def check_ids(ids: Tensor, vocab_size: int, source: str = "input_ids") -> None:
    """Raise ``ValueError`` that names the first id of ``ids`` (any shape) outside ``0..vocab_size-1``."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"{source}: ids are {ids.dtype}; token ids are whole numbers")
    ids = ids.long()
    if ids.numel() == 0 or (int(ids.min()) >= 0 and int(ids.max()) < vocab_size):
        return
    place = ((ids < 0) | (ids >= vocab_size)).nonzero()[0].tolist()
    raise ValueError(
        f"{source}: token id {ids[tuple(place)].item()} at position {place if len(place) > 1 else place[0]} is outside "
        f"the vocabulary 0..{vocab_size - 1}. Does the tokenizer belong to this model?"
    )
