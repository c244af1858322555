"""The log of a run: one JSON object per line in ``log.jsonl``, keyed by ``batch``.

``batch`` counts the global batches consumed so far, so it grows by one with every line, also over steps that were
skipped and runs that were resumed. ``step`` counts completed updates. Valid JSON has no NaN: a number that is not
finite is written as null, and the line's ``"nonfinite"`` says what it was.
"""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from tinytrain.durable import hold, naming, release, replace_file

FIELDS = {
    "batch": "global batches consumed, this one included",
    "step": "completed updates, this one included",
    "epoch": "epoch of this batch, from 0, where the data knows it",
    "loss": "nats per target token of this update",
    "grad_norm": "2-norm of the whole gradient, before clipping",
    "clip_factor": "what clipping multiplied the gradient by, 1 if it was short enough",
    "lr": "learning rate of this update",
    "tokens": "target tokens of this update",
    "positions": "positions of this update, padding included, in all processes",
    "tokens_seen": "target tokens of all updates so far",
    "tokens_per_second": "target tokens over seconds_data and seconds_step together",
    "seconds_data": "seconds spent waiting for this batch",
    "seconds_step": "seconds spent on the update itself",
    "seconds_communication": "seconds after the last gradient was computed, until all were exchanged (CPUs only)",
    "padding": "share of positions that carry no token, 0 to 1",
    "memory_bytes": "bytes held on the device (resident memory on a CPU)",
    "memory_limit_bytes": "bytes that the device has in all (a CPU: the machine's, or its container's)",
    "skipped": "True if the update was not made",
    "reason": "why not",
    "where": "for a loss or gradient that is not finite: the first module, weight or gradient that holds it",
    "loss_scale": "what the loss was multiplied by for the backward pass (FP16 only)",
    "skipped_steps": "updates not made so far",
    "processes": "number of processes that share each update",
    "eval_loss": "nats per target token of the evaluation set, on lines where it was measured",
    "eval_bits_per_byte": "the same in bits per byte of text, where the Trainer was told how many bytes a token has",
}
"""What each field of a line means, with its unit."""


class RunLog:
    """Writes a run's lines. Use it as a context manager.

    Once ``write`` has returned, no kill takes the line away; after ``sync``, no power cut does.

    With ``after=n`` the log in ``folder`` goes on behind the line of batch n: lines behind it, which a resumed run
    makes again, are dropped, and so is a line that a kill cut off. Without ``after`` a new log begins, and
    ``FileExistsError`` is raised if there is one already: two runs in one file could not be told apart. While a log is
    open, nobody else can open one in its folder: ``BlockingIOError``.
    """

    FILE = "log.jsonl"

    def __init__(self, folder: str | Path, *, after: int | None = None) -> None:
        self.path = Path(folder) / self.FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO | None = None
        self._held = hold(self.path.parent)
        try:
            self._last_batch = 0 if after is None or not self.path.exists() else self._cut_behind(after)
            self._file = self.path.open("x" if after is None else "a", encoding="utf-8", newline="\n")
        except FileExistsError:
            self.close()
            raise FileExistsError(
                f"{self.path} is the log of an earlier run. Resume that run, choose another folder, or move it away"
            ) from None
        except BaseException:
            self.close()
            raise

    def _cut_behind(self, batch: int) -> int:
        """Keep the lines up to that of ``batch``; returns the last batch that is kept."""
        kept = [record for record in read_run(self.path.parent) if record["batch"] <= batch]
        replace_file(self.path, "".join(to_line(record) + "\n" for record in kept).encode())
        return kept[-1]["batch"] if kept else 0

    def write(self, record: dict[str, Any]) -> None:
        """Append one line. ``record["batch"]`` must be larger than that of the line before."""
        if self._file is None:
            raise ValueError(f"{self.path} is closed: a run's log is written inside its with block")
        batch = _plain("batch", record.get("batch"))
        if not isinstance(batch, int) or isinstance(batch, bool) or batch <= self._last_batch:
            raise ValueError(f"{self.path}: batch={batch!r} must be a whole number above {self._last_batch}")
        line = to_line(record) + "\n"
        with naming(self.path):
            self._file.write(line)
            self._file.flush()
        self._last_batch = batch

    def sync(self) -> None:
        """Force the lines so far to disk, so that they outlive a power cut; a kill alone takes nothing away."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        file, self._file = self._file, None
        held, self._held = self._held, None
        try:
            if file is not None:
                with naming(self.path):
                    file.close()
        finally:
            release(held)

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def to_line(record: dict[str, Any]) -> str:
    """One record as one line of valid JSON; numbers of NumPy and torch become plain ones.

    Raises ``TypeError`` that names what is no number, text, truth value or None.

    >>> to_line({"batch": 1, "loss": float("nan")})
    '{"batch": 1, "loss": null, "nonfinite": {"loss": "nan"}}'
    """
    plain = {key: _plain(key, value) for key, value in record.items()}
    odd = {key: str(v) for key, v in plain.items() if isinstance(v, float) and not math.isfinite(v)}
    clean = {key: None if key in odd else value for key, value in plain.items()}
    return json.dumps(clean | ({"nonfinite": odd} if odd else {}), allow_nan=False)


def _plain(key: str, value: Any) -> Any:
    if key == "nonfinite":
        raise TypeError('record["nonfinite"] is written by the log itself, for numbers that are not finite')
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"record[{key!r}] is a {type(value).__name__}; a log line holds numbers, text, True, False or None")


def from_line(line: str) -> dict[str, Any]:
    """The record of one line, its numbers that are not finite put back.

    >>> from_line('{"batch": 1, "loss": null, "nonfinite": {"loss": "nan"}}')
    {'batch': 1, 'loss': nan}
    """
    record = json.loads(line)
    if not isinstance(record, dict) or not isinstance(record.get("batch"), int):
        raise ValueError('it is no record with a whole number as "batch"')
    for key, text in record.pop("nonfinite", {}).items():
        record[key] = float(text)
    return record


@dataclass(frozen=True)
class Run:
    """A run as its log tells it."""

    folder: Path
    records: list[dict[str, Any]] = field(repr=False)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    def series(self, name: str, over: str = "step") -> tuple[list[float], list[float]]:
        """The values of ``over`` and ``name`` on the lines that have both, for plotting one against the other."""
        pairs = [(r[over], r[name]) for r in self.records if r.get(name) is not None and r.get(over) is not None]
        if not pairs:
            raise KeyError(f"{self.folder}: no line has both {name!r} and {over!r}")
        return [x for x, _ in pairs], [y for _, y in pairs]


def read_run(folder: str | Path) -> Run:
    """Read the log in ``folder``. A last line that was cut off by a kill is left out; any other bad line is an error.

    Raises ``FileNotFoundError`` if there is no log, ``ValueError`` with file and line for a line that is not JSON.
    """
    path = Path(folder) / RunLog.FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no log there; a run writes it when TrainConfig.out is set")
    lines = path.read_bytes().split(b"\n")[:-1]  # behind the last newline: nothing, or a cut-off line
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(from_line(line.decode("utf-8")))
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: not a line of this log ({error})") from None
        if number > 1 and records[-1]["batch"] <= records[-2]["batch"]:
            raise ValueError(f"{path}, line {number}: batch {records[-1]['batch']} follows {records[-2]['batch']}")
    return Run(Path(folder), records)
