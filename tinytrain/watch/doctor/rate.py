"""The learning rate against its plan, known or guessed from its own course."""

import numpy as np

from tinytrain.config import TrainConfig
from tinytrain.watch.doctor.catalogue import CATALOGUE
from tinytrain.watch.doctor.finding import Finding
from tinytrain.watch.doctor.reading import NotSeenError, Reading

NAME = "lr off its plan"
PLANNED = CATALOGUE[NAME]
FIRST_IS_0 = "the first update has a learning rate of 0"
SAME = 1e-6
"""relative difference up to which a rate is that of the plan: a rate written with 7 digits passes"""
DOWN, UP = 0.9, 0.05
"""shares of the largest rate: once it has come down under the first, a rise by the second is a climb. A plan only falls
after its top; rates in a log are exact, so that any bound above rounding would do"""
DROP = 0.5
"""a rate that falls by more than this share in one update, unless it is level on both sides (a decay in steps). A
cosine over 20 updates falls by at most a quarter at once before its last tenth"""
SHORT = 20
"""updates; a shorter plan is so steep that a step of it cannot be told from a jump"""
FLOOR_SHARE = 0.4
"""of the updates, spent at the lowest rate at the end of a decay: plans end there, they do not live there"""
FASTER = range(2, 65)
"""how many times too fast the schedule may have been moved on; 64 micro-batches an update are many"""

Told = tuple[int, str, str, str]
"""(line, symptom, evidence, cause)"""


def off_plan(reading: Reading, config: TrainConfig | None) -> Finding | None:
    lr = reading.column("lr")
    known = np.flatnonzero(reading.present("lr"))
    told = _impossible(reading, lr, known)
    if told is None:
        told = _against(reading, lr, known, config) if config is not None else _guessed(reading, lr[known], known)
    if told is None:
        return None
    line, symptom, evidence, cause = told
    harmless = {"stage": "cost"} if symptom == FIRST_IS_0 else {}  # one wasted update brings nothing else about
    return reading.finding(int(line), NAME, evidence, symptom=symptom, cause=cause, **harmless)


def _impossible(reading: Reading, lr: np.ndarray, known: np.ndarray) -> Told | None:
    wrong = known[~(np.isfinite(lr[known]) & (lr[known] >= 0))]
    if not len(wrong):
        return None
    evidence = f"{lr[wrong[0]]:.4g} at {reading.place(int(wrong[0]))}; {len(wrong)} of {len(known)} are no rate"
    return int(wrong[0]), "the learning rate is below 0, infinite or NaN", evidence, "the schedule's own arithmetic"


def _against(reading: Reading, lr: np.ndarray, known: np.ndarray, config: TrainConfig) -> Told | None:
    done = reading.column("step") - ~reading.skipped  # completed updates before this line
    if not np.isfinite(done[known]).all():
        raise NotSeenError("lines with lr have no step")
    plan = np.array([config.lr(max(0, int(done[i]))) for i in known])
    wrong = np.flatnonzero(np.abs(lr[known] - plan) > SAME * max(config.max_lr, 1e-300))
    if not len(wrong):
        return None
    i = wrong[0]
    cause = PLANNED.cause
    for k in FASTER:
        faster = [config.lr(k * max(0, int(done[j]))) for j in known]
        if np.abs(lr[known] - faster).max() <= SAME * config.max_lr:
            cause = f"the schedule is moved on {k} times in each update"
            break
    return (
        known[i],
        PLANNED.symptom,
        f"{lr[known[i]]:.4g}, planned {plan[i]:.4g}, at {reading.place(int(known[i]))}; "
        f"{len(wrong)} of {len(known)} differ",
        cause,
    )


def _guessed(reading: Reading, values: np.ndarray, known: np.ndarray) -> Told | None:
    top = float(values.max())
    if top == 0:
        return (
            known[0],
            "the learning rate never leaves 0",
            f"0 at all {len(known)} updates",
            "the warmup divides whole numbers, or the schedule is never moved on",
        )
    if not reading.is_sweep() and len(values) >= SHORT:
        told = _jump(reading, values, known, top) or _floor(reading, values, known, top)
        if told is not None:
            return told
    if values[0] == 0 and len(values) > 1:
        return (
            known[0],
            FIRST_IS_0,
            f"0, then {values[1]:.3g}, up to {top:.3g}",
            "the warmup counts from 0: the first update is wasted, and each later one comes one late",
        )
    if len(values) < SHORT:
        raise NotSeenError(f"fewer than {SHORT} updates with lr")
    return None


def _jump(reading: Reading, values: np.ndarray, known: np.ndarray, top: float) -> Told | None:
    peak = int(values.argmax())
    for i in range(peak + 1, len(values)):
        if values[i] < (1 - DROP) * values[i - 1] and not _level(values, i) and i < len(values) - len(values) // 10:
            return (
                known[i],
                "the learning rate jumps",
                f"{values[i - 1]:.3g} then {values[i]:.3g}",
                "the schedule starts anew: a resumed run whose schedule was not loaded, or a restart that was planned",
            )
        lowest = float(values[peak:i].min())
        if lowest < DOWN * top and values[i] > lowest + UP * top:
            low = peak + int(values[peak:i].argmin())
            return (
                known[low],
                "the learning rate climbs again after it had come down",
                f"{top:.3g} at {reading.place(int(known[peak]))}, {lowest:.3g} at {reading.place(int(known[low]))}, "
                f"{values[i:].max():.3g} later",
                "the schedule was told fewer updates than the run has, or restarts were planned",
            )
    return None


def _level(values: np.ndarray, i: int) -> bool:
    """The same rate over a few updates before and after a drop."""
    before, after = values[max(0, i - 4) : i], values[i : i + 4]
    return bool(np.ptp(before) <= SAME * before.max() and np.ptp(after) <= SAME * after.max() and len(after) > 1)


def _floor(reading: Reading, values: np.ndarray, known: np.ndarray, top: float) -> Told | None:
    peak = int(values.argmax())
    low = float(values[peak:].min())
    at_floor = (values <= low * (1 + SAME)) & (np.arange(len(values)) > peak)
    start = len(values) - int(np.argmin(at_floor[::-1]))
    if low >= 0.5 * top or len(values) - start < FLOOR_SHARE * len(values) or _level(values, start):
        return None
    return (
        known[start],
        "the learning rate is at its floor long before the end",
        f"{low:.3g} (top {top:.3g}) from {reading.place(int(known[start]))} on, {len(values) - start} of {len(values)} "
        f"updates",
        "the schedule is moved on several times in each update, such as once for each micro-batch",
    )
