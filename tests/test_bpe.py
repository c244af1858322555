import hashlib
import json
import random
import subprocess
import sys

import pytest
import tokenizers
import torch
from transformers import PreTrainedTokenizerFast

import tinytrain.bpe
from tinytrain.bpe import END_OF_TEXT, BPETokenizer, cut_between_words, thinned
from tinytrain.corpus import load_corpus

TEXTS = ["To be, or not to be: that is the question. " * 30, "却说曹操引军追赶，玄德大惊，引军而走。\n" * 30]
TRICKY = [
    "it's",
    "they'll",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\u3000",
    "\xa0",
    "\x1c",
    "\x85",
    "三国演义",
    "。",
    "“",
    "a",
    "Zoë",
    "_",
]
TRICKY += [
    "'",
    "'s",
    "12",
    "½",
    "²",
    "x_y",
    "🙂",
    "\u200d",
    "é",
    "\u0301",
    "—",
    "...",
    "-",
    "\u0928\u093f",
    "\r",
    "\0",
    "Ⅳ",
    "ﬁ",
]


@pytest.fixture(scope="module")
def tokenizer():
    return BPETokenizer.learn(TEXTS, 400)


@pytest.fixture
def small_pieces(monkeypatch):
    """Texts of a few characters are cut as long ones are."""
    monkeypatch.setattr(tinytrain.bpe.cut_between_words, "__defaults__", (8,))


def tricky_texts(seed, count, length):
    draw = random.Random(seed)
    return ["".join(draw.choices(TRICKY, k=draw.randrange(1, length))) for _ in range(count)]


