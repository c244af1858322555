"""What a run reads: the rows it is trained on, the rows that are held out, and the tokenizer of both."""

import warnings
from dataclasses import dataclass, fields
from pathlib import Path

from tqdm import tqdm

from tinytrain.bpe import BPETokenizer, enough_to_learn_from
from tinytrain.commands.run_options import OPTIONS, Train, load_run_tokenizer
from tinytrain.corpus import load_corpus
from tinytrain.data import TokenRows
from tinytrain.distributed.group import on_first
from tinytrain.token_file import TokenFile, TokenFolder, open_tokens, require_tokenizer
from tinytrain.tokenizer import Tokenizer
from tinytrain.tokenizer_file import DEFAULT_VOCABULARY, FILE, choose_tokenizer


@dataclass(frozen=True)
class RunText:
    """The text of a run as rows of ids."""

    name: str
    tokenizer: Tokenizer
    train: TokenRows
    valid: TokenRows | None
    """None: nothing is held out, so there is no evaluation"""
    notice: str = ""
    """what a reader should know about how the text was found"""


def text_of(options: Train, row_length: int, *, resumed: bool = False) -> RunText:
    """The text that ``options`` name. A run that is resumed reads it with the tokenizer that lies beside the run.

    In several processes all make the same call; one of them learns the vocabulary and looks whether files are whole.
    Raises ``ValueError`` for options that exclude each other and for tokens made with another tokenizer, and as
    ``load_corpus`` and ``open_tokens`` do.
    """
    if options.tokens is not None:
        return _from_tokens(options, Path(options.tokens), row_length, resumed)
    tokenizer: Tokenizer | None = None
    if resumed:
        tokenizer = load_run_tokenizer(options.out)
    elif options.tokenizer != "bpe":  # before the corpus is read: what is refused is refused at once
        tokenizer = choose_tokenizer(options.tokenizer, [], options.vocab_size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* needs the package")  # the notice says it, once for all processes
        corpus = load_corpus(options.corpus, pattern=options.pattern)
    parts = corpus.split()
    if tokenizer is None:
        learned = on_first(lambda: _learn(parts[0].text, options.vocab_size))
        tokenizer = BPETokenizer.from_json(learned, "the vocabulary that process 0 learned")
    train, valid = (TokenRows(tokenizer.encode(p.text), row_length, tokenizer.vocab_size, p.name) for p in parts)
    return RunText(corpus.name, tokenizer, train, valid, corpus.notice)


def _learn(text: str, vocab_size: int | None) -> str:
    pieces = enough_to_learn_from([[text]], len(text.encode()))
    return BPETokenizer.learn(pieces, DEFAULT_VOCABULARY if vocab_size is None else vocab_size).to_json()


def _from_tokens(options: Train, path: Path, row_length: int, resumed: bool) -> RunText:
    usual = {field.name: field.default for field in fields(Train)}
    names = ("corpus", "pattern", "tokenizer", "vocab_size")
    if others := [f"{name}={getattr(options, name)!r}" for name in names if getattr(options, name) != usual[name]]:
        raise ValueError(f"the tokens in {path} have a text and a tokenizer already: leave out {', '.join(others)}")
    try:
        folder = open_tokens(path)
    except FileNotFoundError as error:
        moved = f". If they were moved, say where to in {options.out / OPTIONS}" if resumed else ""
        raise FileNotFoundError(f"{error}{moved}") from None
    if resumed:
        own = load_run_tokenizer(options.out).fingerprint
        require_tokenizer(folder.tokenizer.fingerprint, own, path / FILE, f"the ids of the run in {options.out}")
    train, valid = (_rows(folder, name, row_length) for name in ("train", "valid"))
    assert train is not None
    return RunText(path.name, folder.tokenizer, train, valid)


def _rows(folder: TokenFolder, part: str, row_length: int) -> TokenRows | None:
    if (file := folder.part(part)) is None:
        return None
    rows = TokenRows(file, row_length, file.vocab_size, str(file.path))
    on_first(lambda: _verify(file))
    return rows


def _verify(file: TokenFile) -> None:
    with tqdm(desc=f"checking {file.path.name}", unit="B", unit_scale=True, delay=2, leave=False) as bar:
        file.verify(bar.update)
