"""A run: the loop around the training step, its config, its log and its callbacks.

``train_step`` and ``evaluate`` live in ``step.py`` and can be imported from here as well.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from tinytrain.checkpoint import Checkpoint, Checkpointer, CheckpointError
from tinytrain.device import device_of, memory_bytes
from tinytrain.generators import TorchStates, all_states, keep_generators, restore_all, torch_states
from tinytrain.interrupt import Interrupt, deferred_interrupt
from tinytrain.nonfinite import first_nonfinite
from tinytrain.optimizer import build_adamw, check_optimizer_state, load_optimizer_state, optimizer_state
from tinytrain.precision import DTYPES, Precision, check_float32
from tinytrain.runlog import RunLog
from tinytrain.schedule import check_schedule, warmup_cosine
from tinytrain.step import Batch, Evaluation, StepReport, evaluate, train_step
from tinytrain.weights import check_model_state, load_model_state, unwrap

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
FULL_STATE = ("model", "optimizer", "precision", "generators", "counters", "settings", "best_loss")
COUNTERS = ("step", "batch", "tokens_seen", "skipped_steps", "skipped_in_a_row")
NOT_OF_THE_CURVE = {
    "out", "eval_every", "max_skipped_in_a_row", "checkpoint_every", "weights_every", "keep", "save_in_background"
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a run is trained. Every field is checked when the config is made."""

    total_steps: int
    """updates in the run"""
    max_lr: float
    """learning rate at the end of the warmup"""
    min_lr: float | None = None
    """learning rate from the end of the run on; a tenth of max_lr if None"""
    warmup_steps: int = 0
    """updates until max_lr is reached"""
    weight_decay: float = 0.1
    """share of each matrix removed per unit of lr"""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's memory of the gradient and of its square"""
    eps: float = 1e-8
    """AdamW's floor under the root of the second moment"""
    max_grad_norm: float = 1.0
    """bound on the 2-norm of the whole gradient"""
    precision: str = "fp32"
    """width of the forward pass: "fp32", "bf16" or "fp16"; weights stay float32"""
    eval_every: int | None = None
    """updates between two evaluations; None: only after the last"""
    max_skipped_in_a_row: int = 20
    """skipped updates in a row that end the run with an error"""
    out: str | Path | None = None
    """folder of the run: its log, and its checkpoints; None: nothing is written"""
    checkpoint_every: int | None = None
    """updates between two checkpoints that a run can be resumed from; None: no checkpoints"""
    weights_every: int | None = None
    """updates between two checkpoints of the weights alone"""
    keep: int = 2
    """newest checkpoints of each kind that stay; the best one stays as well"""
    save_in_background: bool = False
    """True: training goes on while a checkpoint is written; costs the memory of one copy"""

    def __post_init__(self) -> None:
        if self.min_lr is None:
            object.__setattr__(self, "min_lr", self.max_lr / 10)
        check_schedule(**self._schedule())
        for name in ("eval_every", "max_skipped_in_a_row", "checkpoint_every", "weights_every", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"TrainConfig.{name}={value} must be at least 1")
        if self.precision not in DTYPES:
            raise ValueError(f"TrainConfig.precision={self.precision!r} is not one of {', '.join(DTYPES)}")
        if self.out is None and (self.checkpoint_every or self.weights_every):
            raise ValueError("TrainConfig.checkpoint_every and weights_every need a folder: set TrainConfig.out")
        if not self.max_grad_norm > 0:
            raise ValueError(f"TrainConfig.max_grad_norm={self.max_grad_norm} must be more than 0 (math.inf: no limit)")

    def _schedule(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("max_lr", "min_lr", "warmup_steps", "total_steps")}

    def lr(self, step: int) -> float:
        """The learning rate of the update that follows ``step`` completed updates."""
        return float(warmup_cosine(step, **self._schedule()))


class Data(Protocol):
    """``data[n]`` is the list of micro-batches of batch number n, counted from 0 through all epochs."""

    def __getitem__(self, batch: int, /) -> Sequence[Batch]: ...


