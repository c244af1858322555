"""The site: every notebook is in it as it was stored, each link leads somewhere, and nothing comes from elsewhere."""

import html
import importlib
import re
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tinytrain.course.series import SERIES

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "docs/site"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture
def tool(monkeypatch):
    """A module of docs/site, which is no package."""
    monkeypatch.syspath_prepend(SITE)
    monkeypatch.delitem(sys.modules, "check_pages", raising=False)
    monkeypatch.delitem(sys.modules, "make_site", raising=False)
    return importlib.import_module


def pins(path):
    lines = (line.split("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return {canonicalize_name(pin.name): pin for pin in map(Requirement, filter(None, lines))}


# Without the tools that build it


def test_every_notebook_of_the_series_is_in_the_contents_in_order(tool):
    notebooks, others = tool("make_site").table_of_contents(ROOT).values()
    written = [lesson.file for lesson in SERIES if (ROOT / "notebooks" / lesson.file).is_file()]
    assert notebooks == [f"notebooks/{name}" for name in written]
    wanted = {f"docs/{name}" for name in ("glossary.md", "claims.md", "command_line.md", "command_line.zh-CN.md")}
    assert wanted <= set(others) and all((ROOT / name).is_file() for name in others)


def test_every_page_that_another_one_links_to_is_in_the_contents(tool):
    """Sphinx refuses a page that is copied and in no table of contents."""
    make_site = tool("make_site")
    for name in ("README.md", *make_site.OTHER_PAGES):
        linked = make_site.linked_files((ROOT / name).read_text("utf-8"))
        pages = {(ROOT / name).parent.joinpath(link).resolve() for link in linked if link.endswith((".md", ".ipynb"))}
        inside = {ROOT / path for paths in make_site.table_of_contents(ROOT).values() for path in paths}
        assert pages <= inside | {ROOT / "README.md"}, f"{name} links to a page that is not in OTHER_PAGES"


def test_the_start_page_is_the_readme_with_the_contents_behind_it(tool, tmp_path):
    tool("make_site").lay_out(ROOT, tmp_path)
    readme, start = (ROOT / "README.md").read_text("utf-8"), (tmp_path / "index.md").read_text("utf-8")
    assert start.startswith(readme)
    contents = start.removeprefix(readme)
    assert contents.count("{toctree}") == 2
    for path in NOTEBOOKS:
        assert f"\nnotebooks/{path.stem}\n" in contents
        assert (tmp_path / "notebooks" / path.name).read_bytes() == path.read_bytes()


def test_the_chinese_page_is_in_the_contents_and_links_to_the_start_page(tool, tmp_path):
    """On the site README.md is called index, and its headings have other names than on GitHub."""
    tool("make_site").lay_out(ROOT, tmp_path)
    chinese, page = ((folder / "README.zh-CN.md").read_text("utf-8") for folder in (ROOT, tmp_path))
    assert "[English](README.md)" in chinese and "[English](index.md)" in page
    assert "(README.md" not in page and page.count("](index.md)") == chinese.count("](README.md")
    assert "\n中文 <README.zh-CN>\n" in (tmp_path / "index.md").read_text("utf-8")


def test_the_workflow_builds_what_make_builds_and_publishes_main_alone():
    jobs = yaml.safe_load((ROOT / ".github/workflows/site.yml").read_text("utf-8"))["jobs"]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    recipe = re.search(r"^site:.*\n\t(.*)$", makefile, re.MULTILINE)[1]
    folder = recipe.split()[-1]
    assert [step["run"] for step in jobs["build"]["steps"] if "run" in step] == ["make site"]
    assert [step["with"]["path"] for step in jobs["build"]["steps"] if "pages" in step.get("uses", "")] == [folder]
    assert "refs/heads/main" in jobs["publish"]["if"] and "pull_request" in jobs["publish"]["if"]
    assert jobs["publish"]["needs"] == "build"


def test_every_pin_is_exact_and_the_same_as_the_notebooks_one():
    own, main = pins(SITE / "requirements.txt"), pins(ROOT / "requirements.txt")
    assert {"sphinx", "myst-nb", "furo"} <= set(own)
    assert all(re.fullmatch(r"==[^*]+", str(pin.specifier)) for pin in own.values())
    assert [str(pin) for name, pin in own.items() if name in main and pin.specifier != main[name].specifier] == []


def test_no_notebook_is_ever_run():
    settings = {}
    exec((SITE / "conf.py").read_text("utf-8"), settings)
    assert settings["nb_execution_mode"] == "off"
    assert settings["nb_ipywidgets_js"] == {}, "myst-nb would load widgets from a CDN"


ELSEWHERE = {
    "a script": '<script src="https://cdn.example/a.js"></script>',
    "without a scheme": '<script src="//cdn.example/a.js"></script>',
    "a style": '<link rel="stylesheet" href="https://cdn.example/a.css">',
    "a font": '<link rel="preload" as="font" href="https://cdn.example/a.woff2">',
    "a picture": '<img src="http://cdn.example/a.png">',
    "pictures by size": '<img src="a.png" srcset="a.png 1x, https://cdn.example/b.png 2x">',
    "a frame": '<iframe src="https://cdn.example/"></iframe>',
    "in a style": "<style>@import 'https://cdn.example/a.css';</style>",
    "in an attribute": "<p style=\"background: url('https://cdn.example/a.png')\">x</p>",
}


@pytest.mark.parametrize("loading", ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_a_browser_would_load_from_elsewhere_is_found(tool, tmp_path, loading):
    (tmp_path / "a.png").touch()
    (tmp_path / "page.html").write_text(loading, "utf-8")
    (line,) = tool("check_pages").faults(tmp_path)
    assert line.startswith("loaded from elsewhere: page.html: ") and "cdn.example" in line


def test_a_font_that_a_style_sheet_loads_is_found(tool, tmp_path):
    (tmp_path / "a.css").write_text("@font-face { src: url(https://cdn.example/a.woff2) }", "utf-8")
    assert tool("check_pages").faults(tmp_path) == ["loaded from elsewhere: a.css: https://cdn.example/a.woff2"]


@pytest.mark.parametrize("address", ["gone.html", "#gone", "b.html#gone", "../gone.html", "folder/"])
def test_a_link_that_leads_nowhere_is_found(tool, tmp_path, address):
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.html").write_text(f'<a href="{address}">x</a>', "utf-8")
    (tmp_path / "b.html").write_text('<h1 id="here">x</h1>', "utf-8")
    assert tool("check_pages").faults(tmp_path) == [f"leads nowhere: a.html: {address}"]


def test_links_that_lead_somewhere_are_no_faults(tool, tmp_path):
    good = ["b.html", "b.html#here", "#top", "b%20c.html", "https://example.org/", "mailto:a@example.org"]
    links = "".join(f'<a href="{address}">x</a>' for address in good)
    (tmp_path / "a.html").write_text(f'<h1 id="top">x</h1>{links}<img src="data:image/png;base64,AA">', "utf-8")
    (tmp_path / "b.html").write_text('<h1 id="here">x</h1>', "utf-8")
    (tmp_path / "b c.html").write_text('<link rel="canonical" href="https://example.org/">', "utf-8")
    assert tool("check_pages").faults(tmp_path) == []


# With them: `built_site` skips where `make site` has never been called


def test_the_built_site_has_no_faults(tool, built_site):
    assert tool("check_pages").faults(built_site) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_shows_what_its_notebook_stores(tool, built_site, path):
    """Every cell of code, every picture, every fold, closed; and each printed line, as it was printed."""
    page = (built_site / "notebooks" / f"{path.stem}.html").read_text("utf-8")
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    data = [output.get("data", {}) for output in outputs]
    prose = [c.source for c in notebook.cells if c.cell_type == "markdown"] + [d.get("text/markdown", "") for d in data]

    assert page.count('<div class="cell_input ') == len(code)
    assert page.count("<img ") == sum("image/png" in d or "<img" in d.get("text/html", "") for d in data)
    assert page.count("<details>") == sum(text.count("<details>") for text in prose)
    assert "<details open" not in page
    shown = html.unescape(re.sub(r"<[^>]+>", "", page))
    printed = [output.get("text", "") for output in outputs] + [d["text/plain"] for d in data if len(d) == 1]
    missing = [line for text in printed for line in text.splitlines() if line not in shown]
    assert missing == []
