import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

import tinytrain.commands.run
import tinytrain.commands.run_model
import tinytrain.precision
from tinytrain.commands.main import main
from tinytrain.commands.run import ProgressBar
from tinytrain.commands.run_options import Train, load_options, save_options
from tinytrain.model import GPT, PRESETS
from tinytrain.precision import LossScaleError
from tinytrain.train import Trainer, TrainingFailedError

QUICK = ["train", "--steps", "4", "--batch-size", "2", "--eval-rows", "4"]


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "poem.txt"
    file.write_text("Shall I compare thee to a summer's day?\n" * 200, encoding="utf-8")
    return ["--corpus", str(file)]


def test_it_trains_and_says_where_the_log_is(tmp_path, text, capsys):
    assert main([*QUICK, *text, "--out", str(tmp_path / "run")]) == 0
    log = tmp_path / "run" / "log.jsonl"
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1, 2, 3, 4]
    out = capsys.readouterr().out
    assert f"The log is {log}" in out
    assert "120,576 parameters" in out and "ROMEO" in out


def test_the_same_seed_trains_the_same_model_and_another_one_does_not(tmp_path, text):
    losses = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        main([*QUICK, *text, "--seed", str(seed), "--out", str(tmp_path / name)])
        losses[name] = [json.loads(line)["loss"] for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
    assert losses["a"] == losses["b"] != losses["c"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--preset", "giant"], "preset 'giant' is not one of nano, tiny"),
        (["--corpus", "nowhere.txt"], "nowhere.txt: no such file or folder"),
        (["--row-length", "65"], "row_length=65 is longer than preset nano's 64"),
        (["--warmup-steps", "5"], "warmup_steps=5 is more than total_steps=4"),
        (["--steps", "0"], "total_steps=0"),
        (["--batch-size", "0"], "batch_size=0"),
        (["--row-length", "0"], "row_length=0"),
        (["--eval-rows", "0"], "eval_rows=0 must be at least 1"),
        (["--corpus", ""], "source is empty: name a corpus (shakespeare, three_kingdoms, python)"),
        (["--prompt", ""], "prompt is empty"),
        (["--seed", "99999999999999999999999"], "must be at least 0 and less than 2**63"),
        (["--precision", "fp8"], "precision='fp8' is not one of fp32, bf16, fp16"),
        (["--checkpoint-every", "0"], "checkpoint_every=0 must be at least 1"),
    ],
)
def test_what_a_user_can_mend_is_told_in_one_line_without_a_traceback(tmp_path, text, capsys, options, words):
    assert main([*QUICK, *text, "--out", str(tmp_path / "run"), *options]) == 1
    error = capsys.readouterr().err
    assert words in error and error.startswith("tinytrain: ") and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_a_run_is_refused_and_the_run_is_kept(tmp_path, text, capsys):
    out = ["--out", str(tmp_path / "run")]
    main([*QUICK, *text, *out])
    before = (tmp_path / "run" / "log.jsonl").read_text()
    assert main([*QUICK, *text, *out]) == 1
    assert "is the log of an earlier run" in capsys.readouterr().err
    assert (tmp_path / "run" / "log.jsonl").read_text() == before


CURVE = ("batch", "step", "epoch", "loss", "grad_norm", "lr", "tokens_seen", "padding", "eval_loss")


