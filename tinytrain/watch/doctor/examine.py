"""All checks over one log, and their findings in order."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tinytrain.config import TrainConfig
from tinytrain.runlog import Run, read_run
from tinytrain.watch.doctor import compare, cost, curve, jumps, loss_scale, rate, skips
from tinytrain.watch.doctor.curve import CURVE
from tinytrain.watch.doctor.finding import Finding, Findings, causes_first
from tinytrain.watch.doctor.reading import NotSeenError, Reading

FEW = 20
"""updates that a comparison with the run's own past needs"""


@dataclass(frozen=True)
class Check:
    """One thing to look for."""

    names: tuple[str, ...]
    """of its findings"""
    needs: tuple[str, ...]
    """fields without which it cannot be looked for"""
    updates: int
    """made updates with these fields that it needs; evaluations are counted by the check itself"""
    find: Callable[[Reading], Finding | None]
    """raises ``NotSeenError`` where the log does not hold what it needs"""


def diagnose(
    run: Run | str | Path | Iterable[Mapping[str, Any]],
    *,
    config: TrainConfig | None = None,
    vocab_size: int | None = None,
    beside: Run | str | Path | Iterable[Mapping[str, Any]] | None = None,
) -> Findings:
    """What is wrong with a run, the most likely root first; empty for one in which nothing is.

    ``run`` is a ``Run``, the folder of one, or any records with ``loss`` and whatever other fields of
    ``runlog.FIELDS`` there are: what they do not tell is listed in ``Findings.not_seen``. With ``config`` the learning
    rates are compared with those planned, one by one; with ``vocab_size`` the first loss is compared with ln V; with
    ``beside``, a healthy run of the same length, the losses at the same updates are compared: some faults make a run
    slower to learn and leave no other sign.

    Raises ``FileNotFoundError`` for a folder without a log and ``ValueError`` for a log without a line, or without
    a loss in any.

    >>> diagnose([{"loss": 5.5}, {"loss": float("nan")}])[0].name
    'loss not finite'
    """
    reading = _read(run, vocab_size)
    found: list[Finding] = []
    looked_for: list[str] = []
    not_seen: dict[str, str] = {}
    for check in _checks(config, None if beside is None else _read(beside)):
        try:
            _has_its_fields(check, reading)
            with np.errstate(all="ignore"):  # a log may hold anything; NaN is over no bound
                finding = check.find(reading)
        except NotSeenError as why:
            not_seen |= dict.fromkeys(check.names, str(why))
        else:
            looked_for += check.names
            found += [] if finding is None else [finding]
    found.sort(key=causes_first)  # stable: otherwise as listed
    return Findings(found, lines=reading.n, looked_for=looked_for, not_seen=not_seen)


def _checks(config: TrainConfig | None, beside: Reading | None) -> list[Check]:
    compared = (
        []
        if beside is None
        else [Check(("behind the other run",), ("loss",), 0, partial(compare.behind, other=beside))]
    )
    return [
        Check(("lr off its plan",), ("lr",), 0, partial(rate.off_plan, config=config)),
        Check(("padding is trained on",), ("tokens", "positions", "padding"), 1, compare.padding_trained),
        Check(("initial loss",), ("loss",), 1, curve.initial),
        Check(("gradients clipped away",), ("clip_factor",), FEW, curve.clipped),
        Check(("loss scale collapses", "loss scale soars"), ("loss_scale",), 0, loss_scale.scale),
        Check(("updates skipped",), ("skipped",), 0, skips.skipped),
        Check(("unstable in warmup",), ("loss", "lr"), FEW, jumps.unstable_in_warmup),
        Check(("swings",), ("loss",), FEW, jumps.swings),
        Check(("spike",), ("loss",), FEW, jumps.spikes),
        Check(("loss not finite",), ("loss",), 0, skips.not_finite),
        Check(("no gradient",), ("grad_norm",), 3, loss_scale.vanished),
        Check(("loss hardly moves",), ("loss",), CURVE, curve.hardly_moves),
        Check(("loss stuck",), ("loss",), CURVE, curve.stuck),
        *compared,
        Check(("evaluation apart",), ("loss", "eval_loss"), FEW, compare.apart),
        Check(("overfitting",), ("loss", "eval_loss"), FEW, compare.overfitting),
        Check(("too good to be true", "memorising"), ("loss",), FEW, compare.very_low),
        Check(("slow: padding",), ("padding",), 1, cost.padding),
        Check(("slow: waiting for data",), ("seconds_data", "seconds_step"), FEW, cost.waiting),
        Check(("throughput falls",), ("tokens_per_second",), 0, cost.slower),
        Check(("slow: exchange",), ("seconds_communication", "seconds_step", "processes"), FEW, cost.exchange),
        Check(("memory grows",), ("memory_bytes",), CURVE, cost.grows),
        Check(("memory near its limit",), ("memory_bytes", "memory_limit_bytes"), 0, cost.near_limit),
    ]


def _has_its_fields(check: Check, reading: Reading) -> None:
    if absent := [name for name in check.needs if not reading.has(name)]:
        raise NotSeenError(f"the log has no {' and no '.join(absent)}")
    every = [name for name in check.needs if name != "eval_loss"]  # that is there once in a while, as it should be
    there = np.all([reading.present(name)[reading.made] for name in every], axis=0)
    if there.sum() < check.updates:
        others = [name for name in every if name != "loss"]
        raise NotSeenError(f"fewer than {check.updates} updates" + (f" with {' and '.join(others)}" if others else ""))


def _read(run: Run | str | Path | Iterable[Mapping[str, Any]], vocab_size: int | None = None) -> Reading:
    run = read_run(run) if isinstance(run, (str, Path)) else run
    where = str(run.folder / "log.jsonl") if isinstance(run, Run) else "the list of records"
    records = list(run)
    if not records:
        raise ValueError(f"{where} has no line: the run ended before its first update was done")
    reading = Reading(records, vocab_size)
    if not reading.has("loss") and not reading.skipped.any():
        raise ValueError(
            f"{where}: none of its {len(records)} lines has a number under 'loss', only {sorted(records[0])}: "
            "write the loss of each update there, in nats per token"
        )
    return reading
