"""Every exercise, found by discovery: right answers pass, the stub is open, wrong answers are told what is wrong."""

import ast
import importlib.util
import json
import random
import sys
from pathlib import Path

import pytest
import torch

from tinytrain.course import progress
from tinytrain.course.cells import exercise_cells
from tinytrain.course.exercises import Exercise, Report, all_exercises, check, exercise, progress_table, verdict

HERE = Path(__file__).parent
EXERCISES = all_exercises()
sys.path.insert(0, str(HERE / "answers"))  # an answer's file may import what stands beside it


def answers_of(lesson):
    path = HERE / "answers" / f"wrong_{lesson:02d}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ANSWERS = {lesson: answers_of(lesson) for lesson in {each.lesson for each in EXERCISES.values()}}
WRONG = [(key, name) for key, each in EXERCISES.items() for name in ANSWERS[each.lesson].WRONG[each.number]]
RIGHT = [(key, name) for key, each in EXERCISES.items() for name in ANSWERS[each.lesson].RIGHT[each.number]]


class AlwaysEqual:
    """Says yes to any comparison."""

    def __eq__(self, _other):
        return True

    __hash__ = None


def said(key, answer):
    return verdict(EXERCISES[key], EXERCISES[key].examine(answer))


def the_stub(each):
    names = {"torch": torch, "Tensor": torch.Tensor}
    annotated = ast.parse(each.stub())
    function = annotated.body[0]
    function.returns = None
    for argument in [*function.args.args, *function.args.kwonlyargs]:
        argument.annotation = None
    exec(compile(annotated, "stub", "exec"), names)
    return names[function.name]


@pytest.fixture(autouse=True)
def drawn_alike(request):
    """Checks draw their questions: here each test draws the same ones each time, so that a rare draw in which a mistake
    looks like another one does not turn a run red by chance."""
    random.seed(request.node.nodeid)
    torch.manual_seed(random.getrandbits(32))


@pytest.fixture(params=EXERCISES)
def key(request):
    return request.param


def test_the_exercises_of_every_file_are_found_under_their_own_number():
    files = {path.stem[-2:] for path in (HERE.parents[1] / "tinytrain/course").glob("exercise_*.py")}
    assert {key[:2] for key in EXERCISES} == files
    for lesson in ANSWERS:
        numbers = [each.number for each in EXERCISES.values() if each.lesson == lesson]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= (2 if lesson in (0, 12) else 3)


def test_it_has_four_wrong_answers_or_more_and_another_right_one(key):
    each = EXERCISES[key]
    assert len(ANSWERS[each.lesson].WRONG[each.number]) >= 4
    assert len(ANSWERS[each.lesson].RIGHT[each.number]) >= 1


@pytest.mark.parametrize("_again", range(3))
def test_the_solution_passes(key, _again):
    assert said(key, EXERCISES[key].solution).startswith(f"Exercise {key}: right.")


@pytest.mark.parametrize(("key", "name"), RIGHT)
def test_a_right_answer_of_another_kind_passes(key, name):
    each = EXERCISES[key]
    assert said(key, ANSWERS[each.lesson].RIGHT[each.number][name]).startswith(f"Exercise {key}: right."), said(
        key, ANSWERS[each.lesson].RIGHT[each.number][name]
    )


@pytest.mark.parametrize(("key", "name"), WRONG)
def test_a_wrong_answer_is_told_its_likely_mistake(key, name):
    each = EXERCISES[key]
    answer, hint = ANSWERS[each.lesson].WRONG[each.number][name]
    text = said(key, answer)
    assert text.startswith(f"Exercise {key}: not yet."), text
    assert "DOES NOT HOLD" in text and hint in text, text
    assert "It stopped with" not in text, f"a wrong answer must run: {text}"


def test_the_stub_is_not_tried_yet(key):
    assert said(key, the_stub(EXERCISES[key])) == f"Exercise {key}: not tried yet."


