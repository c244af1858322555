"""Sliders under a picture that is drawn again when one moves. Without a front end the first picture stays."""

import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from matplotlib.figure import Figure


def explore(draw: Callable[..., Figure], *, start: Mapping[str, Any] | None = None, **choices: Sequence[Any]) -> None:
    """Show ``draw(**values)`` with one slider for each of ``choices``; it is drawn again when a slider moves.

    ``choices`` maps an argument of ``draw`` to the values that it may take, in order; ``start`` says where each
    slider begins (the first value if it is not named). The picture is an ordinary output of the cell, so it is kept
    in a saved notebook and shows anywhere. ``draw`` must make its figure with ``matplotlib.figure.Figure``, not with
    pyplot: it may be called on another thread. Without ipywidgets the picture alone is shown, and a line says so.

    Raises ``ValueError`` for a start value that is none of the choices, and for a name without choices.
    """
    values = {name: (start or {}).get(name, options[0]) for name, options in choices.items() if len(options)}
    for name in {**choices, **(start or {})}:
        if name not in values:
            raise ValueError(f"explore: {name} has no values to choose from")
        if values[name] not in list(choices[name]):
            raise ValueError(f"explore: {name} starts at {values[name]!r}, which is none of {list(choices[name])}")
    from IPython.display import display

    picture = display(_png(draw(**values)), display_id=True)
    if picture is None:  # not in a notebook: nothing shows pictures, and nothing moves sliders
        return
    try:
        from ipywidgets import HTML, SelectionSlider, VBox
    except ImportError:
        print("explore: no sliders without ipywidgets; the picture is that of the first values")
        return

    sliders = {name: _slider(SelectionSlider, name, options, values[name]) for name, options in choices.items()}

    said = HTML()

    def redraw(_change: Any) -> None:
        chosen = {name: slider.value for name, slider in sliders.items()}
        try:
            picture.update(_png(draw(**chosen)))
            said.value = ""
        except Exception as error:  # an error in a slider's callback would show nowhere
            said.value = escape(f"{type(error).__name__} at {chosen}: {error}")

    for slider in sliders.values():
        slider.observe(redraw, names="value")
    display(VBox([*sliders.values(), said]))


def _slider(kind: type, name: str, options: Sequence[Any], value: Any) -> Any:
    shown = [(f"{option:g}" if isinstance(option, float) else str(option), option) for option in options]
    return kind(
        options=shown,
        value=value,
        description=name.replace("_", " "),
        style={"description_width": "initial"},
        layout={"width": "420px"},
    )


def _png(figure: Figure) -> Any:
    from IPython.display import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    return Image(data=buffer.getvalue(), format="png")
