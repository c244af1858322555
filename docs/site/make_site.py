"""Builds the site from what the repository holds: python docs/site/make_site.py build/site

The README is its first page; behind it stand the notebooks in order, with the outputs that they store, and the other
pages, the Chinese ones among them. Nothing is run, and nothing is fetched.
"""

import re
import shutil
import sys
from itertools import chain
from pathlib import Path

from check_pages import faults

ROOT = Path(__file__).resolve().parents[2]
CHINESE = "README.zh-CN.md"
MANUAL = ("docs/command_line.md", "docs/command_line.zh-CN.md")
REFERENCE = ("docs/glossary.md", "docs/claims.md", "docs/trust.md", "benchmarks/RESULTS.md", "CONTRIBUTING.md")
OTHER_PAGES = (MANUAL[0], *REFERENCE, CHINESE, MANUAL[1])
TITLES = {CHINESE: "中文"}  # in the contents, where a page's own title would not tell it from the first page
CAPTIONS = ("Notebooks", "More")  # over the two parts of the table of contents


def table_of_contents(root: Path) -> dict[str, list[str]]:
    """The pages behind the first one, as paths from the repository's root, under the captions of the two parts."""
    notebooks = [path.relative_to(root).as_posix() for path in sorted(root.glob("notebooks/*.ipynb"))]
    return dict(zip(CAPTIONS, (notebooks, list(OTHER_PAGES)), strict=True))


def linked_files(text: str) -> list[str]:
    """The files of the repository to which a page links, such as pictures and the licence."""
    targets = (target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target)
    return sorted({target for target in targets if target})


def anchor(heading: str) -> str:
    """The name by which JupyterLab, and so the notebooks' links, know a heading; conf.py names this function."""
    return heading.replace(" ", "-")


def contents_line(name: str) -> str:
    """A page as the table of contents names it: without its ending, and with a title of its own where it has one."""
    page = name.rsplit(".", 1)[0]
    return f"{TITLES[name]} <{page}>" if name in TITLES else page


def lay_out(root: Path, pages: Path) -> None:
    """Copies all pages into an empty folder as Sphinx wants them: the README is called index and has the contents."""
    readme = (root / "README.md").read_text("utf-8")
    contents = table_of_contents(root)
    for name in chain(linked_files(readme), *contents.values()):
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, pages / name)
    trees = ""
    for caption, names in contents.items():
        entries = "\n".join(contents_line(name) for name in names)
        trees += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"
    (pages / "index.md").write_text(readme + trees, "utf-8")
    chinese = (root / CHINESE).read_text("utf-8")
    (pages / CHINESE).write_text(re.sub(r"\]\(README\.md(#[^)]*)?\)", "](index.md)", chinese), "utf-8")


def build(root: Path, out: Path) -> int:
    """Writes the site to ``out``, anew. Returns 0, or Sphinx's exit status; any warning is a failure."""
    from sphinx.cmd.build import main

    work = out.with_name(out.name + "-work")
    for folder in (out, work):
        shutil.rmtree(folder, ignore_errors=True)
    lay_out(root, work / "pages")
    # -E and a new folder: a page that is gone leaves nothing behind. -W: a link that leads nowhere is an error.
    options = ["-q", "-E", "-W", "--keep-going", "-b", "html", "-c", str(Path(__file__).parent)]
    return main([*options, "-d", str(work / "doctrees"), str(work / "pages"), str(out)])


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    status = build(ROOT, folder)
    if status == 0 and (found := faults(folder)):
        print("\n".join(found), file=sys.stderr)
        status = 1
    if status == 0:
        print(f"open {folder / 'index.html'}")
    sys.exit(status)
