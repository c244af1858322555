import json
import math
import shutil
import subprocess
import sys
import warnings
from importlib.metadata import PackageNotFoundError

import pytest
import torch

import tinytrain.corpus
from tinytrain.bpe import BPETokenizer
from tinytrain.commands.main import main
from tinytrain.commands.run_options import Train, save_options
from tinytrain.commands.run_text import text_of
from tinytrain.corpus import load_corpus
from tinytrain.token_build import build_tokens
from tinytrain.token_file import TokenFile, open_tokens

TEXT = "却说曹操引军追赶，玄德大惊。To be, or not to be: that is the question.\n"
QUICK = [
    "train",
    "--steps",
    "4",
    "--batch-size",
    "2",
    "--eval-rows",
    "8",
    "--checkpoint-every",
    "2",
    "--row-length",
    "16",
]


@pytest.fixture
def poem(tmp_path):
    (tmp_path / "poem.txt").write_text("".join(f"{n} {TEXT}" for n in range(120)), encoding="utf-8")
    return str(tmp_path / "poem.txt")


@pytest.fixture
def tokens(tmp_path, poem):
    return build_tokens([poem], tmp_path / "tokens", tokenizer="bpe", vocab_size=300, quiet=True)


def log_of(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]


CURVE = ("batch", "loss", "grad_norm", "eval_loss", "eval_bits_per_byte")


def curve_of(run):
    return [{name: line[name] for name in CURVE if name in line} for line in log_of(run)]


