"""The README and the manual tell the truth: the map of the house, the commands and their options, the links."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from tinytrain.commands.main import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
MANUAL = (ROOT / "docs/command_line.md").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")

# Inside these folders the map names every file ("" is the top level); any other folder is one line.
NAMED_ONE_BY_ONE = {"", "tests", "notebooks", "benchmarks", "docs"}
NAMED_ONE_BY_ONE |= {
    "tinytrain",
    "tinytrain/commands",
    "tinytrain/watch",
    "tinytrain/watch/preflight",
    "tinytrain/course",
}
NEEDS_NO_LINE = {"__init__.py", ".gitignore", ".gitattributes"}
PATTERN = "tests/test_<module>.py"  # one line of the map for the tests of all the package's modules
NUMBERED = ("notebooks/NN_name.ipynb", "tinytrain/course/exercise_NN.py", "tinytrain/course/lesson_NN.py")
CLUTTER = {".git", ".venv", "venv", "runs", "checkpoints", "build", "screenshots", "test-results"}
CLUTTER_ENDINGS = (".egg-info", "cache", "cache__", ".pyc", "_checkpoints")


def read_house(readme: str) -> dict[str, str]:
    """The README's map as {path: clause}. Two spaces are one level; two or more part a name from its clause.

    >>> tree = "<!-- house:start -->\\n```\\ndocs/   pages\\n  a.md  one\\n```\\n<!-- house:end -->"
    >>> read_house(tree)
    {'docs': 'pages', 'docs/a.md': 'one'}
    """
    block = readme.split("<!-- house:start -->")[1].split("<!-- house:end -->")[0]
    house, parents = {}, []
    for line in filter(str.strip, block.splitlines()):
        if line.startswith("```"):
            continue
        indent = len(line) - len(line.lstrip())
        name, _, clause = re.sub(r"\s{2,}", "\t", line.strip()).partition("\t")
        parents = [*parents[: indent // 2], name.rstrip("/")]
        house["/".join(parents)] = clause
    return house


def files_of_the_project() -> list[str]:
    """What git knows or would add; without git, whatever is no cache, environment or run."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
        listed = done.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        listed = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*")]
    kept = (path for path in listed if (ROOT / path).is_file())
    return sorted(path for path in kept if not any(map(is_clutter, path.split("/"))))


def is_clutter(part: str) -> bool:
    return part in CLUTTER or part.endswith(CLUTTER_ENDINGS)


def what_needs_a_line(files: list[str]) -> set[str]:
    """Each file and folder directly inside a folder that is named one by one."""
    needed = set()
    for path in files:
        parts = path.split("/")
        for depth, part in enumerate(parts):
            folder = "/".join(parts[:depth])
            if folder in NAMED_ONE_BY_ONE and part not in NEEDS_NO_LINE:
                needed.add("/".join(parts[: depth + 1]))
    return needed


def covered_by_pattern(path: str, files: list[str]) -> bool:
    """One line serves for the tests of all modules, and one for each kind of file that every lesson has."""
    numbered = re.sub(
        r"/(exercise_|lesson_)?\d\d(_\w+)?\.", lambda m: f"/{m[1] or ''}NN{'_name' if m[2] else ''}.", path
    )
    if numbered in NUMBERED and numbered in HOUSE:
        return True
    name = re.fullmatch(r"tests/test_(\w+)\.py", path)
    modules = {Path(file).stem.strip("_") for file in files if re.fullmatch(r"tinytrain/.*\.py", file)}
    return PATTERN in HOUSE and name is not None and name[1] in modules


FILES = files_of_the_project()
HOUSE = read_house(README)


def test_every_file_has_its_line_in_the_map():
    needed = what_needs_a_line(FILES) - set(HOUSE)
    missing = [path for path in sorted(needed) if not covered_by_pattern(path, FILES)]
    assert not missing, "the README's map (after house:start) lacks a line for:\n" + "\n".join(missing)


def test_every_line_of_the_map_is_on_the_disk():
    folders = {"/".join(path.split("/")[:n]) for path in FILES for n in range(1, path.count("/") + 1)}
    extra = sorted(set(HOUSE) - set(FILES) - folders - {PATTERN, *NUMBERED})
    assert not extra, "the README's map has a line for what is not there:\n" + "\n".join(extra)


def test_every_line_of_the_map_has_one_clause():
    """A folder whose contents follow needs none."""
    for path, clause in HOUSE.items():
        opened = any(other.startswith(f"{path}/") for other in HOUSE)
        assert clause or opened, f"{path}: say in one clause what it is"
        assert not clause.endswith("."), f"{path}: a clause, not a sentence"


def test_every_make_command_is_a_target():
    targets = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())
    used = set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.MULTILINE))
    assert {"lab", "test"} <= used
    assert used <= targets, f"the Makefile has no target {sorted(used - targets)}"


