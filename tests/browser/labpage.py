"""A JupyterLab server of its own, and a notebook open in it."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import nbformat

START_S = 120  # a loaded machine takes tens of seconds to start a server or a kernel
# JupyterLab asks at its first start whether it may fetch news; this answers.
NO_NEWS = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
KERNEL_IS_IDLE = """() => {
    const context = window.jupyterapp?.shell?.currentWidget?.sessionContext;
    return context?.isReady && context?.session?.kernel?.status === 'idle';
}"""


class Lab:
    """A JupyterLab server with its own settings, serving the notebooks in `root`."""

    def __init__(self, folder):
        self.root = folder / "notebooks"
        self.token = secrets.token_hex(16)
        overrides = folder / "config" / "labconfig" / "default_setting_overrides.json"
        for path in (self.root, overrides.parent):
            path.mkdir(parents=True)
        overrides.write_text(json.dumps(NO_NEWS), encoding="utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = folder / "lab.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self._command(), env=self._environment(folder), stdout=log, stderr=log)

    def _command(self):
        return [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"),
            *("--ip=127.0.0.1", f"--port={self.port}", "--ServerApp.port_retries=0"),
            *(f"--ServerApp.root_dir={self.root}", f"--IdentityProvider.token={self.token}"),
        ]

    def _environment(self, folder):
        own = {"CONFIG": "config", "DATA": "data", "RUNTIME": "runtime"}
        folders = {f"JUPYTER_{name}_DIR": str(folder / where) for name, where in own.items()}
        lab = {f"JUPYTERLAB_{name}_DIR": str(folder / name) for name in ("SETTINGS", "WORKSPACES")}
        return {
            **os.environ,
            **folders,
            **lab,
            "IPYTHONDIR": str(folder / "ipython"),
            "TINYTRAIN_BUDGET": "laptop",  # long enough to be stopped
        }

    def api(self, path, method="GET"):
        """Ask the server's REST interface; the parsed answer, or None where there is none."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/{path}",
            method=method,
            headers={"Authorization": f"token {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def wait_until_up(self):
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                return self.api("status")
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.2)
        raise AssertionError(f"JupyterLab did not start:\n{self.log.read_text(encoding='utf-8')[-3000:]}")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(20)


class NotebookPage:
    """A notebook, open in JupyterLab."""

    def __init__(self, lab, browser, name):
        self.lab, self.path = lab, lab.root / name
        self.problems = []  # exceptions in the page, and errors in its console
        scale = 2 if "TINYTRAIN_SCREENSHOTS" in os.environ else 1  # sharp pictures where they are kept
        self.page = browser.new_page(viewport={"width": 1100, "height": 900}, device_scale_factor=scale)
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        self.page.on("console", self._console)
        self.page.goto(f"http://127.0.0.1:{lab.port}/doc/tree/{name}?token={lab.token}")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=1000 * START_S)
        self.page.wait_for_function(KERNEL_IS_IDLE, timeout=1000 * START_S)

    def _console(self, message):
        if message.type == "error":
            self.problems.append(f"console: {message.text} ({message.location.get('url', '')})")

    def cells(self):
        """The code cells as they are now, finished or not, from the notebook's own model."""
        model = self.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.model.toJSON()")
        return [nbformat.from_dict(cell) for cell in model["cells"] if cell["cell_type"] == "code"]

    def wait_until(self, true_of_cells, what, seconds):
        """Wait until this holds of the code cells; an error output in any of them ends the wait at once."""
        end = time.monotonic() + seconds
        while not true_of_cells(cells := self.cells()):
            errors = ["\n".join(output.traceback) for output in outputs(cells, "error")]
            assert not errors, f"waiting for {what}:\n{errors[0]}"
            assert time.monotonic() < end, f"{what}: not in {seconds} s"
            self.page.wait_for_timeout(50)
        return cells

    def wait_until_done(self, seconds):
        """Wait until every code cell has run."""
        return self.wait_until(
            lambda cells: all(cell.execution_count for cell in cells if cell.source.strip()),
            "the notebook's end",
            seconds,
        )

    def run_all(self):
        """Run every cell, and do not wait for it."""
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")

    def cell(self, i):
        """Code cell number i, from 0, in the page."""
        return self.page.locator(".jp-CodeCell").nth(i)

    def chart(self):
        """The moving chart, an SVG in the page itself (the still one is an image)."""
        return self.page.locator(".jp-OutputArea-output .widget-html svg[role=img]").first

    def wait_until_it_moves(self, seconds=START_S):
        """Wait for the chart's line, then for it to change."""
        path = ".widget-html svg g[transform='scale(.1)'] path"
        line = f'() => document.querySelector("{path}")?.getAttribute("d")'
        seen = []

        def moved(_cells):
            seen.append(self.page.evaluate(line))
            return len({d for d in seen if d}) > 1

        self.wait_until(moved, "a curve that moves", seconds)

    def bring_into_view(self, locator):
        """Scroll until it stays in the middle: cells get their height only when they come near the screen."""
        where = None
        for _ in range(20):
            locator.evaluate("element => element.scrollIntoView({block: 'center'})")
            self.page.wait_for_timeout(200)
            before, where = where, locator.bounding_box()
            if where is not None and where == before:
                return where
        raise AssertionError(f"it does not come to rest in the window: {where}")

    def click(self, locator):
        """Click; when the mouse went down (the toolbar acts on that), in seconds since 1970."""
        self.page.evaluate("""() => document.addEventListener(
            'pointerdown', () => { window.clickedAt = Date.now() / 1000 }, {capture: true, once: true})""")
        locator.click(timeout=10_000)
        return self.page.evaluate("() => window.clickedAt")

    def click_stop(self):
        return self.click(self.page.locator(".jp-OutputArea-output .jupyter-button").filter(has_text="Stop"))

    def click_interrupt(self):
        """Press the toolbar's ■."""
        return self.click(self.page.locator("jp-button[data-command='notebook:interrupt-kernel']"))

    def still_pictures(self):
        """How many SVG pictures the outputs show, loaded and with a size."""
        return self.page.evaluate("""() => [...document.querySelectorAll('.jp-OutputArea-output img')].filter(
            image => image.src.startsWith('data:image/svg+xml') && image.naturalWidth > 100).length""")

    def save(self):
        """Save as a reader would; the file as read back."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        self.page.wait_for_function(
            "() => window.jupyterapp.shell.currentWidget.context.model.dirty === false", timeout=30_000
        )
        return nbformat.read(self.path, as_version=4)

    def close(self):
        """Close the page and end its kernel."""
        self.page.close()
        for session in self.lab.api("sessions"):
            if session["path"] == self.path.name:
                self.lab.api(f"sessions/{session['id']}", method="DELETE")


def outputs(cells, kind):
    """All outputs of this type, or that hold data of this type, in order."""
    found = [output for cell in cells for output in cell.get("outputs", ())]
    return [o for o in found if kind == o.output_type or kind in o.get("data", ())]


def text_of(cell):
    """What a cell printed."""
    return "".join(output.text for output in outputs([cell], "stream"))


def folds_of(page, cell):
    """The folds of a cell's output, in view; outputs get their height only near the screen."""
    output = page.cell(cell).locator(".jp-OutputArea-output details")
    page.bring_into_view(output.first)
    return [output.nth(i) for i in range(output.count())]


def told_by(fold):
    """What a fold shows once it is clicked open; before that it shows nothing."""
    assert not fold.locator("p, pre").first.is_visible()
    fold.locator("summary").click()
    assert fold.locator("p, pre").first.is_visible()
    return fold.inner_text()
