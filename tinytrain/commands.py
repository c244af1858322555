"""The command line: what each command takes, and what it does. ``DESCRIPTION`` has an example of each."""

import io
import os
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from tqdm import tqdm

from tinytrain.ahead import Ahead
from tinytrain.bits import bytes_per_target
from tinytrain.compiled import require_compiler
from tinytrain.corpus import load_corpus
from tinytrain.data import RowBatches, TokenRows
from tinytrain.device import best_device, is_out_of_memory
from tinytrain.distributed import LaunchError, launch, rank, under_torchrun, world_size
from tinytrain.distributed.group import on_first, process_group
from tinytrain.generate import sample
from tinytrain.model import GPT, find_preset
from tinytrain.option_types import MaybeBool, MaybeInt, shown_as
from tinytrain.plan_command import Plan, planned
from tinytrain.precision import LossScaleError
from tinytrain.run_model import build_model
from tinytrain.run_options import Train, load_options, save_options
from tinytrain.run_text import text_of
from tinytrain.runlog import RunLog
from tinytrain.sample_command import Sample, sample_run, shown
from tinytrain.seeds import generator_for
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.tokens_command import Tokens, tokens
from tinytrain.train import FitReport, TrainConfig, Trainer, TrainingFailedError
from tinytrain.watch import preflight as watch
from tinytrain.watch.doctor import diagnose
from tinytrain.watch.preflight.target import load_target, row_length_of, vocabulary_of

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


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Go on with a run that was interrupted or killed, from its newest whole checkpoint."""

    folder: tyro.conf.Positional[Path]
    """folder of the run, what --out was"""
    override: Annotated[tuple[str, ...], shown_as("NAME ...")] = ()
    """settings that may differ from those of the run, such as data.text after a change of the corpus"""
    processes: int = 1
    """processes on this machine; their number need not be that of before"""
    compile: MaybeBool = None
    """True or False: compile the model, or do not; as the run was begun, if not given"""


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """Test a fresh model, yours or a preset, before its first update; exit status 1 if a line fails."""

    target: Annotated[tyro.conf.Positional[str | None], shown_as("[MODEL]")] = None
    """module:factory or path/to/file.py:factory; it returns a model, (model, batch) or (model, batch, optimizer)"""
    preset: str = "nano"
    """the model if there is no target: nano, tiny, 27m, 120m, 350m or 7b"""
    corpus: str = "shakespeare"
    """text for the batch, if the factory returns none and the model has 256 tokens, one for each byte"""
    seed: int = 0
    """of a preset's weights, of a factory's, and of random ids"""


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Say what is wrong with a run, from its log alone; exit status 1 if something is, 2 if no log can be read."""

    folder: tyro.conf.Positional[Path]
    """folder of the run"""
    vocab_size: MaybeInt = None
    """tokens in the model's vocabulary, with those it was padded by: the first loss is then compared with its ln"""


def train(options: Train) -> FitReport:
    """Train as ``options`` say; returns how the run ended."""
    return _in_processes(options.processes, _train, options)


def resume(
    folder: Path, override: Collection[str] = (), *, processes: int = 1, compile: bool | None = None
) -> FitReport:
    """Go on with the run in ``folder``, compiled or not as it was begun unless told; returns how it ended."""
    return _in_processes(processes, _resume, folder, tuple(override), compile)


def preflight(options: Preflight) -> bool:
    """Print the report on the model that ``options`` name; True if no line failed."""
    torch.manual_seed(options.seed)
    model, batch, optimizer = (
        (GPT(find_preset(options.preset)).to(best_device()), None, None)
        if options.target is None
        else load_target(options.target)
    )
    own = {} if batch is not None else {"labels shifted once": "this batch was made here, and not by your data"}
    if batch is None:
        batch, source = _batch_for(model, options)
        print(source)
    report = watch.preflight(model, batch, optimizer=optimizer)
    lines = [watch.Line(x.name, None, f"not tested: {own[x.name]}") if x.name in own else x for x in report.lines]
    print(report := watch.Report(tuple(lines)))
    untested = sum(line.passed is None for line in report.lines)
    told = "No line failed" if report.passed else f"{len(report.failed)} failed; mend the first: {report.failed[0]}"
    print(f"{told}. {untested} of {len(report.lines)} could not be tested." if untested else f"{told}.")
    return report.passed


def doctor(options: Doctor) -> bool:
    """Print what is wrong with the run in ``options.folder``; True if nothing is."""
    findings = diagnose(options.folder, vocab_size=options.vocab_size)
    print(findings)
    return not findings


def _batch_for(model: torch.nn.Module, options: Preflight) -> tuple[dict[str, torch.Tensor], str]:
    V, T = vocabulary_of(model), row_length_of(model)
    if ByteTokenizer().vocab_size == V:
        corpus = load_corpus(options.corpus)
        rows = TokenRows(ByteTokenizer().encode(corpus.text), T, V, corpus.name)
        return rows.stack(list(range(16))), f"The batch: bytes of {corpus.name}"
    ids = torch.randint(0, V, (16, T + 1), generator=generator_for("preflight", seed=options.seed))
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}, f"The batch: random ids from 0..{V - 1}, no text"


