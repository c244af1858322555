"""Checkpoints of notebook 08 that are damaged, by accident and on purpose."""

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from tinytrain.checkpoint import MANIFEST, STATE, Checkpointer, CheckpointError
from tinytrain.course.killed_08 import trainer_in
from tinytrain.durable import checksum_of
from tinytrain.train import CHECKPOINTS


def flip(data: bytes) -> bytes:
    """One bit of a byte a sixteenth into the file, which is among the embedding's."""
    at = len(data) // 64 * 4 + 2
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes | None]]] = {
    "a bit flipped": (STATE, flip),
    "cut in half": (STATE, lambda data: data[: len(data) // 2]),
    "emptied": (STATE, lambda data: b""),
    "gone": (STATE, lambda data: None),
    "manifest cut in half": (MANIFEST, lambda data: data[: len(data) // 2]),
}


def survives(home: Path, damage: str, *, keep: int, damaged: int) -> tuple[str, bool]:
    """Damage the newest checkpoints of a copy of ``home/keep_…``, and go on; what was said, and whether all is well.

    All is well if the run ends with the weights of the one in ``home/whole``.
    """
    folder = home / f"{keep}_{damaged}_{damage.replace(' ', '_')}"
    shutil.copytree(home / f"keep_{keep}", folder)
    name, change = DAMAGES[damage]
    for checkpoint in Checkpointer(folder / CHECKPOINTS).all()[-damaged:]:
        data = change((checkpoint.folder / name).read_bytes())
        (checkpoint.folder / name).unlink()
        if data is not None:
            (checkpoint.folder / name).write_bytes(data)
    trainer = trainer_in(folder, total_steps=40)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            after = trainer.resume().step
        except CheckpointError as error:
            return str(error), False
    trainer.fit()
    said = [str(each.message).replace(f"{folder / CHECKPOINTS}{os.sep}", "") for each in told]
    wanted = Checkpointer(home / "whole" / CHECKPOINTS).load()[1]["model"]
    same = all(torch.equal(value, wanted[name]) for name, value in trainer.model.state_dict().items())
    return " … ".join([*said, f"goes on after update {after}"]), same


def tamper(folder: Path, state: object) -> None:
    """Put ``state`` into the checkpoint in ``folder``, with the right checksum: whoever can write can also compute."""
    torch.save(state, folder / STATE)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest["checksum"] = checksum_of(folder / STATE, manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
