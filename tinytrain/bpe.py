"""Byte-level BPE: pieces of words as tokens, learned from a text by merging what stands together most often.

The merging is done by Hugging Face's ``tokenizers``, set up as GPT-2's: text is parted into words by GPT-2's rule, a
word is bytes to begin with (so there is no text without a code), and nothing is changed on the way, so that decoding
gives back the text to the letter. Sennrich et al. 2016 (arXiv:1508.07909); Radford et al. 2019.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor

from tinytrain.durable import replace_file
from tinytrain.tokenizer import to_utf8

END_OF_TEXT = "<|endoftext|>"
SMALLEST = 257
"""tokens of the smallest vocabulary: the bytes and the end of a text"""
LEARN_FROM = 8_000_000
"""bytes of text that are enough to learn a vocabulary from; learning takes 5 (English) to 90 (Chinese) times as many"""
PIECE = 1 << 14
"""characters that are encoded at once, at least; a word of more than twice as many is cut"""

# Where a text may be cut without changing its words: before white space, or between a letter and punctuation. The
# rule for words looks ahead and not back, so whatever follows such a place is parted as if it stood alone.
_BEFORE_SPACE, _BEFORE_MARK = re.compile(r"(?<=\S)(?=[ \n\t])"), re.compile(r"(?<=[^\W_])(?=[^\w\s])")


class BPETokenizer:
    """A byte-level BPE, learned here or read from a file.

    >>> tokenizer = BPETokenizer.learn(["to be or not to be " * 20], vocab_size=260)
    >>> ids = tokenizer.encode("not to be")
    >>> tokenizer.decode(ids), len(ids) < len("not to be")
    ('not to be', True)
    """

    def __init__(self, inner: tokenizers.Tokenizer, source: str = "the tokenizer") -> None:
        """Raises ``ValueError`` for a tokenizer that is no byte-level BPE set up as this module says."""
        self._take(inner, json.loads(inner.to_str()), source)

    def _take(self, inner: tokenizers.Tokenizer, state: dict[str, Any], source: str) -> None:
        try:
            differs = _differences(state)
        except (AttributeError, KeyError, TypeError) as error:
            differs = [f"it has parts of another kind than those of a tokenizer ({error})"]
        if differs:
            raise ValueError(
                f"{source} is no tokenizer that can be used here: {'; '.join(differs)}. What is needed is a byte-level "
                f"BPE like GPT-2's, with {END_OF_TEXT}"
            )
        inner.encode_special_tokens = True  # in a text, <|endoftext|> is thirteen characters like any others
        inner.no_truncation()
        inner.no_padding()
        vocabulary: dict[str, int] = state["model"]["vocab"]
        self._inner, self._tokens = inner, sorted(vocabulary, key=vocabulary.__getitem__)
        self.vocab_size, self.end_of_text = len(self._tokens), vocabulary[END_OF_TEXT]
        merges = [m if isinstance(m, str) else " ".join(m) for m in state["model"]["merges"]]
        facts = json.dumps([self._tokens, merges]).encode()
        self.fingerprint = f"bpe-{self.vocab_size}-{hashlib.blake2b(facts, digest_size=8).hexdigest()}"

    @classmethod
    def learn(cls, texts: Iterable[str], vocab_size: int) -> "BPETokenizer":
        """Learn from ``texts``, each a text of its own. The same texts give the same tokens, on any number of cores.

        A pair that was seen once is not merged, so a short text may give fewer tokens than ``vocab_size``.
        Raises ``ValueError`` for a ``vocab_size`` below 257, and for no text at all.
        """
        check_vocab_size(vocab_size)
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        pieces = (piece for text in texts for piece in cut_between_words([text]))
        if (first := next(pieces, None)) is None:
            raise ValueError("there is no text to learn a vocabulary from")
        inner.train_from_iterator(chain([first], pieces), trainer)
        return cls(inner)

    @classmethod
    def from_json(cls, text: str, source: str) -> "BPETokenizer":
        """The tokenizer that a ``tokenizer.json`` holds. Raises ``ValueError`` that names ``source``."""
        try:
            inner, state = tokenizers.Tokenizer.from_str(text), json.loads(text)
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"{source} is damaged or no tokenizer file ({error}): take a whole one") from None
        new = cls.__new__(cls)
        new._take(inner, state, source)  # as the file has it: the library hides a token whose id another has, too
        return new

    def to_json(self) -> str:
        """The text of a ``tokenizer.json``, which Hugging Face's libraries read as well."""
        return self._inner.to_str(pretty=True)

    def save(self, path: str | Path) -> None:
        """Write a file from which ``load_tokenizer`` makes the same tokenizer."""
        replace_file(Path(path), self.to_json().encode())

    def encode(self, text: str) -> Tensor:
        """Ids ``[n]``, int64. Raises ``ValueError`` for a lone surrogate, which UTF-8 cannot hold."""
        to_utf8(text)
        return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *self.encode_stream([text])]))

    def decode(self, ids: Tensor | list[int]) -> str:
        """The text of ``ids`` ``[n]``. A character cut at either end shows as the replacement mark U+FFFD."""
        values = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        bad = next((i for i, value in enumerate(values) if not 0 <= value < self.vocab_size), None)
        if bad is not None:
            raise ValueError(f"id {values[bad]} at position {bad} is outside the vocabulary 0..{self.vocab_size - 1}")
        return self._inner.decode(values, skip_special_tokens=False)

    def encode_stream(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """The ids of one long text that comes in pieces, in pieces: those of ``encode``, however the text was cut."""
        pieces = cut_between_words(texts)
        while together := list(islice(pieces, 16)):  # on all cores; few, for each token takes memory on its way
            encoded = self._inner.encode_batch_fast(together, add_special_tokens=False)
            yield np.concatenate([np.asarray(part.ids, dtype=np.int64) for part in encoded])

    def token_bytes(self) -> Tensor:
        """Bytes of text that each token stands for, ``[V]``; 0 for the end of a text."""
        return self._sizes.clone()

    @cached_property
    def _sizes(self) -> Tensor:
        sizes = torch.tensor([len(token) for token in self._tokens])  # each byte is written as one character
        sizes[self.end_of_text] = 0
        return sizes


def check_vocab_size(vocab_size: int) -> int:
    """``vocab_size`` itself. Raises ``ValueError`` if it has no room for the bytes and the end of a text, or room for
    more tokens than there are bytes to learn from: the library takes memory for all of them at once, and aborts."""
    if vocab_size < SMALLEST:
        raise ValueError(f"vocab_size={vocab_size} must be at least {SMALLEST}: 256 bytes and the end of a text")
    if vocab_size > LEARN_FROM:
        raise ValueError(f"vocab_size={vocab_size} is more than the {LEARN_FROM:,} bytes of text it is learned from")
    return vocab_size


def enough_to_learn_from(texts: Iterable[Iterable[str]], n_bytes: float) -> Iterator[str]:
    """Pieces of ``texts``, each a text that comes in pieces, spread over all: about ``LEARN_FROM`` of ``n_bytes``."""
    return thinned((piece for text in texts for piece in cut_between_words(text)), LEARN_FROM / max(n_bytes, 1))


def thinned(pieces: Iterable[str], share: float) -> Iterator[str]:
    """About ``share`` of the pieces, spread evenly over all: every one if it is 1 or more, every third if it is 1/3.

    >>> list(thinned("abcdefg", 1 / 3))
    ['c', 'f']
    """
    share, owed = min(share, 1.0), 0.0
    for piece in pieces:
        owed += share
        if owed > 1.0 - 1e-9:  # three thirds are a little less than 1
            owed -= 1.0
            yield piece


def cut_between_words(texts: Iterable[str], size: int = PIECE) -> Iterator[str]:
    """One long text that comes in pieces, cut anew where no word is cut; ``size`` to ``2 * size`` characters each.

    Where the cuts are does not depend on how the text came.
    """
    waiting = ""
    for text in texts:
        waiting += text
        start = 0
        while len(waiting) - start > 2 * size + 1:  # one more: whether there may be a cut depends on what follows
            cut = _cut(waiting, start + size, start + 2 * size)
            yield waiting[start:cut]
            start = cut
        waiting = waiting[start:]
    if waiting:
        yield waiting


def _cut(text: str, earliest: int, latest: int) -> int:
    for place in (_BEFORE_SPACE, _BEFORE_MARK):
        if found := place.search(text, earliest, latest + 1):
            return found.start()
    return latest


def _differences(state: dict[str, Any]) -> list[str]:
    """What about a ``tokenizer.json`` would change the text, or is not known here."""
    model, before = state.get("model") or {}, state.get("pre_tokenizer") or {}
    if model.get("type") != "BPE":
        return [f"its model is {model.get('type')}"]
    found = []
    if before.get("type") != "ByteLevel" or before.get("add_prefix_space") or not before.get("use_regex", True):
        found.append(f"its text is parted by {before.get('type')} {sorted(before.items())[:3]}")
    if (state.get("decoder") or {}).get("type") != "ByteLevel":
        found.append("its decoder is not ByteLevel")
    if normalizer := state.get("normalizer"):
        found.append(f"its normalizer {normalizer.get('type')} changes the text")
    settings = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    found += [f"{name} is {model[name]!r}" for name in (*settings, "ignore_merges") if model.get(name)]
    vocabulary, alphabet = model["vocab"], set(pre_tokenizers.ByteLevel.alphabet())
    if END_OF_TEXT not in vocabulary:
        found.append(f"it has no {END_OF_TEXT}")
    if others := [added["content"] for added in state.get("added_tokens") or () if added["content"] != END_OF_TEXT]:
        found.append(f"{len(others)} more tokens were added to it, such as {others[0]}")
    if missing := alphabet - set(vocabulary):
        found.append(f"{len(missing)} of the 256 bytes have no token")
    if strange := sorted(token for token in vocabulary if not alphabet.issuperset(token)):
        found.append(f"{len(strange)} of its tokens are no bytes, such as {strange[0]!r}")
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        found.append(f"its {len(vocabulary)} ids are not 0..{len(vocabulary) - 1}")
    return found