def test_files_without_text_are_named_once(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "poem.txt").write_text(TEXT * 100, encoding="utf-8")
    (folder / "empty.txt").write_text("", encoding="utf-8")
    command = [*QUICK, "--corpus", str(folder), "--processes", "2", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-m", "tinytrain", *command], capture_output=True, encoding="utf-8")
    assert done.returncode == 0
    assert done.stdout.count("left out, for they hold no text: empty.txt") == 1 and "empty.txt" not in done.stderr


def test_another_text_than_the_one_asked_for_is_told_once(tmp_path, monkeypatch, capsys):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(tinytrain.corpus, "distribution", missing)
    with warnings.catch_warnings(record=True) as warned:
        assert main([*QUICK, "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.count("using Python's own documentation text") == 1 and not warned


def test_a_corpus_is_read_as_bytes_or_as_bpe_learned_from_its_training_part(tmp_path, poem):
    as_bytes = text_of(Train(corpus=poem, out=tmp_path), 16)
    as_bpe = text_of(Train(corpus=poem, tokenizer="bpe", vocab_size=300, out=tmp_path), 16)
    parts = load_corpus(poem).split()
    assert as_bpe.tokenizer.fingerprint == BPETokenizer.learn([parts[0].text], 300).fingerprint
    for text in (as_bytes, as_bpe):
        assert text.train.vocab_size == text.tokenizer.vocab_size
        for rows, part in zip((text.train, text.valid), parts, strict=True):
            assert text.tokenizer.decode(rows.ids) == part.text
    assert len(as_bpe.train.ids) < 0.5 * len(as_bytes.train.ids)


def test_tokens_are_read_where_they_lie(tmp_path, tokens):
    text = text_of(Train(tokens=str(tokens.path), out=tmp_path), 16)
    assert isinstance(text.train.ids, TokenFile) and isinstance(text.valid.ids, TokenFile)
    assert text.tokenizer.fingerprint == tokens.tokenizer.fingerprint and text.name == "tokens"


def test_a_damaged_token_file_is_refused_before_the_first_update(tmp_path, tokens, capsys):
    data = bytearray((tokens.path / "valid.bin").read_bytes())
    data[10] ^= 1
    (tokens.path / "valid.bin").write_bytes(data)
    assert main([*QUICK, "--tokens", str(tokens.path), "--out", str(tmp_path / "run")]) == 1
    assert "valid.bin is damaged: its checksum" in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--corpus", "python"], "leave out corpus='python'"),
        (["--tokenizer", "bpe", "--vocab-size", "300"], "leave out tokenizer='bpe', vocab_size=300"),
        (["--row-length", "60", "--preset", "nano"], None),
        (["--row-length", "65"], "row_length=65 is longer than preset nano's 64"),
    ],
)
def test_options_that_exclude_each_other_are_named(tmp_path, tokens, capsys, options, words):
    status = main([*QUICK, "--tokens", str(tokens.path), *options, "--out", str(tmp_path / "run")])
    assert status == (0 if words is None else 1)
    assert words is None or words in capsys.readouterr().err


def test_without_held_out_text_there_is_no_evaluation(tmp_path, poem, capsys):
    build_tokens([poem], tmp_path / "all", valid_share=0, quiet=True)
    assert main([*QUICK, "--tokens", str(tmp_path / "all"), "--out", str(tmp_path / "run")]) == 0
    assert not any("eval_loss" in line for line in log_of(tmp_path / "run"))
    assert "Held-out" not in capsys.readouterr().out


# A run keeps its tokenizer


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_beside_each_run_lies_its_tokenizer_and_a_resumed_run_reads_with_it(tmp_path, poem, kind, monkeypatch):
    size = ["--vocab-size", "300"] if kind == "bpe" else []
    options = ["--corpus", poem, "--tokenizer", kind, *size, "--dropout", "0.1", "--eval-every", "1"]
    for name in ("whole", "stopped"):
        assert main([*QUICK, *options, "--out", str(tmp_path / name)]) == 0
    shutil.rmtree(tmp_path / "stopped" / "checkpoints" / "step_00000004")
    monkeypatch.setattr(BPETokenizer, "learn", lambda *_: pytest.fail("it is learned once, and not again"))
    assert main(["resume", str(tmp_path / "stopped")]) == 0
    assert curve_of(tmp_path / "stopped") == curve_of(tmp_path / "whole") and len(log_of(tmp_path / "whole")) == 4
    kept = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert kept["tokenizer_fingerprint"].startswith(kind) and (tmp_path / "whole" / "tokenizer.json").exists()


def test_a_run_on_tokens_is_resumed_to_the_curve_of_the_uninterrupted_one(tmp_path, tokens):
    options = ["--tokens", str(tokens.path), "--dropout", "0.1", "--eval-every", "1"]
    assert main([*QUICK, *options, "--out", str(tmp_path / "whole")]) == 0
    assert main([*QUICK, *options, "--out", str(tmp_path / "stopped")]) == 0
    newest = tmp_path / "stopped" / "checkpoints" / "step_00000004"
    newest.rename(tmp_path / "away")
    assert main(["resume", str(tmp_path / "stopped")]) == 0
    assert curve_of(tmp_path / "stopped") == curve_of(tmp_path / "whole")


def test_two_processes_on_tokens_have_the_curve_of_one(tmp_path, tokens):
    options = ["--tokens", str(tokens.path), "--eval-every", "2"]
    for processes in ("1", "2"):
        out = str(tmp_path / processes)
        assert main([*QUICK, *options, "--processes", processes, "--out", out]) == 0
    one, two = curve_of(tmp_path / "1"), curve_of(tmp_path / "2")
    for a, b in zip(one, two, strict=True):
        assert a == pytest.approx(b, rel=1e-5)


def test_two_processes_learn_one_vocabulary(tmp_path, poem):
    options = ["--corpus", poem, "--tokenizer", "bpe", "--vocab-size", "300", "--processes", "2"]
    assert main([*QUICK, *options, "--out", str(tmp_path / "run")]) == 0
    parts = load_corpus(poem).split()
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert kept["tokenizer_fingerprint"] == BPETokenizer.learn([parts[0].text], 300).fingerprint


def test_tokens_made_anew_with_another_tokenizer_are_refused_with_both_named(tmp_path, poem, tokens, capsys):
    run = str(tmp_path / "run")
    assert main([*QUICK, "--tokens", str(tokens.path), "--out", run]) == 0
    tokens.path.rename(tmp_path / "old")
    other = build_tokens([poem], tokens.path, tokenizer="bpe", vocab_size=290, quiet=True)
    capsys.readouterr()
    assert main(["resume", run]) == 1
    error = capsys.readouterr().err
    assert other.tokenizer.fingerprint in error and tokens.tokenizer.fingerprint in error and "Traceback" not in error


def test_tokens_that_were_moved_are_found_again_where_the_run_is_told_they_are(tmp_path, tokens, capsys):
    run = tmp_path / "run"
    assert main([*QUICK, "--tokens", str(tokens.path), "--out", str(run)]) == 0
    tokens.path.rename(tmp_path / "moved")
    assert main(["resume", str(run)]) == 1
    assert f"{tokens.path} holds no tokens" in (error := capsys.readouterr().err)
    assert f"If they were moved, say where to in {run / 'run.json'}" in error
    options = json.loads((run / "run.json").read_text()) | {"tokens": str(tmp_path / "moved")}
    (run / "run.json").write_text(json.dumps(options))
    assert main(["resume", str(run)]) == 0


@pytest.mark.parametrize("command", ["resume", "sample"])
def test_a_tokenizer_changed_beside_the_run_is_refused_with_both_named(tmp_path, poem, capsys, command):
    run = tmp_path / "run"
    options = ["--corpus", poem, "--tokenizer", "bpe", "--vocab-size", "300"]
    assert main([*QUICK, *options, "--out", str(run)]) == 0
    before = json.loads((run / "run.json").read_text())["tokenizer_fingerprint"]
    other = BPETokenizer.learn(["something else entirely " * 300 + TEXT * 20], 300)
    other.save(run / "tokenizer.json")
    capsys.readouterr()
    assert main([command, str(run)]) == 1
    error = capsys.readouterr().err
    assert f"holds tokenizer {other.fingerprint}, and the ids of this run were made with {before}" in error


def test_a_tokenizer_that_is_gone_is_named(tmp_path, poem, capsys):
    run = tmp_path / "run"
    assert main([*QUICK, "--corpus", poem, "--out", str(run)]) == 0
    (run / "tokenizer.json").unlink()
    capsys.readouterr()
    assert main(["sample", str(run)]) == 1
    assert f"{run / 'tokenizer.json'}: there is no such tokenizer file" in capsys.readouterr().err


def test_a_run_of_before_there_were_tokenizers_goes_on_with_bytes(tmp_path, poem):
    run = tmp_path / "run"
    assert main([*QUICK, "--corpus", poem, "--out", str(run)]) == 0
    kept = json.loads((run / "run.json").read_text())
    for name in ("tokenizer", "vocab_size", "tokens", "tokenizer_fingerprint"):
        del kept[name]
    (run / "run.json").write_text(json.dumps(kept))
    (run / "tokenizer.json").unlink()
    assert main(["resume", str(run)]) == 0 and main(["sample", str(run), "--new-tokens", "3"]) == 0


def test_paths_are_kept_so_that_they_are_found_from_anywhere(tmp_path, tokens, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_options(Train(tokens="tokens", out=tmp_path / "a"), tokens.tokenizer)
    save_options(Train(tokenizer="tokens/tokenizer.json", corpus="poem.txt", out=tmp_path / "b"), tokens.tokenizer)
    a, b = (json.loads((tmp_path / name / "run.json").read_text()) for name in "ab")
    assert a["tokens"] == str(tokens.path) and a["tokenizer"] == "bytes" and a["corpus"] == "shakespeare"
    assert b["tokenizer"] == str(tokens.path / "tokenizer.json") and b["corpus"] == str(tmp_path / "poem.txt")


def test_a_folder_of_tokens_or_texts_called_like_something_known_is_found_from_anywhere(tmp_path, tokens, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokens.path.rename(tmp_path / "python")
    (tmp_path / "bytes").mkdir()
    save_options(Train(tokens="python", corpus="bytes", out=tmp_path / "a"), tokens.tokenizer)
    kept = json.loads((tmp_path / "a" / "run.json").read_text())
    assert (kept["tokens"], kept["corpus"]) == (str(tmp_path / "python"), str(tmp_path / "bytes"))


def test_the_tokenizer_of_one_run_serves_another(tmp_path, poem, tokens):
    file = str(tokens.path / "tokenizer.json")
    text = text_of(Train(corpus=poem, tokenizer=file, out=tmp_path), 16)
    assert text.tokenizer.fingerprint == tokens.tokenizer.fingerprint


# What a run reports


def test_bits_per_byte_in_the_log_are_those_of_the_held_out_text(tmp_path, poem, tokens, capsys):
    """With a model that knows nothing, every token costs ln V, so the bits are log2 V a token, over its bytes."""
    options = ["--tokens", str(tokens.path), "--max-lr", "1e-12", "--eval-rows", "100000"]
    assert main([*QUICK, *options, "--out", str(tmp_path / "run")]) == 0
    last = log_of(tmp_path / "run")[-1]
    ids = open_tokens(tokens.path).part("valid")[:]
    n_bytes = int(tokens.tokenizer.token_bytes()[ids[1:]].sum())
    assert last["eval_bits_per_byte"] == pytest.approx(last["eval_loss"] / math.log(2) * (len(ids) - 1) / n_bytes)
    assert last["eval_loss"] == pytest.approx(math.log(300), abs=0.1)
    assert f"nats a token, {last['eval_bits_per_byte']:.3f} bits a byte" in capsys.readouterr().out


def test_a_models_vocabulary_is_that_of_the_tokenizer(tmp_path, tokens, capsys):
    assert main([*QUICK, "--tokens", str(tokens.path), "--out", str(tmp_path / "run")]) == 0
    assert f"{120_576 + (300 - 256) * 64:,} parameters" in capsys.readouterr().out
    state = torch.load(tmp_path / "run" / "checkpoints" / "step_00000004" / "state.pt", weights_only=True)
    assert state["model"]["tokens.weight"].shape == (300, 64)
