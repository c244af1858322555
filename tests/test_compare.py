"""Runs beside each other, measured on the figure as it is drawn."""

import copy
import io
import math
import random
from itertools import combinations
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tinytrain.checkpoint import Checkpointer
from tinytrain.model import GPT, PRESETS
from tinytrain.runlog import Run, RunLog, read_run
from tinytrain.train import TrainConfig, Trainer
from tinytrain.watch.lines import LOOKS
from tinytrain.watch.plots import plot_run, plot_runs
from tinytrain.watch.svg import ALARM

NOWHERE = Path("no such folder")
EMPTY = Run(NOWHERE, [])


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def run_of(n, *, bad=(), skipped=(), spike=None, lr=True, evaluated=10, seed=0, level=2.0):
    rng, records, step = random.Random(seed), [], 0
    for batch in range(1, n + 1):
        lost = batch in skipped
        step += not lost
        loss = math.nan if lost or batch in bad else 9.0 if batch == spike else level + 2 / batch + rng.gauss(0, 0.05)
        record = {"batch": batch, "step": step, "loss": loss, "grad_norm": math.inf if lost else 1.0, "skipped": lost}
        record |= {"tokens_seen": 100 * step, "seconds_data": 0.1, "seconds_step": 0.4}
        record |= {"lr": 1e-3} if lr else {}
        records.append(record | ({"eval_loss": level + 0.5} if not lost and step % evaluated == 0 else {}))
    return Run(NOWHERE, records)


def labels(ax):
    return [text.get_text() for text in ax.texts]


def words(figure):
    return figure.get_supxlabel()


def strong(ax):
    """The lines that stand out."""
    return [line for line in ax.lines if line.get_linewidth() == 1.6 and len(line.get_xdata()) > 0]


def crosses(ax):
    return [line for line in ax.lines if line.get_marker() == "x"]


def test_each_run_is_a_line_on_each_panel_labelled_where_it_ends():
    figure = plot_runs({"one": run_of(30), "two": run_of(30, level=4.0)})
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["loss", "grad_norm", "lr"]
    for ax in figure.axes:
        assert len(strong(ax)) == 2 and set(labels(ax)) == {"one", "two"}
    low, high = (next(t.xy[1] for t in figure.axes[0].texts if t.get_text() == name) for name in ("one", "two"))
    assert low == pytest.approx(run_of(30).records[-1]["loss"]) and high > low + 1.5


@pytest.mark.parametrize(("over", "last"), [("step", 30), ("tokens_seen", 3000), ("seconds", 15)])
def test_runs_lie_over_what_is_asked_for(over, last):
    figure = plot_runs({"one": run_of(30)}, names=("loss",), over=over)
    assert strong(figure.axes[0])[0].get_xdata()[-1] == pytest.approx(last)
    assert over.split("_")[0] in figure.axes[0].get_xlabel()


def test_evaluations_are_dots_of_the_same_colour():
    ax = plot_runs({"one": run_of(30), "none": run_of(30, evaluated=99)}, names=("loss",)).axes[0]
    dots = [line for line in ax.lines if line.get_marker() == "o" and line.get_linestyle() == "None"]
    (dots,) = [line for line in dots if len(line.get_xdata()) > 1]
    assert (dots.get_xdata().tolist(), dots.get_ydata().tolist()) == ([10, 20, 30], [2.5] * 3)
    assert dots.get_color() == strong(ax)[0].get_color()


def test_a_run_without_a_name_an_empty_log_and_one_line_say_so_and_do_not_fail():
    figure = plot_runs({"whole": run_of(20), "bare": run_of(20, lr=False), "empty": EMPTY, "single": run_of(1)})
    assert set(labels(figure.axes[2])) == {"whole", "bare: no lr", "empty: empty log", "single"}
    assert "single: ends at step 1" in words(figure)
    dots = [tuple(dot) for scatter in figure.axes[2].collections for dot in scatter.get_offsets().tolist()]
    assert (1, 1e-3) in dots, "one point is a dot, for a line of one point cannot be seen"


def test_nothing_at_all_is_still_a_figure_that_says_so():
    figure = plot_runs({"empty": EMPTY}, log_scale=("loss",))
    assert labels(figure.axes[0]) == ["empty: empty log"]
    assert labels(plot_run(EMPTY).axes[1]) == ["grad_norm: empty log"]
    figure.savefig(io.BytesIO())


