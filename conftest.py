"""What every test run shares: the small budget, and soak tests only when asked for."""

import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

# Set before any kernel starts: nbmake's kernels are children of this process and inherit it.
os.environ.setdefault("TINYTRAIN_BUDGET", "ci")

# Started in the background by a script, this process ignores interrupts, and so would the children that tests stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out soak tests unless `-m` names them.

    `-m "not soak"` among the default options would not do: any other `-m` on the command line replaces it,
    and `pytest -m "not browser"` would run for hours.
    """
    if "soak" in config.option.markexpr:
        return
    soak = [item for item in items if item.get_closest_marker("soak")]
    if soak:
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if item not in soak]


def pytest_report_header(config: pytest.Config) -> str:
    """Name the budget and each installed version that is not the pinned one: others may run, but say so."""
    differ = []
    for line in (Path(config.rootpath) / "requirements.txt").read_text("utf-8").splitlines():
        pin = line.split("#")[0].strip()
        if not pin or ((marker := Requirement(pin).marker) and not marker.evaluate()):
            continue
        name = Requirement(pin).name
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed = "missing"
        if installed == "missing" or not Requirement(pin).specifier.contains(installed, prereleases=True):
            differ.append(f"{name} {installed} (pinned {Requirement(pin).specifier})")
    versions = f"not as pinned: {', '.join(differ)}" if differ else "all versions as pinned"
    return f"tinytrain: budget {os.environ['TINYTRAIN_BUDGET']}, {versions}"


@pytest.fixture(autouse=True)
def _threads_as_before():
    """A test that computes with one thread leaves the others theirs: sums depend on it in the last digit."""
    before = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
    yield
    if before is not None and sys.modules["torch"].get_num_threads() != before:
        sys.modules["torch"].set_num_threads(before)


@pytest.fixture
def rows():
    """63 rows of 16 random tokens."""
    import torch

    from tinytrain.data import TokenRows

    return TokenRows(torch.randint(0, 256, (1009,), generator=torch.Generator().manual_seed(0)), 16, vocab_size=256)


@pytest.fixture
def data(rows):
    """The same as batches of 8 rows, in micro-batches of 3."""
    from tinytrain.data import RowBatches

    return RowBatches(rows=rows, batch_size=8, micro_batch_size=3)


@pytest.fixture
def on_disk(tmp_path):
    """Writes a tensor of ids to a token file and opens it."""
    from tinytrain.durable import write_synced
    from tinytrain.token_file import TokenFile, TokenWriter, dtype_for

    def write(ids, vocab_size=256, dtype=None, name="train.bin"):
        path, kept, dtype = tmp_path / name, [], dtype or dtype_for(vocab_size)

        def fill(file):
            kept.append(writer := TokenWriter(file, vocab_size, dtype))
            for part in ids.split(300):
                writer.write(part.numpy())

        checksum = write_synced(path, fill)
        text, tokens = kept[0].fingerprint(), kept[0].tokens
        return TokenFile(path, vocab_size=vocab_size, dtype=dtype, tokens=tokens, checksum=checksum, text=text)

    return write


@pytest.fixture
def any_format_is_fast(monkeypatch):
    """No warning about slow formats: whether there is one depends on the machine."""
    import tinytrain.precision

    monkeypatch.setattr(tinytrain.precision, "cpu_supports", lambda dtype: True)


@pytest.fixture
def shown(monkeypatch):
    """What is displayed while the test runs, as in a notebook."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # of another environment, IPython would warn
    InteractiveShell.instance()
    with capture_output() as captured:
        yield captured
    InteractiveShell.clear_instance()


@pytest.fixture(scope="session")
def built_site(tmp_path_factory):
    """The site, built anew by the tools that `make site` installs; skipped where it has never been called."""
    root = Path(__file__).resolve().parent
    python = root / os.environ.get("SITE_VENV", "build/site-venv") / "bin/python"
    if not python.is_file():
        pytest.skip("the site's tools are not installed (`make site` does)")
    site = tmp_path_factory.mktemp("site") / "pages"
    command = [python, root / "docs/site/make_site.py", site]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site
