"""Every import points downwards: no module needs itself by a detour, and no room needs the one above it."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "tinytrain").rglob("*.py"))
}


def imports_of(tree: ast.AST, modules=MODULES) -> set[str]:
    """The modules that this code imports, inside functions too; not those of ``if TYPE_CHECKING``.

    >>> sorted(imports_of(ast.parse("from tinytrain.loss import targets_of"), {"tinytrain.loss": None}))
    ['tinytrain.loss']
    """
    found, waiting = set(), [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside | ({node.module} if inside - set(modules) else set())
        waiting.extend(ast.iter_child_nodes(node))
    return found & set(modules)


@cache
def arrows() -> dict[str, set[str]]:
    return {name: imports_of(ast.parse(path.read_text("utf-8"))) for name, path in MODULES.items()}


def test_no_module_needs_itself_by_a_detour():
    try:
        TopologicalSorter(arrows()).prepare()
    except CycleError as error:
        pytest.fail(f"these need each other: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize(
    "room, may_be_used_by",
    [
        ("tinytrain.course", ("tinytrain.course",)),
        ("tinytrain.commands", ("tinytrain.commands", "tinytrain.__main__", "tinytrain.course")),
        ("tinytrain.watch", ("tinytrain.watch", "tinytrain.commands", "tinytrain.course")),
    ],
)
def test_no_room_needs_the_one_above_it(room, may_be_used_by):
    upwards = [
        f"{name} needs {needed}"
        for name, all_needed in arrows().items()
        for needed in all_needed
        if f"{needed}.".startswith(f"{room}.")
        and not f"{name}.".startswith(tuple(f"{user}." for user in may_be_used_by))
    ]
    assert not upwards