def test_a_run_that_died_says_where_and_how():
    sick = run_of(43, bad=range(38, 41), skipped=(41, 42, 43))
    figure = plot_runs({"healthy": run_of(100), "sick": sick})
    assert "sick (6 not finite)" in labels(figure.axes[0])
    text = words(figure).replace("\n", " ")
    assert "loss not finite from step 38" in text and "3 updates skipped, the first at step 40" in text
    assert "its log ends with 3 of them; ends at step 40" in text and "healthy:" not in text


def test_a_gap_stays_a_gap_and_a_cross_stands_over_it():
    ax = plot_runs({"one": run_of(50, bad=(20,))}, names=("loss",), half_life=5).axes[0]
    for line in ax.lines[:2]:
        assert np.flatnonzero(np.isnan(line.get_ydata())).tolist() == [19]
    assert [line.get_xdata()[0] for line in crosses(ax)] == [20]


def test_smoothed_the_spike_is_still_in_the_faint_line_and_the_words_say_how():
    figure = plot_runs({"one": run_of(200, spike=100)}, names=("loss", "lr"), half_life=20)
    raw, smoothed = figure.axes[0].lines[:2]
    assert raw.get_ydata().max() == 9.0 and raw.get_alpha() == 0.4
    assert smoothed.get_ydata().max() < 5.0 and smoothed.get_ydata()[0] == raw.get_ydata()[0]
    assert "faint: as logged" in words(figure) and "half-life 20" in words(figure).replace("\n", " ")
    assert len(figure.axes[1].lines) == 1, "a schedule has no noise"
    assert "faint" not in words(plot_runs({"one": run_of(20)}))


def test_what_has_no_place_on_a_log_axis_is_said():
    run = Run(NOWHERE, [{"batch": i, "step": i, "grad_norm": v} for i, v in enumerate((1.0, 0.0, -1.0, 100.0), 1)])
    ax = plot_runs({"one": run}, names=("grad_norm",), log_scale=("grad_norm",)).axes[0]
    assert ax.get_yscale() == "log" and labels(ax) == ["one (2 not above zero)"]
    assert np.isnan(ax.lines[0].get_ydata()[1:3]).all()


def test_skipped_updates_and_checkpoints_are_marked_in_each_panel(tmp_path):
    with RunLog(tmp_path) as log:
        for record in run_of(40, skipped=(15,)):
            log.write(record)
    store = Checkpointer(tmp_path / "checkpoints")
    store.save({}, step=20)
    store.save({}, step=30, full=False)
    figure = plot_run(tmp_path)
    for ax in figure.axes:
        assert [line.get_xdata()[0] for line in ax.lines if line.get_marker() == "|"] == [14]
        triangles = {line.get_xdata()[0]: line.get_markerfacecolor() for line in ax.lines if line.get_marker() == "^"}
        assert set(triangles) == {20, 30} and triangles[30] == "white" != triangles[20]
    assert "1 update skipped, at step 14" in words(figure) and "2 checkpoints kept" in words(figure)
    assert "△ checkpoint, weights only" in words(figure)


def test_a_run_of_100000_lines_is_thinned_without_losing_spike_or_nan():
    figure = plot_runs({"long": run_of(100_000, spike=33_333, bad=(70_000,), evaluated=1000)}, names=("loss",))
    (ax,) = figure.axes
    line = strong(ax)[0]
    assert len(line.get_xdata()) <= 1500 and np.nanmax(line.get_ydata()) == 9.0
    gap = line.get_xdata()[np.isnan(line.get_ydata())]
    assert gap.tolist() == [70_000] and [c.get_xdata()[0] for c in crosses(ax)] == [70_000]
    assert "of every 333 lines" in words(figure)


def test_every_other_nan_leaves_dots_and_few_marks():
    ax = plot_runs({"one": run_of(2000, bad=range(2, 2001, 2))}, names=("loss",)).axes[0]
    assert sum(len(scatter.get_offsets()) for scatter in ax.collections) > 100
    assert 1 <= len(crosses(ax)) <= 200
    assert any(line.get_color() == ALARM for line in ax.lines)