def _train(_rank: int, options: Train) -> FitReport:
    on_first(lambda: _refuse_an_earlier_log(options.out))
    return _run(options)


def _resume(_rank: int, folder: Path, override: tuple[str, ...], compile: bool | None) -> FitReport:
    options = load_options(folder)
    return _run(options if compile is None else replace(options, compile=compile), resumed=True, override=override)


def _in_processes(processes: int, function: Callable[..., FitReport], *arguments: Any) -> FitReport:
    """Call ``function(rank, *arguments)`` here, or in ``processes`` new ones, or in each that torchrun started."""
    if under_torchrun():
        with process_group():
            return function(rank(), *arguments)
    if processes < 1:
        raise ValueError(f"processes={processes} must be at least 1")
    if processes == 1:
        return function(0, *arguments)
    return launch(function, processes, *arguments)[0]


def _refuse_an_earlier_log(out: Path) -> None:
    if (log := out / RunLog.FILE).exists():
        raise FileExistsError(
            f"{log} is the log of an earlier run. Go on with it ({resume_command(out)}), choose another folder, or "
            f"move it away"
        )


def resume_command(folder: Path) -> str:
    """What to type to go on with the run in ``folder``."""
    return f"python -m tinytrain resume {shlex.quote(str(folder))}"


def _run(options: Train, *, resumed: bool = False, override: Collection[str] = ()) -> FitReport:
    most = find_preset(options.preset).max_positions
    _check(options)
    row_length = most if options.row_length is None else options.row_length
    if row_length > most:
        raise ValueError(f"row_length={row_length} is longer than preset {options.preset}'s {most}")
    text = text_of(options, row_length, resumed=resumed)
    run = TrainConfig(
        total_steps=options.steps,
        max_lr=options.max_lr,
        warmup_steps=options.steps // 20 if options.warmup_steps is None else options.warmup_steps,
        weight_decay=options.weight_decay,
        eval_every=options.eval_every,
        precision=options.precision,
        checkpoint_every=options.checkpoint_every,
        out=options.out,
    )
    torch.manual_seed(options.seed)
    model, parameters = build_model(options, text.tokenizer.vocab_size)
    first = rank() == 0
    data = RowBatches(
        rows=text.train,
        batch_size=options.batch_size,
        micro_batch_size=options.micro_batch_size,
        seed=options.seed,
    )
    if first:
        if text.notice:
            print(text.notice)
        print(f"{parameters:,} parameters, {len(text.train.ids):,} tokens of {text.name}", flush=True)
    validation = list(text.valid.batches(64, limit=options.eval_rows)) if text.valid else None
    per_token = bytes_per_target(validation, text.tokenizer.token_bytes()) if validation else None
    with ExitStack() as stack:
        bar = stack.enter_context(closing(ProgressBar(options.steps)))
        if options.prefetch or (options.prefetch is None and best_device().type == "cuda"):
            data = stack.enter_context(Ahead(data))
        trainer = Trainer(model, data, run, [bar], validation=validation, bytes_per_token=per_token)
        if resumed:
            checkpoint = trainer.resume(override=override)
            bar.done = checkpoint.step
            if first:
                print(f"Going on after update {bar.done} of {options.steps}, from {checkpoint.folder}", flush=True)
        else:
            on_first(lambda: save_options(options, text.tokenizer))
        report = trainer.fit()
    if first or options.shard:  # of a model that is shared out, each has only a part
        try:
            written = shown(sample(model, text.tokenizer, options.prompt, seed=options.seed))
        except ValueError as error:
            written = f"No sample: {error}"
        if first:
            print(written)
    return report


def _check(options: Train) -> None:
    """Refuse before anything is loaded what would fail after it."""
    if not options.prompt:
        raise ValueError("prompt is empty: give at least one character for the sample at the end")
    if not 0 <= options.seed < 2**63:
        raise ValueError(f"seed={options.seed} must be at least 0 and less than 2**63")
    if options.shard and world_size() == 1:
        raise ValueError("shard shares out the weights over processes, and there is one: say --processes 2")
    for name in ("pad_vocab_to", "loss_chunk", "eval_rows"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if options.out.exists() and not options.out.is_dir():
        raise NotADirectoryError(f"{options.out} is a file: --out names the folder of the run")
    if options.compile:
        require_compiler(best_device())


class ProgressBar:
    """A Trainer callback that shows updates, loss and speed; it appears with the first update."""

    def __init__(self, total_steps: int) -> None:
        self.total_steps, self.done, self._bar, self._shown = total_steps, 0, None, {}

    def __call__(self, record: dict[str, Any]) -> None:
        if self._bar is None:
            self._bar = tqdm(total=self.total_steps, initial=self.done, unit="update")
        self._shown |= {name: f"{record[name]:.3f}" for name in ("loss", "eval_loss") if name in record}
        self._bar.set_postfix(self._shown, refresh=False)
        self._bar.update(0 if record["skipped"] else 1)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


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
