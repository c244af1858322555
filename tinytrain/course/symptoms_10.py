"""The two lists of symptoms of notebook 10, and whether the log of a run shows one."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from tinytrain.course.sick import SICK
from tinytrain.runlog import Run
from tinytrain.watch.doctor import diagnose

R3 = (
    ("loss is NaN", "lr too large", "lr far too large"),
    ("loss is NaN", "FP16 overflow", "FP16 overflow"),
    ("loss is NaN", "NaN in the data", "NaN in the data"),
    ("loss is NaN", "bad embedding init: std 1", "embedding init"),
    ("loss is NaN", "bad embedding init: a row is NaN", "missing embedding row"),
    ("loss hardly moves", "lr too small", "lr too small"),
    ("loss hardly moves", "mask wrong: lets see", "mask lets see"),
    ("loss hardly moves", "gradients clipped to 0", "clipped to nothing"),
    ("loss hardly moves", "mask wrong: every label ignored", "all labels ignored"),
    ("out of memory", "memory that is kept", "graphs kept"),
    ("slow", "padding", "much padding"),
    ("slow", "data loader", "slow data"),
    ("several processes hardly faster", "communication", "slow network"),
    ("train falls, eval rises", "overfitting", "tiny corpus"),
)
"""The training guide's table: symptom, cause, and the run that stands for it. Saving, and work without mixed
precision, have none."""

R4 = tuple(
    ("will not go down, or bounces back", cause, name)
    for cause, name in (
        ("1 lr too large", "lr far too large"),
        ("1 lr too small", "lr too small"),
        ("2 exploding gradients: a bad batch", "bad batch"),
        ("3 labels not aligned: in another order", "labels shuffled"),
        ("3 labels not aligned: not shifted", "labels not shifted"),
        ("3 padding not masked", "padding as target"),
        ("3 too little data", "a few rows"),
        ("4 mask the wrong way round", "mask inverted"),
        ("4 embedding scale missing", "embeddings not scaled"),
        ("4 decay on the wrong parameters", "decay on norms"),
        ("5 residual outputs not scaled", "no residual scaling"),
    )
)
"""The hand-written model's list, which has one symptom."""


MOVES, WORSE, BOUNCE = 0.1, 0.05, 0.5
"""share of the first loss that a run must win; share by which it may end above the healthy one; nats in one update"""


def shows(symptom: str, run: Run, healthy: Run) -> bool:
    """Whether the log of ``run`` shows a symptom of the two tables; for time and memory the doctor is asked."""
    losses, others = ([r["loss"] for r in each if math.isfinite(r["loss"])] for each in (run, healthy))
    if symptom == "loss is NaN":
        return any("is nan" in r.get("reason", "") or "is inf" in r.get("reason", "") for r in run)
    if symptom == "loss hardly moves":
        return len(losses) > 1 and median(losses[-20:]) > (1 - MOVES) * losses[0]
    if symptom.startswith("will not go down"):
        n = min(len(losses), len(others))
        more = _bounces(losses) > _bounces(others)
        return median(losses[n - 20 : n]) > (1 + WORSE) * median(others[n - 20 : n]) or more
    names = diagnose(run).names()
    shown = {
        "out of memory": "memory grows",
        "several processes hardly faster": "slow: exchange",
        "train falls, eval rises": "overfitting",
    }
    return shown[symptom] in names if symptom in shown else any(name.startswith("slow") for name in names)


def _bounces(losses: Sequence[float]) -> int:
    return sum(losses[i] > median(losses[i - 20 : i]) + BOUNCE for i in range(20, len(losses)))


def symptom_table(
    rows: Sequence[tuple[str, str, str]],
    runs: Mapping[str, Run],
    healthy: Run,
    controls: Mapping[str, Run] | None = None,
) -> list[dict[str, Any]]:
    """For each row: whether the log shows the symptom, what the doctor named first, and whether that is right.

    Runs are compared with ``healthy``, or with their own in ``controls``: one as deep, one with the same documents.
    """
    found = []
    for symptom, cause, name in rows:
        first = next(iter(diagnose(runs[name]).names()), "")
        control = (controls or {}).get(name, healthy)
        found.append(
            {
                "symptom": symptom,
                "cause": cause,
                "shows it": shows(symptom, runs[name], control),
                "doctor": first or "nothing",
                "named": bool(first) and first == SICK[name].finding,
            }
        )
    return found


def show_table(found: Sequence[Mapping[str, Any]]) -> None:
    """Display the table that ``symptom_table`` made."""
    from IPython.display import display

    head = "| symptom in the list | cause, made on purpose | does the log show it? | the doctor's first finding |\n"
    rows = [(r["symptom"], r["cause"], "yes" if r["shows it"] else "no", r["doctor"]) for r in found]
    markdown = head + "|:---|:---|:---|:---|\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)
    plain = "\n".join(f"{a:34}{b:42}{c:5}{d}" for a, b, c, d in rows)
    display({"text/markdown": markdown, "text/plain": plain}, raw=True)
