"""From texts to a folder of tokens, in a stream: however long the texts are, little of them is in memory at once."""

import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from tinytrain.bpe import check_vocab_size, enough_to_learn_from
from tinytrain.corpus import choose_held_out, cuts_at, parts_well
from tinytrain.durable import sync_folder, write_synced
from tinytrain.text_stream import Source, Survey, sources_of, survey
from tinytrain.token_file import (
    PARTS,
    TokenFileError,
    TokenFolder,
    TokenWriter,
    check_dtype,
    dtype_for,
    open_tokens,
    write_manifest,
)
from tinytrain.tokenizer import Tokenizer
from tinytrain.tokenizer_file import DEFAULT_VOCABULARY, FILE, choose_tokenizer


@dataclass(frozen=True)
class Stretch:
    """Characters ``start`` to ``stop`` of a document."""

    document: Survey
    start: int
    stop: int

    @property
    def ends(self) -> bool:
        """True if the document ends here, and does not go on in another part."""
        return self.stop == self.document.characters

    def pieces(self) -> Iterator[str]:
        """Its text in pieces. Raises ``TokenFileError`` if the file is not the one that was looked at before."""
        before, place = self.document.source.state(), 0
        for piece in self.document.source.pieces():
            if wanted := piece[max(self.start - place, 0) : max(self.stop - place, 0)]:
                yield wanted
            place += len(piece)
            if place >= self.stop:
                break
        if before != self.document.state or self.document.source.state() != before:
            raise TokenFileError(f"{self.document.source.name} has changed while it was read: start again")