@pytest.mark.parametrize(
    "text", ["", "To be", "Zoë — 三国演义 🙂", "a\nb\tc\0d", "  two  spaces  ", "\r\n", "no such words"]
)
def test_any_text_comes_back_as_it_was(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == torch.int64 and ids.dim() == 1
    assert tokenizer.decode(ids) == text


def test_tricky_texts_come_back_as_they_were(tokenizer):
    for text in tricky_texts(seed=1, count=300, length=30):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_what_stands_together_often_becomes_one_token():
    """By hand: of abab abab, ab is the commonest pair, then abab; with a space before it, it is another word."""
    tokenizer = BPETokenizer.learn(["abab" * 4], 259)
    a, b = tokenizer.encode("a").item(), tokenizer.encode("b").item()
    assert tokenizer.vocab_size == 259
    assert tokenizer.encode("ab").tolist() == [257] and tokenizer.encode("abab").tolist() == [258]
    assert tokenizer.encode("aba").tolist() == [257, a] and tokenizer.encode("bab").tolist() == [b, 257]


def test_a_pair_that_was_seen_once_is_not_merged():
    assert BPETokenizer.learn(["abc"], 1000).vocab_size == 257


def test_a_texts_own_words_take_fewer_tokens_than_bytes(tokenizer):
    for text in TEXTS:
        assert len(tokenizer.encode(text)) < 0.4 * len(text.encode())


def test_the_vocabulary_of_a_chinese_novel_learns_its_names():
    text = load_corpus("three_kingdoms").text[:60_000]
    tokenizer = BPETokenizer.learn([text], 1500)
    assert tokenizer.vocab_size == 1500
    assert len(tokenizer.encode("玄德")) == 1 and len(tokenizer.encode("张飞")) == 1
    assert tokenizer.decode(tokenizer.encode(text)) == text


# The end of a text


def test_the_end_of_a_text_has_an_id_that_no_text_gives(tokenizer):
    ids = tokenizer.encode(f"before{END_OF_TEXT}after")
    assert tokenizer.end_of_text not in ids.tolist()
    assert tokenizer.decode(ids) == f"before{END_OF_TEXT}after"
    assert tokenizer.decode([tokenizer.end_of_text]) == END_OF_TEXT
    again = BPETokenizer.from_json(tokenizer.to_json(), "again.json")
    assert again.encode(END_OF_TEXT).tolist() == tokenizer.encode(END_OF_TEXT).tolist()


def test_token_bytes_add_up_to_the_bytes_of_the_text(tokenizer):
    sizes = tokenizer.token_bytes()
    assert sizes.shape == (tokenizer.vocab_size,) and sizes[tokenizer.end_of_text] == 0
    for text in [*TEXTS, *tricky_texts(seed=2, count=100, length=40)]:
        assert sizes[tokenizer.encode(text)].sum() == len(text.encode())
    sizes.zero_()
    assert tokenizer.token_bytes().sum() > 0, "a copy"


# Long texts, in pieces


@pytest.fixture(scope="module")
def learned_from_tricky():
    """Has tokens for runs of white space and of marks, so that a cut inside one of them shows."""
    return BPETokenizer.learn(tricky_texts(seed=9, count=3000, length=30), 4000)


@pytest.mark.parametrize("seed", range(5))
def test_a_text_in_pieces_has_the_ids_that_the_library_gives_the_whole(learned_from_tricky, small_pieces, seed):
    """The library sees the whole text at once; ours cuts it, at places that come after eight characters."""
    draw = random.Random(seed)
    for text in tricky_texts(seed, count=60, length=60):
        whole = learned_from_tricky._inner.encode(text, add_special_tokens=False).ids
        pieces = list(cut_between_words([text]))
        if all(len(piece) < 16 or piece == pieces[-1] for piece in pieces):  # no word was too long for a piece
            assert learned_from_tricky.encode(text).tolist() == whole
        cuts = sorted(draw.randrange(len(text) + 1) for _ in range(4))
        parts = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert list(cut_between_words(parts)) == pieces
        streamed = [id for ids in learned_from_tricky.encode_stream(parts) for id in ids.tolist()]
        assert streamed == learned_from_tricky.encode(text).tolist()


def test_the_check_above_is_not_empty(small_pieces):
    texts = [text for seed in range(5) for text in tricky_texts(seed, count=60, length=60)]
    cut = [list(cut_between_words([text])) for text in texts]
    whole = [all(len(piece) < 16 or piece == pieces[-1] for piece in pieces) for pieces in cut]
    assert sum(whole) > 100 and sum(len(pieces) > 2 for pieces, ok in zip(cut, whole, strict=True) if ok) > 50


def test_a_real_text_in_pieces_has_the_ids_of_the_whole():
    for name in ("shakespeare", "three_kingdoms"):
        text = load_corpus(name).text[:150_000]
        tokenizer = BPETokenizer.learn([text], 600)
        pieces = list(cut_between_words([text]))
        assert "".join(pieces) == text and len(pieces) > 4
        assert tokenizer.encode(text).tolist() == tokenizer._inner.encode(text).ids


@pytest.mark.parametrize("text", ["a" * 1000, " " * 1000, "三" * 1000, "\n" * 1000])
def test_a_word_without_an_end_is_cut_and_nothing_is_lost(tokenizer, small_pieces, text):
    pieces = list(cut_between_words([text[:17], text[17:]]))
    assert "".join(pieces) == text and max(map(len, pieces)) <= 17
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_pieces_are_spread_evenly_where_there_are_too_many():
    assert list(thinned("abcdef", 1.0)) == list("abcdef") == list(thinned("abcdef", 7.5))
    assert [len(list(thinned(map(str, range(1000)), share))) for share in (0.1, 0.25, 1 / 3, 0.9)] == [
        100,
        250,
        333,
        900,
    ]


# The same text, the same vocabulary


LEARN = """
from tinytrain.bpe import BPETokenizer
from tinytrain.corpus import load_corpus
for name in ("shakespeare", "three_kingdoms"):
    tokenizer = BPETokenizer.learn([load_corpus(name).text[:100_000]], 1000)
    print(tokenizer.fingerprint, hash(tuple(tokenizer.encode(load_corpus(name).text[-20_000:]).tolist())))
"""


def test_the_vocabulary_does_not_depend_on_cores_hashes_or_the_process(monkeypatch):
    told = set()
    for cores, seed, parallel in ((1, 0, "true"), (2, 1, "true"), (4, 2, "true"), (4, 3, "false")):
        environment = {"RAYON_NUM_THREADS": cores, "PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": parallel}
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        done = subprocess.run([sys.executable, "-c", LEARN], capture_output=True, text=True, check=True)
        told.add(done.stdout)
    assert len(told) == 1 and told.pop().count("bpe-1000-") == 2


def test_where_a_text_is_cut_does_not_change_its_vocabulary(monkeypatch):
    text, found = load_corpus("shakespeare").text[:30_000], set()
    for size in (40, 1000, 1 << 20):  # no word of it has 80 characters
        monkeypatch.setattr(tinytrain.bpe.cut_between_words, "__defaults__", (size,))
        found.add(BPETokenizer.learn([text], 400).fingerprint)
    assert len(found) == 1


# Other people's tokenizers


def test_hugging_face_reads_the_file_and_finds_the_same_ids(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        assert theirs(text)["input_ids"] == tokenizer.encode(text).tolist()
    assert theirs.convert_tokens_to_ids(END_OF_TEXT) == tokenizer.end_of_text


def changed(tokenizer, place, value):
    state = json.loads(tokenizer.to_json())
    inner = state
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return json.dumps(state)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("model",), {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, "its model is WordLevel"),
        (("normalizer",), {"type": "NFC"}, "its normalizer NFC changes the text"),
        (("normalizer",), {"type": "Lowercase"}, "its normalizer Lowercase changes the text"),
        (("pre_tokenizer",), {"type": "Whitespace"}, "its text is parted by Whitespace"),
        (("pre_tokenizer",), None, "its text is parted by None"),
        (("pre_tokenizer", "add_prefix_space"), True, "its text is parted by ByteLevel"),
        (("pre_tokenizer", "use_regex"), False, "its text is parted by ByteLevel"),
        (("decoder",), None, "its decoder is not ByteLevel"),
        (("model", "dropout"), 0.1, "dropout is 0.1"),
        (("model", "ignore_merges"), True, "ignore_merges is True"),
        (("model", "vocab", "ab"), 1, "ids are not 0"),
        (
            ("model",),
            {"type": "BPE", "vocab": {"<|endoftext|>": 0, "a": 1}, "merges": []},
            "255 of the 256 bytes have no token",
        ),
        (("model", "vocab", "三"), 400, "1 of its tokens are no bytes, such as '三'"),
    ],
)
def test_a_tokenizer_that_would_change_the_text_is_refused_with_the_reason(tokenizer, place, value, words):
    with pytest.raises(ValueError, match=r"theirs\.json is no tokenizer that can be used here: ") as caught:
        BPETokenizer.from_json(changed(tokenizer, place, value), "theirs.json")
    assert words in str(caught.value) and "a byte-level BPE like GPT-2's" in str(caught.value)


