"""Texts that are read piece by piece and never held whole: corpora that have a name, files, and folders of files."""

import codecs
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinytrain.corpus import NAMES, files_in, load_corpus, not_text, not_utf8, or_leave_it_out

CHUNK = 1 << 20
"""bytes of a file that are read at once"""
_MARK = codecs.BOM_UTF8


@dataclass(frozen=True)
class Source:
    """One document: a file, or a text in memory."""

    name: str
    path: Path | None = None
    text: str = ""
    pattern: str | None = None
    """what chose the file out of a folder; None for one that was named itself"""

    def pieces(self) -> Iterator[str]:
        """Its text, in order, in pieces of about a million characters. Raises as ``read_text`` does."""
        if self.path is not None:
            try:
                yield from read_text(self.path)
            except ValueError as error:
                if self.pattern is None:
                    raise
                raise ValueError(f"{error}, {or_leave_it_out(self.pattern)}") from None
        else:
            yield from (self.text[i : i + CHUNK] for i in range(0, len(self.text), CHUNK))

    def state(self) -> tuple[int, int]:
        """(bytes, time of the last change): another one means that the file has changed."""
        if self.path is None:
            return len(self.text.encode()), 0
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is to know about a document before its tokens are written."""

    source: Source
    characters: int
    bytes: int
    """as UTF-8, newlines as one byte each"""
    digest: str
    """of its text: the same for two documents that are equal to the letter"""
    visible: bool
    """False if it holds white space alone"""
    state: tuple[int, int]


def sources_of(inputs: Sequence[str], pattern: str = "*") -> list[Source]:
    """The documents that ``inputs`` name, in their order: names of corpora, files, folders (their files by name).

    Raises ``FileNotFoundError`` for what is not there, and ``ValueError`` for a file that is named twice.
    """
    found, seen = [], {}
    if not inputs:
        raise ValueError(f"no text is named: give files, folders, or a corpus ({', '.join(NAMES)})")
    for name in inputs:
        for source in _sources(name, pattern):
            place = str(source.path.resolve()) if source.path is not None else f"{name}: {source.name}"
            if place in seen:
                raise ValueError(f"{source.name} is named twice, by {seen[place]!r} and by {name!r}: name it once")
            seen[place] = name
            found.append(source)
    return found


def _sources(name: str, pattern: str) -> Iterator[Source]:
    path = Path(name)
    if name in NAMES:
        yield from (Source(document.name, text=document.text) for document in load_corpus(name).documents)
    elif name.strip() and path.is_dir():
        yield from (Source(str(file), file, pattern=pattern) for file in files_in(path, pattern))
    elif name.strip() and path.exists():  # a pipe has no size and can be read once only
        if not path.is_file():
            raise ValueError(f"{path} is neither a file nor a folder: write its text into a file first")
        yield Source(str(path), path)
    else:
        raise FileNotFoundError(f"{name!r}: no such file or folder, and no corpus of that name ({', '.join(NAMES)})")


def read_text(path: Path, chunk: int = CHUNK) -> Iterator[str]:
    """The text of a UTF-8 file in pieces: together they are what ``decode_text`` makes of its bytes.

    Raises ``ValueError`` with the file, the byte offset and the cure for bytes that are not UTF-8 or not text.
    """
    head, data, position = b"", b"", 0  # position: bytes before data
    at_start, half_newline, final = True, False, False
    with path.open("rb") as file:
        while not final:
            read = file.read(chunk)
            data, final = data + read, not read
            head = head or data[:4096]
            while at_start and data.startswith(_MARK):
                data, position = data[len(_MARK) :], position + len(_MARK)
            if at_start and not final and _MARK.startswith(data):
                continue
            at_start = False
            try:
                text, used = codecs.utf_8_decode(data, "strict", final)
            except UnicodeDecodeError as error:
                raise not_utf8(str(path), data[error.start], position + error.start, head=head) from None
            if (zero := data.find(b"\0", 0, used)) >= 0:
                raise not_text(str(path), position + zero)
            data, position = data[used:], position + used
            text = "\r" + text if half_newline else text
            half_newline = text.endswith("\r") and not final
            text = text.removesuffix("\r") if half_newline else text
            if text := text.replace("\r\n", "\n").replace("\r", "\n"):
                yield text


def survey(source: Source, progress: Callable[[int], object]) -> Survey:
    """Read a document to its end. ``progress`` is told the bytes of each piece. Raises as ``read_text`` does."""
    state, digest, characters, n_bytes, visible = source.state(), hashlib.blake2b(digest_size=16), 0, 0, False
    for piece in source.pieces():
        data = piece.encode()
        digest.update(data)
        characters, n_bytes = characters + len(piece), n_bytes + len(data)
        visible = visible or not piece.isspace()
        progress(len(data))
    return Survey(source, characters, n_bytes, digest.hexdigest(), visible, state)
