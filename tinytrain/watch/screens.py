"""Screens: where a live plot is shown. One for notebooks with widgets, one without them, one for plain text.

Nothing of IPython or ipywidgets is imported before a screen opens.
"""

import sys
from base64 import b64encode
from collections.abc import Callable
from html import escape
from typing import Any, Protocol


class Picture(Protocol):
    """What a screen shows."""

    def svg(self) -> str: ...
    def line(self) -> str: ...
    def summary(self) -> str: ...


class Screen(Protocol):
    """Shows a picture, again and again, and leaves its last state in place."""

    def show(self, picture: Picture) -> None: ...
    def close(self, picture: Picture) -> None: ...
    def pause(self, every: float, elapsed: float, cost: float) -> float:
        """Seconds until the next update, given those since the start and the last update's CPU time."""


def open_screen(picture: Picture, on_stop: Callable[[], None]) -> Screen:
    """The best screen that this process has. `on_stop` is called when its Stop button is pressed."""
    kernel = _kernel()
    if kernel is None:
        return TextScreen()
    try:
        import ipywidgets
    except ImportError:
        return PictureScreen(picture)
    return WidgetScreen(picture, on_stop, ipywidgets, kernel)


def _kernel() -> Any:
    """The Jupyter kernel that this process is, or None in plain Python and in IPython's terminal."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it long ago
    return getattr(ipython.get_ipython(), "kernel", None) if ipython else None


def _moving(picture: Picture) -> dict[str, str]:
    """A picture, and words where no picture can be shown."""
    return {"image/svg+xml": picture.svg(), "text/plain": picture.summary()}


def _still(picture: Picture) -> dict[str, str]:
    """The output that stays. JupyterLab shows no bare SVG in a notebook that it has not seen run (a fresh clone's,
    say), since SVG may hold scripts; as an image inside HTML it cannot, and is shown."""
    data = b64encode(picture.svg().encode()).decode()
    words = escape(picture.summary().splitlines()[0])
    return {"text/html": f'<img src="data:image/svg+xml;base64,{data}" alt="{words}">', **_moving(picture)}


def _gentle_pause(every: float, cost: float) -> float:
    """At most 1 % of the time goes into drawing, and the picture moves once a second at least.

    ``cost`` is that of this thread alone. The kernel's other threads, which send the picture, cost up to twice as much
    on top (`benchmarks/live_plot.py`), hence 300 and not 100.
    """
    return max(every, min(300 * cost, 1.0))


class WidgetScreen:
    """A chart and a Stop button as widgets; at the end one still picture takes their place."""

    def __init__(self, picture: Picture, on_stop: Callable[[], None], widgets: Any, kernel: Any) -> None:
        from IPython.display import display

        self._chart = widgets.HTML(picture.svg())
        self._button = widgets.Button(description="Stop", icon="stop", button_style="danger")
        self._hint = widgets.Label()
        self._row = widgets.HBox([self._button, self._hint])
        self._box = widgets.VBox([self._row, self._chart])
        # The click may arrive in another thread while the main one trains: set a flag there, do no more.
        self._button.on_click(lambda _button: on_stop())
        self._explain(kernel)
        self._handle = display(self._box, display_id=True)
        _answer_while_busy(self._button)

    def _explain(self, kernel: Any) -> None:
        """Without subshells (ipykernel before 7) a busy kernel hears no button: name what works there."""
        works = getattr(kernel, "_supports_kernel_subshells", False)
        self._button.layout.display = None if works else "none"
        self._hint.value = "or ■ in the toolbar" if works else "■ in the toolbar stops the training"

    def show(self, picture: Picture) -> None:
        self._chart.value = picture.svg()
        _answer_while_busy(self._button)  # again: a page that was loaded anew has made the button speak

    def close(self, picture: Picture) -> None:
        self._handle.update(_still(picture), raw=True)
        self._chart.value = ""  # a front end that keeps the state of closed widgets keeps little
        for widget in (self._box, self._row, self._button, self._hint, self._chart):
            for part in (widget.layout, getattr(widget, "style", None), widget):
                if part is not None:
                    part.close()

    def pause(self, every: float, elapsed: float, cost: float) -> float:
        return _gentle_pause(every, cost)


def _answer_while_busy(widget: Any) -> None:
    """Let a click reach a kernel whose main thread is busy.

    JupyterLab sends a widget's messages to a subshell, a second thread that is free while a cell runs.
    ipykernel 7.4 overrides that: it sends them to the thread that last spoke through the widget, which is the
    busy one. Here the widget forgets who spoke. Kernels without this memory have nothing to forget.
    """
    vars(widget.comm).pop("_reply_subshell_id", None)


class PictureScreen:
    """The same chart without ipywidgets: a picture that is replaced in place, and no button."""

    _told = False

    def __init__(self, picture: Picture) -> None:
        from IPython.display import display

        if not PictureScreen._told:
            PictureScreen._told = True
            print("LivePlot: no Stop button without ipywidgets; ■ in the toolbar stops the training")
        self._handle = display(_moving(picture), raw=True, display_id=True)

    def show(self, picture: Picture) -> None:
        self._handle.update(_moving(picture), raw=True)

    def close(self, picture: Picture) -> None:
        self._handle.update(_still(picture), raw=True)

    def pause(self, every: float, elapsed: float, cost: float) -> float:
        return _gentle_pause(every, cost)


class TextScreen:
    """Lines of text, further and further apart: some ten in the first 20 seconds, some fifty in an hour."""

    def show(self, picture: Picture) -> None:
        _print(picture.line())

    def close(self, picture: Picture) -> None:
        _print(picture.summary())

    def pause(self, every: float, elapsed: float, cost: float) -> float:
        return max(every, 2.0, elapsed / 5)


def _print(text: str) -> None:
    """Print, with `?` for what the terminal has no character for."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)