def test_nothing_passes_by_an_error_or_by_being_strange(key):
    def raises(*_given, **_named):
        raise ValueError("broken on purpose")

    def other_stub(*_given, **_named):
        raise NotImplementedError("some operator is not there")

    def leaves(*_given, **_named):
        raise SystemExit

    assert "It stopped with ValueError: broken on purpose" in said(key, raises)
    assert "It stopped with SystemExit" in said(key, leaves)
    assert "It stopped with NotImplementedError" in said(key, other_stub)
    for strange in (None, AlwaysEqual(), float("nan"), torch.tensor(float("nan")), True, {}, []):
        text = said(key, lambda *_given, strange=strange, **_named: strange)
        assert text.startswith(f"Exercise {key}: not yet."), (strange, text)
    assert said(key, lambda *given, **_named: given[0] if given else None).startswith(f"Exercise {key}: not yet.")


def nan_like(value):
    """The same shape and kind, with NaN for every float."""
    if isinstance(value, torch.Tensor):
        return torch.full_like(value, float("nan")) if value.is_floating_point() else value
    if isinstance(value, float):
        return float("nan")
    if isinstance(value, tuple | list):
        return type(value)(nan_like(each) for each in value)
    return {name: nan_like(each) for name, each in value.items()} if isinstance(value, dict) else value


def has_floats(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return any(map(has_floats, value))
    return isinstance(value, float) or (isinstance(value, torch.Tensor) and value.is_floating_point())


def test_nan_in_place_of_every_number_does_not_pass(key):
    gave_floats = []

    def answer(*given, **named):
        right = EXERCISES[key].solution(*given, **named)
        gave_floats.append(has_floats(right))
        return nan_like(right)

    text = said(key, answer)
    if any(gave_floats):
        assert text.startswith(f"Exercise {key}: not yet."), text


def described(value):
    if isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: described(each) for name, each in value.items()}
    return [described(each) for each in value] if isinstance(value, tuple | list) else repr(value)


def test_it_asks_with_fresh_inputs_every_time(key):
    def record():
        seen = []

        def answer(*given, **named):
            seen.append((described(given), described(named)))
            return EXERCISES[key].solution(*given, **named)

        EXERCISES[key].examine(answer)
        return seen

    rounds = []
    for _ in range(4):  # two may draw the same few numbers by chance
        torch.manual_seed(0)
        rounds.append(record())
    assert any(each != rounds[0] for each in rounds), "the check asks the same questions each time"


def test_a_check_leaves_the_random_generators_as_they_were(key):
    torch.manual_seed(0)
    random.seed(0)
    expected = torch.rand(3), random.random()
    torch.manual_seed(0)
    random.seed(0)
    EXERCISES[key].examine(EXERCISES[key].solution)
    assert torch.equal(torch.rand(3), expected[0]) and random.random() == expected[1]


def test_its_words_are_complete(key):
    each = EXERCISES[key]
    task, stub, checks, folded = exercise_cells(each)
    assert each.title in task.source and each.goal in task.source and f"about {each.minutes} minutes" in task.source
    assert stub.source.count("raise NotImplementedError") == 1
    assert each.solution.__name__ in checks.source
    assert folded.source.count("<details>") == 3 and each.source() in folded.source
    assert len(each.source().splitlines()) <= 30
    for text in (each.goal, *each.hints):
        assert text.strip()[0].isupper() or text.strip()[0] == "`"
        assert text.strip()[-1] in ".?:)", text


def a_report(*lines):
    report = Report()
    for line in lines:
        report.that(*line)
    return report


def test_a_report_passes_only_if_something_was_asked_and_all_of_it_holds():
    assert not a_report().passed
    assert a_report(("one", True), ("two", True)).passed
    assert not a_report(("one", True), ("two", False, "a slip")).passed
    assert a_report(("one", False), ("two", False, "a slip")).likely == "a slip"


@pytest.mark.parametrize("ok", [torch.tensor(True), 1, None, AlwaysEqual()])
def test_a_check_that_gives_no_plain_truth_value_is_refused(ok):
    with pytest.raises(TypeError, match="True or False is needed"):
        a_report(("one", ok))


