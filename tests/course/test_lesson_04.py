"""What notebook 04 shows as a growth is the real difference of two sources; its profiler is quiet."""

import os

import pytest
import torch
from torch.profiler import record_function

from tinytrain.course.lesson_04 import cpu_profile, growth, show_growth


def add_1(a, b):
    total = a + b
    print(total)
    return total


def add_2(a, b):
    total = a + b
    total = max(total, 0)
    return total


def far_1(a):
    one = a
    two = one
    three = two
    four = three
    return four


def far_2(a):
    zero = a
    one = a
    two = one
    three = two
    four = three
    return four + zero


def test_added_and_dropped_lines_are_marked_and_the_numbered_name_is_no_difference():
    text = growth(add_1, add_2, context=0)
    assert text.splitlines() == ["  …", "-     print(total)", "+     total = max(total, 0)"]
    assert "def " not in growth(add_1, add_2, context=1)


def test_lines_around_are_shown_as_far_as_asked():
    lines = growth(add_1, add_2, context=9).splitlines()
    assert lines[1] == "  def add(a, b):"
    assert [line[0] for line in lines[1:]] == [" ", " ", "-", "+", " "]


def test_two_places_are_kept_apart():
    assert growth(far_1, far_2, context=0).count("…") == 2


def test_nothing_differs_from_itself():
    assert growth(add_1, add_1) == ""


def test_it_is_displayed_as_a_marked_block(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    show_growth(add_1, add_2)
    assert "```diff" in shown[0]._repr_markdown_() and "**add_1 → add_2**" in shown[0]._repr_markdown_()
    assert "+     total = max(total, 0)" in repr(shown[0])


def test_the_profile_has_the_named_parts_and_nothing_is_written_to_stderr(capfd):
    with cpu_profile() as recorded, record_function("a part of mine"):
        torch.ones(100).cumsum(0)
    spent = {event.key: event.cpu_time_total for event in recorded.key_averages()}
    assert spent["a part of mine"] > 0
    assert capfd.readouterr().err == ""


def test_stderr_works_again_after_an_error_in_the_profiled_block(capfd):
    with pytest.raises(ValueError, match="in the block"), cpu_profile():
        raise ValueError("in the block")
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"
