"""``python -m tinytrain tokens my_texts/ --out my_tokens``: texts to a folder of tokens that runs are trained on."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tinytrain.commands.option_types import MaybeInt, MaybeText, shown_as
from tinytrain.token_build import build_tokens
from tinytrain.token_file import TokenFolder


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Write the tokens of texts to a folder, for texts larger than memory, or to encode them once for many runs."""

    texts: Annotated[tyro.conf.Positional[tuple[str, ...]], shown_as("TEXT ...")]
    """files, folders, or corpora by name (shakespeare, three_kingdoms, python); each file is one document"""
    out: Path
    """folder for the tokens and their tokenizer; it must not be there yet"""
    tokenizer: str = "bytes"
    """bytes; bpe, which is learned from the training part; or the path of a tokenizer.json, of a run for example"""
    vocab_size: MaybeInt = None
    """tokens of the vocabulary that bpe learns; 4096 if not given"""
    pattern: str = "*"
    """which files of a folder are read, such as *.txt"""
    valid_share: float = 0.1
    """share of the text that is held out for evaluation: whole documents where there are ten or more of like size"""
    dtype: MaybeText = None
    """width of an id on disk: uint8, uint16 or uint32; the narrowest that holds the vocabulary if not given"""
    seed: int = 0
    """of the choice of the documents that are held out"""


def tokens(options: Tokens) -> TokenFolder:
    """Write the tokens that ``options`` name, and print what there is."""
    folder = build_tokens(
        options.texts,
        options.out,
        tokenizer=options.tokenizer,
        vocab_size=options.vocab_size,
        pattern=options.pattern,
        valid_share=options.valid_share,
        dtype=options.dtype,
        seed=options.seed,
    )
    print(described(folder, options.vocab_size))
    print(f"Train on them: python -m tinytrain train --tokens {shlex.quote(str(options.out))} --out runs/NAME")
    return folder


def described(folder: TokenFolder, wanted: int | None = None) -> str:
    """What a folder of tokens holds, in a few lines."""
    facts, lines = folder.manifest, []
    for name, part in facts["parts"].items():
        lines.append(
            f"{name}: {part['tokens']:,} tokens of {part['bytes']:,} bytes "
            f"({part['bytes'] / part['tokens']:.2f} a token), {part['documents']:,} documents"
        )
    lines.append(f"tokenizer: {facts['tokenizer']}, vocabulary {facts['vocab_size']:,}, {facts['dtype']} on disk")
    if wanted is not None and facts["vocab_size"] < wanted:
        lines.append(f"The text gives no more than {facts['vocab_size']:,} of the {wanted:,} tokens asked for")
    if facts["left_out"]:
        lines.append(f"Left out, for they hold no text: {facts['left_out']:,} files")
    return "\n".join(lines)
