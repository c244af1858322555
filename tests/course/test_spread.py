import json
import statistics

import pytest

from tinytrain.course.spread import RECORD, spread

ARMS = {"plain": [1.0, 1.1, 1.2], "other": [2.0, 2.4, 2.2]}


def test_it_is_the_larger_arms_standard_deviation(tmp_path):
    assert spread("x", ARMS, folder=tmp_path) == pytest.approx(statistics.stdev([2.0, 2.4, 2.2]))
    assert list(tmp_path.iterdir()) == []  # nothing is written unless it is asked for


def test_a_recording_run_keeps_it_and_one_seed_reads_it(tmp_path, monkeypatch):
    monkeypatch.setenv(RECORD, "1")
    spread("x", ARMS, folder=tmp_path)
    spread("a", {"one": [1.0, 1.5]}, folder=tmp_path)
    monkeypatch.delenv(RECORD)
    assert json.loads((tmp_path / "spread.json").read_text()) == {"a": 0.354, "x": 0.2}
    assert spread("x", {"plain": [1.0], "other": [2.0]}, folder=tmp_path) == 0.2
    assert spread("x", {"plain": [1.0, 2.0], "other": [2.0]}, folder=tmp_path) == 0.2  # one arm has no spread


def test_one_seed_without_a_record_names_the_cure(tmp_path):
    with pytest.raises(KeyError, match="no spread for 'x': run `make notebooks`"):
        spread("x", {"plain": [1.0]}, folder=tmp_path)


def test_arms_that_cannot_have_a_spread_are_refused(tmp_path):
    with pytest.raises(ValueError, match="are the seeds of each arm really different"):
        spread("x", {"plain": [1.0, 1.0]}, folder=tmp_path)
    for arm in ([], [1.0, float("nan")]):
        with pytest.raises(ValueError, match=r"arm 'plain' is .* it needs one finite value"):
            spread("x", {"plain": arm, "other": [1.0, 2.0]}, folder=tmp_path)
    with pytest.raises(ValueError, match="at least one arm"):
        spread("x", {}, folder=tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", '{"x": null}'])
def test_a_damaged_record_is_named(tmp_path, text):
    (tmp_path / "spread.json").write_text(text)
    with pytest.raises(ValueError, match=r"spread\.json cannot be read .* Restore it"):
        spread("x", {"plain": [1.0]}, folder=tmp_path)
