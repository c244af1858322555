"""What a run is made of when it is put away, and how it goes on as if it had never stopped."""

from collections.abc import Collection, Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tinytrain.checkpoint import Checkpoint, Checkpointer, CheckpointError, merged
from tinytrain.config import TrainConfig
from tinytrain.distributed.group import gathered, on_first
from tinytrain.distributed.wrap import is_sharded
from tinytrain.generators import all_states, keep_generators, part_from_process, restore_all
from tinytrain.optimizer import check_optimizer_state, load_optimizer_state, optimizer_state
from tinytrain.runlog import RunLog, read_run
from tinytrain.weights import check_model_state, load_model_state, tied_names, unwrap, with_ties

if TYPE_CHECKING:
    from tinytrain.train import Trainer

FULL_STATE = ("model", "optimizer", "precision", "generators", "counters", "settings", "best_loss")
COUNTERS = ("step", "batch", "tokens_seen", "skipped_steps", "skipped_in_a_row")
NOT_OF_THE_CURVE = {
    "out", "eval_every", "max_skipped_in_a_row", "checkpoint_every", "weights_every", "keep", "save_in_background"
}  # fmt: skip
FEW = 8
"""settings of the model that an error lists, where another model differs in many"""


def state_of(trainer: "Trainer", *, full: bool) -> dict[str, Any]:
    """Weights and counters; if ``full``, everything that the rest of the run depends on.

    Without the weights and moments of a model that is shared out over processes: those are ``shards_of`` it.
    """
    state = {"counters": {name: getattr(trainer, name) for name in COUNTERS}}
    if not is_sharded(trainer.model):
        state |= tensors_of(trainer, full=full)
    elif full:  # which of them have moments: those without leave no trace in the shards
        state["optimizer"] = {name: {} for name in optimizer_state(trainer.optimizer, unwrap(trainer.model))}
    if not full:
        return state
    return state | {
        "precision": trainer.precision.state_dict(),
        "generators": gathered(all_states()) if trainer.processes > 1 else [all_states()],
        "settings": settings_of(trainer),
        "best_loss": trainer.best_loss,
    }


def tensors_of(trainer: "Trainer", *, full: bool) -> dict[str, Any]:
    """The weights by name; if ``full``, the optimizer's moments as well."""
    bare = unwrap(trainer.model)
    moments = {"optimizer": optimizer_state(trainer.optimizer, bare)} if full else {}
    return {"model": bare.state_dict()} | moments


def shards_of(trainer: "Trainer", *, full: bool) -> dict[str, Any] | None:
    """What each process writes its part of, tied weights once; None where process 0 has it all."""
    if not is_sharded(trainer.model):
        return None
    tensors = tensors_of(trainer, full=full)
    again = tied_names(tensors["model"])
    return tensors | {"model": {name: value for name, value in tensors["model"].items() if name not in again}}


def nothing_saved(config: TrainConfig, store: Checkpointer) -> bool:
    """True if no checkpoint was ever saved for this run, so that it may begin.

    Raises ``CheckpointError`` for a log that goes further than a run can get before its first checkpoint: it is that
    of another run, and would be lost. While one is written in the background a run gets as far as the next.
    """
    assert config.out is not None
    if not store.is_empty():
        return False
    if (Path(config.out) / RunLog.FILE).exists():
        updates = max((record["step"] for record in read_run(config.out)), default=0)
        every = min(n for n in (config.checkpoint_every, config.weights_every) if n is not None)
        if updates > (2 * every if config.save_in_background else every):
            raise CheckpointError(
                f"{Path(config.out) / RunLog.FILE} has {updates} updates and no checkpoint beside it, though this run "
                f"saves every {every}: it is the log of another run. Choose another folder, or move it away"
            )
    return True


def read_newest(trainer: "Trainer", store: Checkpointer) -> tuple[Checkpoint, dict[str, Any]]:
    """The newest whole checkpoint and its state, the same one in every process.

    Process 0 looks for it and the others read the file that it found. Raises ``CheckpointError`` in all if one cannot.
    """
    if trainer.processes == 1:
        return store.load()
    own_part = is_sharded(trainer.model)
    read: list[tuple[Checkpoint, dict[str, Any]]] = []

    def find() -> Checkpoint:
        read.append(store.load(shards=not own_part))
        return read[0][0]

    checkpoint, trouble, state = on_first(find), "", {}
    try:
        state = read[0][1] if read else checkpoint.read(shards=not own_part)
    except CheckpointError as error:
        trouble = str(error)
    if troubles := [f"process {number}: {text}" for number, text in enumerate(gathered(trouble)) if text]:
        raise CheckpointError(
            f"every process reads the checkpoint, from a disk that all can see. {'; '.join(troubles)}"
        )
    if own_part and checkpoint.shards is not None:
        from tinytrain.distributed.shards import parameters_of, read_own_shards

        state = merged(state, read_own_shards(checkpoint.shards, parameters_of(unwrap(trainer.model))))
    return checkpoint, state