def test_more_added_tokens_or_none_are_refused(tokenizer):
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    inner.add_special_tokens(["<|im_start|>"])
    with pytest.raises(ValueError, match=r"1 more tokens were added to it, such as <\|im_start\|>"):
        BPETokenizer(inner)
    state = json.loads(tokenizer.to_json())
    state["added_tokens"] = []
    del state["model"]["vocab"][END_OF_TEXT]
    with pytest.raises(ValueError, match=r"it has no <\|endoftext\|>"):
        BPETokenizer.from_json(json.dumps(state), "theirs.json")


def test_padding_and_truncation_of_a_file_are_switched_off(tokenizer):
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    inner.enable_truncation(3)
    inner.enable_padding(length=500)
    theirs = BPETokenizer.from_json(inner.to_str(), "theirs.json")
    for text in ("to be", TEXTS[0]):
        assert theirs.encode(text).tolist() == tokenizer.encode(text).tolist()


def places(part, above=()):
    """Where something stands in a tokenizer's file, but for most of its tokens."""
    for name in (
        list(part)[:9] if isinstance(part, dict) else range(min(len(part), 3)) if isinstance(part, list) else ()
    ):
        yield (*above, name)
        yield from places(part[name], (*above, name))


def test_a_file_with_anything_changed_is_refused_or_gives_back_every_text(tokenizer):
    draw, text, refused = random.Random(0), f"to be {END_OF_TEXT} 三", 0
    found = list(places(json.loads(tokenizer.to_json())))
    for _ in range(500):
        value = draw.choice([None, 0, -1, 1e30, "", "x", [], {}, True, [["a", "b"]], ["a b"], {"type": "BPE"}, 2**40])
        try:
            theirs = BPETokenizer.from_json(changed(tokenizer, draw.choice(found), value), "theirs.json")
        except ValueError as error:
            assert "theirs.json is " in str(error)
            refused += 1
        else:
            ids = theirs.encode(text)
            assert theirs.decode(ids) == text and theirs.token_bytes()[ids].sum() == len(text.encode())
    assert 100 < refused < 500


# What cannot be


def test_what_cannot_be_learned_or_decoded_is_named(tokenizer):
    with pytest.raises(ValueError, match="vocab_size=256 must be at least 257"):
        BPETokenizer.learn(TEXTS, 256)
    with pytest.raises(ValueError, match="vocab_size=5000000000 is more than the 8,000,000 bytes of text it is "):
        BPETokenizer.learn(TEXTS, 5_000_000_000)  # for which the library would abort the process
    for nothing in ([], [""]):
        with pytest.raises(ValueError, match="no text to learn a vocabulary from"):
            BPETokenizer.learn(nothing, 300)
    with pytest.raises(ValueError, match=rf"id {tokenizer.vocab_size} at position 1 is outside the vocabulary"):
        tokenizer.decode([1, tokenizer.vocab_size])
    with pytest.raises(ValueError, match="character 1 of the text"):
        tokenizer.encode("a\ud800")


def test_the_fingerprint_is_of_tokens_and_merges_and_stays():
    """A change of how it is made would refuse every run and token file of before."""
    tokenizer = BPETokenizer.learn(["abab" * 4], 259)
    assert tokenizer.fingerprint == f"bpe-259-{expected_fingerprint(tokenizer)}"


def expected_fingerprint(tokenizer):
    vocabulary = json.loads(tokenizer.to_json())["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    return hashlib.blake2b(json.dumps([tokens, ["a b", "ab ab"]]).encode(), digest_size=8).hexdigest()
