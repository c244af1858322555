from itertools import pairwise

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tinytrain.runlog import RunLog, read_run
from tinytrain.watch.plots import plot_curves, plot_matrix, plot_run


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def test_each_curve_is_drawn_from_its_data_and_labelled_where_it_ends(ax):
    plot_curves(ax, {"one": ([1, 2], [5.0, 3.0]), "two": ([1, 2], [5.0, 4.0])}, title="t", x="steps", y="nats")
    assert [line.get_ydata().tolist() for line in ax.lines] == [[5.0, 3.0], [5.0, 4.0]]
    assert {text.get_text(): text.xy[1] for text in ax.texts} == {"one": 3.0, "two": 4.0}
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title(loc="left")) == ("steps", "nats", "t")


def test_labels_that_would_overlap_are_pushed_apart(ax):
    plot_curves(ax, {"one": ([1, 2], [5.0, 3.0]), "two": ([1, 2], [5.0, 3.0])}, title="", x="", y="")
    low, high = sorted(text.xy[1] for text in ax.texts)
    assert high - low > 0.04 * (ax.get_ylim()[1] - ax.get_ylim()[0])


def test_labels_stay_under_the_top_of_the_axes(ax):
    curves = {name: ([1, 2], [5.0, 5.0]) for name in ("one", "two", "three")}
    plot_curves(ax, {**curves, "low": ([1, 2], [0.0, 0.0])}, title="", x="", y="")
    heights = sorted(text.xy[1] for text in ax.texts)
    assert heights[-1] <= ax.get_ylim()[1]
    assert min(b - a for a, b in pairwise(heights)) > 0.05 * (ax.get_ylim()[1] - ax.get_ylim()[0])


def test_a_level_is_a_line_across(ax):
    plot_curves(ax, {"one": ([1, 2], [5.0, 3.0])}, levels={"floor": 4.5}, title="", x="", y="")
    assert ax.lines[1].get_ydata() == [4.5, 4.5]
    assert "floor" in [text.get_text() for text in ax.texts]


def test_a_matrix_marks_what_is_not_finite(ax):
    plot_matrix(ax, [[1.0, float("nan")], [0.5, 0.0]], title="", x="", y="")
    assert ax.images[0].get_array().tolist() == [[1.0, 0.0], [0.5, 0.0]]
    (marks,) = ax.lines
    assert (marks.get_xdata().tolist(), marks.get_ydata().tolist()) == ([1], [0])


def test_a_run_is_drawn_from_its_log(tmp_path):
    with RunLog(tmp_path) as log:
        for step in (1, 2, 3):
            log.write(
                {
                    "batch": step,
                    "step": step,
                    "loss": 5.0 - step,
                    "grad_norm": 1.0,
                    "lr": 0.1,
                    "eval_loss": 4.0,
                }
            )
    figure = plot_run(read_run(tmp_path))
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == [[4.0, 3.0, 2.0], [4.0, 4.0, 4.0]]
    assert len(figure.axes) == 3
    assert np.isfinite(figure.axes[2].lines[0].get_ydata()).all()
    plt.close(figure)


def test_a_curve_that_ends_in_nan_or_infinity_keeps_its_label_and_says_so(ax):
    curves = {"sick": ([1, 2, 3], [5.0, 3.0, float("nan")]), "lost": ([1, 2], [float("inf"), float("inf")])}
    plot_curves(ax, curves, title="", x="", y="")
    assert {text.get_text() for text in ax.texts} == {"sick (1 not finite)", "lost (2 not finite)"}
    assert all(np.isfinite(text.xy[1]) for text in ax.texts)
