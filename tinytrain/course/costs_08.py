"""What notebook 08 weighs: resuming from the weights alone, a save, and how often to save."""

import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from tinytrain.checkpoint import Checkpointer
from tinytrain.course.killed_08 import trainer_in
from tinytrain.course.lesson_08 import T, all_ids, small_model
from tinytrain.data import RowBatches, TokenRows
from tinytrain.optimizer import build_adamw
from tinytrain.resume import state_of
from tinytrain.schedule import warmup_cosine
from tinytrain.step import train_step
from tinytrain.watch.plots import plot_curves

WARMUP = 30  # updates of a second warmup


def resume_in_four_ways(seed: int, *, stop: int = 300, after: int = 60) -> dict[str, list[float]]:
    """Losses of the ``after`` updates behind update ``stop``, for one run that is resumed in several ways.

    ``full`` has its optimizer state, ``weights`` begins with an empty one; ``warmup`` and ``full warmup`` are the same
    two with a second warmup. ``… length`` is how far each update moved the weights, as a root mean square over all of
    them, in units of the learning rate that the schedule gives. There is no dropout: nothing is drawn after the start.
    """
    torch.manual_seed(seed)
    model, lr = small_model(), 1e-2
    optimizer = build_adamw(model, lr=lr)
    data = RowBatches(rows=TokenRows(all_ids(), T, 256), batch_size=16, seed=seed)

    def lr_at(step: int) -> float:
        return warmup_cosine(step, max_lr=lr, min_lr=lr / 10, warmup_steps=20, total_steps=1000)

    for step in range(stop):
        train_step(model, data[step], optimizer, lr=lr_at(step))
    found: dict[str, list[float]] = {}
    for arm in ("full", "weights", "warmup", "full warmup"):
        twin = copy.deepcopy(model)
        own = build_adamw(twin, lr=lr)
        if arm.startswith("full"):
            own.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        found[arm], found[f"{arm} length"] = [], []
        for step in range(stop, stop + after):
            now = lr_at(step) * (min(1.0, (step - stop + 1) / WARMUP) if arm.endswith("warmup") else 1.0)
            before = [p.detach().clone() for p in twin.parameters()]
            found[arm].append(train_step(twin, data[step], own, lr=now).loss)
            moved = [(p - q).flatten() for p, q in zip(twin.parameters(), before, strict=True)]
            length = torch.cat(moved).detach().square().mean().sqrt().item()
            found[f"{arm} length"].append(length / lr_at(step))
    return found


def tens(values: Sequence[float]) -> list[float]:
    """Means of ten values each.

    >>> tens([1.0] * 10 + [3.0] * 10)
    [1.0, 3.0]
    """
    return [sum(values[i : i + 10]) / 10 for i in range(0, len(values) - 9, 10)]


def timed(action: Callable[[int], object], times: int = 15) -> float:
    """The shortest of its times, in seconds: what it takes when nothing else is in its way."""
    taken = []
    for n in range(times):
        start = time.perf_counter()
        action(n)
        taken.append(time.perf_counter() - start)
    return min(taken)


def update_and_save_seconds(folder: Path) -> tuple[float, float]:
    """What one update of ``trainer_in`` takes, and one save of its full state."""
    small = trainer_in(folder)
    batch = small.data[0]
    update = timed(lambda n: train_step(small.model, batch, small.optimizer, lr=1e-3))
    with Checkpointer(folder / "timed") as store:
        return update, timed(lambda n: store.save(state_of(small, full=True), step=n + 1))


def added(interval: float, *, save: float, update: float, hours: float) -> tuple[float, float]:
    """What saving, and work done twice, add to the training time, in %, if a run saves every ``interval`` updates.

    A save takes ``save`` seconds, an update ``update`` seconds; a crash comes every ``hours`` hours, at any moment,
    and so costs half an interval.
    """
    between_saves = interval * update
    return 100 * save / between_saves, 100 * (between_saves / 2) / (3600 * hours)


def best_interval(*, save: float, update: float, hours: float) -> float:
    """The interval in updates at which the two costs together are least (Young 1974).

    >>> round(best_interval(save=1.3, update=0.3, hours=24))
    1580
    """
    return (2 * save * 3600 * hours) ** 0.5 / update


def draw_costs(save_seconds: float, update_seconds: float, hours_between_crashes: float) -> Figure:
    """Both costs and their sum, by the interval, on both sides of the best."""
    settings = {"save": save_seconds, "update": update_seconds, "hours": hours_between_crashes}
    best = best_interval(**settings)
    intervals = np.geomspace(best / 50, best * 50, 60)
    saving, twice = zip(*(added(n, **settings) for n in intervals), strict=True)
    curves = {"saving": saving, "work done twice": twice, "both": np.add(saving, twice)}
    figure = Figure(figsize=(7.5, 3.4), layout="constrained")
    title = f"Least is lost when saving every {best:,.0f} updates"
    lines = {name: (intervals, share) for name, share in curves.items()}
    x, y = "updates between two saves", "% added to the training time"
    plot_curves(figure.subplots(), lines, title=title, x=x, y=y, log_x=True, log_y=True)
    return figure
