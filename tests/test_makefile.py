"""The Makefile does what its help says, and CI and pre-commit run the same thing."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE).group(1).split()

needs_make = pytest.mark.skipif(
    shutil.which("make") is None or sys.platform == "win32", reason="the Makefile is for Linux and macOS"
)


def make(*arguments: str) -> subprocess.CompletedProcess:
    """Run make in the project, as from a fresh shell: not as a child of the make that may run this test."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "VENV", "PYTHON"))}
    command = ["make", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@needs_make
def test_help_lists_every_target():
    listed = re.findall(r"^make (\w+)", make("help").stdout, re.MULTILINE)
    assert listed == TARGETS


@needs_make
def test_lab_opens_the_first_notebook_with_the_given_options():
    lines = make("-n", "lab", "LAB_ARGS=--no-browser --port 8899").stdout.splitlines()
    assert "--no-browser --port 8899" in lines[-1]
    assert "notebooks/00_start_here.ipynb" in lines[-1]
    assert ("--allow-root" in lines[-1]) == (os.getuid() == 0)


@needs_make
def test_test_runs_lint_then_tests_then_notebooks():
    plan = make("-n", "test").stdout
    steps = ("ruff check .", "ruff format --check .", "-m pytest", "--nbmake notebooks/")
    places = [plan.find(step) for step in steps]
    assert places == sorted(places), plan
    assert places[0] >= 0, plan


@needs_make
def test_coverage_and_mutants_install_their_tools_beside_those_of_the_tests(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    for target, tool in (("coverage", "coverage run -m pytest -x"), ("mutants", "mutmut run tinytrain.loss.*")):
        plan = make("-n", target, f"VENV={tmp_path}", "PYTEST_ARGS=-x", "MUTANTS=tinytrain.loss.*").stdout
        steps = ("-r requirements.txt", "-r requirements-trust.txt", f"{tmp_path}/bin/{tool}")
        places = [plan.find(step) for step in steps]
        assert places == sorted(places) and places[0] >= 0, plan


INSTALLED_FROM = ["requirements.txt", "requirements-data.txt", "pyproject.toml"]


@needs_make
@pytest.mark.parametrize("changed", [None, *INSTALLED_FROM])
def test_installing_is_repeated_only_after_a_change(tmp_path, changed):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    (tmp_path / ".installed").touch()
    newest = max((ROOT / name).stat().st_mtime for name in INSTALLED_FROM)
    os.utime(tmp_path / ".installed", (newest + 10, newest + 10))
    options = [f"--what-if={changed}"] if changed else []
    plan = make("-n", *options, "lab", f"VENV={tmp_path}").stdout
    assert ("pip install" in plan) == (changed is not None), plan


@needs_make
@pytest.mark.parametrize("version", [(3, 10), (3, 11), (3, 12), (3, 13), (3, 14)])
def test_make_refuses_the_pythons_that_the_package_refuses(tmp_path, version):
    """A stand-in that is this Python but reports another version, and makes no environment."""
    fake = tmp_path / "fakepython"
    report = f"import sys; sys.version_info = ({version[0]}, {version[1]}, 0, 'final', 0); exec(sys.argv[2])"
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = -m ] && mkdir -p "$3/bin" && touch "$3/bin/python" && exit\n'
        f'[ "$1" = --version ] && echo "Python {version[0]}.{version[1]}" && exit\n'
        f'exec "{sys.executable}" -c "{report}" "$@"\n'
    )
    fake.chmod(0o755)
    venv = tmp_path / "venv"
    done = make(f"{venv}/bin/python", f"PYTHON={fake}", f"VENV={venv}")

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    supported = SpecifierSet(project["requires-python"]).contains(f"{version[0]}.{version[1]}")
    assert (done.returncode == 0) == supported == venv.exists(), done.stdout + done.stderr
    if not supported:
        assert f"Python {version[0]}.{version[1]}" in done.stdout, "the message names the version it found"
        assert "make PYTHON=" in done.stdout, "and the cure"


def test_ci_and_pre_commit_run_what_make_runs():
    script = (ROOT / ".ci/run").read_text("utf-8")
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    assert script.rstrip().endswith("\nmake test")
    assert any(step.get("run") == "bash .ci/run" for step in workflow["jobs"]["everything"]["steps"])
    assert [hook["entry"] for repo in hooks["repos"] for hook in repo["hooks"]] == ["make check"]


@pytest.mark.skipif(sys.platform == "win32", reason="bash")
def test_the_ci_script_is_valid_bash_and_stops_at_the_first_error():
    assert subprocess.run(["bash", "-n", ROOT / ".ci/run"], check=False).returncode == 0
    assert "set -euo pipefail" in (ROOT / ".ci/run").read_text("utf-8")
