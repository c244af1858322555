"""The run of notebook 08 that is written by hand: all its parts are needed, and are enough."""

import pytest
import torch
from matplotlib.figure import Figure

from tinytrain.course import lesson_08
from tinytrain.course.lesson_08 import Training, furthest, plot_forks, small_model

PARTS = list(Training().state())


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """As the children have, or the last digits would differ."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run's file after 12 updates, and the losses and the model of the 12 updates that follow."""
    path, run = tmp_path_factory.mktemp("stopped") / "state.pt", Training()
    for _ in range(12):
        run.update()
    torch.save(run.state(), path)
    return path, [run.update() for _ in range(12)], run.model


def resume(path, without=(), **settings):
    state = torch.load(path, weights_only=True)
    run = Training(**settings)
    run.load({part: value for part, value in state.items() if part not in without})
    return run


def test_with_every_part_the_resumed_run_is_the_one_that_did_not_stop(stopped):
    path, losses, model = stopped
    run = resume(path)
    assert [run.update() for _ in range(12)] == losses
    assert furthest(run.model, model) == 0


@pytest.mark.parametrize("part", [part for part in PARTS if part not in ("epoch", "scaler")])
def test_without_a_part_it_is_another(stopped, part):
    path, losses, _ = stopped
    run = resume(path, without=[part])
    assert [run.update() for _ in range(12)] != losses


def test_a_forgotten_scaler_begins_at_another_scale_and_a_forgotten_epoch_at_the_first():
    run = Training()
    for _ in range(40):
        run.update()
    assert (run.epoch, run.place) == (1, 0) and run.step + len(run.skipped) == 40
    assert run.skipped and all(1 <= number <= 40 for number in run.skipped)
    assert run.scaler.get_scale() != Training().scaler.get_scale()
    later = run.batch()
    first = Training()
    first.load({part: value for part, value in run.state().items() if part != "epoch"})
    assert not torch.equal(first.batch()[0], later[0])


def test_an_epoch_has_every_row_once():
    run = Training(draws=())
    rows = torch.cat([run.batch()[0] for _ in range(lesson_08.BATCHES_PER_EPOCH)])
    wanted = lesson_08.text()[: rows.numel()].view(-1, lesson_08.T)
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, wanted.tolist()))


@pytest.mark.parametrize(("draws", "moved"), [((), []), (("Python",), [0]), (("NumPy",), [1]), (("torch",), [2])])
def test_each_library_draws_only_where_it_is_asked(draws, moved):
    run = Training(fp16=False, draws=draws)
    before = [run.state()[name] for name in PARTS[-3:]]
    run.update()
    after = [run.state()[name] for name in PARTS[-3:]]
    changed = [i for i in range(2) if before[i] != after[i]] + [2] * (not torch.equal(before[2], after[2]))
    assert changed == moved


def test_the_model_has_the_size_that_its_docstring_says():
    assert f"{small_model().num_parameters():,} parameters" in small_model.__doc__


def test_a_fork_is_drawn_where_it_begins_and_exactly_0_is_white():
    figure = Figure()
    ax = figure.subplots()
    plot_forks(ax, {"late": [0.0, 0.0, 0.5, 1e-3], "at once": [0.1] * 4, "complete": [0.0] * 4}, first=51)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [
        "late: from 53",
        "at once: from 51",
        "complete: never",
    ]
    assert ax.collections[0].get_array().mask.sum() == 2 + 4
    assert [line.get_xdata()[0] for line in ax.lines] == [52.5, 50.5]