def restore(trainer: "Trainer", checkpoint: Checkpoint, state: dict[str, Any], override: Collection[str]) -> None:
    """Put a full state back into a trainer, or raise ``CheckpointError`` with nothing changed."""
    if missing := sorted({*FULL_STATE} - set(state)):
        raise CheckpointError(f"{checkpoint.folder} was not saved by a Trainer: it has no {', '.join(missing)}")
    _require_same_run(trainer, checkpoint, state["settings"], override)
    bare = unwrap(trainer.model)
    state = _in_the_form_of(bare, state)
    try:  # everything is checked before anything is loaded
        check_model_state(bare, state["model"], source=str(checkpoint.folder))
        check_optimizer_state(trainer.optimizer, bare, state["optimizer"])
        trainer.precision.load_state_dict(state["precision"])
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.folder} does not fit: {error}") from error
    load_model_state(bare, state["model"])
    load_optimizer_state(trainer.optimizer, bare, state["optimizer"])
    for name in COUNTERS:
        setattr(trainer, name, state["counters"][name])
    trainer.best_loss = state["best_loss"]
    restore_all(generators_of(trainer.rank, state))


def _in_the_form_of(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """Tied weights under all of their names, and whole tensors shared out if the model's are."""
    weights = with_ties(model.state_dict(), state["model"])  # shards hold a tied weight once
    if not is_sharded(model):
        return state | {"model": weights}
    from tinytrain.distributed.shards import parameters_of, shared_out

    own = parameters_of(model)
    weights = {name: shared_out(value, own[name]) if name in own else value for name, value in weights.items()}
    moments = {
        name: {part: shared_out(value, own[name]) if torch.is_tensor(value) else value for part, value in parts.items()}
        for name, parts in state["optimizer"].items()
        if name in own
    }
    return state | {"model": weights, "optimizer": state["optimizer"] | moments}


def generators_of(rank: int, state: dict[str, Any]) -> dict[str, Any]:
    """The generators of process ``rank`` in a full state; for a process that the run did not have, ones of its own."""
    saved = state["generators"]
    if rank < len(saved):
        return saved[rank]
    with keep_generators():
        restore_all(saved[0])
        part_from_process(rank)
        return all_states()


def settings_of(trainer: "Trainer") -> dict[str, Any]:
    """What decides the curve and does not show in the weights' names and shapes; compared when a run is resumed."""
    config = {name: value for name, value in asdict(trainer.config).items() if name not in NOT_OF_THE_CURVE}
    sizes = getattr(unwrap(trainer.model), "config", None)
    parts = {"model": asdict(sizes) if is_dataclass(sizes) and not isinstance(sizes, type) else {}}
    if trainer._fingerprint is None:  # once a run: it reads the whole text
        trainer._fingerprint = trainer.data.fingerprint() if hasattr(trainer.data, "fingerprint") else {}
    parts["data"] = trainer._fingerprint
    named = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
    settings = config | {"optimizer": type(trainer.optimizer).__name__} | named
    return {name: _plain(value) for name, value in settings.items()}


def _require_same_run(
    trainer: "Trainer", checkpoint: Checkpoint, saved: dict[str, Any], override: Collection[str]
) -> None:
    here = settings_of(trainer)
    if unknown := sorted(set(override) - set(here)):
        raise CheckpointError(f"override names {', '.join(unknown)}; settings are {', '.join(here)}")
    differ = [name for name in sorted(set(here) | set(saved)) if here.get(name) != saved.get(name)]
    if wrong := [name for name in differ if name not in override]:
        lines = "\n  ".join(_told(wrong, saved, here))
        raise CheckpointError(
            f"{checkpoint.folder} is of a run with other settings, and would not continue its curve:\n  {lines}\n"
            f"Set them as they were, or name those that are meant to differ in override"
        )


def _told(names: list[str], saved: dict[str, Any], here: dict[str, Any]) -> Iterator[str]:
    """A line for each setting; of many in the model's own config, which others may fill by the dozen, the first few."""
    of_the_model = [name for name in names if name.startswith("model.")]
    kept = of_the_model[:FEW] if len(of_the_model) > FEW + 1 else of_the_model
    for name in names:
        if name in kept or name not in of_the_model:
            yield f"{name}: {saved.get(name)!r} in the checkpoint, {here.get(name)!r} now"
    if rest := len(of_the_model) - len(kept):
        yield f"{rest} more of the model's config: it is another model"


def _plain(value: Any) -> Any:
    """A setting as a checkpoint can hold it: NumPy's and torch's numbers as Python's, tuples as lists."""
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    return value if value is None or type(value) in (bool, int, float, str) else str(value)
