"""Law 10. Bad input is refused early.

Each message names the thing, the place, the value and the cure. Early means before the first update: a run that dies
after an hour on a bad token has lost the hour.
"""

import warnings
from dataclasses import replace

import pytest
import torch

from tinytrain.bpe import BPETokenizer
from tinytrain.corpus import load_corpus
from tinytrain.data import RowBatches, TokenRows
from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, PRESETS
from tinytrain.schedule import warmup_cosine
from tinytrain.token_build import build_tokens
from tinytrain.token_file import open_tokens
from tinytrain.train import TrainConfig, Trainer


def file_of(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


def saved(folder, spoil=lambda path: None, **changes):
    """A run of two updates with a checkpoint, which ``spoil`` may damage; then a trainer that wants to resume it."""
    rows = TokenRows(torch.arange(200), 16, vocab_size=256)
    config = {"total_steps": 2, "max_lr": 1e-3, "out": folder / "run", "checkpoint_every": 2}
    Trainer(GPT(PRESETS["nano"]), RowBatches(rows=rows, batch_size=4), TrainConfig(**config)).fit()
    spoil(folder / "run" / "checkpoints" / "step_00000002" / "state.pt")
    model = GPT(replace(PRESETS["nano"], n_layers=changes.pop("n_layers", 2)))
    trainer = Trainer(model, RowBatches(rows=rows, batch_size=4), TrainConfig(**(config | changes)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the damaged one is named in a warning as well
        trainer.resume()


def tokens(folder, *files, cut=None, **options):
    """Files, by name and content in turn, as a folder of tokens, one file of which is cut by a byte."""
    texts, out = folder / "texts", folder / "tokens"
    texts.mkdir()
    for name, content in zip(files[::2], files[1::2], strict=True):
        file_of(texts, name, content)
    built = build_tokens([str(texts)], out, quiet=True, **options)
    if cut is not None:
        (out / cut).write_bytes((out / cut).read_bytes()[:-1])
    return built


def swapped(folder):
    BPETokenizer.learn(["to be or not to be " * 9], 260).save(folder.path / "tokenizer.json")
    return folder.path


CASES = {
    "an empty corpus": (
        lambda folder: load_corpus(file_of(folder, "empty.txt", b"")),
        ["empty.txt", "holds no text", "0 bytes"],
    ),
    "a corpus shorter than one row": (
        lambda folder: TokenRows(torch.arange(10), row_length=64, vocab_size=256, name="poem.txt"),
        ["poem.txt", "10 tokens", "row_length=64", "Give more text or a smaller row_length"],
    ),
    "a binary file": (
        lambda folder: load_corpus(file_of(folder, "photo.png", b"\x89PNG\r\n\x1a\n\0\0")),
        ["photo.png", "0x89", "offset 0", "binary", "Save the file as UTF-8"],
    ),
    "text in another encoding": (
        lambda folder: load_corpus(file_of(folder, "cafe.txt", b"caf\xe9")),
        ["cafe.txt", "0xe9", "offset 3", "Save the file as UTF-8"],
    ),
    "an id outside the vocabulary, in the data": (
        lambda folder: TokenRows(torch.tensor([1, 2, 999, 4]), 2, vocab_size=256, name="poem.txt"),
        ["poem.txt", "999", "position 2", "0..255", "tokenizer"],
    ),
    "a byte that is no text, in a folder that becomes tokens": (
        lambda folder: tokens(folder, "a.txt", b"fine" * 99, "b.txt", b"caf\xe9"),
        ["b.txt", "0xe9", "offset 3", "Save the file as UTF-8"],
    ),
    "ids too large for the type of a token file": (
        lambda folder: tokens(folder, "a.txt", b"to be or not " * 99, tokenizer="bpe", vocab_size=300, dtype="uint8"),
        ["dtype=uint8", "255", "uint16"],
    ),
    "a token file that was cut short": (
        lambda folder: tokens(folder, "a.txt", b"fine" * 99, cut="valid.bin").part("valid"),
        ["valid.bin", "cut short", "40 bytes", "41 ids", "Copy the tokens again"],
    ),
    "tokens of another tokenizer": (
        lambda folder: open_tokens(swapped(tokens(folder, "a.txt", b"fine" * 99))),
        ["tokenizer.json", "bpe-260-", "made with bytes", "Put that one back"],
    ),
    "an id outside the vocabulary, at the model": (
        lambda folder: GPT(PRESETS["nano"])(torch.tensor([[1, 2, 256]])),
        ["256", "position [0, 2]", "0..255", "tokenizer"],
    ),
    "a row longer than the model's positions": (
        lambda folder: GPT(PRESETS["nano"])(torch.zeros(1, 65, dtype=torch.long)),
        ["65 tokens", "max_positions=64", "cut shorter rows"],
    ),
    "a warmup longer than the run": (
        lambda folder: TrainConfig(total_steps=10, warmup_steps=20, max_lr=1e-3),
        ["warmup_steps=20", "total_steps=10", "Lower warmup_steps"],
    ),
    "the same, asked of the schedule itself": (
        lambda folder: warmup_cosine(0, max_lr=1.0, min_lr=0.1, warmup_steps=20, total_steps=10),
        ["warmup_steps=20", "total_steps=10", "Lower warmup_steps"],
    ),
    "a negative label that is not -100": (
        lambda folder: cross_entropy(torch.zeros(1, 2, 5), torch.tensor([[3, -1]])),
        ["label -1", "position [0, 1]", "0..4", "-100", "ignore_index"],
    ),
    "a checkpoint of another model": (
        lambda folder: saved(folder, n_layers=3),
        ["step_00000002", "model.n_layers", "2 in the checkpoint, 3 now"],
    ),
    "a checkpoint of a run with another learning rate": (
        lambda folder: saved(folder, max_lr=2e-3),
        ["step_00000002", "max_lr", "0.001 in the checkpoint, 0.002 now", "override"],
    ),
    "a checkpoint that was cut off": (
        lambda folder: saved(folder, lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ["state.pt", "damaged", "checksum", "no whole checkpoint to resume from"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_message_names_the_thing_the_place_the_value_and_the_cure(case, tmp_path):
    make, words = CASES[case]
    with pytest.raises(ValueError) as caught:
        make(tmp_path)
    message = str(caught.value)
    print(f"{case}: {message}")
    assert not [word for word in words if word not in message], message
