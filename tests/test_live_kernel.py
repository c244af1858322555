"""LivePlot in a real kernel, without a browser: its Stop button, the toolbar's, and what stays in the notebook."""

import json
import re
import time
from textwrap import dedent

import pytest
from jupyter_client.manager import start_new_kernel


class Kernel:
    """A running ipykernel that keeps every message it publishes."""

    def __init__(self):
        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def start(self, code):
        return self.client.execute(dedent(code))

    def wait_for(self, kind, seconds=60, match=lambda content: True):
        """Messages up to the first of this kind; fails if none comes in time."""
        seen, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            message = self.client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            seen.append(message)
            if message["msg_type"] == kind and match(message["content"]):
                return seen
        raise AssertionError(f"no {kind} in {seconds} s")

    def run(self, code, seconds=60):
        """Execute; the messages published until it is idle again. Raises what the code raised."""
        return self.finish(self.start(code), seconds)

    def finish(self, request, seconds=60):
        seen, end = [], time.monotonic() + seconds
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            seen.append(message)
            assert message["msg_type"] != "error", "\n".join(message["content"]["traceback"])
            mine = message["parent_header"].get("msg_id") == request
            if mine and message["content"].get("execution_state") == "idle":
                return seen

    def control(self, kind, content):
        message = self.client.session.msg(kind, content)
        self.client.control_channel.send(message)
        reply = self.client.control_channel.get_msg(timeout=30)
        assert reply["parent_header"]["msg_id"] == message["header"]["msg_id"]
        return reply["content"]

    def click(self, comm_id, subshell_id):
        """What JupyterLab sends when a button is clicked."""
        data = {"method": "custom", "content": {"event": "click"}}
        message = self.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
        message["header"]["subshell_id"] = subshell_id
        self.client.shell_channel.send(message)


@pytest.fixture(scope="module")
def kernel():
    made = Kernel()
    made.run("from tinytrain.watch.live import LivePlot\nimport time")
    yield made
    made.client.stop_channels()
    made.manager.shutdown_kernel(now=True)
    made.manager.cleanup_resources()


def of(messages, kind):
    return [m["content"] for m in messages if m["msg_type"] == kind]


def printed(messages):
    return "".join(c["text"] for c in of(messages, "stream"))


LOOP = """
    ended = None
    with LivePlot("loss") as live:
        start = time.monotonic()
        while time.monotonic() < start + 20:
            if not live.log(time.monotonic() - start, loss=1.0):
                ended = time.monotonic() - start
                break
            time.sleep(0.01)
    print("STOPPED", live.stopped_by, live.stopped)
"""


def button_of(messages):
    opened = of(messages, "comm_open")
    return next(c["comm_id"] for c in opened if c["data"]["state"].get("_model_name") == "ButtonModel")


def carries_a_chart(content):
    return str(content.get("data", {}).get("state", {}).get("value")).startswith("<svg")


def test_a_click_is_heard_while_the_loop_blocks_the_kernel(kernel):
    subshell = kernel.control("create_subshell_request", {})["subshell_id"]
    request = kernel.start(LOOP)
    seen = [m for _ in range(2) for m in kernel.wait_for("comm_msg", match=carries_a_chart)]
    kernel.click(button_of(seen), subshell)
    clicked = time.monotonic()
    seen = kernel.finish(request, seconds=40)
    kernel.control("delete_subshell_request", {"subshell_id": subshell})
    assert "STOPPED button True" in printed(seen), "the loop ran out: the click came too late"
    assert time.monotonic() - clicked < 10


def test_the_toolbars_interrupt_ends_the_loop_and_the_cell_goes_on(kernel):
    request = kernel.start(LOOP)
    kernel.wait_for("comm_msg", match=carries_a_chart)
    kernel.manager.interrupt_kernel()
    assert "STOPPED interrupt True" in printed(kernel.finish(request, seconds=40))


