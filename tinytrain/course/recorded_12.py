"""Notebook 12's long runs, recorded once and shown from a file.

As a program, ``python -m tinytrain.course.recorded_12 FOLDER NAME notebooks/recorded_12.json`` puts what a run has
measured into that file.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import accumulate
from pathlib import Path
from typing import Any

from tinytrain.commands.sample import Sample, sample_run
from tinytrain.runlog import read_run


def recorded(path: Path) -> list[dict[str, Any]]:
    """The long runs in a file: ``name``, ``command``, and ``result``, which is None until it was recorded."""
    return json.loads(path.read_text(encoding="utf-8"))


def show_recorded(runs: Sequence[Mapping[str, Any]]) -> None:
    """Print what the long runs gave, each with the line that makes it again."""
    for run in runs:
        print(f"{run['name']}\n  {run['command']}")
        if (found := run["result"]) is None:
            print("  not recorded yet")
            continue
        print(
            f"  {found['date']}: {found['updates']:,} updates, {found['minutes']:.1f} minutes, "
            f"{found['nats']:.3f} nats a token, {found['bits_per_byte']:.3f} bits a byte"
        )
        if "bits_on_all" in found:
            print(f"  the same weights on all of the held-out text: {found['bits_on_all']:.3f} bits a byte")
        print("  " + " / ".join(line for line in found["sample"] if line))


def result_of(folder: Path) -> dict[str, Any]:
    """What a run that ``python -m tinytrain train`` made has measured.

    ``curve`` has 40 points at most, each the minutes of training until an evaluation and its bits per byte.
    """
    run = read_run(folder)
    minutes = list(accumulate((record["seconds_step"] + record["seconds_data"]) / 60 for record in run))
    looks = [(minutes[i], record) for i, record in enumerate(run) if "eval_loss" in record]
    every, last = -(-len(looks) // 40), looks[-1][1]
    return {
        "date": date.today().isoformat(),
        "updates": int(last["step"]),
        "tokens": int(last["tokens_seen"]),
        "minutes": round(minutes[-1], 1),
        "nats": round(last["eval_loss"], 4),
        "bits_per_byte": round(last["eval_bits_per_byte"], 4),
        "curve": [[round(at, 2), round(record["eval_bits_per_byte"], 3)] for at, record in looks[::-1][::every][::-1]],
        "sample": sample_run(Sample(folder=folder)).splitlines()[:8],
    }


def record(folder: Path, name: str, path: Path) -> None:
    """Put ``result_of(folder)`` into the file, at the run of that name. Raises ``KeyError`` if there is none."""
    runs = recorded(path)
    if name not in (known := [run["name"] for run in runs]):
        raise KeyError(f"{path} has no run called {name!r}; it has {', '.join(known)}")
    runs[known.index(name)]["result"] = result_of(folder)
    path.write_text(json.dumps(runs, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("say: python -m tinytrain.course.recorded_12 FOLDER NAME FILE")
    record(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
