"""How long training stands still for a checkpoint: written at once, and in the background.

Weights and both of AdamW's moments at three sizes, the two ways taking turns, medians over the turns. A background
save blocks for its copy only; the writing then takes from the updates that follow, which the last column shows: the
time of an update while a checkpoint is being written, over that of an undisturbed one.

    python benchmarks/saving.py [FOLDER ON THE DISK TO MEASURE]
"""

import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from tinytrain.checkpoint import Checkpointer
from tinytrain.generators import all_states
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw, optimizer_state
from tinytrain.step import train_step

TURNS = 5
SIZES = (
    replace(PRESETS["tiny"], d_model=144, n_heads=4, n_layers=4, max_positions=128),
    replace(PRESETS["tiny"], d_model=384, n_layers=5, n_heads=6, vocab_size=2048),
    PRESETS["27m"],
)


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Subject:
    """A model with its optimizer after one update, and the state that a checkpoint holds."""

    def __init__(self, config):
        torch.manual_seed(0)
        self.model = GPT(config)
        self.optimizer = build_adamw(self.model, lr=1e-3)
        ids = torch.randint(0, config.vocab_size, (2, 17))
        self.batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}
        self.update()

    def update(self):
        train_step(self.model, [self.batch], self.optimizer, lr=1e-3)

    def state(self):
        moments = optimizer_state(self.optimizer, self.model)
        return {"model": self.model.state_dict(), "optimizer": moments, "generators": all_states()}


def measure(subject, folder):
    """{way: median seconds blocked}, and how much longer updates take while one is written.

    The first save in the background also makes the memory for the copy, so it stands by itself.
    """
    stores = {way: Checkpointer(folder / way, background=way == "background") for way in ("plain", "background")}
    blocked = {way: [] for way in stores}
    alone, beside = [], []
    for turn in range(TURNS + 1):
        for way, store in stores.items():
            took = seconds(lambda store=store, turn=turn: store.save(subject.state(), step=turn))
            blocked[way].append(took)
            while way == "background" and store._thread.is_alive():
                beside.append(seconds(subject.update))
            store.wait()
        alone += [seconds(subject.update) for _ in range(3)]
    slower = statistics.median(beside) / statistics.median(alone) if beside else float("nan")
    first = blocked["background"][0]
    return {way: statistics.median(times[1:]) for way, times in blocked.items()} | {"first": first}, slower


def main(where):
    torch.set_num_threads(1)
    print(
        "| parameters, with moments | plain | in the background | ratio | the first of these | an update beside one |"
    )
    print("|---|---|---|---|---|---|")
    for config in SIZES:
        subject, folder = Subject(config), Path(tempfile.mkdtemp(dir=where))
        try:
            blocked, slower = measure(subject, folder)
        finally:
            shutil.rmtree(folder)
        plain, background = blocked["plain"], blocked["background"]
        print(
            f"| {subject.model.num_parameters():,} | {plain * 1e3:.0f} ms | {background * 1e3:.0f} ms "
            f"| {background / plain:.3f} | {blocked['first'] * 1e3:.0f} ms | {slower:.1f} times |",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir())
