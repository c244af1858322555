"""Where a trainer for the laws is found, what is no trainer, and the command and its tools."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from laws_honest import PlainTrainer

from tinytrain.course.laws import CannotUseError, load, run_laws
from tinytrain.course.laws.court import main
from tinytrain.course.laws.probe import MISTAKES

PLAIN = "tinytrain.course.laws.plain_trainer"


def test_generators_are_afterwards_as_they_were():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    run_laws(PlainTrainer, only=["law 8"])
    assert torch.equal(torch.rand(3), wanted)


def test_one_law_may_be_asked_alone_and_an_unknown_one_is_named():
    assert run_laws(PlainTrainer, only=["law 3"]).held == ["law 3"]
    with pytest.raises(ValueError, match=r"there is no law 11; the laws are law 1, law 2"):
        run_laws(PlainTrainer, only=["law 11"])


def test_every_mistake_that_is_known_gives_another_gradient():
    """Or its words could not be told from the right ones."""
    from tinytrain.course.laws.common import uneven
    from tinytrain.course.laws.probe import distance, gradient_of, model_with, true_loss
    from tinytrain.course.laws.rows import masked, packed
    from tinytrain.course.laws.tape import weights_of

    bench_model = model_with(weights_of(_fresh()))
    weights = weights_of(bench_model)
    right = gradient_of(weights, true_loss, uneven(0))
    wrong = {words: gradient_of(weights, loss, uneven(0)) for words, loss in MISTAKES.items()}
    for words, gradient in wrong.items():
        if "does not reach" not in words:
            assert distance(gradient, right) > 0.05, words
        others = [name for name in wrong if name != words and "does not reach" not in name + words]
        assert all(distance(gradient, wrong[name]) > 1e-3 for name in others), words
    for name, batches in (("attention_mask", masked(0)), ("doc_ids", packed(0))):
        words = next(words for words in MISTAKES if words.startswith(f"{name} does not reach"))
        gaps = distance(gradient_of(weights, MISTAKES[words], batches), gradient_of(weights, true_loss, batches))
        assert gaps > 0.05, name


def _fresh():
    from tinytrain.course.laws.probe import Noting, ProbeModel

    torch.manual_seed(1)
    return ProbeModel(Noting())


# Finding a trainer, and the command


def test_a_trainer_is_found_by_module_by_name_in_a_file_and_by_make_trainer(tmp_path):
    source = Path(load(PLAIN).__init__.__code__.co_filename).read_text("utf-8")
    (tmp_path / "mine.py").write_text(source)
    assert load(PLAIN) is load(f"{PLAIN}:PlainTrainer") is PlainTrainer
    assert load(str(tmp_path / "mine.py")).__name__ == "PlainTrainer"
    assert load(f"{tmp_path / 'mine.py'}:PlainTrainer").__name__ == "PlainTrainer"
    (tmp_path / "made.py").write_text(source + "\n\ndef make_trainer(*args, **named):\n    pass\n")
    assert load(str(tmp_path / "made.py")).__name__ == "make_trainer"


UNUSABLE = {
    "no_such_module_anywhere": "could not be imported: ModuleNotFoundError",
    "nothing_here.py": "there is no file",
    f"{PLAIN}:Missing": "has no Missing",
    "json": "must have one class with fit\\(\\), and has none",
}


@pytest.mark.parametrize("spec", UNUSABLE)
def test_what_cannot_be_found_is_said(spec):
    with pytest.raises(CannotUseError, match=UNUSABLE[spec]):
        load(spec)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (lambda: None, r"could not be called as the contract says, with total_steps=2, .*: TypeError"),
        (lambda *_args, **_named: object(), r"gave a object, which has no fit\(\)"),
        (3, "cannot be called"),
    ],
)
def test_what_is_no_trainer_is_said(factory, words):
    with pytest.raises(CannotUseError, match=words):
        run_laws(factory)


def command(*args, cwd):
    line = [sys.executable, "-m", "tinytrain.course", "laws", *args]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, timeout=120)


def test_the_command_says_by_its_status_whether_a_law_is_broken(tmp_path):
    source = Path(sys.modules[PLAIN].__file__).read_text("utf-8")
    sick = source.replace('reduction="sum"', 'reduction="mean"').replace("/ max(targets, 1)", "/ len(micro_batches)")
    (tmp_path / "mine.py").write_text(sick)
    done = command("mine.py", cwd=tmp_path)
    assert done.returncode == 1 and "averages the means" in " ".join(done.stdout.split()), done.stdout + done.stderr
    assert done.stderr == ""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_the_command_says_that_there_is_no_trainer(here, capsys):
    assert main("nothing_of_the_kind") == 2
    assert "could not be imported" in capsys.readouterr().err


def test_the_command_finds_a_module_of_the_folder_it_is_called_in(here, capsys):
    shutil.copy(sys.modules[PLAIN].__file__, here / "my_module.py")
    assert main("my_module:PlainTrainer") == 0
    assert "12 hold, 0 broken, 0 could not be tested" in capsys.readouterr().out


def test_a_save_that_is_cut_off_takes_an_only_file_with_it(tmp_path):
    source = Path(sys.modules[PLAIN].__file__).read_text("utf-8")
    start, end = source.index("    def save(self):"), source.index("    def resume(self):")
    (tmp_path / "straight.py").write_text(
        source[:start] + "    def save(self):\n        torch.save(self.state(), self.path)\n\n" + source[end:]
    )
    verdicts = run_laws(tmp_path / "straight.py", only=["law 5"])
    assert verdicts.broken == ["law 5"], f"\n{verdicts}"
    assert "write to another name" in str(verdicts["law 5"])


def test_the_contract_fits_on_a_screen():
    from tinytrain.course.laws import OwnTrainer

    assert len(OwnTrainer.__doc__.splitlines()) < 30