def test_every_file_that_a_command_names_exists():
    blocks = re.findall(r"^```(?:bash|powershell)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    paths = r"\b(?:tests|notebooks|benchmarks|requirements|environment)\b[\w./-]*"
    named = re.findall(paths, re.sub(r"#.*", "", "\n".join(blocks)))
    missing = sorted({name for name in named if not (ROOT / name).exists()})
    assert named, "no command names a file: has the pattern of the code blocks changed?"
    assert not missing, f"the README's commands name what is not there: {missing}"


def help_of(capsys, *command: str) -> str:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    return capsys.readouterr().out


def test_the_readme_and_the_manual_have_every_command(capsys):
    commands = re.search(r"{([a-z,]+)}", help_of(capsys))[1].split(",")
    table = README.split("\n## Train without Jupyter\n")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(commands)
    assert set(re.findall(r"-m tinytrain (\w+)", MANUAL)) == set(commands), "the manual lacks one, or has one too many"


@pytest.mark.parametrize("page", [README, MANUAL], ids=["README.md", "docs/command_line.md"])
def test_every_option_of_a_command_line_is_one_of_its_command(page, capsys):
    """``\\`` at a line's end joins it with the next. What stands before ``-m tinytrain`` is torchrun's."""
    lines = re.findall(r"-m tinytrain (\w+)([^`\n]*)", page.replace("\\\n", " "))
    unknown = []
    for command, rest in lines:
        known = set(re.findall(r"--[\w-]+", help_of(capsys, command)))
        unknown += [f"{command} {option}" for option in re.findall(r"--[a-z][\w-]*", rest) if option not in known]
    assert lines and not unknown


def test_every_option_that_the_manual_names_is_one_of_a_command(capsys):
    commands = re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)
    known = {option for command in commands for option in re.findall(r"--[\w-]+", help_of(capsys, command))}
    named = re.findall(r"`(?:\w+ )?(--[a-z][\w-]*)", MANUAL)
    unknown = sorted(set(named) - known - {"--node-rank"})  # torchrun's
    assert named and not unknown


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md", "docs/command_line.md", "docs/command_line.zh-CN.md"])
def test_every_relative_link_and_picture_exists(name):
    page = ROOT / name
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
    local = [target.split("#")[0] for target in targets if "://" not in target and not target.startswith("#")]
    missing = sorted({path for path in local if not (page.parent / path).exists()})
    assert local, f"{name} links to nothing in the repository"
    assert not missing, f"{name} links to what is not there: {missing}"


def between(name: str) -> str:
    return README.split(f"<!-- {name}:start -->")[1].split(f"<!-- {name}:end -->")[0]


def test_each_verdict_that_the_readme_tells_is_one_of_the_page_of_claims():
    claims = [line.split(" | ") for line in (ROOT / "docs/claims.md").read_text("utf-8").splitlines()]
    rows = [line.strip("| ").split(" | ") for line in between("verdicts").strip().splitlines()[2:]]
    assert len(rows) == 5
    for name, _, told in rows:
        cards = [line for line in claims if line[0] == f"| {name}" and "does not hold" in line[4]]
        first = re.search(r"\d+\.?\d*", told)[0]
        digits = len(first.partition(".")[2])
        numbers = [float(n) for card in cards for n in re.findall(r"(?:^|: )(-?\d+\.?\d*(?:e-\d+)?)", card[2])]
        assert float(first) in [round(n, digits) for n in numbers], (name, first, numbers)


def test_its_table_of_speeds_is_the_one_that_was_measured():
    results = (ROOT / "benchmarks/RESULTS.md").read_text("utf-8")
    measured = results.split("<!-- begin marks -->")[1].split("<!-- end marks -->")[0]
    assert between("marks").strip() == measured.strip(), "copy the table at the head of benchmarks/RESULTS.md"


def test_the_lines_for_a_model_of_ones_own_run_as_they_stand(tmp_path, monkeypatch, capsys):
    """Only its length is cut: three updates of rows of 16."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_texts").mkdir()
    (tmp_path / "my_texts" / "one.txt").write_text("Shall I compare thee to a summer's day?\n" * 300, "utf-8")
    code = between("own model").replace("```python", "").replace("```", "").replace("128", "16")
    code = code.replace("total_steps=1000", "total_steps=3").replace("warmup_steps=100", "warmup_steps=1")
    torch.manual_seed(0)

    class MyModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.mix, self.head = (
                nn.Embedding(256, 16),
                nn.GRU(16, 16, batch_first=True),
                nn.Linear(16, 256),
            )

        def forward(self, input_ids, **_rest):
            return self.head(self.mix(self.table(input_ids))[0])

    exec(compile(code, "README.md", "exec"), {"MyModel": MyModel})
    printed = capsys.readouterr().out
    assert "no future leak" in printed and "loss" in printed
    assert (tmp_path / "runs/own/log.jsonl").is_file()
