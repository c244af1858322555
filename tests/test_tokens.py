import subprocess
import sys

import pytest

import tinytrain.token_build
from tinytrain.commands.main import main
from tinytrain.commands.tokens import described
from tinytrain.token_file import open_tokens


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "my texts").mkdir()
    for n in range(12):
        (tmp_path / "my texts" / f"{n}.txt").write_text(f"To be, or not to be, in text {n}: {'to ' * n}\n" * 5)
    return str(tmp_path / "my texts")


def test_it_writes_the_tokens_and_says_what_there_is(tmp_path, texts, capsys):
    out = str(tmp_path / "tokens")
    assert main(["tokens", texts, "--out", out, "--tokenizer", "bpe", "--vocab-size", "280", "--seed", "3"]) == 0
    told, progress = capsys.readouterr()
    facts = open_tokens(tmp_path / "tokens").manifest
    assert f"train: {facts['parts']['train']['tokens']:,} tokens of" in told and "valid: " in told
    assert f"tokenizer: {facts['tokenizer']}, vocabulary 280, uint16 on disk" in told
    assert f"python -m tinytrain train --tokens {out}" in told
    for stage in ("reading", "learning", "writing"):
        assert stage in progress and stage not in told
    assert facts["vocab_size"] == 280


def test_all_options_reach_the_files(tmp_path, texts, capsys):
    (tmp_path / "my texts" / "notes.md").write_text("left out")
    options = ["--valid-share", "0", "--pattern", "[0-4].txt", "--dtype", "uint32"]
    assert main(["tokens", texts, f"{texts}/7.txt", "--out", str(tmp_path / "tokens"), *options]) == 0
    built = open_tokens(tmp_path / "tokens")
    assert built.manifest["dtype"] == "uint32" and list(built.manifest["parts"]) == ["train"]
    text = built.tokenizer.decode(built.part("train")[:])
    assert [f"in text {n}:" in text for n in range(8)] == [True] * 5 + [False, False, True]


def test_a_text_that_gives_fewer_tokens_than_asked_for_says_so(tmp_path, texts, capsys):
    (tmp_path / "my texts" / "empty.txt").write_text("")
    assert main(["tokens", texts, "--out", str(tmp_path / "tokens"), "--tokenizer", "bpe", "--vocab-size", "9000"]) == 0
    told = capsys.readouterr().out
    size = open_tokens(tmp_path / "tokens").manifest["vocab_size"]
    assert size < 400 and f"The text gives no more than {size} of the 9,000 tokens asked for" in told
    assert "Left out, for they hold no text: 1 files" in told
    assert described(open_tokens(tmp_path / "tokens"), 9000) in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["nowhere.txt"], "'nowhere.txt': no such file or folder"),
        ([], "no text is named"),
        (["python", "--tokenizer", "bpee"], "bpee: there is no such tokenizer file"),
        (["python", "--dtype", "uint8", "--tokenizer", "bpe"], "dtype=uint8 holds ids up to 255"),
        (["python", "--valid-share", "1"], "valid_share=1.0 must be at least 0 and less than 1"),
        (["python", "--vocab-size", "10"], "vocab_size=10 is for tokenizer 'bpe'"),
    ],
)
def test_what_a_user_can_mend_is_told_in_one_line_with_status_1(tmp_path, capsys, options, words):
    assert main(["tokens", *options, "--out", str(tmp_path / "tokens")]) == 1
    told, error = capsys.readouterr()
    assert words in error and error.startswith("tinytrain: ") and error.count("\n") == 1 and told == ""
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_nothing_and_has_the_status_of_one(tmp_path, texts, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tinytrain.token_build, "write_manifest", interrupted)
    assert main(["tokens", texts, "--out", str(tmp_path / "tokens")]) == 130
    assert [path.name for path in tmp_path.iterdir()] == ["my texts"]


def test_as_a_program_it_keeps_progress_out_of_what_it_prints(tmp_path, texts):
    command = [sys.executable, "-m", "tinytrain", "tokens", texts, "--out", str(tmp_path / "tokens")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("train: ") and "%" not in done.stdout
    assert "writing: 100%" in done.stderr
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 1 and "is there already" in again.stderr and "Traceback" not in again.stderr


def test_the_help_explains_every_option(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["tokens", "--help"])
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert ended.value.code == 0
    for words in (
        "--out PATH",
        "files, folders, or corpora by name",
        "share of the text that is held out",
        "uint8, uint16",
    ):
        assert words in told