def curve_of(folder):
    """The log without what depends on the machine."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    return [{name: line[name] for name in CURVE if name in line} for line in lines]


def start(*arguments):
    command = [sys.executable, "-m", "tinytrain", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


LONG = ["train", "--steps", "60", "--batch-size", "2", "--eval-rows", "4", "--eval-every", "7", "--dropout", "0.1"]


@pytest.mark.skipif(os.name == "nt", reason="os.kill sends no SIGINT on Windows")
def test_an_interrupt_saves_and_names_the_command_that_goes_on_to_the_same_end(tmp_path, text):
    interrupted, whole = tmp_path / "a run", tmp_path / "whole"
    child = start(*LONG, *text, "--out", interrupted)
    log = interrupted / "log.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") > 3):
        assert child.poll() is None and time.monotonic() < deadline, child.communicate()
        time.sleep(0.001)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert child.returncode == 130 and steps[-1] < 60
    assert f"Interrupted after update {steps[-1]}. Go on with: python -m tinytrain resume '{interrupted}'" in out
    assert "Traceback" not in err

    command = shlex.split(out.split("Go on with: ")[1].splitlines()[0])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, cwd=elsewhere, timeout=120)
    assert done.returncode == 0 and f"Going on after update {steps[-1]} of 60" in done.stdout, done.stderr
    assert main([*LONG, *text, "--out", str(whole)]) == 0
    assert curve_of(interrupted) == curve_of(whole)


def test_the_options_are_kept_in_the_runs_folder_and_precision_is_one_of_them(tmp_path, text):
    run = tmp_path / "run"
    options = ["--out", str(run), "--checkpoint-every", "2", "--seed", "3"]
    assert main([*QUICK, *text, *options]) == 0
    kept = json.loads((run / "run.json").read_text("utf-8"))
    assert (kept["steps"], kept["checkpoint_every"], kept["seed"], kept["precision"]) == (4, 2, 3, "fp32")
    assert sorted(path.name for path in (run / "checkpoints").glob("step_*")) == ["step_00000002", "step_00000004"]
    assert load_options(run).corpus == text[1] and load_options(run).out == run


def test_a_corpus_beside_the_caller_is_found_again_from_anywhere(tmp_path, text, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*QUICK, "--corpus", "poem.txt", "--out", "run"]) == 0
    assert load_options(tmp_path / "run").corpus == str(tmp_path / "poem.txt")


def test_a_corpus_known_by_name_stays_a_name_whatever_lies_beside_the_caller(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "python").mkdir()
    save_options(Train(corpus="python", out=tmp_path / "run"))
    assert load_options(tmp_path / "run").corpus == "python"


@pytest.fixture
def killed(tmp_path, text, monkeypatch, capsys):
    """The folder of a run that died after update 3, with checkpoints of updates 1 and 2."""

    def dies(bar, record):
        if record["step"] == 3:
            raise RuntimeError("the plug is out")

    with monkeypatch.context() as patch:
        patch.setattr(ProgressBar, "__call__", dies)
        with pytest.raises(RuntimeError, match="the plug is out"):
            main([*QUICK, *text, "--checkpoint-every", "1", "--out", str(tmp_path / "run")])
    capsys.readouterr()
    return tmp_path / "run"


def test_a_finished_run_says_that_it_is(killed, capsys):
    assert main(["resume", str(killed)]) == 0
    assert "Going on after update 2 of 4" in capsys.readouterr().out
    before = curve_of(killed)
    assert main(["resume", str(killed)]) == 0
    assert "The run is finished: all of its 4 updates are done" in capsys.readouterr().out
    assert curve_of(killed) == before and len(before) == 4


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_goes_on(killed, capsys):
    (killed / "checkpoints" / "step_00000002" / "state.pt").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"step_00000002.state\.pt is damaged.*Going back to the checkpoint before it"):
        assert main(["resume", str(killed)]) == 0
    assert "Going on after update 1 of 4" in capsys.readouterr().out
    assert [line["batch"] for line in curve_of(killed)] == [1, 2, 3, 4]


def test_a_warning_takes_one_line_on_the_command_line(killed):
    (killed / "checkpoints" / "step_00000002" / "state.pt").write_bytes(b"")
    child = start("resume", killed)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 0
    assert "tinytrain: warning: " in err and "stacklevel" not in err and "UserWarning" not in err


def one_line_error(capsys, *arguments, status=1):
    assert main(list(map(str, arguments))) == status
    error = capsys.readouterr().err
    assert error.startswith("tinytrain: ") and error.count("\n") == 1
    return error


def test_a_folder_without_a_run_is_named(tmp_path, capsys):
    error = one_line_error(capsys, "resume", tmp_path)
    assert f"{tmp_path} holds no run: there is no run.json" in error


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "Expecting value"),
        ('{"steps": 4', "Expecting"),
        ("[]", "missing or unknown"),
        ("[" * 100_000, "recursion"),
        ('{"steps": 4}', "batch_size"),
        ("steps=many", "steps is 'many'"),
    ],
)
def test_damaged_options_are_named_and_what_to_do(killed, capsys, content, words):
    path = killed / "run.json"
    if content == "steps=many":
        content = json.dumps(json.loads(path.read_text("utf-8")) | {"steps": "many"})
    path.write_text(content, encoding="utf-8")
    error = one_line_error(capsys, "resume", killed)
    assert f"{path} is damaged (" in error and words in error and "start the run again in another folder" in error


def test_a_run_killed_before_its_first_checkpoint_says_so(killed, capsys):
    shutil.rmtree(killed / "checkpoints")
    assert "no whole checkpoint to resume from" in one_line_error(capsys, "resume", killed)


def test_another_text_is_refused_unless_it_is_named_in_override(killed, text, capsys):
    with open(text[1], "a", encoding="utf-8") as file:
        file.write("Thou art more lovely and more temperate.")
    error = one_line_error(capsys, "resume", killed)
    assert "data.text" in error and "override" in error
    assert main(["resume", str(killed), "--override", "data.text"]) == 0


def test_an_earlier_run_is_refused_with_the_command_that_goes_on_with_it(killed, text, capsys):
    before = (killed / "run.json").read_text("utf-8")
    error = one_line_error(capsys, *QUICK, *text, "--seed", "5", "--out", killed)
    assert f"python -m tinytrain resume {killed}" in error
    assert (killed / "run.json").read_text("utf-8") == before


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (LossScaleError("the loss scale is 0.5"), 1, "tinytrain: the loss scale is 0.5"),
        (TrainingFailedError("20 updates were skipped\n  look at the batch"), 1, "were skipped look at the batch"),
        (torch.OutOfMemoryError("CUDA out of memory.\n  at"), 1, "micro_batch_size, or recompute and loss_chunk"),
        (MemoryError(), 1, "tinytrain: the memory does not suffice. "),
        (KeyboardInterrupt(), 130, "tinytrain: interrupted. If it has a checkpoint, go on with: python -m tinytrain"),
    ],
)
def test_whatever_ends_a_run_early_takes_one_line(tmp_path, text, capsys, monkeypatch, error, status, words):
    def ends(trainer):
        raise error

    monkeypatch.setattr("tinytrain.train.Trainer.fit", ends)
    assert main([*QUICK, *text, "--out", str(tmp_path / "run")]) == status
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1


def test_an_error_of_another_kind_keeps_its_traceback(tmp_path, text, monkeypatch):
    def ends(trainer):
        raise RuntimeError("a fault in the program")

    monkeypatch.setattr("tinytrain.train.Trainer.fit", ends)
    with pytest.raises(RuntimeError, match="a fault in the program"):
        main([*QUICK, *text, "--out", str(tmp_path / "run")])


def test_an_out_that_is_a_file_is_refused_and_kept(tmp_path, text, capsys):
    (tmp_path / "file").write_text("mine")
    assert main([*QUICK, *text, "--out", str(tmp_path / "file")]) == 1
    assert "is a file: --out names the folder of the run" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_the_options_reach_the_run(tmp_path, text, monkeypatch):
    seen = {}

    class Spy(Trainer):
        def __init__(self, model, data, config, callbacks, *, validation, bytes_per_token):
            seen.update(model=model, data=data, config=config, validation=validation, bytes_per_token=bytes_per_token)
            super().__init__(model, data, config, callbacks, validation=validation)

    monkeypatch.setattr(tinytrain.commands.run, "Trainer", Spy)
    options = {
        "--max-lr": "0.002", "--weight-decay": "0.05", "--dropout": "0.25", "--micro-batch-size": "1",
        "--eval-every": "3", "--seed": "7", "--row-length": "32", "--warmup-steps": "2", "--precision": "bf16",
    }  # fmt: skip
    monkeypatch.setattr(tinytrain.precision, "cpu_supports", lambda dtype: True)
    main([*QUICK, *text, "--out", str(tmp_path / "run"), *(part for pair in options.items() for part in pair)])
    config, data = seen["config"], seen["data"]
    assert (config.max_lr, config.weight_decay, config.eval_every, config.warmup_steps) == (0.002, 0.05, 3, 2)
    assert (config.total_steps, config.precision, config.checkpoint_every) == (4, "bf16", 200)
    assert (data.batch_size, data.micro_batch_size, data.seed, data.rows.row_length) == (2, 1, 7, 32)
    assert seen["model"].config == replace(PRESETS["nano"], dropout=0.25)
    assert sum(len(batch["labels"]) for batch in seen["validation"]) == 4 and seen["bytes_per_token"] == 1.0


def test_the_seed_decides_the_first_weights(tmp_path, text, monkeypatch):
    built = []

    def build(config):
        built.append(GPT(config).state_dict())
        return GPT(config)

    monkeypatch.setattr(tinytrain.commands.run_model, "GPT", build)
    main([*QUICK, *text, "--seed", "7", "--out", str(tmp_path / "run")])
    torch.manual_seed(7)
    assert torch.equal(built[0]["tokens.weight"], GPT(PRESETS["nano"]).tokens.weight)


def test_a_pattern_chooses_files_of_a_folder(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a quick brown fox " * 100)
    (tmp_path / "texts" / "b.png").write_bytes(b"\x89PNG\0")
    options = ["--corpus", str(tmp_path / "texts"), "--out", str(tmp_path / "run")]
    assert main([*QUICK, *options]) == 1
    assert "b.png: byte 0x89 at offset 0" in capsys.readouterr().err
    assert main([*QUICK, *options, "--pattern", "*.txt"]) == 0


def test_a_model_that_has_diverged_gets_no_sample_and_the_log_is_named(tmp_path, text):
    command = [sys.executable, "-m", "tinytrain", *QUICK, *text, "--out", str(tmp_path / "run"), "--max-lr", "1e30"]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}  # as a redirected Windows console has it
    done = subprocess.run(command, capture_output=True, text=True, env=environment, encoding="cp1252")
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1)


def test_a_sample_that_the_terminal_has_no_characters_for_is_no_error(tmp_path, text):
    command = [sys.executable, "-m", "tinytrain", *QUICK, *text, "--out", str(tmp_path / "run"), "--prompt", "三国"]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"The log is" in done.stdout


def test_the_doctor_looks_at_a_runs_folder_and_its_status_says_whether_it_found_anything(tmp_path, text, capsys):
    assert main(["train", *text, "--steps", "3", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["doctor", str(tmp_path / "run"), "--vocab-size", "256"]) == 0
    assert capsys.readouterr().out.startswith("Nothing found. 3 lines of the log looked at for: ")
    log = tmp_path / "sick" / "log.jsonl"
    log.parent.mkdir()
    log.write_text(
        '{"batch": 1, "step": 1, "loss": 5.5}\n{"batch": 2, "step": 2, "loss": null, "nonfinite": {"loss": "nan"}}\n'
    )
    assert main(["doctor", str(log.parent)]) == 1
    assert capsys.readouterr().out.startswith("1. loss not finite, since update 2: the loss is NaN or infinite")


@pytest.mark.parametrize(
    ("content", "words"), [(None, "no log there"), ("", "has no line"), ("{\n", "line 1: not a line")]
)
def test_what_the_doctor_cannot_look_at_is_told_in_one_line(tmp_path, capsys, content, words):
    if content is not None:
        (tmp_path / "log.jsonl").write_text(content)
    assert words in one_line_error(capsys, "doctor", str(tmp_path), status=2)


def test_a_vocabulary_of_no_token_is_refused(tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text('{"batch": 1, "step": 1, "loss": 5.5}\n')
    for size in ("0", "-1"):
        error = one_line_error(capsys, "doctor", str(tmp_path), "--vocab-size", size, status=2)
        assert f"vocab_size={size} must be at least 1" in error


COMMANDS = ("train", "resume", "sample", "tokens", "plan", "preflight", "doctor")


def test_the_help_has_an_example_of_each_command_and_says_what_the_exit_status_means(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    told = capsys.readouterr().out
    assert all(f"python -m tinytrain {command} " in told for command in COMMANDS)
    assert all(f"• {command}" in told for command in COMMANDS)
    assert all(status in told for status in ("0 done", "1 it could not", "2 the options", "130 interrupted"))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_explains_each_option_without_words_of_python(capsys, command):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    told = capsys.readouterr().out
    assert "None" not in told and "[STR [STR" not in told
    with pytest.raises(SystemExit, match="2"):
        main([command, "--no-such-option"])
