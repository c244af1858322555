"""Runs beside each other, read back from the figure."""

import math
import re
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tinytrain.runlog import RunLog, read_run
from tinytrain.watch.plots import plot_run, plot_runs
from tinytrain.watch.svg import ALARM


@pytest.fixture(autouse=True)
def figures_closed():
    yield
    plt.close("all")


@pytest.fixture
def made(tmp_path):
    def made(name, losses, **more):
        with RunLog(tmp_path / name) as log:
            for n, loss in enumerate(losses, 1):
                extra = {key: values[n - 1] for key, values in more.items() if values[n - 1] is not None}
                log.write({"batch": n, "step": n, "loss": loss, "grad_norm": 1.0, "lr": 1e-3} | extra)
        return read_run(tmp_path / name)

    return made


def words_of(figure):
    figure.canvas.draw()
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    return " ".join([*texts, figure.get_supxlabel()]).replace("\n", " ")


def curves_of(ax):
    """The lines in data coordinates of more than two points, as drawn."""
    return [line for line in ax.lines if len(line.get_xdata()) > 2 and line.get_transform() == ax.transData]


def test_each_run_is_a_line_over_the_same_axes_with_its_label(made):
    figure = plot_runs({"calm": made("a", [5.0, 4.0, 3.0]), "hot": made("b", [5.0, 9.0, 7.0])})
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["loss", "grad_norm", "lr"]
    calm, hot = curves_of(figure.axes[0])
    assert calm.get_ydata().tolist() == [5, 4, 3] and hot.get_ydata().tolist() == [5, 9, 7]
    assert calm.get_color() != hot.get_color() and calm.get_linestyle() != hot.get_linestyle()
    assert {"calm", "hot"} <= {text.get_text() for text in figure.axes[0].texts}


def test_eight_runs_are_told_apart_and_their_labels_neither_overlap_nor_are_cut(made):
    runs = {f"a run with label {n}": made(str(n), [5.0, 4.0, 3.0 + 1e-6 * n]) for n in range(8)}
    figure = plot_runs(runs, ["loss"])
    figure.canvas.draw()
    looks = {(c.get_color(), c.get_linestyle(), c.get_marker()) for c in curves_of(figure.axes[0])}
    assert len(looks) == 8
    boxes = sorted((t.get_window_extent() for t in figure.axes[0].texts), key=lambda box: box.y0)
    assert len(boxes) == 8 and all(low.y1 <= high.y0 + 0.5 for low, high in pairwise(boxes))
    assert all(box.x1 <= figure.bbox.x1 and box.y0 >= figure.bbox.y0 and box.y1 <= figure.bbox.y1 for box in boxes)
    with pytest.raises(ValueError, match="9 runs: draw 1 to 8"):
        plot_runs(runs | {"one more": made("9", [1.0])})


def test_a_nan_is_a_gap_a_cross_and_a_count(made):
    figure = plot_runs({"sick": made("a", [5.0, 4.0, math.nan, math.nan, 3.0, 2.5, 2.0])}, ["loss"])
    (curve,) = curves_of(figure.axes[0])
    assert np.isnan(curve.get_ydata()).tolist() == [False, False, True, True, False, False, False]
    assert "sick (2 not finite)" in words_of(figure) and "loss not finite from step 3" in words_of(figure)
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert [line.get_xdata()[0] for line in crosses] == [3, 4]
    assert any(line.get_color() == ALARM for line in figure.axes[0].lines)


def test_smoothing_leaves_the_gap_the_spike_and_the_run_as_logged(made):
    losses = [5.0, 4.0, 90.0, math.nan, 1.0, 1.0]
    figure = plot_run(made("a", losses), ["loss"], half_life=2)
    raw, smooth = curves_of(figure.axes[0])
    assert raw.get_ydata()[2] == 90.0 and raw.get_alpha() < smooth.get_alpha()
    assert np.isnan(smooth.get_ydata()).tolist() == [False, False, False, True, False, False]
    assert smooth.get_ydata()[-1] == 1.0
    assert re.search("faint: as logged, strong: exponential average of it, half-life 2 lines", words_of(figure))


