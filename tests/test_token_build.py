import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tinytrain.token_build
from tinytrain.corpus import load_corpus
from tinytrain.text_stream import Source, survey
from tinytrain.token_build import Stretch, build_tokens, divide
from tinytrain.token_file import TokenFileError, open_tokens


def texts(folder, *contents, **named):
    """A folder with a file for each text: 00.txt, 01.txt, ..."""
    folder.mkdir(exist_ok=True)
    for name, content in [*((f"{i:02}.txt", text) for i, text in enumerate(contents)), *named.items()]:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(folder)


def build(inputs, out, **options):
    return build_tokens([inputs] if isinstance(inputs, str) else inputs, out, quiet=True, **options)


def decoded(folder, part="train"):
    return folder.tokenizer.decode(folder.part(part)[:])


MANY = [f"Document {n} of this folder says {'so ' * (n % 5 + 3)}and ends.\n" for n in range(20)]


@pytest.mark.parametrize("options", [{"tokenizer": "bytes"}, {"tokenizer": "bpe", "vocab_size": 300}])
def test_behind_each_document_stands_the_end_of_a_text(tmp_path, options):
    built = build(texts(tmp_path / "t", "one two", "three\r\nfour", "三国"), tmp_path / "out", valid_share=0, **options)
    end = built.tokenizer.decode([built.tokenizer.end_of_text])
    assert decoded(built) == f"one two{end}three\nfour{end}三国{end}"
    assert built.manifest["parts"]["train"]["bytes"] == 7 + 10 + 6
    assert built.manifest["parts"]["train"]["documents"] == 3 and built.part("valid") is None


@pytest.mark.parametrize("options", [{"tokenizer": "bytes"}, {"tokenizer": "bpe", "vocab_size": 300}])
def test_whole_documents_are_held_out_where_there_are_many(tmp_path, options):
    built = build(texts(tmp_path / "t", *MANY), tmp_path / "out", valid_share=0.2, **options)
    end = built.tokenizer.decode([built.tokenizer.end_of_text])
    train, valid = (decoded(built, part).split(end)[:-1] for part in ("train", "valid"))
    assert sorted(train + valid) == sorted(MANY) and built.manifest["held_out_by"] == "document"
    assert [text for text in MANY if text in train] == train, "in the order of the files"
    assert 0.1 < sum(map(len, valid)) / sum(map(len, MANY)) < 0.4
    other = build(texts(tmp_path / "t"), tmp_path / "other", valid_share=0.2, seed=1, **options)
    assert decoded(other, "valid") != decoded(built, "valid")


def test_the_end_of_the_text_is_held_out_where_documents_are_few(tmp_path):
    built = build(texts(tmp_path / "t", "a" * 60, "b" * 20, "三" * 20), tmp_path / "out", valid_share=0.3)
    assert built.manifest["held_out_by"] == "position"
    assert decoded(built) == "a" * 60 + "\0" + "b" * 10, "the document goes on, so it has no end here"
    assert decoded(built, "valid") == "b" * 10 + "\0" + "三" * 20 + "\0"


def test_documents_that_are_equal_to_the_letter_stay_on_one_side(tmp_path):
    for seed in range(6):
        built = build(texts(tmp_path / "t", *MANY, *MANY), tmp_path / f"out{seed}", valid_share=0.2, seed=seed)
        sides = [set(decoded(built, part).split("\0")[:-1]) for part in ("train", "valid")]
        assert not sides[0] & sides[1] and sides[1]


