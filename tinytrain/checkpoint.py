"""Checkpoints that a crash, a full disk or a hostile file cannot spoil.

A checkpoint is a folder, ``step_00000200``, with ``state.pt`` (tensors and plain values, loadable with
``weights_only=True``) and ``manifest.json`` (what it is, in words, and the checksum of ``state.pt``). It is written
under a temporary name, synced to disk, and then renamed: at no moment is there half a checkpoint under a real name.
"""

import hashlib
import json
import os
import shutil
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

PREFIX, BEST, TEMPORARY = "step_", "best_", "unfinished_"
STATE, MANIFEST = "state.pt", "manifest.json"
FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint is not there, is damaged, or does not belong to this run; the message says which and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk, known by its manifest."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        """Completed updates."""
        return self.manifest["step"]

    @property
    def full(self) -> bool:
        """True if a run can be resumed from it, False if it holds weights only."""
        return self.manifest["full"]

    def read(self) -> dict[str, Any]:
        """The state, on the CPU. Raises ``CheckpointError`` if it is damaged or holds anything but plain data."""
        path = self.folder / STATE
        try:
            if (found := _checksum_of(path)) != self.manifest["checksum"]:
                raise CheckpointError(f"{path} is damaged: its checksum is {found}, not {self.manifest['checksum']}")
            return torch.load(path, map_location="cpu", weights_only=True)
        except CheckpointError:
            raise
        except Exception as error:  # torch raises five kinds here, from OSError to UnpicklingError
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CheckpointError(f"{path} cannot be read: {reason}") from error


class Checkpointer:
    """Saves states to ``folder`` and finds the newest good one.

    ``keep`` is how many of the newest full checkpoints stay, and how many of the newest with weights only; the best one
    stays as well. With ``background=True``, ``save`` copies the state and returns while a thread writes it; if writing
    fails, the next ``save``, or ``close``, raises what went wrong.

    Use it as a context manager, or call ``close`` at the end.
    """

    def __init__(self, folder: str | Path, keep: int = 2, *, background: bool = False) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} must be at least 1 checkpoint")
        self.folder, self.keep, self.background = Path(folder), keep, background
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._snapshot: dict[tuple[Any, ...], Tensor] = {}

    def save(self, state: dict[str, Any], *, step: int, full: bool = True, best: bool = False, **facts: Any) -> Path:
        """Write ``state`` as the checkpoint of ``step``; returns the folder it is (or will be) in.

        ``state`` holds tensors and plain Python values, nested in dicts, lists and tuples. ``facts`` go into the
        manifest, for people and for checks before anything is loaded; they must be JSON. With ``best=True`` it takes
        the place of the earlier best one.
        """
        self.wait()
        target = self.folder / f"{BEST if best else PREFIX}{step:08d}"
        manifest = {"format": FORMAT, "step": step, "full": full, "torch": torch.__version__, **facts}
        if not self.background:
            self._write(target, state, manifest)
            return target
        snapshot = copy_to_host(state, self._snapshot)
        self._thread = threading.Thread(target=self._write_or_remember, args=(target, snapshot, manifest), daemon=False)
        self._thread.start()
        return target

    def wait(self) -> None:
        """Wait for a save in the background; raises what went wrong in it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise CheckpointError(f"saving in the background to {self.folder} failed: {failure}") from failure

    close = wait

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def all(self) -> list[Checkpoint]:
        """All checkpoints with a readable manifest, the oldest first, the best one not among them."""
        return self._found(PREFIX)

    def best(self) -> Checkpoint | None:
        """The checkpoint with the lowest evaluation loss, or None."""
        found = self._found(BEST)
        return found[-1] if found else None

    def latest(self) -> Checkpoint | None:
        """The newest full checkpoint whose manifest can be read, or None. ``load`` also looks inside."""
        return next((found for found in reversed(self.all()) if found.full), None)

    def load(self) -> tuple[Checkpoint, dict[str, Any]]:
        """The newest full checkpoint that is whole, and its state. A damaged one is named in a warning and passed over.

        Raises ``CheckpointError`` if there is none.
        """
        damaged = []
        for checkpoint in reversed(self.all()):
            if not checkpoint.full:
                continue
            try:
                return checkpoint, checkpoint.read()
            except CheckpointError as error:
                damaged.append(str(error))
                warnings.warn(f"{error}. Going back to the checkpoint before it", stacklevel=2)
        tried = f" Tried and refused: {'; '.join(damaged)}" if damaged else ""
        raise CheckpointError(f"{self.folder}: no whole checkpoint to resume from.{tried}")

    def _found(self, prefix: str) -> list[Checkpoint]:
        found = []
        for folder in sorted(self.folder.glob(f"{prefix}*")):
            try:
                manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
                found.append(Checkpoint(folder, {"step": manifest["step"], "full": manifest["full"]} | manifest))
            except (OSError, ValueError, KeyError, TypeError) as error:
                warnings.warn(f"{folder} has no readable manifest ({error}); it is passed over", stacklevel=3)
        return found

    def _write_or_remember(self, target: Path, state: dict[str, Any], manifest: dict[str, Any]) -> None:
        try:
            self._write(target, state, manifest)
        except BaseException as error:  # raised again in the training thread, by wait()
            self._failure = error

    def _write(self, target: Path, state: dict[str, Any], manifest: dict[str, Any]) -> None:
        unfinished = self.folder / f"{TEMPORARY}{os.getpid()}_{target.name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            checksum = _write_synced(unfinished / STATE, lambda file: torch.save(state, file))
            text = json.dumps(manifest | {"checksum": checksum}, indent=1)
            _write_synced(unfinished / MANIFEST, lambda file: file.write(text.encode()))
            _sync_folder(unfinished)
            if target.exists():  # the same step again, after a resume: the new one is as good as the old
                shutil.rmtree(target)
            unfinished.rename(target)
            _sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        self._tidy(target)

    def _tidy(self, newest: Path) -> None:
        """Remove what is no longer kept, and what a crash left unfinished."""
        if newest.name.startswith(BEST):
            old = [folder for folder in self.folder.glob(f"{BEST}*") if folder != newest]
        else:
            old = [c.folder for full in (True, False) for c in self._of_kind(full)[: -self.keep]]
        for folder in [*old, *self.folder.glob(f"{TEMPORARY}*")]:
            shutil.rmtree(folder, ignore_errors=True)

    def _of_kind(self, full: bool) -> list[Checkpoint]:
        return [checkpoint for checkpoint in self.all() if checkpoint.full is full]


