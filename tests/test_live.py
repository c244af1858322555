"""LivePlot: what it records, when it draws, and how a loop stops, in plain Python."""

import math
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET

import pytest
import torch

from tinytrain.checkpoint import Checkpointer, CheckpointError
from tinytrain.model import GPT, PRESETS
from tinytrain.runlog import RunLog, read_run
from tinytrain.train import TrainConfig, Trainer
from tinytrain.watch import live as live_module
from tinytrain.watch.live import LivePlot
from tinytrain.watch.svg import EARLIER


class Clock:
    """Time that passes when told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Recorder:
    """A screen that keeps what it was shown."""

    def __init__(self):
        self.shown, self.closed = [], []

    def show(self, picture):
        self.shown.append(picture.line())

    def close(self, picture):
        self.closed.append((picture.svg(), picture.summary()))

    def pause(self, every, elapsed, cost):
        return every


@pytest.fixture
def screen(monkeypatch):
    """The screen that every LivePlot of the test opens; its `press` is the Stop button."""
    recorder = Recorder()

    def open_screen(picture, on_stop):
        recorder.press = on_stop
        return recorder

    monkeypatch.setattr(live_module, "open_screen", open_screen)
    return recorder


def timed(live):
    live._clock = Clock()
    return live, live._clock


def test_stop_makes_log_return_false_and_says_what_stopped_it(screen):
    with LivePlot("loss") as live:
        assert live.log(0, loss=5.5) is True
        assert not live.stopped and live.stopped_by is None
        screen.press()
        assert live.log(1, loss=5.4) is False
        assert live({"step": 2, "loss": 5.3}) is False
    assert live.stopped and live.stopped_by == "button"
    assert "stopped by button · step 2" in screen.closed[0][0]


def test_at_most_ten_updates_a_second_and_the_last_value_is_drawn_at_the_end(screen):
    live, clock = timed(LivePlot("loss"))
    with live:
        for step in range(10_000):
            clock.now = step * 0.001
            live.log(step, loss=step)
    assert 95 <= len(screen.shown) <= 101
    assert screen.shown[-1] != "step 9,999 | loss 9,999", "the last one fell between two updates"
    assert len(screen.closed) == 1 and ">9,999</text>" in screen.closed[0][0]


def test_a_misspelt_name_is_an_error_that_gives_it_and_the_right_ones(screen):
    with LivePlot(("loss", "eval_loss"), "grad_norm") as live:
        with pytest.raises(ValueError, match=r"\['los'\].*\['loss', 'eval_loss', 'grad_norm'\]"):
            live.log(0, los=5.5, grad_norm=1.0)
        live.log(1, loss=2.0)
    assert "grad_norm: no values" in screen.closed[0][1]


def test_as_a_callback_it_takes_what_it_shows_and_leaves_the_rest(screen):
    with LivePlot("loss", "eval_loss") as live:
        assert live({"step": 7, "batch": 9, "loss": 2.5, "lr": 0.1, "reason": "why not"}) is True
        with pytest.raises(KeyError, match='no "step"'):
            live({"loss": 1.0})
    assert screen.shown == ["step 7 | loss 2.500"]


def test_a_record_that_is_refused_leaves_no_mark(screen):
    with LivePlot("loss") as live:
        with pytest.raises(ValueError, match="step=nan"):
            live({"step": math.nan, "skipped": True})
        live({"step": 1, "loss": 2.0})
    with pytest.raises(RuntimeError, match="not open"):
        live({"step": 2, "skipped": True})
    assert "skipped" not in screen.closed[0][1] + live.summary()


def test_nan_in_a_line_of_the_run_log_is_shown_though_json_has_null_for_it(screen):
    with LivePlot("loss") as live:
        live({"step": 3, "loss": None, "nonfinite": {"loss": "nan", "grad_norm": "inf"}})
    svg, words = screen.closed[0]
    assert "NaN first at step 3" in svg and "NaN first at step 3" in words


@pytest.mark.parametrize(
    "value", [2, 2.0, True + 1, torch.tensor(2.0), torch.tensor([2.0]), torch.tensor(2.0, requires_grad=True)]
)
def test_numbers_and_tensors_with_one_element_are_taken(screen, value):
    with LivePlot("loss") as live:
        live.log(torch.tensor(4), loss=value)
    assert screen.shown == ["step 4 | loss 2"]


def test_none_is_skipped(screen):
    with LivePlot("loss", "eval_loss") as live:
        live.log(0, loss=2.0, eval_loss=None)
    assert screen.shown == ["step 0 | loss 2"]


@pytest.mark.parametrize("value", ["2.0", [2.0], torch.zeros(2), 1j, {}])
def test_what_is_not_a_number_is_refused_by_name_and_nothing_is_recorded(screen, value):
    with LivePlot("loss", "grad_norm") as live:
        with pytest.raises(TypeError, match=r"^loss=.* is not a number"):
            live.log(0, grad_norm=1.0, loss=value)
        with pytest.raises(ValueError, match="step=nan"):
            live.log(math.nan, loss=1.0)
    assert screen.shown == []
    assert "grad_norm: no values" in screen.closed[0][1]


def test_log_outside_the_with_block_is_a_clear_error(screen):
    live = LivePlot("loss")
    with pytest.raises(RuntimeError, match="with LivePlot"):
        live.log(0, loss=1.0)
    with live:
        live.log(0, loss=1.0)
        with pytest.raises(RuntimeError, match="open already"), live:
            pass
    with pytest.raises(RuntimeError, match="with LivePlot"):
        live({"step": 1, "loss": 1.0})


def test_an_interrupt_ends_the_block_and_not_the_program(screen):
    try:
        with LivePlot("loss") as live:
            live.log(0, loss=2.5)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pytest.fail("the interrupt left the block")
    assert live.stopped and live.stopped_by == "interrupt"
    assert "stopped by interrupt · step 0" in screen.closed[0][0]


def test_any_other_exception_passes_through_and_the_picture_stays(screen):
    with pytest.raises(ZeroDivisionError), LivePlot("loss") as live:
        live.log(0, loss=2.5)
        live.log(1, loss=1 / 0)
    assert not live.stopped
    assert "ended by ZeroDivisionError" in screen.closed[0][0] and ">2.500</text>" in screen.closed[0][0]


def state_of(live, state):
    """Bring a plot that shows "loss" into a state and end it there; what its block raised passes through."""
    with live:
        for step, value in enumerate(STATES[state][0]):
            live.log(step, loss=value)
        if state == "interrupted":
            raise KeyboardInterrupt
        if state == "error":
            raise ZeroDivisionError


STATES = {  # what is logged, and what the still picture must say
    "before the first point": ([], "ended · no step yet"),
    "one point": ([3.0], "ended · step 0"),
    "all equal": ([2.0] * 9, ">2</text>"),
    "NaN from the start": ([math.nan] * 3, "NaN first at step 0 (3 in all)"),
    "a NaN in between": ([3.0, math.nan, 2.0], "NaN first at step 1"),
    "only infinite": ([math.inf], "inf first at step 0"),
    "interrupted": ([3.0, 2.0], "stopped by interrupt · step 1"),
    "error": ([3.0, 2.0], "ended by ZeroDivisionError · step 1"),
    "long": ([1 / (n + 1) for n in range(5000)], "mean of"),
}


@pytest.mark.parametrize("log_scale", [(), "loss"])
@pytest.mark.parametrize("state", STATES)
def test_every_state_leaves_a_still_picture_that_says_what_it_is(state, log_scale, screen):
    live = LivePlot("loss", log_scale=log_scale)
    try:
        state_of(live, state)
    except ZeroDivisionError:
        assert state == "error"
    ((svg, summary),) = screen.closed
    ET.fromstring(svg)
    assert STATES[state][1] in svg and summary.startswith(("ended", "stopped"))


def test_a_plot_that_is_still_open_draws_itself_too(screen):
    with LivePlot("loss") as live:
        live.log(0, loss=3.0)
        ET.fromstring(live.svg())
        assert "step 0 · 0:00" in live.svg() and live.summary().startswith("running at step 0")


def run_of(folder, losses):
    with RunLog(folder) as log:
        for n, loss in enumerate(losses, 1):
            log.write({"batch": n, "step": n, "loss": loss, "where": "text"})
    return read_run(folder)


def test_an_earlier_run_or_its_folder_stands_behind(screen, tmp_path):
    run = run_of(tmp_path / "first_try", [5.0, math.nan, 3.0])
    for earlier in (run, tmp_path / "first_try"):
        with LivePlot("loss", "grad_norm", earlier=earlier) as live:
            live.log(1, loss=4.0)
        svg, _ = screen.closed[-1]
        assert f"stroke='{EARLIER}'" in svg and "grey: earlier run (first_try)" in svg
    with pytest.raises(FileNotFoundError, match="no log there"):
        LivePlot("loss", earlier=tmp_path / "none")


def test_an_empty_earlier_run_draws_nothing_and_hides_nothing(screen, tmp_path):
    with LivePlot("loss", earlier=run_of(tmp_path, [])) as live:
        live.log(1, loss=4.0)
    assert EARLIER not in screen.closed[0][0] and ">4</text>" in screen.closed[0][0]


def test_as_a_callback_it_marks_skipped_updates_and_checkpoints_that_are_there(screen, tmp_path):
    ids = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}
    nothing = batch | {"labels": torch.full_like(ids[:, 1:], -100)}
    config = TrainConfig(total_steps=6, max_lr=1e-3, out=tmp_path, checkpoint_every=3, weights_every=2)
    with LivePlot("loss") as live:
        Trainer(GPT(PRESETS["nano"]), lambda n: [nothing if n == 1 else batch], config, [live]).fit()
    _, summary = screen.closed[0]
    assert summary.splitlines()[2:] == [
        "1 update skipped, at step 1",
        "2 checkpoints, the last at step 6",
        "2 checkpoints of weights only, the last at step 4",
    ]


@pytest.mark.parametrize("background", [False, True])
def test_a_checkpoint_that_could_not_be_written_is_not_marked(background, screen, tmp_path, monkeypatch):
    ids = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}
    settings = {"checkpoint_every": 1, "save_in_background": background}
    config = TrainConfig(total_steps=3, max_lr=1e-3, out=tmp_path, **settings)
    save, saves = torch.save, []

    def full_disk(*given):
        saves.append(1)
        if len(saves) == 2:
            raise OSError(28, "No space left on device")
        save(*given)

    monkeypatch.setattr(torch, "save", full_disk)
    trainer = Trainer(GPT(PRESETS["nano"]), lambda n: [batch], config)
    with LivePlot("loss") as live:
        trainer.callbacks = (live,)
        with pytest.raises(CheckpointError, match="No space left"):
            trainer.fit()
        assert live.summary().splitlines()[2:] == ["1 checkpoint, at step 1"]
        trainer.fit()  # there is room again: what comes is told, and the lost one is not
    assert live.summary().splitlines()[2:] == ["2 checkpoints, the last at step 3"]
    assert [found.step for found in Checkpointer(tmp_path / "checkpoints").all()] == [1, 3]


def test_the_same_plot_can_be_entered_again_and_starts_empty(screen):
    live = LivePlot("loss")
    with live:
        live.log(0, loss=111.0)
        screen.press()
    with live:
        assert not live.stopped
        assert live.log(5, loss=2.0) is True
    assert ">111</text>" in screen.closed[0][0]
    assert ">111</text>" not in screen.closed[1][0]
    assert "loss: 2 at step 5 (first 2, lowest 2 at step 5, highest 2 at step 5)" in screen.closed[1][1]


def test_two_plots_may_be_open_at_once(screen):
    with LivePlot("loss") as one, LivePlot("accuracy") as two:
        assert one.log(0, loss=2.0) and two.log(0, accuracy=0.5)
    assert screen.shown == ["step 0 | loss 2", "step 0 | accuracy 0.5"]


def test_log_may_be_called_from_many_threads_and_one_draws_at_a_time(screen):
    drawing, most = [], []

    def show(picture):
        drawing.append(picture)
        most.append(len(drawing))
        time.sleep(0.001)
        drawing.pop()

    def work(offset):
        for step in range(100):
            live.log(offset + step, loss=1.0)

    screen.show, screen.pause = show, lambda every, elapsed, cost: 0
    with LivePlot("loss") as live:
        threads = [threading.Thread(target=work, args=(1_000 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(most) == 400 and max(most) == 1
    assert sum(b.count for b in live._curves["loss"].bins) == 400


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(panels=[]), "1 to 8 names"),
        (dict(panels=["a", "a"]), "each of them once"),
        (dict(panels=list("abcdefghi")), "1 to 8 names"),
        (dict(panels=[()]), "a name or a tuple of names"),
        (dict(panels=[3]), "a name or a tuple of names"),
        (dict(panels=["loss"], every=0.01), "every=0.01 must be 0.1 s or more"),
        (dict(panels=["loss"], every=math.nan), "every=nan"),
        (dict(panels=["loss"], log_scale=("lss",)), r"\['lss'\]"),
    ],
)
def test_settings_that_cannot_be_shown_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LivePlot(*settings.pop("panels"), **settings)


@pytest.mark.parametrize("seconds_per_step", [0.0001, 0.1, 10.0])
def test_plain_text_is_a_few_dozen_lines_and_always_the_final_ones(capsys, seconds_per_step):
    live, clock = timed(LivePlot("loss", "grad_norm"))
    with live:
        for step in range(2_000):
            clock.now = step * seconds_per_step
            live.log(step, loss=5 - step / 1_000, grad_norm=math.nan if step == 700 else 1.0)
    lines = capsys.readouterr().out.splitlines()
    assert 4 <= len(lines) <= 60
    assert lines[0] == "step 0 | loss 5 | grad_norm 1"
    assert lines[-3].startswith("ended at step 1,999 after ")
    assert " loss: 3.001 at step 1,999 (first 5, lowest 3.001" in lines[-2]
    assert "NaN first at step 700" in lines[-1] and "x" in lines[-1][:24]


def test_plain_text_fits_a_terminal_that_knows_no_block_characters():
    code = "from tinytrain.watch.live import LivePlot\nwith LivePlot('a') as p: p.log(0, a=1); p.log(1, a=2)"
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("??   ")


def test_importing_it_loads_nothing_of_a_notebook_or_of_matplotlib():
    code = "import sys, tinytrain.watch.live; print(*(m.partition('.')[0] for m in sys.modules))"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert "torch" in loaded, "the list is real"
    assert not loaded & {"IPython", "ipywidgets", "ipykernel", "matplotlib"}