def build_tokens(
    inputs: str | Sequence[str],
    out: str | Path,
    *,
    tokenizer: str = "bytes",
    vocab_size: int | None = None,
    pattern: str = "*",
    valid_share: float = 0.1,
    dtype: str | None = None,
    seed: int = 0,
    quiet: bool = False,
) -> TokenFolder:
    """Write the tokens of ``inputs`` (files, folders, names of corpora) to the folder ``out``.

    Everything is read twice: first to its end, so that a bad byte is found before any token is written, then to be
    written; the training part once more between, if a vocabulary is learned from it. ``valid_share`` of the characters
    are held out: whole documents, chosen by ``seed``, where there are ten or more of like size, and the end of the text
    otherwise. Documents that are equal to the letter stay on one side. A vocabulary is learned from the training part.
    Behind each document stands the tokenizer's ``end_of_text``; rows are cut from all documents in a line, so that one
    may hold the end of a document and the beginning of the next.
    The same inputs give the same files. ``dtype`` is the narrowest that holds the vocabulary if not given.

    The folder is written under a temporary name and renamed when it is whole. Raises ``FileExistsError`` if ``out`` is
    there, and ``ValueError`` for text that is none, a share outside 0 to 1, and a ``dtype`` that is too narrow.
    """
    out = Path(out)
    if not 0.0 <= valid_share < 1.0:
        raise ValueError(f"valid_share={valid_share} must be at least 0 and less than 1")
    if out.exists():
        raise FileExistsError(f"{out} is there already: choose another folder, or move it away")
    made: Tokenizer | None = None
    if tokenizer == "bpe":
        wanted = check_vocab_size(DEFAULT_VOCABULARY if vocab_size is None else vocab_size)
    else:
        made = choose_tokenizer(tokenizer, [], vocab_size)
        wanted = made.vocab_size
    check_dtype(dtype_for(wanted) if dtype is None else dtype, wanted)
    sources = sources_of([inputs] if isinstance(inputs, str) else inputs, pattern)
    documents = _look_at(sources, quiet)
    parts, by = divide(documents, valid_share, seed)
    if made is None:
        with _bar("learning", None, quiet) as bar:
            made = choose_tokenizer(tokenizer, _told(_to_learn_from(parts["train"]), bar), wanted)
    dtype = dtype or dtype_for(made.vocab_size)  # of what was learned, which may be less than was wanted

    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.unfinished_{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    for left in sorted(out.parent.glob(f".{escape(out.name)}.unfinished_*")):  # of another machine, perhaps
        warnings.warn(f"{left} is of a build that was killed, or still runs: if none does, remove it", stacklevel=2)
    unfinished.mkdir()
    try:
        with _bar("writing", sum(document.characters for document in documents), quiet) as bar:
            facts = {part: _write_part(unfinished / f"{part}.bin", parts[part], made, dtype, bar) for part in parts}
        made.save(unfinished / FILE)
        write_manifest(
            unfinished,
            {
                "tokenizer": made.fingerprint,
                "vocab_size": made.vocab_size,
                "end_of_text": made.end_of_text,
                "dtype": dtype,
                "held_out_by": by,
                "left_out": len(sources) - len(documents),
                "parts": facts,
            },
        )
        unfinished.rename(out)
        sync_folder(out.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return open_tokens(out)


def divide(documents: Sequence[Survey], share: float, seed: int) -> tuple[dict[str, list[Stretch]], str]:
    """The stretches of each part, and by what they were parted: ``"document"``, ``"position"`` or ``""``."""
    whole, total = [Stretch(d, 0, d.characters) for d in documents], sum(d.characters for d in documents)
    if share == 0:
        return {"train": whole}, ""
    sizes: dict[str, int] = {}
    for document in documents:
        sizes[document.digest] = sizes.get(document.digest, 0) + document.characters
    held_out = choose_held_out(sizes, share, seed)
    if parts_well(len(documents), sizes, held_out, share):
        train = [stretch for stretch in whole if stretch.document.digest not in held_out]
        valid, by = [stretch for stretch in whole if stretch.document.digest in held_out], "document"
    else:
        cuts, by = cuts_at(1.0 - share, [d.characters for d in documents]), "position"
        train = [Stretch(d, 0, cut) for d, cut in zip(documents, cuts, strict=True) if cut > 0]
        valid = [Stretch(d, cut, d.characters) for d, cut in zip(documents, cuts, strict=True) if cut < d.characters]
    if not (train and valid):
        raise ValueError(
            f"{total} characters are too few to hold out valid_share={share} of them: give more text, or valid_share=0"
        )
    return dict(zip(PARTS, (train, valid), strict=True)), by


def _look_at(sources: Sequence[Source], quiet: bool) -> list[Survey]:
    with _bar("reading", sum(source.state()[0] for source in sources), quiet, unit="B") as bar:
        documents = [survey(source, bar.update) for source in sources]
    if not any(document.visible for document in documents):
        names = ", ".join(source.name for source in sources[:3])
        raise ValueError(f"{names}: there is no text in {'it' if len(sources) == 1 else 'them'}, nothing visible")
    return [document for document in documents if document.visible]


def _to_learn_from(stretches: Sequence[Stretch]) -> Iterator[str]:
    n_bytes = sum(s.document.bytes * (s.stop - s.start) / s.document.characters for s in stretches)
    return enough_to_learn_from((s.pieces() for s in stretches), n_bytes)


def _write_part(
    path: Path, stretches: Sequence[Stretch], tokenizer: Tokenizer, dtype: str, bar: tqdm
) -> dict[str, Any]:
    sizes, n_bytes, writers = tokenizer.token_bytes().numpy(), 0, []

    def write(file: Any) -> None:
        nonlocal n_bytes
        writers.append(writer := TokenWriter(file, tokenizer.vocab_size, dtype))
        for stretch in stretches:
            for ids in tokenizer.encode_stream(_told(stretch.pieces(), bar)):
                n_bytes += int(sizes[ids].sum())
                writer.write(ids)
            if stretch.ends:
                writer.write(np.array([tokenizer.end_of_text]))

    checksum = write_synced(path, write)
    return {
        "tokens": writers[0].tokens,
        "bytes": n_bytes,
        "documents": len(stretches),
        "checksum": checksum,
        "text": writers[0].fingerprint(),
    }


def _told(texts: Iterable[str], bar: tqdm) -> Iterator[str]:
    for text in texts:
        bar.update(len(text))
        yield text


def _bar(what: str, total: int | None, quiet: bool, unit: str = " characters") -> tqdm:
    return tqdm(desc=what, total=total, unit=unit, unit_scale=True, disable=quiet)