def test_a_logarithmic_panel_says_what_has_no_place_on_it(made):
    figure = plot_runs({"a": made("a", [5.0, 0.0, -1.0, 2.0])}, ["loss", "lr"], log_scale="loss")
    assert [ax.get_yscale() for ax in figure.axes] == ["log", "linear"]
    assert "a (2 not above zero)" in words_of(figure)
    with pytest.raises(ValueError, match=r"log_scale names \['los'\], which no panel shows"):
        plot_runs({"a": made("b", [1.0])}, ["loss"], log_scale=["los"])


def test_skipped_updates_and_what_became_of_a_run_are_marked_and_told(made):
    short = made("a", [5.0, math.nan, 3.0], skipped=[False, True, False])
    figure = plot_runs({"short": short, "long": made("b", [5.0, 4.0, 3.0, 2.0, 1.0])}, ["loss"])
    words = words_of(figure)
    assert "1 update skipped, at step 2" in words and "short: " in words and "ends at step 3" in words
    assert "| below: an update skipped" in words
    strokes = [line for line in figure.axes[0].lines if line.get_marker() == "|"]
    assert [line.get_xdata()[0] for line in strokes] == [2]


def test_evaluations_are_dots(made):
    figure = plot_runs({"a": made("a", [5.0, 4.0, 3.0], eval_loss=[None, 4.5, 3.5])}, ["loss"])
    (dots,) = [line for line in figure.axes[0].lines if line.get_linestyle() == "None" and line.get_marker() == "o"]
    assert dots.get_xydata().tolist() == [[2, 4.5], [3, 3.5]] and "dots: eval_loss" in words_of(figure)


@pytest.mark.parametrize(
    "losses", [[], [3.0], [math.nan], [math.nan] * 5, [2.0] * 9, [math.inf, -math.inf], [1e308, -1e308]]
)
@pytest.mark.parametrize("log_scale", [(), ("loss",)])
def test_any_run_makes_a_picture(losses, log_scale, made, tmp_path):
    figure = plot_runs({"odd": made("a", losses), "plain": made("b", [3.0, 2.0])}, log_scale=log_scale, half_life=2)
    figure.savefig(tmp_path / "a.png")
    if not losses:
        assert "odd: empty log" in words_of(figure)
    plot_run(made("c", losses), log_scale=log_scale).savefig(tmp_path / "b.png")


def test_a_run_without_a_name_says_so(made):
    figure = plot_runs({"a": made("a", [3.0, 2.0]), "b": made("b", [3.0, 2.0])}, ["loss", "loss_scale"])
    assert "a: no loss_scale" in words_of(figure)


def test_a_long_run_is_thinned_and_keeps_its_spike(made):
    losses = [2.0] * 30_000
    losses[12_345], losses[20_000] = 77.0, math.nan
    figure = plot_run(made("long", losses), ["loss"])
    (curve,) = curves_of(figure.axes[0])
    assert len(curve.get_xdata()) < 2000 and np.nanmax(curve.get_ydata()) == 77.0
    assert np.isnan(curve.get_ydata()).any() and "of every 100 lines the first, the last" in words_of(figure)


def test_over_tokens_and_seconds_the_axis_says_so(made):
    run = made("a", [3.0, 2.0], tokens_seen=[100, 200], seconds_step=[0.5, 0.5])
    assert plot_run(run, ["loss"], "tokens_seen").axes[0].get_xlabel() == "target tokens seen"
    figure = plot_run(run, ["loss"], "seconds")
    assert "seconds of training" in figure.axes[0].get_xlabel()
    with pytest.raises(ValueError, match=r"names=\['loss', 'loss'\]: give at least one, each of them once"):
        plot_run(run, ["loss", "loss"])
