import json

import pytest

from tinytrain.course.logbook_12 import Logbook, held


def test_what_lies_within_three_spreads_is_not_seen():
    assert [held(gain, 0.1) for gain in (0.29, -0.29, 0.31, -0.31)] == ["not seen", "not seen", "yes", "no"]


def test_the_logbook_has_a_date_and_keeps_what_was_written(tmp_path):
    book = Logbook(tmp_path / "book.jsonl")
    book.add("not seen", False, hypothesis="a", change="b", result="c")
    book.add("yes", True, hypothesis="d", change="e", result="f")
    lines = [json.loads(line) for line in book.path.read_text(encoding="utf-8").splitlines()]
    assert lines == book.entries and [line["kept"] for line in lines] == ["no", "yes"]
    assert [line["held"] for line in lines] == ["not seen", "yes"]
    assert all(len(line["date"]) == 10 for line in lines)
    shown = book._repr_markdown_()
    assert shown.count("\n") == 3 and "| d | e | f | yes | yes |" in shown
    assert lines[0]["date"] not in shown and lines[0]["date"].replace("-", "\u2011") in shown, "a date is not broken"
    with pytest.raises(ValueError, match="outcome='perhaps' must be one of yes, no, not seen"):
        book.add("perhaps", False, hypothesis="a", change="b", result="c")
