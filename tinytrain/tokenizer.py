"""Text to token ids and back."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tinytrain.durable import replace_file


class Codec(Protocol):
    """Text to ids and back: all that ``sample`` needs."""

    vocab_size: int
    """V; ids are 0..V-1. A model may have more, which no text holds"""

    def encode(self, text: str) -> Tensor: ...
    def decode(self, ids: Tensor) -> str: ...


class Tokenizer(Codec, Protocol):
    """What the package needs of a tokenizer."""

    end_of_text: int
    """the id that stands behind each document; no text holds it"""
    fingerprint: str
    """the same for two tokenizers that give the same ids to every text"""

    def encode_stream(self, texts: Iterable[str]) -> Iterator[np.ndarray]: ...
    def token_bytes(self) -> Tensor: ...
    def save(self, path: Path) -> None: ...


class ByteTokenizer:
    """One token per byte of UTF-8: ids 0 to 255, nothing to learn, no text that it cannot hold.

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("Zoë").tolist()
    [90, 111, 195, 171]
    >>> tokenizer.decode([90, 111, 195, 171])
    'Zoë'
    """

    vocab_size = 256
    end_of_text = 0  # a file with a zero byte is refused as binary, so no text that is read holds it
    fingerprint = "bytes"

    def encode(self, text: str) -> Tensor:
        """Ids ``[number of bytes]``, int64. Raises ``ValueError`` for a lone surrogate, which UTF-8 cannot hold."""
        return torch.from_numpy(np.frombuffer(to_utf8(text), dtype=np.uint8).astype(np.int64))

    def decode(self, ids: Tensor | list[int]) -> str:
        """The text of ``ids`` ``[n]``. A character cut at either end shows as the replacement mark U+FFFD."""
        values = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        bad = next((i for i, value in enumerate(values) if not 0 <= value < self.vocab_size), None)
        if bad is not None:
            raise ValueError(f"id {values[bad]} at position {bad} is not a byte (0..255)")
        return bytes(values).decode("utf-8", errors="replace")

    def encode_stream(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """The ids of one long text that comes in pieces, in pieces."""
        for text in texts:
            yield np.frombuffer(to_utf8(text), dtype=np.uint8)

    def token_bytes(self) -> Tensor:
        """Bytes of text that each token stands for, ``[V]``: 1, and 0 for the end of a text."""
        sizes = torch.ones(self.vocab_size, dtype=torch.int64)
        sizes[self.end_of_text] = 0
        return sizes

    def save(self, path: str | Path) -> None:
        """Write a file from which ``tokenizer_file.load_tokenizer`` makes the same tokenizer."""
        replace_file(Path(path), json.dumps({"model": {"type": "bytes"}}).encode())


def to_utf8(text: str) -> bytes:
    """The bytes of a text. Raises ``ValueError`` for a lone surrogate, which UTF-8 cannot hold."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {error.start} of the text, {text[error.start]!r}, is a lone surrogate and not text"
        ) from None
