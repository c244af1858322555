"""``python -m tinytrain train`` and ``resume``: a run, as its options say, in one process or in several."""

import shlex
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from tqdm import tqdm

from tinytrain.ahead import Ahead
from tinytrain.bits import bytes_per_target
from tinytrain.commands.option_types import MaybeBool, shown_as
from tinytrain.commands.run_model import build_model
from tinytrain.commands.run_options import Train, load_options, save_options
from tinytrain.commands.run_text import text_of
from tinytrain.commands.sample import shown
from tinytrain.compiled import require_compiler
from tinytrain.data import RowBatches
from tinytrain.device import best_device
from tinytrain.distributed import launch, rank, under_torchrun, world_size
from tinytrain.distributed.group import on_first, process_group
from tinytrain.generate import sample
from tinytrain.model import find_preset
from tinytrain.runlog import RunLog
from tinytrain.train import FitReport, TrainConfig, Trainer


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


def train(options: Train) -> FitReport:
    """Train as ``options`` say; returns how the run ended."""
    return _in_processes(options.processes, _train, options)


def resume(
    folder: Path, override: Collection[str] = (), *, processes: int = 1, compile: bool | None = None
) -> FitReport:
    """Go on with the run in ``folder``, compiled or not as it was begun unless told; returns how it ended."""
    return _in_processes(processes, _resume, folder, tuple(override), compile)


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
        eval_every=options.eval_every if text.valid else None,
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
