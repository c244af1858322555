import sys

import ipywidgets
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from tinytrain.course import explore as module
from tinytrain.course.explore import explore


@pytest.fixture
def asked():
    """The values for which the picture was drawn."""
    return []


@pytest.fixture
def draw(asked):
    def draw(**values):
        asked.append(values)
        figure = Figure(figsize=(1, 1))
        figure.subplots().plot([0, values["height"]])
        return figure

    return draw


def test_the_first_picture_is_an_image_and_the_sliders_follow(shown, draw, asked):
    explore(draw, height=[1.0, 2.0], width=[3, 4], start={"width": 4})
    picture, sliders = shown.outputs
    assert "image/png" in picture.data
    assert "application/vnd.jupyter.widget-view+json" in sliders.data
    assert asked == [{"height": 1.0, "width": 4}]
    assert plt.get_fignums() == []


def test_moving_a_slider_draws_again(shown, draw, asked, monkeypatch):
    made = []
    build = module._slider
    monkeypatch.setattr(module, "_slider", lambda *given: made.append(build(*given)) or made[-1])
    explore(draw, height=[1.0, 2.0], width=[3, 4])
    made[0].value = 2.0
    assert asked[-1] == {"height": 2.0, "width": 3}
    made[1].value = 4
    assert asked[-1] == {"height": 2.0, "width": 4}
    assert made[0].description == "height"


def test_an_error_while_drawing_is_shown_and_goes_away(shown, draw, monkeypatch):
    made, words = [], []
    build, html = module._slider, ipywidgets.HTML
    monkeypatch.setattr(module, "_slider", lambda *given: made.append(build(*given)) or made[-1])
    monkeypatch.setattr(ipywidgets, "HTML", lambda: words.append(html()) or words[-1])

    def sometimes(height):
        if height == 2:
            raise ValueError("<too> high")
        return draw(height=height)

    explore(sometimes, height=[1.0, 2.0, 0.5])
    made[0].value = 2.0
    assert words[0].value == "ValueError at {&#x27;height&#x27;: 2.0}: &lt;too&gt; high"
    made[0].value = 0.5
    assert words[0].value == ""


def test_without_a_notebook_it_draws_once_and_stops_nothing(draw, asked):
    explore(draw, height=[1.0, 2.0])
    assert len(asked) == 1


def test_without_ipywidgets_the_picture_is_there_and_a_line_says_what_is_not(shown, draw, asked, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    explore(draw, height=[1.0, 2.0])
    (picture,) = shown.outputs
    assert "image/png" in picture.data
    assert capsys.readouterr().out.startswith("explore: no sliders without ipywidgets")
    assert asked == [{"height": 1.0}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"height": [1.0], "start": {"height": 5.0}}, r"height starts at 5\.0, which is none of \[1\.0\]"),
        ({"height": [1.0], "start": {"depth": 5.0}}, "depth has no values"),
        ({"height": []}, "height has no values"),
    ],
)
def test_what_cannot_be_chosen_is_refused(draw, given, message):
    with pytest.raises(ValueError, match=message):
        explore(draw, **given)
