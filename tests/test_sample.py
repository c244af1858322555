import shutil

import pytest

from tinytrain.commands.main import main
from tinytrain.commands.sample import Sample, sample_run, shown

QUICK = ["train", "--steps", "4", "--batch-size", "2", "--eval-rows", "8", "--checkpoint-every", "2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sampled")
    (folder / "poem.txt").write_text("却说曹操引军追赶，玄德大惊。\n" * 300, encoding="utf-8")
    options = ["--corpus", str(folder / "poem.txt"), "--tokenizer", "bpe", "--vocab-size", "300", "--prompt", "却说"]
    assert main([*QUICK, *options, "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_it_continues_the_runs_prompt_as_the_run_itself_did_at_its_end(run, tmp_path, capsys):
    shutil.rmtree(tmp_path)
    text = (run.parent / "poem.txt").as_posix()
    options = ["--corpus", text, "--tokenizer", "bpe", "--vocab-size", "300", "--prompt", "却说"]
    assert main([*QUICK, *options, "--out", str(tmp_path)]) == 0
    at_the_end = capsys.readouterr().out
    assert main(["sample", str(run)]) == 0
    written = capsys.readouterr().out
    assert written.startswith("却说") and len(written) > 50 and written.strip("\n") in at_the_end


def test_prompt_length_temperature_and_seed_are_taken(run):
    likeliest = Sample(folder=run, prompt="玄德", new_tokens=5, temperature=0.0)
    assert sample_run(likeliest).startswith("玄德") and sample_run(likeliest) == sample_run(likeliest)
    drawn = {sample_run(Sample(folder=run, new_tokens=20, temperature=5.0, seed=seed)) for seed in range(3)}
    assert len(drawn) == 3
    assert sample_run(Sample(folder=run, prompt="玄德", new_tokens=0)) == "玄德"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prompt", ""], "prompt is empty"),
        (["--temperature", "-1"], "temperature=-1.0 must be 0 or more"),
        (["--new-tokens", "-1"], "max_new_tokens=-1 must be 0 or more"),
        (["--seed", "99999999999999999999999"], "seed=99999999999999999999999 must fit into 64 bits"),
    ],
)
def test_what_a_user_can_mend_is_told_in_one_line(run, capsys, options, words):
    assert main(["sample", str(run), *options]) == 1
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_a_folder_without_a_run_or_without_a_checkpoint_is_named(run, tmp_path, capsys):
    assert main(["sample", str(tmp_path)]) == 1
    assert "holds no run" in capsys.readouterr().err
    shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    assert main(["sample", str(tmp_path / "copy")]) == 1
    assert "no whole checkpoint" in capsys.readouterr().err


def test_the_end_of_a_text_is_written_as_a_word():
    assert shown("one\0two") == "one<|endoftext|>two"


def test_a_run_whose_weights_were_shared_out_is_sampled_like_any_other(run, tmp_path, capsys):
    """Its checkpoint holds a tied weight once."""
    options = ["--corpus", str(run.parent / "poem.txt"), "--processes", "2", "--shard", "--out", str(tmp_path / "run")]
    assert main([*QUICK, *options, "--prompt", "却说"]) == 0
    capsys.readouterr()
    assert main(["sample", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.startswith("却说")