def test_a_still_picture_takes_the_widgets_place_and_no_widget_is_left(kernel):
    kernel.run("import ipywidgets; before = set(ipywidgets.widgets.widget._instances)")
    seen = kernel.run("""
        for title in ("one", "two"):
            with LivePlot("loss", title=title) as live:
                for step in range(100): live.log(step, loss=step)
        print("left:", set(ipywidgets.widgets.widget._instances) - before)
    """)
    shown, replaced = of(seen, "display_data"), of(seen, "update_display_data")
    assert ["application/vnd.jupyter.widget-view+json" in c["data"] for c in shown] == [True, True]
    assert [c["transient"] for c in replaced] == [c["transient"] for c in shown], "each in its own place"
    for content, title in zip(replaced, ("one", "two"), strict=True):
        assert set(content["data"]) == {"text/html", "image/svg+xml", "text/plain"}
        assert f">{title}</text>" in content["data"]["image/svg+xml"]
        assert ">99</text>" in content["data"]["image/svg+xml"]
        assert content["data"]["text/plain"].startswith(f"{title}: ended at step 99 after 0:0")
    opened = {c["comm_id"] for c in of(seen, "comm_open")}
    assert opened and opened == {c["comm_id"] for c in of(seen, "comm_close")}
    assert "left: set()" in printed(seen)


def test_updates_are_few_small_and_say_so_in_bytes(kernel):
    seen = kernel.run("""
        import random
        with LivePlot(("loss", "eval_loss"), "grad_norm", title="long") as live:
            start, step = time.monotonic(), 0
            while time.monotonic() < start + 2:
                for _ in range(300):
                    live.log(step, loss=random.random(), eval_loss=random.random(), grad_norm=random.random())
                    step += 1
        seconds = time.monotonic() - start
        print("TOOK", seconds, step)
    """)
    seconds, steps = re.search(r"TOOK ([.\d]+) (\d+)", printed(seen)).groups()
    sizes = [len(json.dumps(m, default=str)) for m in seen if m["msg_type"] == "comm_msg"]
    assert int(steps) > 1_000, "enough for thinning"
    assert 3 <= len(sizes) <= 10 * float(seconds) + 3
    assert max(sizes) <= 10_240


def test_without_ipywidgets_a_picture_moves_and_that_is_said_once(kernel):
    seen = kernel.run("""
        import sys
        hidden, sys.modules["ipywidgets"] = sys.modules.get("ipywidgets"), None
        for _ in range(2):
            with LivePlot("loss") as live:
                live.log(0, loss=1.0)
                time.sleep(2)  # longer than the pause, which grows with what a drawing costs
                live.log(1, loss=2.0)
        if hidden: sys.modules["ipywidgets"] = hidden
        else: del sys.modules["ipywidgets"]
    """)
    assert printed(seen).count("no Stop button without ipywidgets") == 1
    assert [set(c["data"]) for c in of(seen, "display_data")] == [{"image/svg+xml", "text/plain"}] * 2
    assert len(of(seen, "update_display_data")) == 6
    assert not of(seen, "comm_open")


def test_a_kernel_that_hears_no_button_while_busy_shows_none(kernel):
    seen = kernel.run("""
        from types import SimpleNamespace
        import ipywidgets
        from tinytrain.watch.screens import WidgetScreen
        for subshells in (False, True):
            live = LivePlot("loss")
            old_or_new = SimpleNamespace(_supports_kernel_subshells=subshells)
            screen = WidgetScreen(live, print, ipywidgets, old_or_new)
            print(subshells, screen._button.layout.display, screen._hint.value)
            screen.close(live)
    """)
    assert printed(seen).splitlines() == [
        "False none ■ in the toolbar stops the training",
        "True None or ■ in the toolbar",
    ]


def test_an_exception_in_the_cell_leaves_the_picture(kernel):
    kernel.start("""
        with LivePlot("loss") as live:
            live.log(0, loss=1.0)
            raise ValueError("mine")
    """)
    seen = kernel.wait_for("error")
    assert of(seen, "error")[0]["ename"] == "ValueError"
    (replaced,) = of(seen, "update_display_data")
    assert "ended by ValueError" in replaced["data"]["image/svg+xml"]
    kernel.wait_for("status", match=lambda c: c["execution_state"] == "idle")


def test_a_plot_fed_from_a_thread_moves_while_the_cell_waits(kernel):
    seen = kernel.run("""
        import threading
        def work():
            for step in range(20):
                live.log(step, loss=step)
                time.sleep(0.02)
        with LivePlot("loss") as live:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    """)
    assert len(of(seen, "comm_msg")) >= 3
    assert ">19</text>" in of(seen, "update_display_data")[0]["data"]["image/svg+xml"]