def test_the_verdict_says_what_holds_and_what_does_not():
    report = a_report(("the shape", True), ("the value", False, "It counts padding."))
    lines = verdict(EXERCISES["00.1"], report).splitlines()
    assert lines[0] == "Exercise 00.1: not yet."
    assert lines[1:] == [
        "  holds          the shape",
        "  DOES NOT HOLD  the value",
        "  likely         It counts padding.",
    ]


def test_check_prints_and_remembers(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "progress.json"))
    right = EXERCISES["00.1"].solution
    check("00.1", the_stub(EXERCISES["00.1"]))
    assert progress.recall() == {}
    check("00.1", lambda T: None)
    assert progress.recall() == {"00.1": "tried"}
    check("00.1", right)
    check("00.1", lambda T: None)
    assert progress.recall() == {"00.1": "solved"}  # once solved stays solved
    check("00.1", None)
    printed = capsys.readouterr().out
    assert (
        "not tried yet" in printed and "right." in printed and "A function is wanted, and this is NoneType" in printed
    )


def test_progress_that_cannot_be_kept_or_read_is_said_and_stops_nothing(capsys, monkeypatch, tmp_path):
    path = tmp_path / "progress.json"
    monkeypatch.setenv(progress.VARIABLE, str(path))
    for text in ("[1, 2", "[" * 100_000):
        path.write_text(text)
        assert progress.recall() == {}
        assert "cannot be read" in capsys.readouterr().out
        assert (tmp_path / "progress.json.bad").read_text() == text  # nothing is lost
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "nowhere" / "progress.json"))
    progress.remember("00.1", solved=True)
    assert "progress was not kept" in capsys.readouterr().out
    monkeypatch.setenv(progress.VARIABLE, "")
    progress.remember("00.1", solved=True)
    assert progress.recall() == {}
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json.bad"]


def test_a_reader_of_progress_never_sees_half_a_file(monkeypatch, tmp_path):
    path = tmp_path / "progress.json"
    path.write_text("{}")
    monkeypatch.setenv(progress.VARIABLE, str(path))
    written = Path.write_text
    seen = []

    def watched(self, *given, **named):
        done = written(self, *given, **named)
        seen.append((self, path.read_text()))
        return done

    monkeypatch.setattr(Path, "write_text", watched)
    progress.remember("00.1", solved=True)
    ((where, meanwhile),) = seen
    assert where != path and meanwhile == "{}" and progress.recall() == {"00.1": "solved"}


def test_what_another_notebook_remembered_stays(monkeypatch, tmp_path):
    path = tmp_path / "progress.json"
    path.write_text(json.dumps({"05.1": "solved"}))
    monkeypatch.setenv(progress.VARIABLE, str(path))
    progress.remember("00.1", solved=False)
    assert progress.recall() == {"05.1": "solved", "00.1": "tried"}


def test_the_readers_progress_is_a_table(monkeypatch, tmp_path):
    path = tmp_path / "progress.json"
    path.write_text(json.dumps({"00.1": "solved", "00.2": "tried"}))
    monkeypatch.setenv(progress.VARIABLE, str(path))
    lines = progress_table().splitlines()
    assert lines[0] == f"**1 of {len(EXERCISES)} exercises solved.**"
    assert "| 00.1 | Write a causal mask | easy | 5 | solved |" in lines
    assert "| 00.2 | Find the leak | medium | 10 | tried |" in lines


def test_an_unknown_key_lists_the_known_ones():
    with pytest.raises(KeyError, match=r"no exercise '99\.9'; known are 00\.1, 00\.2"):
        exercise("99.9")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"difficulty": "nasty"}, "not one of easy, medium, hard"), ({"hints": ("one", "")}, "needs two hints")],
)
def test_an_incomplete_exercise_is_refused(change, message):
    given = {name: getattr(EXERCISES["00.1"], name) for name in Exercise.__dataclass_fields__}
    with pytest.raises(ValueError, match=message):
        Exercise(**{**given, **change})
