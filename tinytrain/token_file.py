"""Token ids in files that are read where they lie, row by row: a text may be larger than memory.

A folder of tokens holds ``train.bin``, ``valid.bin`` (ids and nothing else, little-endian, as wide as the vocabulary
needs), ``tokenizer.json``, and ``manifest.json``: how many ids, how wide, of which tokenizer, and checksums.
"""

import hashlib
import json
import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from tinytrain.durable import hash_of, replace_file
from tinytrain.tokenizer import Tokenizer
from tinytrain.tokenizer_file import FILE, load_tokenizer

MANIFEST, FORMAT = "manifest.json", 1
PARTS = ("train", "valid")
DTYPES = ("uint8", "uint16", "uint32")
CURE = "Copy the tokens again, or write them again (python -m tinytrain tokens)"
BLOCK = 1 << 22
"""bytes that are looked at together where a whole file is read"""


class TokenFileError(ValueError):
    """A token file is damaged, or does not belong to what it is used with; the message says what to do."""


def dtype_for(vocab_size: int) -> str:
    """The narrowest type that holds every id of a vocabulary.

    >>> [dtype_for(V) for V in (256, 257, 65_536, 65_537)]
    ['uint8', 'uint16', 'uint16', 'uint32']
    """
    for dtype in DTYPES:
        if vocab_size - 1 <= np.iinfo(dtype).max:
            return dtype
    raise ValueError(f"vocab_size={vocab_size} is more than any type of token file holds ({', '.join(DTYPES)})")


def check_dtype(dtype: str, vocab_size: int) -> None:
    """Raise ``ValueError`` for a type that no token file has, or that is too narrow for the vocabulary."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is not one of {', '.join(DTYPES)}")
    if vocab_size - 1 > (most := int(np.iinfo(dtype).max)):
        raise ValueError(
            f"dtype={dtype} holds ids up to {most:,}, and the vocabulary has {vocab_size:,} tokens: it takes "
            f"{dtype_for(vocab_size)}"
        )


class TokenWriter:
    """Writes ids to an open file, as they come."""

    def __init__(self, file: BinaryIO, vocab_size: int, dtype: str) -> None:
        check_dtype(dtype, vocab_size)
        self._file, self._vocab_size, self._type = file, vocab_size, np.dtype(dtype).newbyteorder("<")
        self._text = hashlib.blake2b(digest_size=8)
        self.tokens = 0
        """ids written so far"""

    def write(self, ids: np.ndarray) -> None:
        """Append ids ``[n]``. Raises ``ValueError`` for one outside the vocabulary, before it is cut to the width."""
        if not len(ids):
            return
        if int(ids.min()) < 0 or int(ids.max()) >= self._vocab_size:
            place = int(np.flatnonzero((ids < 0) | (ids >= self._vocab_size))[0])
            raise ValueError(
                f"token id {int(ids[place])} at position {self.tokens + place} is outside the vocabulary "
                f"0..{self._vocab_size - 1}"
            )
        self._text.update(np.ascontiguousarray(ids, dtype="<i8"))
        self._file.write(np.ascontiguousarray(ids, dtype=self._type).tobytes())
        self.tokens += len(ids)

    def fingerprint(self) -> str:
        """Of all ids: the one that ``TokenRows`` gives the same ids in memory."""
        return self._text.hexdigest()


class TokenFile:
    """The ids of one part, read where they lie: ``file[start:stop]`` is a tensor of int64, and ``len(file)`` works.

    It takes the place of a tensor of ids in ``TokenRows``. Each read maps its own part of the file into memory and lets
    it go again, so that the process stays small however large the file is. With one mapping for a whole run, every page
    that was read would stay: 220 MB of a file of 280 MB after 48,000 rows.
    """

    def __init__(self, path: Path, *, vocab_size: int, dtype: str, tokens: int, checksum: str, text: str) -> None:
        """Raises ``TokenFileError`` for a file of another size; ``verify`` looks at what it holds."""
        self.path, self.vocab_size, self.dtype, self.tokens = path, vocab_size, dtype, tokens
        self._checksum, self._text = checksum, text
        self._type = np.dtype(dtype).newbyteorder("<")
        # Kept open: if another file takes its name, this run goes on with this one.
        try:
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} is gone, and the manifest beside it names it. {CURE}") from None
        weakref.finalize(self, os.close, self._file)
        self._require_size(exactly=True)

    def __reduce__(self) -> tuple[Callable[[], "TokenFile"], tuple[()]]:
        """A copy, in another process for example, opens the file for itself."""
        facts = {"vocab_size": self.vocab_size, "dtype": self.dtype, "tokens": self.tokens}
        return partial(TokenFile, self.path, **facts, checksum=self._checksum, text=self._text), ()

    def __len__(self) -> int:
        return self.tokens

    def __getitem__(self, part: slice) -> Tensor:
        """The ids ``part.start`` to ``part.stop``, ``[n]`` int64, a copy. Raises ``TokenFileError`` if cut short."""
        if not isinstance(part, slice):
            raise TypeError(f"{self.path}: [{part!r}] is no slice: read [start:stop], a tensor of ids")
        start, stop, step = part.indices(self.tokens)
        width, n = self._type.itemsize, max(stop - start, 0)
        if step != 1:
            raise ValueError(f"{self.path}: a step of {step} is not known: read the ids and take every {step}th")
        if n == 0:
            return torch.zeros(0, dtype=torch.int64)
        self._require_size()
        first = start * width // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY  # where a mapping may begin
        skipped = start * width - first
        with mmap.mmap(self._file, skipped + n * width, access=mmap.ACCESS_READ, offset=first) as mapped:
            ids = np.frombuffer(mapped[skipped:], self._type).astype(np.int64)
        return torch.from_numpy(ids)

    def fingerprint(self) -> str:
        """Of all ids, as it was when they were written."""
        return self._text

    def verify(self, progress: Callable[[int], object] = lambda n: None) -> None:
        """Read the whole file and compare its checksum; ``progress`` is told the bytes of each block.

        Raises ``TokenFileError`` for damage, or for an id outside the vocabulary.
        """
        self._require_size(exactly=True)
        digest, position = hash_of({}), 0
        with open(os.dup(self._file), "rb") as file:
            file.seek(0)
            while block := file.read(BLOCK):
                digest.update(block)
                ids = np.frombuffer(block, self._type)
                if (largest := int(ids.max())) >= self.vocab_size:
                    raise TokenFileError(
                        f"{self.path}: token id {largest} at position {position + int(ids.argmax())} is outside the "
                        f"vocabulary 0..{self.vocab_size - 1}. {CURE}"
                    )
                position += len(ids)
                progress(len(block))
        if digest.hexdigest() != self._checksum:
            raise TokenFileError(
                f"{self.path} is damaged: its checksum is {digest.hexdigest()}, not {self._checksum}. {CURE}"
            )

    def _require_size(self, *, exactly: bool = False) -> None:
        """A file that somebody cuts short while it is mapped would kill the process without a word."""
        size, needed = os.fstat(self._file).st_size, self.tokens * self._type.itemsize
        if size < needed or (exactly and size != needed):
            raise TokenFileError(
                f"{self.path} is {'cut short' if size < needed else 'too long'}: it has {size:,} bytes, and "
                f"{self.tokens:,} ids of type {self.dtype} take {needed:,}. {CURE}"
            )


@dataclass(frozen=True)
class TokenFolder:
    """What ``python -m tinytrain tokens`` wrote: the ids of one or two parts, and the tokenizer that made them."""

    path: Path
    manifest: dict[str, Any]
    tokenizer: Tokenizer

    def part(self, name: str) -> TokenFile | None:
        """``"train"`` or ``"valid"``; None for held-out text that there is none of. ``ValueError`` for another name."""
        if name not in PARTS:
            raise ValueError(f"part {name!r} is not one of {', '.join(PARTS)}")
        if (facts := self.manifest["parts"].get(name)) is None:
            return None
        return TokenFile(
            self.path / f"{name}.bin",
            vocab_size=self.manifest["vocab_size"],
            dtype=self.manifest["dtype"],
            tokens=facts["tokens"],
            checksum=facts["checksum"],
            text=facts["text"],
        )


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Write ``manifest.json``, with a checksum over itself."""
    facts = {"format": FORMAT, **facts}
    text = json.dumps(facts | {"checksum": hash_of(facts).hexdigest()}, indent=1)
    replace_file(folder / MANIFEST, text.encode())