@pytest.mark.parametrize("half_life", [None, 10])
def test_labels_of_eight_runs_lie_apart_and_inside_the_figure(half_life):
    long = "a label of many words that says which learning rate it had"
    made = [run_of(40 + i % 2, seed=i, lr=i != 5, bad=(7,) if i == 2 else ()) for i in range(8)]
    runs = {f"{long if i == 3 else 'run'} {i}": run for i, run in enumerate(made)}
    figure = plot_runs(runs, half_life=half_life, title="all")
    figure.canvas.draw()
    whole = figure.bbox
    for ax in figure.axes:
        boxes = [text.get_window_extent() for text in ax.texts]
        assert len(boxes) == 8
        assert all(whole.x0 <= b.x0 and b.x1 <= whole.x1 and whole.y0 <= b.y0 and b.y1 <= whole.y1 for b in boxes)
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
        assert all(b.x0 >= ax.get_window_extent().x1 for b in boxes)
        assert ax.get_window_extent().width / figure.dpi > 2.7, "the axes keep their room"
        assert min(text.get_fontsize() for text in ax.texts) >= 9
    below = figure._supxlabel.get_window_extent()
    assert below.x1 <= whole.x1 and below.y0 >= whole.y0


def test_eight_looks_differ_without_colour_too():
    assert len({(look.dashes, look.sign) for look in LOOKS}) == len({look.ink for look in LOOKS}) == 8


def test_many_names_stand_in_rows():
    figure = plot_run(run_of(5), names=("loss", "grad_norm", "lr", "tokens_seen"))
    assert len(figure.axes) == 4 and figure.axes[3].get_subplotspec().rowspan.start == 1


def test_a_resumed_run_is_one_line(tmp_path):
    rows = [{"input_ids": np_ids(i), "labels": np_ids(i + 1)} for i in range(12)]

    def trainer(callbacks=()):
        config = TrainConfig(total_steps=8, max_lr=1e-3, out=tmp_path, checkpoint_every=2)
        return Trainer(GPT(PRESETS["nano"]), lambda n: [rows[n]], config, callbacks)

    trainer([lambda record: record["step"] < 5]).fit()
    again = trainer()
    again.resume()
    again.fit()
    figure = plot_runs({"resumed": tmp_path})
    assert strong(figure.axes[0])[0].get_xdata().tolist() == list(range(1, 9))
    assert {line.get_xdata()[0] for line in figure.axes[0].lines if line.get_marker() == "^"} == {6, 8}
    assert labels(figure.axes[0]) == ["resumed"]


def np_ids(seed):
    import torch

    return torch.randint(0, 256, (2, 8), generator=torch.Generator().manual_seed(seed))


def test_drawing_changes_neither_records_nor_folder(tmp_path):
    with RunLog(tmp_path) as log:
        for record in run_of(30, bad=(3,)):
            log.write(record)
    run = read_run(tmp_path)
    before, files = copy.deepcopy(run.records), sorted(tmp_path.rglob("*"))
    plot_runs({"a": run, "b": tmp_path}, half_life=3)
    assert str(run.records) == str(before) and sorted(tmp_path.rglob("*")) == files


@pytest.mark.parametrize(
    ("runs", "settings", "message"),
    [
        ({}, {}, "0 runs: draw 1 to 8"),
        ({str(i): EMPTY for i in range(9)}, {}, "9 runs: draw 1 to 8"),
        ({"a": EMPTY}, {"names": ()}, "give at least one"),
        ({"a": EMPTY}, {"names": ("loss", "loss")}, "each of them once"),
        ({"a": EMPTY}, {"log_scale": "lss"}, r"log_scale names \['lss'\]"),
        ({"a": EMPTY}, {"half_life": 0}, "half_life=0 must be"),
        ({"a": EMPTY}, {"half_life": 0, "names": ("lr",)}, "half_life=0 must be"),
        ({"a": EMPTY}, {"over": "epoch"}, "over='epoch' is not known"),
    ],
)
def test_settings_that_cannot_be_drawn_are_refused(runs, settings, message):
    with pytest.raises(ValueError, match=message):
        plot_runs(runs, **settings)
    assert not plt.get_fignums(), "no half-made figure is left"


ODD = [[], [3.0], [math.nan], [math.nan] * 5, [2.0] * 9, [math.inf, -math.inf], [1e308, -1e308]]


@pytest.mark.parametrize("losses", ODD)
@pytest.mark.parametrize("log_scale", [(), ("loss",)])
def test_any_run_makes_a_picture(losses, log_scale):
    odd, plain = (
        Run(NOWHERE, [{"batch": n, "step": n, "loss": loss} for n, loss in enumerate(each, 1)])
        for each in (losses, [3.0, 2.0])
    )
    figure = plot_runs({"odd": odd, "plain": plain}, ["loss"], log_scale=log_scale, half_life=2)
    figure.savefig(io.BytesIO())
    assert losses or any("odd: empty log" in text.get_text().replace("\n", " ") for text in figure.axes[0].texts)
    plot_run(odd, ["loss"], log_scale=log_scale).savefig(io.BytesIO())
