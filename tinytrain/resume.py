"""What a run is made of when it is put away, and how it goes on as if it had never stopped."""

from collections.abc import Collection
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from tinytrain.checkpoint import Checkpoint, CheckpointError
from tinytrain.generators import all_states, restore_all
from tinytrain.optimizer import check_optimizer_state, load_optimizer_state, optimizer_state
from tinytrain.weights import check_model_state, load_model_state, unwrap

if TYPE_CHECKING:
    from tinytrain.train import Trainer

FULL_STATE = ("model", "optimizer", "precision", "generators", "counters", "settings", "best_loss")
COUNTERS = ("step", "batch", "tokens_seen", "skipped_steps", "skipped_in_a_row")
NOT_OF_THE_CURVE = {
    "out", "eval_every", "max_skipped_in_a_row", "checkpoint_every", "weights_every", "keep", "save_in_background"
}  # fmt: skip


def state_of(trainer: "Trainer", *, full: bool) -> dict[str, Any]:
    """Weights and counters; if ``full``, everything that the rest of the run depends on."""
    bare = unwrap(trainer.model)
    state = {"model": bare.state_dict(), "counters": {name: getattr(trainer, name) for name in COUNTERS}}
    if not full:
        return state
    return state | {
        "optimizer": optimizer_state(trainer.optimizer, bare),
        "precision": trainer.precision.state_dict(),
        "generators": all_states(),
        "settings": settings_of(trainer),
        "best_loss": trainer.best_loss,
    }


def restore(trainer: "Trainer", checkpoint: Checkpoint, state: dict[str, Any], override: Collection[str]) -> None:
    """Put a full state back into a trainer, or raise ``CheckpointError`` with nothing changed."""
    if missing := sorted({*FULL_STATE} - set(state)):
        raise CheckpointError(f"{checkpoint.folder} was not saved by a Trainer: it has no {', '.join(missing)}")
    _require_same_run(trainer, checkpoint, state["settings"], override)
    bare = unwrap(trainer.model)
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
    restore_all(state["generators"])


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
        lines = "\n  ".join(f"{name}: {saved.get(name)!r} in the checkpoint, {here.get(name)!r} now" for name in wrong)
        raise CheckpointError(
            f"{checkpoint.folder} is of a run with other settings, and would not continue its curve:\n  {lines}\n"
            f"Set them as they were, or name those that are meant to differ in override"
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