def open_tokens(folder: str | Path) -> TokenFolder:
    """The tokens in ``folder``. Nothing but the manifest and the tokenizer is read.

    Raises ``FileNotFoundError`` if there are none, and ``TokenFileError`` for a damaged manifest, a tokenizer that is
    not the one the ids were made with, or a type too narrow for the vocabulary.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no tokens: there is no {MANIFEST}, which the tokens command writes")
    manifest = _read_manifest(path)
    try:
        check_dtype(manifest["dtype"], manifest["vocab_size"])
    except ValueError as error:
        raise TokenFileError(f"{path}: {error}") from None
    tokenizer = load_tokenizer(folder / FILE)
    require_tokenizer(tokenizer.fingerprint, manifest["tokenizer"], folder / FILE, f"the ids in {folder}")
    if tokenizer.vocab_size != manifest["vocab_size"]:
        raise TokenFileError(
            f"{path}: vocab_size={manifest['vocab_size']}, and its tokenizer's is {tokenizer.vocab_size}"
        )
    return TokenFolder(folder, manifest, tokenizer)


def require_tokenizer(here: str, made: str, file: Path, what: str) -> None:
    """Raise ``TokenFileError`` if the tokenizer in ``file``, ``here``, is not the one that ``made`` something."""
    if here != made:
        raise TokenFileError(
            f"{file} holds tokenizer {here}, and {what} were made with {made}: the same id would be another text. Put "
            f"that one back, or write the tokens again"
        )


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(manifest, dict):
            raise ValueError(f"it is a {type(manifest).__name__}")
        found = hash_of(manifest).hexdigest()
        if found != manifest.get("checksum"):
            raise ValueError(f"its checksum is {found}, not {manifest.get('checksum')!r}")
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']!r}, and {FORMAT} is what can be read here")
        if gone := {"tokenizer", "dtype"} - set(manifest):
            raise ValueError(f"it has no {min(gone)}")
        for name, facts in manifest["parts"].items():
            if name not in PARTS or not (type(facts["tokens"]) is int and facts["tokens"] > 0):
                raise ValueError(f"part {name!r} with {facts['tokens']!r} ids")
            if not (isinstance(facts["checksum"], str) and isinstance(facts["text"], str)):
                raise ValueError(f"part {name!r} without a checksum")
        if type(manifest["vocab_size"]) is not int or "train" not in manifest["parts"]:
            raise ValueError("it names no vocabulary or no training part")
        return manifest
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TokenFileError(f"{path} is damaged ({error}). {CURE}") from None
