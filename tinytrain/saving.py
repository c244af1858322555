"""When a run saves its checkpoints, and who is told of them."""

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from tinytrain.checkpoint import Checkpointer, CheckpointError
from tinytrain.distributed.group import on_first
from tinytrain.resume import settings_of, shards_of, state_of

if TYPE_CHECKING:
    from tinytrain.train import Trainer


class Saver:
    """Saves a run's checkpoints when they are due, and tells its callbacks of each once it is in its place."""

    def __init__(self, trainer: "Trainer", store: Checkpointer) -> None:
        self.trainer, self.store = trainer, store
        self.saved_batch = 0
        """the last batch that the newest full checkpoint knows of"""
        self._being_written: tuple[int, bool] | None = None
        """step, and whether full, of the checkpoint that is written in the background"""

    def refuse_another_run(self) -> None:
        """Raise ``CheckpointError`` if a run that begins would save among the checkpoints of an earlier one."""
        if self.trainer.batch == 0 and (earlier := self.store.all()):
            raise CheckpointError(
                f"{self.store.folder} holds checkpoints of an earlier run, the newest of update {earlier[-1].step}. "
                f"Resume that run, choose another folder, or move them away"
            )

    def save_if_due(self, record: dict[str, Any]) -> None:
        """Save what is due after the update whose line of the log this is."""
        trainer, config = self.trainer, self.trainer.config
        if record["skipped"]:
            return
        if record.get("eval_loss", math.nan) < trainer.best_loss:  # NaN is less than nothing
            trainer.best_loss = record["eval_loss"]
            self._save(full=False, best=True)
        if config.checkpoint_every is not None and trainer.step % config.checkpoint_every == 0:
            self._save(full=True)
        elif config.weights_every is not None and trainer.step % config.weights_every == 0:
            self._save(full=False)

    def finish(self) -> None:
        """Save the state in which ``fit`` ends, and wait for what is still written in the background."""
        if self.trainer.config.checkpoint_every and self.saved_batch != self.trainer.batch:
            self._save(full=True)
        last, self._being_written = self._being_written, None  # if the wait raises, nobody is told of it
        on_first(self.store.wait)
        self._tell_of(last)

    def _save(self, *, full: bool, best: bool = False) -> None:
        trainer = self.trainer
        state = state_of(trainer, full=full)  # in all processes: each has generators of its own
        shards = shards_of(trainer, full=full)
        if full:
            trainer.sync_log()  # first, so that no checkpoint is ahead of the log
        epoch, place = trainer.data.place(trainer.batch) if hasattr(trainer.data, "place") else (None, None)
        facts = {
            "batch": trainer.batch,
            "epoch": epoch,
            "batch_in_epoch": place,
            "eval_loss": trainer.best_loss if best else None,
            "settings": settings_of(trainer),
        }
        save = partial(self.store.save, state, step=trainer.step, full=full, best=best, shards=shards, **facts)
        before, self._being_written = self._being_written, None  # if this raises, nobody is told of either
        if shards is not None:
            save()
        else:
            on_first(lambda: str(save()))
        if full:
            self.saved_batch = trainer.batch
        self._tell_of(before)  # a save waits for the one before it
        if self.store.background and shards is None:
            self._being_written = (trainer.step, full)
        else:
            self._tell_of((trainer.step, full))

    def _tell_of(self, checkpoint: tuple[int, bool] | None) -> None:
        if checkpoint is not None:
            for callback in self.trainer.callbacks_here():
                if hasattr(callback, "checkpoint_saved"):
                    callback.checkpoint_saved(*checkpoint)