Callback = Callable[[dict[str, Any]], bool | None]
"""Called with each line of the run's log; returning False ends the run after this update.

A callback that has a method ``fit_ended(report)`` is told at the end how ``fit`` ended."""


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
    device first.

    After an interrupt, a Stop or an error, ``fit`` may be called again and goes on with the next batch.
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
    ) -> None:
        if validation is not None and not callable(validation) and iter(validation) is validation:
            raise TypeError("validation is an iterator, which is empty after one evaluation: pass list(...) of it")
        self.model, self.data, self.config = model, data, config
        self.callbacks, self.validation = tuple(callbacks), validation
        self.optimizer = optimizer or build_adamw(
            model, lr=config.max_lr, weight_decay=config.weight_decay, betas=config.betas, eps=config.eps
        )
        check_float32(model)
        self.precision = Precision(config.precision)
        self.step = self.batch = self.tokens_seen = self.skipped_steps = self.skipped_in_a_row = 0
        self._log: RunLog | None = None
        self._best_loss = math.inf
        self._saved_batch = 0
        self._generators: dict[str, Any] | None = None
        self._fingerprint: dict[str, Any] | None = None
        self._store: Checkpointer | None = None
        if config.out is not None and (config.checkpoint_every or config.weights_every):
            self._store = Checkpointer(
                Path(config.out) / CHECKPOINTS, keep=config.keep, background=config.save_in_background
            )

    def fit(self) -> FitReport:
        """Train until ``total_steps`` updates are done, a callback says False, or an interrupt comes."""
        self._refuse_a_folder_of_another_run()
        if not self.model.training:
            self.model.train()
        if self._generators is not None:  # once more, for whatever was drawn since resume
            restore_all(self._generators)
            self._generators = None
        with ExitStack() as stack:
            if self.config.out is not None:
                self._log = stack.enter_context(RunLog(self.config.out, after=self.batch))
            if self._store is not None:
                stack.enter_context(self._store)
            report = self._loop(stack.enter_context(deferred_interrupt()))
            if self._store is not None and self.config.checkpoint_every and self._saved_batch != self.batch:
                self._save(full=True)
        for callback in self.callbacks:
            if hasattr(callback, "fit_ended"):
                callback.fit_ended(report)
        return report

    def _loop(self, interrupt: Interrupt) -> FitReport:
        record: dict[str, Any] = {}
        while self.step < self.config.total_steps:
            record = self._one_batch()
            wants = [callback(record) for callback in self.callbacks]
            self._save_if_due(record)  # behind the callbacks: what they drew belongs to the state
            if interrupt.requested or False in wants:
                return FitReport(self.step, "interrupt" if interrupt.requested else "callback", record)
        return FitReport(self.step, None, record)

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
        record = self._record(report, micro_batches) | {
            "tokens_per_second": report.tokens / (end - start),
            "seconds_data": ready - start,
            "seconds_step": end - ready,
        }
        if report.skipped and report.tokens:
            record["where"] = self._where_it_broke(micro_batches, draws, report.scale)
        if self._evaluation_is_due(report):
            record["eval_loss"] = evaluate(self.model, self._validation_batches(), precision=self.precision).loss
        if self._log is not None:
            self._log.write(record)
        self._give_up_if_stuck(report, record.get("where", ""))
        return record

    def resume(self, *, override: Collection[str] = ()) -> Checkpoint:
        """Go on from the newest whole checkpoint in ``config.out``; ``fit`` then continues with the next batch.

        Weights, moments, counters, loss scale and all random generators become those of the checkpoint, so the run
        continues as if it had never stopped. Lines of the log after the checkpoint are dropped, for they are made
        again.

        Raises ``CheckpointError``, with nothing changed, if there is no whole checkpoint, or if it belongs to another
        model or to a run whose settings differ in what changes the curve; ``override`` names settings that may differ.
        """
        if self._store is None:
            raise CheckpointError("there is nothing to resume: set TrainConfig.out and TrainConfig.checkpoint_every")
        checkpoint, state = self._store.load()
        if missing := sorted({*FULL_STATE} - set(state)):
            raise CheckpointError(f"{checkpoint.folder} was not saved by a Trainer: it has no {', '.join(missing)}")
        self._require_same_run(checkpoint, state["settings"], override)
        bare = unwrap(self.model)
        try:  # everything is checked before anything is loaded
            check_model_state(bare, state["model"], source=str(checkpoint.folder))
            check_optimizer_state(self.optimizer, bare, state["optimizer"])
            self.precision.load_state_dict(state["precision"])
        except ValueError as error:
            raise CheckpointError(f"{checkpoint.folder} does not fit: {error}") from error
        load_model_state(bare, state["model"])
        load_optimizer_state(self.optimizer, bare, state["optimizer"])
        for name in COUNTERS:
            setattr(self, name, state["counters"][name])
        self._best_loss, self._saved_batch = state["best_loss"], self.batch
        self._generators = state["generators"]
        restore_all(self._generators)
        return checkpoint

    def _require_same_run(self, checkpoint: Checkpoint, saved: dict[str, Any], override: Collection[str]) -> None:
        here = self._settings()
        if unknown := sorted(set(override) - set(here)):
            raise CheckpointError(f"override names {', '.join(unknown)}; settings are {', '.join(here)}")
        differ = [name for name in sorted(set(here) | set(saved)) if here.get(name) != saved.get(name)]
        if wrong := [name for name in differ if name not in override]:
            lines = "\n  ".join(
                f"{name}: {saved.get(name)!r} in the checkpoint, {here.get(name)!r} now" for name in wrong
            )
            raise CheckpointError(
                f"{checkpoint.folder} is of a run with other settings, and would not continue its curve:\n  {lines}\n"
                f"Set them as they were, or name those that are meant to differ in override"
            )

    def _settings(self) -> dict[str, Any]:
        """What decides the curve and does not show in the weights' names and shapes; compared when a run is resumed."""
        config = {name: value for name, value in asdict(self.config).items() if name not in NOT_OF_THE_CURVE}
        sizes = getattr(unwrap(self.model), "config", None)
        parts = {"model": asdict(sizes) if is_dataclass(sizes) and not isinstance(sizes, type) else {}}
        if self._fingerprint is None:  # once a run: it reads the whole text
            self._fingerprint = self.data.fingerprint() if hasattr(self.data, "fingerprint") else {}
        parts["data"] = self._fingerprint
        named = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        settings = config | {"optimizer": type(self.optimizer).__name__} | named
        return {name: _plain(value) for name, value in settings.items()}

    def _refuse_a_folder_of_another_run(self) -> None:
        if self.batch == 0 and self._store is not None and (earlier := self._store.all()):
            raise CheckpointError(
                f"{self._store.folder} holds checkpoints of an earlier run, the newest of update {earlier[-1].step}. "
                f"Resume that run, choose another folder, or move them away"
            )

    def _save_if_due(self, record: dict[str, Any]) -> None:
        if self._store is None or record["skipped"]:
            return
        full, weights = self.config.checkpoint_every, self.config.weights_every
        if record.get("eval_loss", math.nan) < self._best_loss:  # NaN is less than nothing
            self._best_loss = record["eval_loss"]
            self._save(full=False, best=True)
        if full is not None and self.step % full == 0:
            self._save(full=True)
        elif weights is not None and self.step % weights == 0:
            self._save(full=False)

    def _save(self, *, full: bool, best: bool = False) -> None:
        assert self._store is not None
        settings = self._settings()
        counters = {name: getattr(self, name) for name in COUNTERS}
        state: dict[str, Any] = {"model": unwrap(self.model).state_dict(), "counters": counters}
        if full:
            state |= {
                "optimizer": optimizer_state(self.optimizer, unwrap(self.model)),
                "precision": self.precision.state_dict(),
                "generators": all_states(),
                "settings": settings,
                "best_loss": self._best_loss,
            }
            self._saved_batch = self.batch
            if self._log is not None:
                self._log.sync()  # first, so that no checkpoint is ahead of the log
        facts = {"batch": self.batch, "eval_loss": self._best_loss if best else None, "settings": settings}
        self._store.save(state, step=self.step, full=full, best=best, **facts)

    def _micro_batches(self) -> Sequence[Batch]:
        try:
            return self.data(self.batch) if callable(self.data) else self.data[self.batch]
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

    def _record(self, report: StepReport, micro_batches: Sequence[Batch]) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "step": self.step,
            **({"epoch": self.data.place(self.batch - 1)[0]} if hasattr(self.data, "place") else {}),
            "loss": report.loss,
            "grad_norm": report.grad_norm,
            "lr": report.lr,
            "tokens": report.tokens,
            "tokens_seen": self.tokens_seen,
            "padding": padding_share(micro_batches),
            "memory_bytes": memory_bytes(device_of(self.model)),
            "skipped": report.skipped,
            **({"reason": report.reason} if report.skipped else {}),
            "skipped_steps": self.skipped_steps,
            **({"loss_scale": report.scale} if self.config.precision == "fp16" else {}),
            "processes": 1,
        }

    def _where_it_broke(self, micro_batches: Sequence[Batch], draws: TorchStates, scale: float) -> str:
        with keep_generators():
            draws.restore()
            found = first_nonfinite(self.model, micro_batches, precision=self.precision, scale=scale)
        return found or "not found again when the step was run once more"

    def _evaluation_is_due(self, report: StepReport) -> bool:
        if self.validation is None or report.skipped:
            return False
        every = self.config.eval_every
        return self.step == self.config.total_steps or (every is not None and self.step % every == 0)

    def _validation_batches(self) -> Iterable[Batch]:
        return self.validation() if callable(self.validation) else self.validation or ()

    def _give_up_if_stuck(self, report: StepReport, where: str) -> None:
        if self.skipped_in_a_row >= self.config.max_skipped_in_a_row:
            raise TrainingFailedError(
                f"{self.skipped_in_a_row} updates in a row were skipped, since batch "
                f"{self.batch - self.skipped_in_a_row + 1}; the last because {report.reason}"
                f"{where and f' ({where})'}. The weights are those "
                f"after update {self.step}. Look at that batch's labels, the learning rate, and grad_norm before it"
            )


def _plain(value: Any) -> Any:
    """A setting as a checkpoint can hold it: NumPy's and torch's numbers as Python's, tuples as lists."""
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    return value if value is None or type(value) in (bool, int, float, str) else str(value)


def padding_share(micro_batches: Sequence[Batch]) -> float:
    """Share of positions that carry no token, 0 to 1: where ``attention_mask`` is 0, or ``doc_ids`` below 0."""
    positions = sum(batch["input_ids"].numel() for batch in micro_batches)
    padded = sum(int((batch["attention_mask"] == 0).sum()) for batch in micro_batches if "attention_mask" in batch)
    padded += sum(int((batch["doc_ids"] < 0).sum()) for batch in micro_batches if "doc_ids" in batch)
    return padded / positions if positions else 0.0
