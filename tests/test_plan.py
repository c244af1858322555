"""The plan command: from words on the command line to the planner, and what is wrong in one line."""

import pytest

from tinytrain.commands.main import main


def test_the_guides_model_on_its_card(capsys):
    assert main(["plan", "--preset", "120m", "--batch-size", "256", "--gpu-memory", "24", "--tokens", "500e6"]) == 0
    words = capsys.readouterr().out
    for part in ("108,489,216", "of 24 GiB", "131,072 tokens an update: 32 rows × 8", "3,815 updates"):
        assert part in words


def test_every_option_reaches_the_planner(capsys):
    command = ["plan", "--preset", "tiny", "--vocab-size", "1000", "--row-length", "64", "--batch-size", "24"]
    command += ["--micro-batch-size", "4", "--precision", "fp32", "--processes", "2", "--tokens", "1e6"]
    assert main([*command, "--gpu", "a100", "--mfu", "0.25"]) == 0
    words = capsys.readouterr().out
    for part in ("vocabulary 1,000", "24 rows of 64 tokens = 1,536", "4 rows × 3 × 2 processes", "25% of 624 TFLOP/s"):
        assert part in words
    assert "casts" not in words  # float32 makes no 16-bit copies

    def weights(*more):
        assert main([*command, *more]) == 0
        return capsys.readouterr().out

    plain = weights()
    assert len({plain, weights("--shard"), weights("--recompute"), weights("--loss-chunk", "16")}) == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--preset", "1b"], "preset '1b' is not one of nano"),
        (["--gpu", "h300"], "gpu 'h300' is not one of h200"),
        (["--preset", "7b", "--gpu-memory", "24"], "one row of 2048 tokens needs"),
    ],
)
def test_what_cannot_be_planned_is_one_line_and_status_1(wrong, message, capsys):
    assert main(["plan", *wrong]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
