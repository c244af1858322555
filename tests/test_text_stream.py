import codecs
import os
import random

import pytest

from tinytrain.corpus import decode_text, load_corpus
from tinytrain.text_stream import read_text, sources_of, survey

BYTES = [
    b"a",
    b"\r",
    b"\n",
    b"\r\n",
    "é".encode(),
    "三".encode(),
    "🙂".encode(),
    codecs.BOM_UTF8,
    b" ",
    b"\xe4",
    b"\xff",
]


def pieces(tmp_path, data, chunk):
    (tmp_path / "a.txt").write_bytes(data)
    return list(read_text(tmp_path / "a.txt", chunk))


def told(read):
    """The text, or the error."""
    try:
        return read()
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1 << 20])
def test_a_file_in_pieces_is_the_text_of_the_whole(tmp_path, chunk):
    draw = random.Random(chunk)
    for _ in range(300):
        data = b"".join(draw.choices(BYTES[: draw.choice([9, 11])], k=draw.randrange(12)))
        whole = told(lambda data=data: decode_text(data, str(tmp_path / "a.txt")))
        assert told(lambda data=data: "".join(pieces(tmp_path, data, chunk))) == whole


@pytest.mark.parametrize("chunk", [1, 4, 1 << 20])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"caf\xe9", "byte 0xe9 at offset 3 is not UTF-8. Save the file as UTF-8"),
        ("三国".encode()[:-1], "byte 0xe5 at offset 3 is not UTF-8"),
        (codecs.BOM_UTF8 * 2 + b"ab\xff", "byte 0xff at offset 8"),
        (b"\r\n" * 5 + b"\xff", "byte 0xff at offset 10"),
        ("三".encode() * 5 + b"\0", "a zero byte at offset 15: this is a binary file"),
        (b"\xed\xa0\x80", "byte 0xed at offset 0"),
    ],
)
def test_a_byte_that_is_no_text_is_named_with_its_place_in_the_file(tmp_path, data, words, chunk):
    with pytest.raises(ValueError, match=r"a\.txt: ") as caught:
        pieces(tmp_path, data, chunk)
    assert words in str(caught.value)


def test_utf_16_is_recognised(tmp_path):
    with pytest.raises(ValueError, match=r"offset 0 is not UTF-8 \(the file begins like UTF-16\)"):
        pieces(tmp_path, "text".encode("utf-16"), 1 << 20)


def test_a_file_is_read_a_piece_at_a_time(tmp_path):
    assert len(pieces(tmp_path, b"abc\n" * 100, 50)) == 8


def test_a_survey_knows_size_digest_and_whether_there_is_anything_to_see(tmp_path):
    for name, data in (("a.txt", "三国\r\n"), ("b.txt", "三国\n"), ("c.txt", " \n\n"), ("d.txt", "")):
        (tmp_path / name).write_bytes(data.encode())
    seen = []
    a, b, c, d = (survey(source, seen.append) for source in sources_of([str(tmp_path)]))
    assert (a.characters, a.bytes, a.visible) == (3, 7, True) and seen[0] == 7
    assert a.digest == b.digest != c.digest
    assert not c.visible and not d.visible and d.characters == 0


def test_files_come_in_the_order_of_their_names_and_inputs_in_theirs(tmp_path):
    for name in ("b/2.txt", "b/10.txt", "a.txt", "c.txt", ".hidden/x.txt", "b/.x.txt", "b/picture.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = sources_of([str(tmp_path / "c.txt"), str(tmp_path / "b"), "python"], "*.txt")
    names = [source.name.removeprefix(str(tmp_path) + os.sep).replace(os.sep, "/") for source in found[:3]]
    assert names == ["c.txt", "b/10.txt", "b/2.txt"]
    topics = load_corpus("python").documents
    assert [(s.name, "".join(s.pieces())) for s in found[3:]] == [(d.name, d.text) for d in topics]


def test_a_file_that_is_named_twice_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match=r"a\.txt is named twice, by .*: name it once"):
        sources_of([str(tmp_path), str(tmp_path / "a.txt")])
    with pytest.raises(ValueError, match="is named twice"):
        sources_of(["python", "python"])


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'nowhere': no such file or folder, and no corpus of that name"):
        sources_of(["nowhere"])
    with pytest.raises(FileNotFoundError, match="'': no such"):
        sources_of([""])
    with pytest.raises(ValueError, match=r"no text is named: give files, folders, or a corpus \(shakespeare"):
        sources_of([])
    with pytest.raises(ValueError, match="holds no file that matches"):
        sources_of([str(tmp_path)])


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes of this kind")
def test_a_pipe_is_refused_for_it_can_be_read_only_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is neither a file nor a folder: write its text into a file first"):
        sources_of([str(tmp_path / "pipe")])
