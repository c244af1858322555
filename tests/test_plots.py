from itertools import pairwise

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tinytrain.runlog import RunLog, read_run
from tinytrain.watch.plots import plot_bars, plot_curves, plot_matrix, plot_paths, plot_run, plot_seeds


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


def test_on_a_logarithmic_axis_labels_keep_apart_and_what_has_no_place_is_said(ax):
    curves = {"a": ([1, 10], [1.0, 100.0]), "b": ([1, 10], [1.0, 101.0]), "c": ([1, 10], [1.0, 0.0])}
    plot_curves(ax, curves, title="", x="", y="", log_x=True, log_y=True)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    heights = {text.get_text(): text.xy[1] for text in ax.texts}
    assert heights["b"] / heights["a"] > 1.2  # 1 % apart would be one on top of the other
    assert heights["c (1 not above zero)"] == pytest.approx(1.0, rel=0.2)


def test_seeds_are_dots_about_the_line_through_their_means(ax):
    arms = {"one": {1e-3: [1.0, 3.0], 1e-2: [5.0, 5.5]}, "two": {1e-3: [4.0, float("nan")]}}
    plot_seeds(ax, arms, title="t", x="lr", y="nats", levels={"floor": 0.5})
    assert ax.get_xscale() == "log"
    line = next(line for line in ax.lines if len(line.get_xdata()) == 2 and line.get_xdata()[0] != 0)
    assert line.get_ydata() == pytest.approx([2.0, 5.25])
    dots = [tuple(dot) for scatter in ax.collections for dot in scatter.get_offsets().tolist() if len(dot) == 2]
    assert {(1e-3, 1.0), (1e-3, 3.0), (1e-2, 5.0), (1e-2, 5.5), (1e-3, 4.0)} <= set(dots)
    assert {text.get_text() for text in ax.texts} == {"one", "two (1 not finite)", "floor"}


def test_an_arm_whose_runs_are_all_lost_keeps_its_label(ax):
    plot_seeds(ax, {"lost": {1.0: [float("nan")], 2.0: [float("inf")]}}, title="", x="", y="")
    assert [text.get_text() for text in ax.texts] == ["lost (2 not finite)"]


def test_bars_stand_side_by_side_with_their_heights(ax):
    plot_bars(ax, {"a": [1.0, 2.0], "b": [3.0, 4.0]}, names=["x", "y"], title="t", x="kind", y="nats")
    heights = [[bar.get_height() for bar in bars] for bars in ax.containers]
    assert heights == [[1.0, 2.0], [3.0, 4.0]]
    assert [text.get_text() for text in ax.texts] == ["1.00", "2.00", "3.00", "4.00"]
    edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bars in ax.containers for bar in bars)
    assert all(left[1] <= right[0] for left, right in pairwise(edges))
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["x", "y"]


def test_many_bars_carry_no_numbers(ax):
    plot_bars(ax, {"a": range(30)}, names=[str(i) for i in range(30)], title="", x="", y="")
    assert len(ax.texts) == 0 and ax.get_legend() is None


def test_paths_lie_over_contours_with_start_and_end_marked(ax):
    path = [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]
    plot_paths(ax, lambda X, Y: X**2 + Y**2, {"SGD": path}, x_range=(-1, 1), y_range=(-1, 1), title="t", x="w1", y="w2")
    walked, start, end = (line.get_xydata().tolist() for line in ax.lines)
    assert walked == [list(point) for point in path]
    assert (start, end) == ([[0.0, 1.0]], [[1.0, 0.0]])
    assert ax.get_legend().get_texts()[0].get_text() == "SGD"
    assert len(ax.collections) >= 1 and ax.get_xlim() == (-1, 1)


@pytest.mark.parametrize(("top", "few"), [(1000.0, True), (8.0, False)])
def test_a_logarithmic_axis_over_many_powers_of_ten_has_no_small_ticks(ax, top, few):
    plot_curves(ax, {"one": ([1, top], [1.0, 2.0])}, title="", x="", y="", log_x=True)
    assert (len(ax.xaxis.get_minorticklocs()) == 0) is few


def test_up_to_eight_lines_have_a_colour_and_a_dash_of_their_own(ax):
    plot_curves(ax, {str(n): ([0, 1], [n, n]) for n in range(8)}, title="", x="", y="")
    lines = ax.lines[:8]
    assert len({line.get_color() for line in lines}) == 8
    assert len({str(line._unscaled_dash_pattern) for line in lines}) == 7  # the first two are solid, blue and orange


def test_a_label_that_is_pushed_away_is_joined_to_its_place(ax):
    plot_curves(ax, {"low": ([0, 1], [0, 1]), "high": ([0, 1], [0, 5])}, title="", x="", y="")
    assert not ax.collections
    plot_curves(ax, {"a": ([0, 1], [0, 3.0]), "b": ([0, 1], [0, 3.01])}, title="", x="", y="")
    (leader,) = ax.collections
    (_, start), (_, end) = leader.get_segments()[0]
    assert start in (3.0, 3.01) and abs(end - start) > 0.1