def copy_to_host(state: Any, reuse: dict[tuple[Any, ...], Tensor] | None = None) -> Any:
    """The same nested state with its tensors copied to CPU memory; tensors that share memory share it in the copy.

    ``reuse`` keeps the copies from call to call and writes over them: fresh memory costs more than the copying.
    """
    kept = {} if reuse is None else reuse
    fresh: dict[tuple[Any, ...], Tensor] = {}
    copied = _copy(state, kept, fresh)
    kept.clear()
    kept.update(fresh)
    return copied


def _copy(value: Any, kept: dict[tuple[Any, ...], Tensor], fresh: dict[tuple[Any, ...], Tensor]) -> Any:
    if isinstance(value, Tensor):
        key = (value.device, value.data_ptr(), tuple(value.shape), tuple(value.stride()), value.dtype)
        if value.numel() == 0:
            return value.detach().clone()
        if key not in fresh:
            old = kept.get(key)
            fresh[key] = value.detach().to("cpu", copy=True) if old is None else old.copy_(value.detach())
        return fresh[key]
    if isinstance(value, dict):
        return {name: _copy(part, kept, fresh) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copy(part, kept, fresh) for part in value)
    return value


class _Hashing:
    """A file that hashes what passes through it, so that nothing is read back to be hashed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.hash = file, hashlib.blake2b(digest_size=16)

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _write_synced(path: Path, write: Callable[[Any], object]) -> str:
    """Write a file, force it to disk, and return the checksum of what was written."""
    with path.open("wb") as file:
        hashing = _Hashing(file)
        write(hashing)
        file.flush()
        os.fsync(file.fileno())
    return hashing.hash.hexdigest()


def _checksum_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _sync_folder(folder: Path) -> None:
    """Force a rename to disk; Windows has no such call and needs none."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
