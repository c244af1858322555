"""Looks at built pages as files: does every link lead somewhere, and is anything loaded from elsewhere?"""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("link", "href"), ("object", "data"), ("image", "href"), ("use", "href")}  # beside whatever has a src
LOADED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "manifest", "preconnect"}
IN_STYLE = re.compile(r"(?:url\(\s*|@import\s+)['\"]?([^'\")\s;]+)")


class Page(HTMLParser):
    """What one page links to, what a browser loads to show it, and the ids in it."""

    def __init__(self, text: str):
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, pairs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in pairs}
        self.ids |= {attributes[name] for name in ("id", "name") if name in attributes}
        if tag == "a" and "href" in attributes:
            self.links.add(attributes["href"])
        for name, value in attributes.items():
            if name in ("src", "poster", "background") or (tag, name) in LOADED:
                if tag != "link" or LOADED_LINKS & set(attributes.get("rel", "").split()):
                    self.loads.add(value)
            elif name == "srcset":
                self.loads |= {part.split()[0] for part in value.split(",") if part.strip()}
            elif name == "style":
                self.loads |= set(IN_STYLE.findall(value))

    def handle_data(self, data: str) -> None:
        if self.lasttag == "style":
            self.loads |= set(IN_STYLE.findall(data))


def read_pages(site: Path) -> dict[Path, Page]:
    """All pages of a site."""
    return {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}


def is_elsewhere(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> list[str]:
    """'page: address' for each script, style, font or picture that is not the site's own."""
    loads = {path: page.loads for path, page in pages.items()}
    loads |= {path: set(IN_STYLE.findall(path.read_text("utf-8"))) for path in site.rglob("*.css")}
    found = [(path, address) for path in loads for address in sorted(loads[path]) if is_elsewhere(address)]
    return [f"{path.relative_to(site).as_posix()}: {address}" for path, address in found]


def broken(site: Path, pages: dict[Path, Page]) -> list[str]:
    """'page: address' for each link and each picture, script or style of the site that is not there."""
    found = []
    for path, page in pages.items():
        for address in sorted(page.links | page.loads):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            missing_id = parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids
            if missing_id or not target.is_file():
                found.append(f"{path.relative_to(site).as_posix()}: {address}")
    return found


def faults(site: Path) -> list[str]:
    """All that is wrong with a built site, one line for each."""
    site = site.resolve()
    pages = read_pages(site)
    lines = [f"leads nowhere: {line}" for line in broken(site, pages)]
    return lines + [f"loaded from elsewhere: {line}" for line in loaded_from_elsewhere(site, pages)]
