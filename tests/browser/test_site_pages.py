"""The built site as a reader meets it: served, searched, unfolded, on a phone; and it asks nobody else for anything."""

import functools
import http.server
import threading

import pytest

pytestmark = pytest.mark.browser


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(browser, built_site):
    """Where the site is served."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=built_site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def page(browser, address):
    """A page that keeps what it asked others for, and what went wrong."""
    opened = browser.new_page(viewport={"width": 1400, "height": 900})
    opened.elsewhere, opened.errors = [], []
    opened.on("request", lambda r: r.url.startswith((address, "data:")) or opened.elsewhere.append(r.url))
    opened.on("response", lambda r: r.status < 400 or opened.errors.append(f"{r.status} {r.url}"))
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    yield opened
    opened.close()
    assert (opened.elsewhere, opened.errors) == ([], [])


def test_from_the_start_page_to_a_notebook_and_on(page, address):
    page.goto(f"{address}/index.html")
    page.locator("article table a", has_text="03 warmup").click()
    page.wait_for_url("**/notebooks/03_warmup.html")
    assert page.locator("h1").inner_text().startswith("03 · Is warmup optional?")
    page.locator("article a", has_text="04 loop").first.click()
    page.wait_for_url("**/notebooks/04_loop.html")


def test_searching_for_warmup_finds_its_notebook_first(page, address):
    page.goto(f"{address}/index.html")
    page.locator("input[name=q]").first.fill("warmup")
    page.keyboard.press("Enter")
    first = page.locator("#search-results li a").first
    first.wait_for()
    assert first.get_attribute("href").startswith("notebooks/03_warmup.html")


def test_a_solution_is_folded_until_it_is_opened(page, address):
    page.goto(f"{address}/notebooks/03_warmup.html")
    fold = page.locator("details", has=page.locator("summary", has_text="A solution")).first
    code = fold.locator("pre")
    assert not code.is_visible()
    fold.locator("summary").click()
    code.wait_for()
    assert "return 1 - math.acos" in code.inner_text()


@pytest.mark.parametrize("width", [390, 1312, 1400, 1600])
@pytest.mark.parametrize("name", ["index", "notebooks/11_nan_lab", "docs/claims"])
def test_no_page_is_wider_than_its_window(page, address, name, width):
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{address}/{name}.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    pictures = page.locator("img").all()
    assert all(picture.evaluate("e => e.complete && e.naturalWidth > 0") for picture in pictures)
