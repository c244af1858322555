"""A run: the loop around the training step, its log, its callbacks and its checkpoints.

``train_step`` and ``evaluate`` live in ``step.py`` and can be imported from here as well.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from tinytrain.batches import Batch
from tinytrain.checkpoint import Checkpoint, Checkpointer, CheckpointError
from tinytrain.config import TrainConfig
from tinytrain.data import share_of
from tinytrain.device import device_of
from tinytrain.distributed.group import gathered, on_first, rank, total, world_size
from tinytrain.distributed.wrap import exchange_seconds, is_sharded, replicate, sharers
from tinytrain.generators import TorchStates, keep_generators, part_from_process, restore_all, torch_states
from tinytrain.interrupt import Interrupt, deferred_interrupt
from tinytrain.nonfinite import first_nonfinite
from tinytrain.optimizer import build_adamw, check_parameters
from tinytrain.precision import Precision, check_float32
from tinytrain.record import record_of
from tinytrain.resume import generators_of, nothing_saved, read_newest, restore, settings_of
from tinytrain.runlog import RunLog
from tinytrain.saving import Saver
from tinytrain.step import Evaluation, StepReport, check_micro_batches, evaluate, train_step
from tinytrain.validation import try_validation, validate
from tinytrain.weights import unwrap

__all__ = [
    "Batch",
    "Callback",
    "Data",
    "Evaluation",
    "FitReport",
    "StepReport",
    "TrainConfig",
    "Trainer",
    "TrainingFailedError",
    "evaluate",
    "train_step",
]

CHECKPOINTS = "checkpoints"
"""folder of the checkpoints, inside that of the run"""


class Data(Protocol):
    """``data[n]`` is the list of micro-batches of batch number n, counted from 0 through all epochs."""

    def __getitem__(self, batch: int, /) -> Sequence[Batch]: ...


Callback = Callable[[dict[str, Any]], bool | None]
"""Called with each line of the run's log; returning False ends the run after this update.

