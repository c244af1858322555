"""Group J, the part with threads and rates: output that comes after the cell has ended, and numbers of tokens a second.

The kind of fault: what a thread says is lost, because a cell has ended or somebody has cleared an output area; and a
speed that counts a part of the work only. Each notebook here runs in a real kernel.
"""

import re
import time
from itertools import count
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from nbclient import NotebookClient
from test_J_notebooks import notebook, pictures, printed

from tinytrain.data import RowBatches, TokenRows
from tinytrain.distributed import launch
from tinytrain.model import GPT, PRESETS
from tinytrain.runlog import read_run
from tinytrain.train import TrainConfig, Trainer


def run_cells(*sources):
    made = notebook(*sources)
    NotebookClient(made, timeout=120).execute()
    return made, [output for cell in made.cells for output in cell.get("outputs", ())]


def widget_text(made):
    """All text in the output areas of widgets, as the saved notebook has it."""
    models = made.metadata.get("widgets", {}).get("application/vnd.jupyter.widget-state+json", {}).get("state", {})
    areas = [model["state"]["outputs"] for model in models.values() if "outputs" in model["state"]]
    return "".join(output["text"] for area in areas for output in area if output["output_type"] == "stream")


BY_CONTEXT = """\
import threading, time
import ipywidgets
out = ipywidgets.Output()
display(out)
def work():
    for i in range(5):
        with out:
            print("ctx", i)
        time.sleep(0.2)
thread = threading.Thread(target=work)
thread.start()
time.sleep(0.1)
"""

TO_A_PLOT = """\
from tinytrain.watch.live import LivePlot
live = LivePlot("loss").__enter__()
def work():
    for i in range(5):
        live.log(i, loss=5 - i)
        time.sleep(0.2)
thread = threading.Thread(target=work)
thread.start()
time.sleep(0.1)
"""


def test_J02_what_a_thread_logs_after_its_cell_has_ended_is_kept():
    """jupyter-widgets/ipywidgets#2358: an output area catches what is said while its cell runs, and no more."""
    end = "thread.join()\nlive.__exit__(None, None, None)"
    made, outputs = run_cells(BY_CONTEXT, "thread.join()", TO_A_PLOT, end)
    kept = widget_text(made)
    assert "ctx 0" in kept and "ctx 4" not in kept, "on a quiet machine the first of five lines is all there is"

    (plot,) = pictures(outputs)
    curve = re.search(r"(\S+) +loss: (.*)", plot["data"]["text/plain"])
    assert len(curve[1]) == 5, "five values, five characters"
    assert curve[2] == "1 at step 4 (first 5, lowest 1 at step 4, highest 5 at step 0)"


CLEARING = """import threading
from IPython.display import clear_output
def work():
    for i in range(10):
        clear_output()
        print("line", i)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""

IN_PLACE = """import threading, time
from tinytrain.watch.live import LivePlot
def work():
    for i in range(10):
        live.log(i, loss=i)
        print("line", i)
        time.sleep(0.11)
with LivePlot("loss") as live:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""


def test_J04_nothing_is_cleared_so_nothing_said_afterwards_can_vanish():
    """jupyter-widgets/ipywidgets#3260: a clear and what is appended behind it, in a thread. A plot is replaced."""
    _, outputs = run_cells(CLEARING)
    assert printed(outputs) == "line 9\n"

    _, outputs = run_cells(IN_PLACE)
    assert printed(outputs).splitlines() == [f"line {i}" for i in range(10)]
    assert len(pictures(outputs)) == 1


def test_J10_tokens_per_second_count_every_micro_batch_of_an_update(tmp_path):
    """karpathy/nanoGPT#619, karpathy/nanochat#177: the last micro-batch's tokens over the whole update's time.

    Here on a real clock, in one process; below with the numbers of the case.
    """
    torch.manual_seed(0)
    rows = TokenRows(torch.randint(0, 256, (8 * 24 + 1,)), 8, vocab_size=256)
    data = RowBatches(rows=rows, batch_size=8, micro_batch_size=4)

    def slowly(n):
        time.sleep(0.2)  # waiting for data is part of the time
        return data[n]

    Trainer(GPT(PRESETS["nano"]), slowly, TrainConfig(total_steps=3, max_lr=1e-3, out=tmp_path)).fit()
    for record in read_run(tmp_path):
        assert (record["tokens"], record["processes"]) == (4 * 8 * 2, 1)
        seconds = record["seconds_data"] + record["seconds_step"]
        assert seconds >= 0.2
        assert record["tokens_per_second"] == pytest.approx(64 / seconds, rel=1e-6)


def fit_by_a_slow_clock(rank, folder):
    """Two updates of 2 x 4 rows of 8 positions in each process; every look at the clock is 0.25 s after the last."""
    torch.manual_seed(0)
    rows = TokenRows(torch.randint(0, 256, (16 * 8 * 2 + 1,)), 8, vocab_size=256)
    data = RowBatches(rows=rows, batch_size=16, micro_batch_size=4)
    ticks = count()
    clock = SimpleNamespace(perf_counter=lambda: 0.25 * next(ticks))
    with mock.patch("tinytrain.train.time", clock):  # three looks: before the data, behind it, behind the update
        Trainer(GPT(PRESETS["nano"]), data, TrainConfig(total_steps=2, max_lr=1e-3, out=folder)).fit()
    return len(data.share(0, rank=rank, processes=2))


def test_J10_two_processes_with_two_micro_batches_of_4_rows_of_8_in_half_a_second_are_256_tokens_a_second(tmp_path):
    """128 would leave out the accumulation or the other process, 64 both."""
    assert launch(fit_by_a_slow_clock, 2, str(tmp_path), device="cpu") == [2, 2], "micro-batches of each process"
    assert [record["tokens_per_second"] for record in read_run(tmp_path)] == [256.0, 256.0]
    assert [record["processes"] for record in read_run(tmp_path)] == [2, 2]
