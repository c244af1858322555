"""A real JupyterLab in a real Chromium, for tests that click what a reader would click."""

import os
import shutil
from pathlib import Path

import pytest
from labpage import Lab, NotebookPage

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_FLAGS = [
    "--no-sandbox",  # containers run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def missing(what):
    """Skip, or fail where the browser tests must run."""
    if os.environ.get("TINYTRAIN_REQUIRE_BROWSER") == "1":
        pytest.fail(f"TINYTRAIN_REQUIRE_BROWSER=1, but there is no {what}")
    pytest.skip(f"no {what} (TINYTRAIN_REQUIRE_BROWSER=1 makes this a failure)")


def find_chromium():
    """The browser's path, or None: TINYTRAIN_CHROMIUM if set, else the first known name on PATH."""
    if named := os.environ.get("TINYTRAIN_CHROMIUM"):
        return shutil.which(named)
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium, closed at the end."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright")
    path = find_chromium() or missing(f"Chromium ({', '.join(BROWSERS)} on PATH, or TINYTRAIN_CHROMIUM)")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory, browser):
    """The server; `browser` comes first so that nothing starts where there is none."""
    server = Lab(tmp_path_factory.mktemp("lab"))
    try:
        server.wait_until_up()
        yield server
    finally:
        server.stop()


@pytest.fixture
def open_notebook(lab, browser):
    """`open_notebook(name)` opens a notebook of the lab's folder; all are closed at the end."""
    pages = []

    def open_one(name):
        pages.append(NotebookPage(lab, browser, name))
        return pages[-1]

    yield open_one
    for page in pages:
        if not page.page.is_closed():
            page.close()


@pytest.fixture
def screenshots(tmp_path):
    """Where pictures go: TINYTRAIN_SCREENSHOTS if set, else a temporary folder."""
    folder = Path(os.environ.get("TINYTRAIN_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
