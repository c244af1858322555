import json
from pathlib import Path

import pytest

from tinytrain.course import recorded_12
from tinytrain.course.recorded_12 import record, recorded, result_of, show_recorded
from tinytrain.runlog import RunLog


def test_a_long_run_is_recorded_at_its_place(tmp_path, monkeypatch, capsys):
    with RunLog(tmp_path / "run") as run_log:
        for step in range(1, 101):
            line = {"batch": step, "step": step, "tokens_seen": 10 * step, "seconds_step": 1.5, "seconds_data": 0.3}
            run_log.write(line | {"eval_loss": 5 - step / 50, "eval_bits_per_byte": 4 - step / 50})
    monkeypatch.setattr(recorded_12, "sample_run", lambda _options: "ROMEO\nO, speak\n")
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps([{"name": n, "command": f"make {n}", "result": None} for n in ("one", "two")]))
    record(tmp_path / "run", "two", path)
    one, two = recorded(path)
    assert one["result"] is None and two["result"] == result_of(tmp_path / "run")
    found = two["result"]
    assert (found["updates"], found["tokens"], found["minutes"]) == (100, 1000, 3.0)
    assert len(found["curve"]) <= 40 and found["curve"][-1] == [3.0, 2.0] and found["bits_per_byte"] == 2.0
    show_recorded([one, two])
    printed = capsys.readouterr().out
    assert "not recorded yet" in printed and "2.000 bits a byte" in printed and "ROMEO / O, speak" in printed
    with pytest.raises(KeyError, match="no run called 'three'; it has one, two"):
        record(tmp_path / "run", "three", path)


def test_the_file_beside_the_notebooks_names_commands_that_the_command_line_knows():
    import tyro

    from tinytrain.commands.run_options import Train

    for run in recorded(Path(__file__).parents[2] / "notebooks/recorded_12.json"):
        words = run["command"].split()
        assert words[:4] == ["python", "-m", "tinytrain", "train"]
        assert tyro.cli(Train, args=words[4:]).steps > 0