A callback that has a method ``fit_ended(report)`` is told at the end how ``fit`` ended; one that has a method
``checkpoint_saved(step, full)`` is told of each checkpoint once it is in its place."""


class TrainingFailedError(RuntimeError):
    """The run cannot go on by itself; the message says since when and what to look at."""


@dataclass(frozen=True)
class FitReport:
    """How a call of ``fit`` ended."""

    steps: int
    """completed updates"""
    stopped_by: str | None
    """None: the run reached its end; "callback" or "interrupt" otherwise"""
    record: dict[str, Any]
    """the last line of the log; empty if there was nothing to do"""


class Trainer:
    """Trains any model that ``forward_logits`` can call, on any data that gives the micro-batches of batch n.

    ``data[n]`` (or ``data(n)``) gives the micro-batches. ``validation`` is a list of batches, or a function that
    returns them. ``callbacks`` are called with each line of the log. The model is trained where it is: move it to a
    device first, and call ``compile_blocks`` and ``recompute_activations`` on it if you want them. With
    ``bytes_per_token``, which is ``bytes_per_target`` of the validation batches, the log has ``eval_bits_per_byte`` as
    well.

    After an interrupt or a Stop, ``fit`` may be called again and goes on with the next batch; after an error in the
    data or in a step, with the same one.

    In a process group (``launch``, torchrun) all processes make the same calls. Each does its share of every batch;
    the curve is that of one process up to rounding. A model that is not wrapped yet is copied to all
    (``replicate``). ``data`` gives every process the whole batch, or its ``share(batch, rank=, processes=)`` if it has
    such a method. Process 0 writes the log and the checkpoints and runs the callbacks; what one of them refuses, or
    an interrupt of any process, ends the run in all after the same update.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data | Callable[[int], Sequence[Batch]],
        config: TrainConfig,
        callbacks: Sequence[Callback] = (),
        *,
        validation: Sequence[Batch] | Callable[[], Iterable[Batch]] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        bytes_per_token: float | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            given = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
            raise TypeError(f"model is {given}: give a model, an nn.Module that was made")
        if isinstance(validation, Mapping):
            raise TypeError(f"validation is a {type(validation).__name__}, which is one batch: give a list, [batch]")
        if isinstance(validation, Iterator):
            raise TypeError("validation is an iterator, which is empty after one evaluation: pass list(...) of it")
        if not callable(data) and not hasattr(data, "__getitem__") and not hasattr(data, "share"):
            raise TypeError(
                f"data is a {type(data).__name__}: give what has the micro-batches of batch number n as data[n], such "
                f"as RowBatches, or a function of n. For a DataLoader: batches = list(loader), then "
                f"data=lambda n: [batches[n % len(batches)]]"
            )
        check_float32(model)
        if world_size() > 1 and sharers(model) == 1:
            model = replicate(model)
        self.model, self.data, self.config = model, data, config
        self.callbacks, self.validation = tuple(callbacks), validation
        self.bytes_per_token = bytes_per_token
        self.optimizer = optimizer or build_adamw(
            unwrap(model), lr=config.max_lr, weight_decay=config.weight_decay, betas=config.betas, eps=config.eps
        )
        check_parameters(self.optimizer, unwrap(model))
        self.processes, self.rank = sharers(model), rank()
        self.precision = Precision(config.precision)
        self.step = self.batch = self.tokens_seen = self.skipped_steps = self.skipped_in_a_row = 0
        self._log: RunLog | None = None
        self.best_loss = math.inf
        self._from_nothing = False
        """resumed where nothing had been saved: lines of the log are of a run that was killed before it could save"""
        self._generators: dict[str, Any] | None = None
        self._fingerprint: dict[str, Any] | None = None
        self._saver: Saver | None = None
        if config.out is not None and (config.checkpoint_every or config.weights_every):
            folder = Path(config.out) / CHECKPOINTS
            self._saver = Saver(self, Checkpointer(folder, keep=config.keep, background=config.save_in_background))

    def fit(self) -> FitReport:
        """Train until ``total_steps`` updates are done, a callback says False, or an interrupt comes."""
        if self._saver is not None:
            on_first(self._saver.refuse_another_run)
        self._refuse_unlike_processes()
        try_validation(self)
        if not self.model.training:
            self.model.train()
        if self._generators is not None:  # once more, for whatever was drawn since resume
            restore_all(self._generators)
            self._generators = None
        elif self.batch == 0:
            part_from_process(self.rank)  # a copy of the model with dropout of its own
        with ExitStack() as stack:
            on_first(lambda: self._open_log(stack))
            if self._saver is not None:
                stack.enter_context(self._saver.store)
            report = self._loop(stack.enter_context(deferred_interrupt()))
            if self._saver is not None:
                self._saver.finish()
        for callback in self.callbacks_here():
            if hasattr(callback, "fit_ended"):
                callback.fit_ended(report)
        return report

    def _loop(self, interrupt: Interrupt) -> FitReport:
        record: dict[str, Any] = {}
        while self.step < self.config.total_steps:
            record = self._one_batch()
            refused = any([callback(record) is False for callback in self.callbacks_here()])
            if self._saver is not None:
                self._saver.save_if_due(record)  # behind the callbacks: what they drew belongs to the state
            refused, interrupted = self._sums([refused, interrupt.requested])
            if self.step < self.config.total_steps and (refused or interrupted):
                return FitReport(self.step, "interrupt" if interrupted else "callback", record)
        return FitReport(self.step, None, record)

    def _sums(self, numbers: Sequence[float]) -> list[float]:
        """Each number summed over the processes."""
        if self.processes == 1:
            return list(numbers)
        return total(torch.tensor(numbers, dtype=torch.float64, device=device_of(self.model))).tolist()

    def callbacks_here(self) -> tuple[Callback, ...]:
        """The callbacks, in the one process that calls them."""
        return self.callbacks if self.rank == 0 or self.processes == 1 else ()

    def _open_log(self, stack: ExitStack) -> None:
        if self.config.out is not None:
            mine = self._log is not None or self.batch > 0 or self._from_nothing
            self._log = stack.enter_context(RunLog(self.config.out, after=self.batch if mine else None))

    def sync_log(self) -> None:
        """No power cut takes the lines away that the log has now."""
        if self._log is not None:
            self._log.sync()

    def _refuse_unlike_processes(self) -> None:
        """Before the first exchange: together they would train something that none of them was asked for."""
        if self.processes == 1:
            return
        first, *others = gathered(settings_of(self) | {"batch": self.batch})
        for number, other in enumerate(others, start=1):
            if differ := [f"{k}: {first.get(k)!r} and {other.get(k)!r}" for k in first if first[k] != other.get(k)]:
                raise ValueError(f"processes 0 and {number} were given different runs: {'; '.join(differ)}")

    def _one_batch(self) -> dict[str, Any]:
        start = time.perf_counter()
        micro_batches = self._micro_batches()
        ready = time.perf_counter()
        draws = torch_states()  # kept, so that a bad step can be run once more with the same dropout
        report = train_step(
            self.model,
            micro_batches,
            self.optimizer,
            lr=self.config.lr(self.step),
            precision=self.precision,
            max_grad_norm=self.config.max_grad_norm,
        )
        end = time.perf_counter()
        self._count(report)
        record = record_of(self, report) | {
            "tokens_per_second": report.tokens / (end - start),
            "seconds_data": ready - start,
            "seconds_step": end - ready,
            **exchange_seconds(self.model),
        }
        if report.skipped and report.tokens:
            record["where"] = self._where_it_broke(micro_batches, draws, report.scale)
        try:
            if self._evaluation_is_due(report):
                record |= validate(self)
        finally:  # the update was made, whatever becomes of its evaluation
            if self._log is not None:
                self._log.write(record)
        self._give_up_if_stuck(report, record.get("where", ""))
        return record

    def resume(self, *, override: Collection[str] = (), missing_ok: bool = False) -> Checkpoint | None:
        """Go on from the newest whole checkpoint in ``config.out``; ``fit`` then continues with the next batch.

        Weights, moments, counters, loss scale and all random generators become those of the checkpoint, so the run
        continues as if it had never stopped. Lines of the log after the checkpoint are dropped, for they are made
        again. With ``missing_ok`` the same script starts a run and goes on with it: where none has ever been saved,
        the run begins, and the answer is None; a log of a run that was killed before its first checkpoint is begun
        anew, and one that is too long for that is refused.

        Raises ``CheckpointError``, with nothing changed, if there is no whole checkpoint, or if it belongs to another
        model or to a run whose settings differ in what changes the curve; ``override`` names settings that may differ.
        """
        if self._saver is None:
            raise CheckpointError("there is nothing to resume: set TrainConfig.out and TrainConfig.checkpoint_every")
        if missing_ok and on_first(partial(nothing_saved, self.config, self._saver.store)):
            self._from_nothing = True
            return None
        checkpoint, state = read_newest(self, self._saver.store)
        restore(self, checkpoint, state, override)
        self._saver.saved_batch, self._generators = self.batch, generators_of(self.rank, state)
        return checkpoint

    def _micro_batches(self) -> Sequence[Batch]:
        try:
            if self.processes == 1:
                return self.data(self.batch) if callable(self.data) else self.data[self.batch]
            if hasattr(self.data, "share"):
                return self.data.share(self.batch, rank=self.rank, processes=self.processes)
            batch = self.data(self.batch) if callable(self.data) else self.data[self.batch]
            check_micro_batches(batch)
            return share_of(batch, rank=self.rank, processes=self.processes)
        except IndexError as error:
            raise ValueError(
                f"the data has no batch number {self.batch}, but {self.config.total_steps - self.step} of "
                f"total_steps={self.config.total_steps} updates are still to do ({error})"
            ) from error

    def _count(self, report: StepReport) -> None:
        self.batch += 1
        self.step += not report.skipped
        self.tokens_seen += 0 if report.skipped else report.tokens
        self.skipped_steps += report.skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if report.skipped else 0

    def _where_it_broke(self, micro_batches: Sequence[Batch], draws: TorchStates, scale: float) -> str:
        if is_sharded(self.model):
            return "not looked for: the weights are shared out over the processes"
        with keep_generators():
            draws.restore()
            found = first_nonfinite(unwrap(self.model), micro_batches, precision=self.precision, scale=scale)
        if self.processes > 1:
            found = "; ".join(f"process {n}: {text}" for n, text in enumerate(gathered(found)) if text)
        return found or "not found again when the step was run once more"

    def _evaluation_is_due(self, report: StepReport) -> bool:
        if self.validation is None or report.skipped:
            return False
        every = self.config.eval_every
        return self.step == self.config.total_steps or (every is not None and self.step % every == 0)

    def _give_up_if_stuck(self, report: StepReport, where: str) -> None:
        if self.skipped_in_a_row >= self.config.max_skipped_in_a_row:
            raise TrainingFailedError(
                f"{self.skipped_in_a_row} updates in a row were skipped, since batch "
                f"{self.batch - self.skipped_in_a_row + 1}; the last because {report.reason}"
                f"{where and f' ({where})'}. The weights are those "
                f"after update {self.step}. Look at that batch's labels, the learning rate, and grad_norm before it"
            )
