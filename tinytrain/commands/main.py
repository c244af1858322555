"""The command line: ``DESCRIPTION`` has an example of each command, ``main`` runs one."""

import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import tyro

from tinytrain.commands.doctor import Doctor, doctor
from tinytrain.commands.plan import Plan, planned
from tinytrain.commands.preflight import Preflight, preflight
from tinytrain.commands.run import Resume, resume, resume_command, train
from tinytrain.commands.run_options import Train
from tinytrain.commands.sample import Sample, sample_run
from tinytrain.commands.tokens import Tokens, tokens
from tinytrain.device import is_out_of_memory
from tinytrain.distributed import LaunchError
from tinytrain.precision import LossScaleError
from tinytrain.runlog import RunLog
from tinytrain.train import FitReport, TrainingFailedError

DESCRIPTION = """\
Train small language models, look at their runs, and plan larger ones.

An evening, for example:
  python -m tinytrain preflight my_model.py:build
  python -m tinytrain train --preset nano --steps 200 --out runs/first
  python -m tinytrain resume runs/first
  python -m tinytrain doctor runs/first
  python -m tinytrain sample runs/first --prompt "To be"

And larger:
  python -m tinytrain tokens my_texts/ --out my_tokens
  python -m tinytrain plan --preset 120m --gpu-memory 24
  torchrun --standalone --nproc-per-node 2 -m tinytrain train --tokens my_tokens --out runs/second

Each command has its own --help. Exit status: 0 done; 1 it could not be done, or what was looked at is not in order;
2 the options were not understood (doctor: no log could be read); 130 interrupted, and a run can then be resumed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. What a user can mend is told in one line, without a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a sample may hold characters that a terminal has not
    options = tyro.extras.subcommand_cli_from_dict(
        {
            "train": Train,
            "resume": Resume,
            "sample": Sample,
            "tokens": Tokens,
            "plan": Plan,
            "preflight": Preflight,
            "doctor": Doctor,
        },
        prog="python -m tinytrain",
        description=DESCRIPTION,
        args=arguments,
    )
    if isinstance(options, Tokens):
        return _status(lambda: tokens(options))
    if isinstance(options, Plan):
        return _status(lambda: print(planned(options)))
    if isinstance(options, Sample):
        return _status(lambda: print(sample_run(options)))
    if isinstance(options, Preflight):
        return _status(lambda: preflight(options))
    if isinstance(options, Doctor):
        return _status(lambda: doctor(options), unable=2)
    folder = options.out if isinstance(options, Train) else options.folder
    try:
        report = (
            train(options)
            if isinstance(options, Train)
            else resume(options.folder, options.override, processes=options.processes, compile=options.compile)
        )
    except LaunchError as error:
        print(f"tinytrain: process {error.rank} {' '.join(error.cause.split())}", file=sys.stderr)
        return 1
    except (ValueError, OSError, TrainingFailedError, LossScaleError) as error:
        print(f"tinytrain: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except (MemoryError, RuntimeError) as error:
        print(f"tinytrain: {_too_large(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"tinytrain: interrupted. If it has a checkpoint, go on with: {resume_command(folder)}", file=sys.stderr)
        return 130
    if int(os.environ.get("RANK", "0")) == 0:
        _print_end(report, folder)
    return 130 if report.stopped_by == "interrupt" else 0


def _status(command: Callable[[], object], *, unable: int = 1) -> int:
    """A command's exit status: 0, 1 if it returns False (what it looked at is sick), ``unable`` if it could not."""
    try:
        return 1 if command() is False else 0
    except (ValueError, OSError) as error:
        print(f"tinytrain: {' '.join(str(error).split())}", file=sys.stderr)
    except (MemoryError, RuntimeError) as error:
        print(f"tinytrain: {_too_large(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        print("tinytrain: interrupted", file=sys.stderr)
        return 130
    return unable


def _too_large(error: MemoryError | RuntimeError) -> str:
    """What to do where the memory does not suffice; any other error is raised once more."""
    if not is_out_of_memory(error):
        raise error
    first = next(iter(str(error).splitlines()), type(error).__name__)
    return (
        "the memory does not suffice. Choose a smaller model, vocabulary or micro_batch_size, or recompute and "
        f"loss_chunk (python -m tinytrain plan says what a run needs). The error: {first}"
    )


def _print_end(report: FitReport, folder: Path) -> None:
    if report.stopped_by == "interrupt":
        print(f"Interrupted after update {report.steps}. Go on with: {resume_command(folder)}")
    elif not report.record:
        print(f"The run is finished: all of its {report.steps} updates are done")
    if "eval_bits_per_byte" in report.record:
        loss, bits = report.record["eval_loss"], report.record["eval_bits_per_byte"]
        print(f"Held-out text: {loss:.3f} nats a token, {bits:.3f} bits a byte")
    print(f"The log is {folder / RunLog.FILE}")
