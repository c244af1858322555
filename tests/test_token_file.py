import copy
import gc
import json
import os
import pickle
import warnings

import numpy as np
import pytest
import torch

from tinytrain.bpe import BPETokenizer
from tinytrain.data import RowBatches, TokenRows
from tinytrain.durable import hash_of
from tinytrain.token_build import build_tokens
from tinytrain.token_file import (
    TokenFileError,
    TokenWriter,
    check_dtype,
    dtype_for,
    open_tokens,
    require_tokenizer,
    write_manifest,
)

IDS = torch.randint(0, 256, (1009,), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text("To be, or not to be: that is the question.\n" * 40)
    return build_tokens([str(tmp_path / "a.txt")], tmp_path / "tokens", quiet=True).path


# Widths


@pytest.mark.parametrize(("vocab_size", "dtype"), [(257, "uint8"), (65_537, "uint16"), (1, "int64"), (9, "<u2")])
def test_a_type_too_narrow_for_the_vocabulary_is_refused(vocab_size, dtype):
    with pytest.raises(ValueError, match=f"dtype={dtype}|dtype='{dtype}' is not one of uint8, uint16, uint32"):
        check_dtype(dtype, vocab_size)


def test_the_narrowest_type_and_any_wider_one_hold_a_vocabulary():
    for vocab_size in (2, 256, 257, 65_536, 65_537, 2**32):
        check_dtype(dtype_for(vocab_size), vocab_size)
        check_dtype("uint32", vocab_size)
    with pytest.raises(ValueError, match="more than any type of token file holds"):
        dtype_for(2**32 + 1)


@pytest.mark.parametrize(("vocab_size", "width"), [(256, 1), (5000, 2), (70_000, 4)])
def test_ids_up_to_the_last_of_a_vocabulary_come_back(on_disk, vocab_size, width):
    ids = torch.tensor([0, 1, vocab_size - 1, 7, vocab_size - 2])
    file = on_disk(ids, vocab_size)
    assert file[:].tolist() == ids.tolist() and file[:].dtype == torch.int64
    assert file.path.stat().st_size == 5 * width and len(file) == 5
    file.verify()


def test_ids_on_disk_are_little_endian_and_nothing_else(on_disk):
    file = on_disk(torch.tensor([1, 2, 515]), 1000)
    assert file.path.read_bytes() == b"\1\0\2\0\3\2"


@pytest.mark.parametrize("bad", [256, -1, 65_536 + 3])
def test_an_id_outside_the_vocabulary_is_refused_before_it_is_cut_to_the_width(on_disk, bad):
    ids = torch.zeros(700, dtype=torch.long)
    ids[612] = bad
    with pytest.raises(ValueError, match=rf"token id {bad} at position 612 is outside the vocabulary 0\.\.255"):
        on_disk(ids)


# Reading


@pytest.mark.parametrize("vocab_size", [256, 60_000, 70_000])
def test_any_part_is_that_of_the_tensor(on_disk, vocab_size):
    ids = torch.randint(0, vocab_size, (9000,), generator=torch.Generator().manual_seed(1))
    file = on_disk(ids, vocab_size)
    places = torch.randint(-9100, 9100, (300, 2), generator=torch.Generator().manual_seed(2)).tolist()
    for start, stop in [*places, (0, 9000), (None, None), (8999, None), (4096, 4097), (5, 5), (7, 3)]:
        assert torch.equal(file[start:stop], ids[start:stop]), (start, stop)
    with pytest.raises(ValueError, match="a step of 2 is not known"):
        file[0:10:2]


def test_rows_and_batches_are_those_of_the_tensor(on_disk):
    in_memory, from_file = (TokenRows(ids, 16, 256) for ids in (IDS, on_disk(IDS)))
    assert len(in_memory) == len(from_file)
    a, b = (RowBatches(rows=rows, batch_size=8, micro_batch_size=3, seed=5) for rows in (in_memory, from_file))
    assert a.fingerprint() == b.fingerprint()
    for n in range(20):
        for here, there in zip(a[n], b[n], strict=True):
            assert torch.equal(here["input_ids"], there["input_ids"]) and torch.equal(here["labels"], there["labels"])
        for rank in range(3):
            for here, there in zip(*(x.share(n, rank=rank, processes=3) for x in (a, b)), strict=True):
                assert torch.equal(here["input_ids"], there["input_ids"])


def test_the_fingerprint_is_that_of_before_whatever_the_width():
    """A change of how it is made would refuse the checkpoints of every run of before."""
    import hashlib

    for ids in (IDS, IDS.to(torch.uint8), IDS.to(torch.int32)):
        assert TokenRows(ids, 16, 256).fingerprint() == hashlib.blake2b(IDS.numpy(), digest_size=8).hexdigest()


def test_a_batch_may_be_written_into_and_the_file_stays(on_disk):
    file = on_disk(IDS)
    before = file.path.read_bytes()
    rows = TokenRows(file, 16, 256)
    rows[0]["input_ids"].zero_()
    file[0:10].zero_()
    assert torch.equal(file[:], IDS) and file.path.read_bytes() == before


def test_a_vocabulary_smaller_than_the_files_is_refused(on_disk):
    file = on_disk(IDS % 100, vocab_size=300)
    with pytest.raises(ValueError, match=r"its ids go up to 299, outside the vocabulary 0\.\.255.*tokenizer"):
        TokenRows(file, 16, vocab_size=256)
    assert TokenRows(file, 16, vocab_size=512)[0]["input_ids"].tolist() == (IDS % 100)[:16].tolist()


def test_a_file_too_short_for_a_row_is_refused(on_disk):
    with pytest.raises(ValueError, match=r"16 tokens are too few for one row of row_length=16"):
        TokenRows(on_disk(IDS[:16]), 16, 256)


def test_a_copy_opens_the_file_for_itself(on_disk):
    file = on_disk(IDS)
    for again in (copy.deepcopy(file), pickle.loads(pickle.dumps(file))):
        assert torch.equal(again[3:30], file[3:30]) and again._file != file._file
        again.verify()


@pytest.mark.skipif(os.name == "nt", reason="Windows replaces no open file")
def test_a_run_goes_on_with_the_file_that_it_opened(on_disk):
    file = on_disk(IDS)
    on_disk(torch.zeros(1009, dtype=torch.long), name="other.bin").path.replace(file.path)
    assert torch.equal(file[:], IDS)


def test_files_are_closed_when_nobody_needs_them(on_disk):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file = on_disk(IDS)
        number = file._file
        del file
        gc.collect()
    with pytest.raises(OSError, match=r"[Bb]ad file descriptor"):
        os.fstat(number)


# Damage


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_named(folder, change):
    path = folder / "train.bin"
    data = path.read_bytes()
    path.write_bytes(data[:-1] if change < 0 else data + b"x")
    with pytest.raises(TokenFileError, match=rf"train\.bin is {'cut short' if change < 0 else 'too long'}") as caught:
        open_tokens(folder).part("train")
    assert f"{len(data) + change:,} bytes" in str(caught.value) and f"{len(data):,} ids" in str(caught.value)


def test_a_file_cut_short_while_it_is_read_is_named_and_the_process_lives(folder):
    file = open_tokens(folder).part("train")
    os.truncate(file.path, 20)
    with pytest.raises(TokenFileError, match=r"train\.bin is cut short: it has 20 bytes"):
        file[0:64]


def test_a_flipped_bit_is_found_when_the_file_is_verified(folder):
    path, seen = folder / "train.bin", []
    open_tokens(folder).part("train").verify(seen.append)
    data = bytearray(path.read_bytes())
    assert sum(seen) == len(data)
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(TokenFileError, match=r"train\.bin is damaged: its checksum is .* Copy the tokens again"):
        open_tokens(folder).part("train").verify()


def test_an_id_outside_the_vocabulary_on_disk_is_named_with_its_place(on_disk):
    file = on_disk(torch.zeros(500, dtype=torch.long), vocab_size=300)
    data = bytearray(file.path.read_bytes())
    data[2 * 321 + 1] = 2
    file.path.write_bytes(data)
    with pytest.raises(TokenFileError, match=r"token id 512 at position 321 is outside the vocabulary 0\.\.299"):
        file.verify()


def rewritten(folder, **changes):
    """A manifest with other facts, or without those that are ``...``, whose own checksum is right."""
    facts = json.loads((folder / "manifest.json").read_text()) | changes
    facts = {name: value for name, value in facts.items() if name != "checksum" and value is not ...}
    (folder / "manifest.json").write_text(json.dumps(facts | {"checksum": hash_of(facts).hexdigest()}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "its format is 2, and 1 is what can be read"),
        ({"dtype": "int64"}, "dtype='int64' is not one of"),
        ({"dtype": ["uint8"]}, "is not one of"),
        ({"vocab_size": 70_000}, "dtype=uint8 holds ids up to 255, and the vocabulary has 70,000"),
        ({"vocab_size": "256"}, "names no vocabulary"),
        ({"vocab_size": 255}, "vocab_size=255, and its tokenizer's is 256"),
        ({"parts": {}}, "no training part"),
        ({"parts": {"../../etc": {"tokens": 5}}}, "part '../../etc'"),
        ({"parts": {"train": {"tokens": 0}}}, "part 'train' with 0 ids"),
        ({"parts": {"train": {"tokens": 10**30, "checksum": "", "text": ""}}}, "cut short: it has 1,548 bytes"),
        ({"parts": {"train": {"tokens": 5, "checksum": 3, "text": ""}}}, "part 'train' without a checksum"),
        ({"parts": {"train": {"tokens": 5}}}, r"damaged \('checksum'\)"),
        ({"parts": []}, "damaged"),
        ({"tokenizer": "bpe-300-abc"}, "holds tokenizer bytes, and the ids in .* were made with bpe-300-abc"),
        ({"tokenizer": None}, "made with None"),
        ({"tokenizer": ...}, "damaged .it has no tokenizer"),
        ({"dtype": ...}, "damaged .it has no dtype"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused_and_named(folder, changes, words):
    rewritten(folder, **changes)
    with pytest.raises(TokenFileError, match=words) as caught:
        open_tokens(folder).part("train")
    assert str(folder) in str(caught.value)


def test_a_manifest_changed_by_hand_or_cut_anywhere_is_refused(folder):
    path = folder / "manifest.json"
    whole = path.read_text()
    path.write_text(whole.replace('"bytes": ', '"bytes": 1'))
    with pytest.raises(TokenFileError, match=r"manifest\.json is damaged \(its checksum is"):
        open_tokens(folder)
    for end in range(0, len(whole) - 1, 41):
        path.write_text(whole[:end])
        with pytest.raises(TokenFileError, match=r"manifest\.json is damaged"):
            open_tokens(folder)
    for other in ("[]", "3", "null", '"a"', "[" * 100_000):
        path.write_text(other)
        with pytest.raises(TokenFileError, match=r"manifest\.json is damaged"):
            open_tokens(folder)


def test_a_folder_without_tokens_or_with_a_file_gone_is_named(folder):
    with pytest.raises(FileNotFoundError, match=r"holds no tokens: there is no manifest\.json"):
        open_tokens(folder.parent)
    (folder / "valid.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"valid\.bin is gone, and the manifest .* Copy the tokens again, or"):
        open_tokens(folder).part("valid")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        open_tokens(folder)


def test_a_changed_tokenizer_is_refused_with_both_fingerprints(folder):
    other = BPETokenizer.learn(["to be or not to be " * 9], 260)
    other.save(folder / "tokenizer.json")
    with pytest.raises(TokenFileError) as caught:
        open_tokens(folder)
    assert f"holds tokenizer {other.fingerprint}, and the ids in {folder} were made with bytes" in str(caught.value)
    require_tokenizer("bytes", "bytes", folder, "they")


def test_a_part_that_there_is_none_of_is_none(folder):
    facts = json.loads((folder / "manifest.json").read_text())
    rewritten(folder, parts={"train": facts["parts"]["train"]})
    assert open_tokens(folder).part("valid") is None


def test_what_no_folder_or_file_of_tokens_has_is_named(folder):
    built = open_tokens(str(folder))  # text is a path, too
    with pytest.raises(ValueError, match="part 'validation' is not one of train, valid"):
        built.part("validation")
    with pytest.raises(TypeError, match=r"train\.bin: \[3\] is no slice"):
        built.part("train")[3]


def test_a_manifest_is_written_whole(folder):
    before = (folder / "manifest.json").read_text()
    facts = json.loads(before)
    for name in ("checksum", "format"):
        del facts[name]
    write_manifest(folder, facts)
    assert (folder / "manifest.json").read_text() == before


def test_nothing_is_written_for_no_ids(tmp_path):
    with open(tmp_path / "x", "wb") as file:
        writer = TokenWriter(file, 256, "uint8")
        writer.write(np.zeros(0, np.int64))
        assert writer.tokens == 0
    assert (tmp_path / "x").read_bytes() == b""