def test_the_same_texts_give_the_same_files(tmp_path):
    inputs = texts(tmp_path / "t", *MANY)
    a, b = (build(inputs, tmp_path / name, tokenizer="bpe", vocab_size=300) for name in "ab")
    names = sorted(path.name for path in a.path.iterdir())
    assert names == ["manifest.json", "tokenizer.json", "train.bin", "valid.bin"]
    assert [(a.path / name).read_bytes() for name in names] == [(b.path / name).read_bytes() for name in names]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("shakespeare", {"tokenizer": "bytes"}),
        ("three_kingdoms", {"tokenizer": "bytes"}),
        ("three_kingdoms", {"tokenizer": "bpe", "vocab_size": 600}),
    ],
)
def test_a_packaged_corpus_comes_back_to_the_letter(tmp_path, name, options):
    documents = [document.text for document in load_corpus(name).documents]
    built = build(name, tmp_path / "out", **options)
    end = built.tokenizer.decode([built.tokenizer.end_of_text])
    found = [text for part in ("train", "valid") for text in decoded(built, part).split(end)[:-1]]
    assert sorted(found) == sorted(documents)
    facts, sizes = built.manifest["parts"], built.tokenizer.token_bytes()
    assert sum(facts[part]["bytes"] for part in facts) == sum(len(text.encode()) for text in documents)
    assert sum(facts[part]["documents"] for part in facts) == len(documents)
    assert all(int(sizes[built.part(part)[:]].sum()) == facts[part]["bytes"] for part in facts)


def test_the_vocabulary_is_learned_from_the_training_part_alone(tmp_path):
    built = build(texts(tmp_path / "t", "aaaa " * 50 + "zyzyzyzy " * 50), tmp_path / "out", tokenizer="bpe",
                  valid_share=0.64, vocab_size=300)  # fmt: skip
    assert len(built.tokenizer.encode("aaaa")) == 1 and len(built.tokenizer.encode("zyzy")) == 4


def test_of_a_long_text_pieces_from_all_over_are_learned_from(tmp_path, monkeypatch):
    monkeypatch.setattr(tinytrain.bpe, "LEARN_FROM", 60_000)
    monkeypatch.setattr(tinytrain.bpe.cut_between_words, "__defaults__", (1000,))
    read = []
    learn = tinytrain.bpe.BPETokenizer.learn
    monkeypatch.setattr(
        tinytrain.bpe.BPETokenizer, "learn", lambda texts, size: learn(read.extend(texts) or read, size)
    )
    build(texts(tmp_path / "t", *("".join(f"{n}{i} " for i in range(9000)) for n in "abcd")), tmp_path / "out",
          tokenizer="bpe", vocab_size=300)  # fmt: skip
    assert 50_000 < sum(map(len, read)) < 70_000
    assert {piece.strip()[0] for piece in read} == set("abcd")


def test_a_tokenizer_from_a_file_is_used_as_it_is_and_laid_beside_the_tokens(tmp_path):
    first = build(texts(tmp_path / "t", *MANY), tmp_path / "a", tokenizer="bpe", vocab_size=300)
    second = build(texts(tmp_path / "u", "other words"), tmp_path / "b", valid_share=0,
                   tokenizer=str(tmp_path / "a" / "tokenizer.json"))  # fmt: skip
    assert second.tokenizer.fingerprint == first.tokenizer.fingerprint == second.manifest["tokenizer"]
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "b" / "tokenizer.json").read_bytes()


def test_a_wider_type_may_be_asked_for_and_a_narrower_one_is_refused(tmp_path):
    built = build(texts(tmp_path / "t", "one two"), tmp_path / "out", valid_share=0, dtype="uint32")
    assert (tmp_path / "out" / "train.bin").stat().st_size == 4 * 8 and decoded(built) == "one two\0"
    options = {"tokenizer": "bpe", "vocab_size": 300, "dtype": "uint8"}
    with pytest.raises(
        ValueError, match=r"dtype=uint8 holds ids up to 255, and the vocabulary has 300 tokens: it takes"
    ):
        build(texts(tmp_path / "t"), tmp_path / "new", valid_share=0, **options)
    assert not (tmp_path / "new").exists()


def test_files_without_text_are_left_out_and_counted(tmp_path):
    built = build(texts(tmp_path / "t", "one", "", " \n ", "\ufeff"), tmp_path / "out", valid_share=0)
    assert decoded(built) == "one\0" and built.manifest["left_out"] == 3


