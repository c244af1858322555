import subprocess
import sys
from types import SimpleNamespace

import pytest
from torch import nn

from tinytrain.commands.main import main
from tinytrain.generate import LONGEST_ROW, longest_row
from tinytrain.model import GPT, PRESETS
from tinytrain.watch.preflight.target import load_target, row_length_of, vocabulary_of

FILE = """
import torch
from dataclasses import dataclass
from helper import V
from tinytrain import GPT, ModelConfig, build_adamw

CONFIG = ModelConfig(vocab_size=V, d_model=32, n_layers=1, n_heads=2, max_positions=16)

def model():
    return GPT(CONFIG)

def unshifted():
    ids = torch.arange(16)[None]
    return GPT(CONFIG), {"input_ids": ids, "labels": ids}

def with_optimizer():
    model, batch = unshifted()
    return model, batch | {"labels": batch["labels"] + 1}, build_adamw(model, lr=1e-3)

def wrong():
    return "a model"

def raises():
    return 1 / 0

def exits():
    raise SystemExit(0)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("mine", "helper", "broken", "unread"):  # what a test imports, no later one shall find
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "helper.py").write_text("V = 40")
    (tmp_path / "mine.py").write_text(FILE)
    (tmp_path / "broken.py").write_text("import torch\n\nx = undefined_name\n")
    (tmp_path / "unread.py").write_text("raise ValueError('data.txt: no such file')")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.py"


@pytest.mark.parametrize("place", ["mine", "mine.py", "./mine.py"])
def test_a_factory_is_found_as_a_module_and_as_a_file(mine, place):
    model, batch, optimizer = load_target(f"{place}:with_optimizer")
    assert isinstance(model, GPT) and batch["labels"].shape == (1, 16) and optimizer is not None
    assert load_target(f"{place}:model")[1:] == (None, None)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("mine.py", "'mine.py' names no factory"),
        ("absent.py:model", "absent.py: no such file"),
        ("absent:model", "importing absent raises ModuleNotFoundError: No module named 'absent'"),
        (
            "broken.py:model",
            "importing broken.py raises NameError: name 'undefined_name' is not defined (broken.py",
        ),
        ("unread.py:model", "importing unread.py raises ValueError: data.txt: no such file (unread.py, line 1"),
        ("mine.py:nothing", "mine.py has no function nothing; it has "),
        ("mine.py:wrong", "returned (str); model, (model, batch) or"),
        ("mine.py:raises", "mine.py:raises() raises ZeroDivisionError: division by zero (mine.py, line"),
        ("mine.py:exits", "mine.py:exits() raises SystemExit: 0 (mine.py, line"),
        ("--preset=giant", "preset 'giant' is not one of nano"),
    ],
)
def test_what_goes_wrong_is_told_in_one_line(mine, capsys, target, words):
    assert main(["preflight", target]) == 1
    error = capsys.readouterr().err
    assert words in error and error.startswith("tinytrain: ") and error.count("\n") == 1


def test_the_exit_status_says_whether_a_line_failed(mine, capsys):
    assert main(["preflight", "mine.py:unshifted"]) == 1
    assert "FAIL  labels shifted once" in capsys.readouterr().out
    assert main(["preflight", "mine:with_optimizer"]) == 0
    out = capsys.readouterr().out
    assert "pass  decay groups" in out and out.endswith("No line failed.\n")


def test_without_a_batch_one_is_made_and_the_labels_are_not_said_to_be_tested(mine, capsys):
    assert main(["preflight", "mine.py:model"]) == 0
    out = capsys.readouterr().out
    assert "random ids from 0..39" in out and "----  labels shifted once: not tested: this batch was made here" in out
    assert main(["preflight", "--preset", "nano", "--corpus", "python"]) == 0
    assert "The batch: bytes of python" in capsys.readouterr().out


def test_the_command_works_from_a_shell(mine):
    done = subprocess.run(
        [sys.executable, "-m", "tinytrain", "preflight", "mine.py:unshifted"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "failed; mend the first: labels shifted once" in done.stdout, done.stderr


@pytest.mark.parametrize("name", LONGEST_ROW)
def test_a_batch_is_no_longer_than_the_longest_row_that_generate_knows(name):
    model = nn.Linear(2, 2)
    model.config = SimpleNamespace(**{name: 7})
    assert row_length_of(model) == longest_row(model) == 7


def test_the_vocabulary_and_the_row_length_show_in_the_model():
    assert (vocabulary_of(GPT(PRESETS["27m"])), row_length_of(GPT(PRESETS["nano"]), 100)) == (32_000, 64)
    assert vocabulary_of(nn.Sequential(nn.Embedding(40, 8), nn.Embedding(16, 8), nn.Linear(8, 40))) == 40
    with pytest.raises(ValueError, match="let the factory return"):
        vocabulary_of(nn.Linear(2, 2))


AFTERWARDS = """
from tinytrain.watch.preflight.target import load_target

names = ("torch", "math", "colorsys", "tinytrain", "mine")  # colorsys: nothing has imported it so far
kinds = [type(load_target(f"{name}.py:model")[0]).__name__ for name in names]
import colorsys, math, torch, tinytrain.model, mine
print(kinds, math.log(1), colorsys.rgb_to_hsv.__name__, torch.ones(1).item(), mine.CONFIG.n_layers)
"""


def test_a_file_may_be_called_as_a_module_is_and_stands_in_for_none(mine):
    for name in ("torch", "math", "colorsys", "tinytrain"):
        mine.with_name(f"{name}.py").write_text(FILE)
    done = subprocess.run([sys.executable, "-P", "-c", AFTERWARDS], capture_output=True, text=True)
    assert done.stdout.split("\n")[0] == f"{['GPT'] * 5} 0.0 rgb_to_hsv 1.0 1", done.stderr
