"""What a live plot costs: the same training with and without one, in a real kernel, blocks taking turns.

python benchmarks/live_plot.py
"""

import json
import statistics

import nbformat
from nbclient import NotebookClient

SOURCE = """\
import time

import torch

from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.step import train_step
from tinytrain.watch.live import LivePlot

torch.set_num_threads(1)
torch.manual_seed(0)
model = GPT(PRESETS["{preset}"])
optimizer = build_adamw(model, lr=1e-3)
ids = torch.randint(0, 256, ({rows}, model.config.max_positions + 1))
batch = {{"input_ids": ids[:, :-1], "labels": ids[:, 1:]}}


def block(steps, live):
    start = time.perf_counter()
    for step in range(steps):
        report = train_step(model, [batch], optimizer, lr=1e-3)
        if live is not None:
            live.log(step, loss=report.loss, grad_norm=report.grad_norm)
    return (time.perf_counter() - start) / steps


block({steps}, None)
alone, beside = [], []
with LivePlot("loss", "grad_norm") as live:
    for turn in range({turns}):
        alone.append(block({steps}, None))
        beside.append(block({steps}, live))
result = (alone, beside)
"""
CASES = {"nano, 16 rows of 64": ("nano", 16, 60, 12), "tiny, 8 rows of 128": ("tiny", 8, 15, 12)}


def measure(preset, rows, steps, turns):
    """(median milliseconds a step without it, median of the ratios with it over without it)."""
    source = SOURCE.format(preset=preset, rows=rows, steps=steps, turns=turns)
    cells = [nbformat.v4.new_code_cell(source), nbformat.v4.new_code_cell("import json; print(json.dumps(result))")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    alone, beside = json.loads(notebook.cells[1].outputs[0].text)
    return 1e3 * statistics.median(alone), statistics.median(b / a for a, b in zip(alone, beside, strict=True))


def main():
    print("| model | ms a step | with a live plot |\n|---|---|---|")
    for name, case in CASES.items():
        ms, ratio = measure(*case)
        print(f"| {name} | {ms:.1f} | {ratio - 1:+.1%} |", flush=True)


if __name__ == "__main__":
    main()
