"""Text to token ids and back."""

import numpy as np
import torch
from torch import Tensor


class ByteTokenizer:
    """One token per byte of UTF-8: ids 0 to 255, nothing to learn, no text that it cannot hold.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("Zoë").tolist()
    [90, 111, 195, 171]
    >>> tokenizer.decode([90, 111, 195, 171])
    'Zoë'
    """

    vocab_size = 256

    def encode(self, text: str) -> Tensor:
        """Ids ``[number of bytes]``, int64. Raises ``ValueError`` for a lone surrogate, which UTF-8 cannot hold."""
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"character {error.start} of the text, {text[error.start]!r}, is a lone surrogate and not text"
            ) from None
        return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).astype(np.int64))

    def decode(self, ids: Tensor | list[int]) -> str:
        """The text of ``ids`` ``[n]``. A character cut at either end shows as the replacement mark U+FFFD."""
        values = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        bad = next((i for i, value in enumerate(values) if not 0 <= value < self.vocab_size), None)
        if bad is not None:
            raise ValueError(f"id {values[bad]} at position {bad} is not a byte (0..255)")
        return bytes(values).decode("utf-8", errors="replace")
