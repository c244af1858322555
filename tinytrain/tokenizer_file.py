"""A tokenizer by its name, or from its file."""

import json
from collections.abc import Iterable
from pathlib import Path

from tinytrain.tokenizer import ByteTokenizer, Tokenizer

FILE = "tokenizer.json"
"""what a tokenizer's file is called, beside a run and beside token files"""
DEFAULT_VOCABULARY = 4096
"""tokens of a vocabulary that is learned, if nobody says how many"""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a file that ``save`` wrote, or a byte-level BPE of Hugging Face's ``tokenizers``.

    Raises ``FileNotFoundError`` if there is no such file, ``ValueError`` for one that is damaged or of another kind.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such tokenizer file (and --tokenizer knows bytes and bpe)")
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or no tokenizer file ({error}): take a whole one") from None
    if content == {"model": {"type": "bytes"}}:
        return ByteTokenizer()
    from tinytrain.bpe import BPETokenizer

    return BPETokenizer.from_json(text, str(path))


def choose_tokenizer(name: str, texts: Iterable[str], vocab_size: int | None = None) -> Tokenizer:
    """``"bytes"``, ``"bpe"`` learned from ``texts``, or the tokenizer in the file of that name.

    ``vocab_size`` is for ``"bpe"`` alone. Raises ``ValueError`` where it is given for another one.
    """
    if name == "bpe":
        from tinytrain.bpe import BPETokenizer

        return BPETokenizer.learn(texts, DEFAULT_VOCABULARY if vocab_size is None else vocab_size)
    if vocab_size is not None:
        raise ValueError(f"vocab_size={vocab_size} is for tokenizer 'bpe'; {name!r} has a size of its own")
    return ByteTokenizer() if name == "bytes" else load_tokenizer(Path(name))
