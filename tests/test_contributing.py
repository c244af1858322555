"""CONTRIBUTING.md tells the truth about the path of one batch: its names, files and order are those of the code."""

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCK = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("<!-- path:start -->")[1].split("<!-- path:end -->")[0]
LINES = [line for line in BLOCK.splitlines() if line.strip("` ")]
CALLED_AS = {"GPT.forward": "model", "MicroBatches.__getitem__": "data"}  # what stands in the code that calls them
FIRST_OF_A_CLASS = ("__init__", "__post_init__")


@dataclass
class Stop:
    """A line of the path, and those that stand one step further in below it."""

    name: str
    file: str
    called: list["Stop"] = field(default_factory=list)


def read_path(lines: list[str]) -> list[Stop]:
    """Every line of the path in its order. Two spaces are one step further in.

    >>> [(stop.name, [inner.name for inner in stop.called]) for stop in read_path(["a  a.py", "  b  b.py  clause"])]
    [('a', ['b']), ('b', [])]
    """
    found, above = [], []
    for line in lines:
        depth = (len(line) - len(line.lstrip())) // 2
        name, file, *_ = re.split(r" {2,}", line.strip())
        stop = Stop(name, file)
        above[depth:] = [stop]
        if depth:
            above[depth - 1].called.append(stop)
        found.append(stop)
    return found


STOPS = read_path(LINES)
OURS = [stop for stop in STOPS if stop.file != "-"]


def definition(stop: Stop) -> ast.AST | None:
    """The class or function of a stop in its file; None if it is not there."""
    node: ast.AST = ast.parse((ROOT / "tinytrain" / stop.file).read_text("utf-8"))
    for name in stop.name.split("."):
        inner = [n for n in node.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == name]
        if not inner:
            return None
        node = inner[0]
    return node


def names_in_order(node: ast.AST) -> list[str]:
    """The names that a function uses, as it comes to them: those in the arguments of a call before that of the call.

    >>> names_in_order(ast.parse("a(b(c)).d()").body[0])
    ['c', 'b', 'a', 'd']
    """
    if isinstance(node, ast.ClassDef):
        return [name for n in node.body if getattr(n, "name", "") in FIRST_OF_A_CLASS for name in names_in_order(n)]
    if isinstance(node, ast.Call):
        inner = [*([node.func.value] if isinstance(node.func, ast.Attribute) else []), *node.args, *node.keywords]
        own = [node.func.attr] if isinstance(node.func, ast.Attribute) else names_in_order(node.func)
        return [name for part in inner for name in names_in_order(part)] + own
    own = [node.attr] if isinstance(node, ast.Attribute) else [node.id] if isinstance(node, ast.Name) else []
    return [name for part in ast.iter_child_nodes(node) for name in names_in_order(part)] + own


@pytest.mark.parametrize("stop", OURS, ids=lambda stop: stop.name)
def test_each_function_stands_in_its_file(stop):
    assert (ROOT / "tinytrain" / stop.file).is_file(), f"tinytrain/{stop.file} is not there"
    assert definition(stop) is not None, f"tinytrain/{stop.file} has no {stop.name}"


@pytest.mark.parametrize("stop", [stop for stop in OURS if stop.called], ids=lambda stop: stop.name)
def test_a_function_calls_what_stands_below_it_in_that_order(stop):
    names, place = names_in_order(definition(stop)), 0
    for inner in stop.called:
        name = CALLED_AS.get(inner.name, inner.name.rpartition(".")[2])
        assert name in names, f"{stop.name} does not call {inner.name}"
        assert name in names[place:], f"{stop.name} calls {inner.name} earlier than the path says"
        place += names[place:].index(name) + 1


def test_each_law_is_kept_somewhere_on_the_path():
    laws = {int(path.name[9:11]) for path in (ROOT / "tests/laws").glob("test_law_*.py")}
    assert {int(number) for number in re.findall(r"\[(\d+)\]", BLOCK)} == laws