# What is refused


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (["fine", b"caf\xe9"], {}, r"01\.txt: byte 0xe9 at offset 3 is not UTF-8"),
        (["fine", b"caf\xe9"], {}, r"Save the file as UTF-8, or leave it out with pattern='\*\.txt' \(now '\*'\)"),
        (["fine", b"a\0b"], {}, r"01\.txt: a zero byte at offset 1"),
        (["fine"], {"pattern": "/*.md"}, r"pattern='/\*\.md' must be that of names inside"),
        (["", " \n"], {}, "there is no text in them, nothing visible"),
        (["fine"], {"valid_share": 1.0}, r"valid_share=1\.0 must be at least 0 and less than 1"),
        (["fine"], {"valid_share": -0.1}, "valid_share=-0.1"),
        (["fine"], {"valid_share": float("nan")}, "valid_share=nan"),
        (["fine"], {"valid_share": 0.01}, r"4 characters are too few to hold out valid_share=0\.01"),
        (["fine"], {"vocab_size": 300}, "vocab_size=300 is for tokenizer 'bpe'"),
        (["fine"], {"tokenizer": "bpe", "vocab_size": 100}, "vocab_size=100 must be at least 257"),
        (["fine"], {"pattern": "*.md"}, r"holds no file that matches '\*\.md'"),
        (["fine"], {"dtype": "int8"}, "dtype='int8' is not one of"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_left(tmp_path, content, options, words):
    with pytest.raises(ValueError, match=words):
        build(texts(tmp_path / "t", *content), tmp_path / "out", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


@pytest.mark.parametrize(
    "options",
    [{"vocab_size": 300}, {"tokenizer": "bpe", "vocab_size": 100}, {"dtype": "int8"}, {"tokenizer": "no.json"}],
)
def test_options_are_refused_before_any_text_is_read(tmp_path, monkeypatch, options):
    monkeypatch.setattr(tinytrain.token_build, "survey", lambda *_: pytest.fail("read"))
    with pytest.raises((ValueError, FileNotFoundError), match=r"300|at least 257|int8|no\.json"):
        build(texts(tmp_path / "t", "fine"), tmp_path / "out", **options)


def test_a_folder_that_is_there_is_kept(tmp_path):
    build(texts(tmp_path / "t", "one two"), tmp_path / "out", valid_share=0)
    before = (tmp_path / "out" / "train.bin").read_bytes()
    with pytest.raises(FileExistsError, match="out is there already: choose another folder, or move it away"):
        build(texts(tmp_path / "t"), tmp_path / "out")
    assert (tmp_path / "out" / "train.bin").read_bytes() == before


def test_a_file_that_changes_between_the_two_readings_is_named(tmp_path, monkeypatch):
    path = Path(texts(tmp_path / "t", "one two")) / "00.txt"

    def meanwhile(*arguments):
        path.write_text("one two three")
        return divide(*arguments)

    monkeypatch.setattr(tinytrain.token_build, "divide", meanwhile)
    with pytest.raises(TokenFileError, match=r"00\.txt has changed while it was read: start again"):
        build(str(path), tmp_path / "out", valid_share=0)
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_paths_may_be_text_and_one_input_needs_no_list(tmp_path):
    folder = texts(tmp_path / "t", "one two")
    built = build_tokens(folder, str(tmp_path / "out"), valid_share=0, quiet=True)
    assert built.path == tmp_path / "out" and built.manifest["parts"]["train"]["documents"] == 1


def test_what_a_killed_build_left_is_named_and_stays(tmp_path):
    (left := tmp_path / ".out.unfinished_1").mkdir()
    with pytest.warns(UserWarning, match=r"\.out\.unfinished_1 is of a build that was killed, or .*: if none does"):
        build(texts(tmp_path / "t", "one two"), tmp_path / "out", valid_share=0)
    assert left.is_dir() and (tmp_path / "out" / "train.bin").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_if_writing_ends_early_no_half_folder_stays(tmp_path, monkeypatch, error):
    write = tinytrain.token_build.TokenWriter.write
    calls = []

    def fails(writer, ids):
        calls.append(ids)
        if len(calls) == 3:
            raise error
        write(writer, ids)

    monkeypatch.setattr(tinytrain.token_build.TokenWriter, "write", fails)
    with pytest.raises(type(error)):
        build(texts(tmp_path / "t", *MANY), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_until_the_folder_is_whole_it_has_another_name(tmp_path, monkeypatch):
    seen, write = [], tinytrain.token_build.write_manifest

    def looks(folder, facts):
        seen.append((folder.name.startswith(".out.unfinished"), (tmp_path / "out").exists()))
        write(folder, facts)

    monkeypatch.setattr(tinytrain.token_build, "write_manifest", looks)
    build(texts(tmp_path / "t", *MANY), tmp_path / "out")
    assert seen == [(True, False)] and open_tokens(tmp_path / "out").manifest


# Parting


def test_every_character_is_in_one_part():
    documents = [survey(Source(str(n), text="x" * n), lambda n: None) for n in (1, 5, 2, 9, 30, 3, 3)]
    for share in (0.02, 0.1, 0.5, 0.9, 0.98):
        parts, by = divide(documents, share, seed=0)
        covered = sorted((id(s.document), s.start, s.stop) for part in parts.values() for s in part)
        assert by == "position" and sum(stop - start for _, start, stop in covered) == 53
        assert sum(s.stop - s.start for s in parts["valid"]) == 53 - round(53 * (1 - share))
        assert all(s.start < s.stop for part in parts.values() for s in part)


def test_a_stretch_is_that_part_of_the_text_however_the_text_comes(monkeypatch):
    monkeypatch.setattr("tinytrain.text_stream.CHUNK", 4)
    document = survey(Source("x", text="abcdefghijklmnop"), lambda n: None)
    for start, stop in ((0, 16), (3, 9), (4, 8), (15, 16), (0, 1)):
        assert "".join(Stretch(document, start, stop).pieces()) == "abcdefghijklmnop"[start:stop]
    assert Stretch(document, 3, 16).ends and not Stretch(document, 3, 15).ends


# Larger than memory


GROWTH = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
from tinytrain.data import RowBatches, TokenRows
from tinytrain.model import GPT, PRESETS
from tinytrain.token_build import build_tokens
from tinytrain.train import TrainConfig, Trainer

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024

def run(text, out):
    built = build_tokens([text], Path(out), tokenizer=kind, quiet=True)
    built.part("train").verify()
    rows = TokenRows(built.part("train"), 64, built.tokenizer.vocab_size)
    data = RowBatches(rows=rows, batch_size=8)
    model = GPT(replace(PRESETS["nano"], vocab_size=rows.vocab_size))
    Trainer(model, data, TrainConfig(total_steps=60, max_lr=1e-3)).fit()
    for n in range(0, data.batches_per_epoch, max(data.batches_per_epoch // 500, 1)):
        data[n]  # from all over the file

torch.set_num_threads(1)
kind, small, large, folder = sys.argv[1:]
run(small, folder + "/small")
before = peak()
run(large, folder + "/large")
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from Linux's /proc")
@pytest.mark.parametrize("kind", ["bytes", pytest.param("bpe", marks=pytest.mark.soak)])
def test_building_and_training_take_little_more_memory_for_a_large_text(tmp_path, kind):
    """In a process of its own, whose peak after a text of 2 MB grows by far less than the 96 MB of the next."""
    line = "".join(f"Line {n} of a text that is long for a laptop, 三国演义.\n" for n in range(40_000)).encode()
    (tmp_path / "small.txt").write_bytes(line)
    with open(tmp_path / "large.txt", "wb") as file:
        while file.tell() < 96_000_000:
            file.write(line)
    names = [str(tmp_path / name) for name in ("small.txt", "large.txt")]
    done = subprocess.run([sys.executable, "-c", GROWTH, kind, *names, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 80, "MB; the ids alone are 86. Measured for bytes: 12, 11 of them the order of rows"
    for path in (tmp_path / "large.txt", *tmp_path.glob("*/*.bin")):
        os.remove(path)  # 200 MB, and pytest keeps the folders of three runs


def test_ids_of_a_file_are_not_read_when_it_is_opened(tmp_path, monkeypatch):
    built = build(texts(tmp_path / "t", "one two " * 100), tmp_path / "out", valid_share=0)
    monkeypatch.setattr(torch, "from_numpy", lambda *_: pytest.fail("read"))
    assert len(open_tokens(built.path).part("train")) == 801
