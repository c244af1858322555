"""Checkpoints that a crash, a full disk or a hostile file cannot spoil.

A checkpoint is a folder, ``step_00000200``, with ``state.pt`` (tensors and plain values, loadable with
``weights_only=True``) and ``manifest.json`` (what it is, in words, and a checksum over both files). It is written under
a temporary name, synced to disk, and then renamed; it is removed under a temporary name as well. At no moment is there
half a checkpoint under a real name.

The weights of a model that is shared out over processes lie beside it in ``shards/``, which each process writes a part
of, and which any number of processes can read.
"""

import json
import os
import platform
import re
import shutil
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinytrain.device import copy_to_host
from tinytrain.durable import checksum_of, hash_of, sync_folder, write_synced

PREFIX, BEST, TEMPORARY, REPLACED = "step_", "best_", "unfinished_", "replaced_"
STATE, MANIFEST, SHARDS = "state.pt", "manifest.json", "shards"
FORMAT = 1
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


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

    @property
    def shards(self) -> Path | None:
        """The folder with what the processes wrote each a part of, or None if everything is in one file."""
        return self.folder / SHARDS if self.manifest.get("shards") else None

    def read(self, *, shards: bool = True) -> dict[str, Any]:
        """The state, on the CPU. Raises ``CheckpointError`` if it is damaged or holds anything but plain data.

        ``shards=False`` only looks whether what lies in ``shards`` is whole, for processes that read a part each.
        """
        state = self._read_state()
        if self.shards is not None:
            from tinytrain.distributed.shards import ShardsError, check_shards, read_shards

            try:
                check_shards(self.shards, self.manifest["shards"])
                state = merged(state, read_shards(self.shards)) if shards else state
            except ShardsError as error:
                raise CheckpointError(str(error)) from error
        return state

    def _read_state(self) -> dict[str, Any]:
        path = self.folder / STATE
        try:
            if (found := checksum_of(path, self.manifest)) != self.manifest["checksum"]:
                raise CheckpointError(f"{path} is damaged: its checksum is {found}, not {self.manifest['checksum']}")
            return torch.load(path, map_location="cpu", weights_only=True)
        except CheckpointError:
            raise
        except Exception as error:  # torch raises five kinds here, from OSError to UnpicklingError
            raise CheckpointError(f"{path} cannot be read: {_reason(error)}") from error


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

    def save(
        self,
        state: dict[str, Any],
        *,
        step: int,
        full: bool = True,
        best: bool = False,
        shards: dict[str, Any] | None = None,
        **facts: Any,
    ) -> Path:
        """Write ``state`` as the checkpoint of ``step``; returns the folder it is (or will be) in.

        ``state`` holds tensors and plain Python values, nested in dicts, lists and tuples. ``facts`` go into the
        manifest, for people and for checks before anything is loaded; they must be JSON. With ``best=True`` it takes
        the place of the earlier best one. ``shards`` holds tensors that are shared out over the processes of the group;
        all of them then call this, each writes its part, and none goes on before the checkpoint is in its place.

        Raises ``CheckpointError`` for a state that could not be loaded again, and if writing fails; the earlier
        checkpoints are then as they were.
        """
        self.wait()
        check_plain(state)
        target = self.folder / f"{BEST if best else PREFIX}{step:08d}"
        manifest = {"format": FORMAT, "step": step, "full": full, "versions": library_versions(), **facts}
        manifest = json.loads(json.dumps(manifest))  # as it will be read back, and not changed by anyone meanwhile
        if shards is not None:
            check_plain(shards, "shards")
            self._write_together(target, state, manifest, shards)
            return target
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

    def is_empty(self) -> bool:
        """True if nothing but the best one has ever been saved here, not even one that is damaged now."""
        return not any(self.folder.glob(f"{PREFIX}*"))

    def best(self) -> Checkpoint | None:
        """The checkpoint with the lowest evaluation loss, or None."""
        found = self._found(BEST)
        return found[-1] if found else None

    def latest(self) -> Checkpoint | None:
        """The newest full checkpoint whose manifest can be read, or None. ``load`` also looks inside."""
        return next((found for found in reversed(self.all()) if found.full), None)

    def load(self, *, shards: bool = True) -> tuple[Checkpoint, dict[str, Any]]:
        """The newest full checkpoint that is whole, and its state. A damaged one is named in a warning and passed over.

        ``shards`` is as in ``Checkpoint.read``.

        Raises ``CheckpointError`` if there is none.
        """
        damaged = []
        for checkpoint in reversed(self.all()):
            if not checkpoint.full:
                continue
            try:
                return checkpoint, checkpoint.read(shards=shards)
            except CheckpointError as error:
                damaged.append(str(error))
                warnings.warn(f"{error}. Going back to the checkpoint before it", stacklevel=2)
        tried = f" Tried and refused: {'; '.join(damaged)}" if damaged else ""
        cure = "Nothing was saved here" if self.is_empty() else "Copy one back, or start again in another folder"
        raise CheckpointError(f"{self.folder}: no whole checkpoint to resume from.{tried} {cure}")

    def _found(self, prefix: str, *, warn: bool = True) -> list[Checkpoint]:
        """The checkpoints of one kind in the order of their steps; folders with any other name are not looked at."""
        found = []
        for step, _, folder in sorted(self._named(prefix)):
            try:
                manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
                if manifest["step"] != step or not isinstance(manifest["full"], bool) or "checksum" not in manifest:
                    raise ValueError("it is not of this step, or incomplete")
                found.append(Checkpoint(folder, manifest))
            except (OSError, ValueError, KeyError, TypeError) as error:
                if warn:
                    warnings.warn(f"{folder} has no readable manifest ({error}); it is passed over", stacklevel=3)
        return found

    def _named(self, prefix: str) -> Iterator[tuple[int, bool, Path]]:
        """(step, is it under its own name, folder). One that was being replaced when a kill came counts as well."""
        pattern = re.compile(rf"({REPLACED})?{prefix}(\d{{8,}})")
        for folder in self.folder.glob(f"*{prefix}*"):
            if named := pattern.fullmatch(folder.name):
                yield int(named[2]), not named[1], folder

    def _write_or_remember(self, target: Path, state: dict[str, Any], manifest: dict[str, Any]) -> None:
        try:
            self._write(target, state, manifest)
        except BaseException as error:  # raised again in the training thread, by wait()
            self._failure = error

    def _write(self, target: Path, state: dict[str, Any], manifest: dict[str, Any]) -> None:
        with self._unfinished(target) as unfinished:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            self._finish(unfinished, target, state, manifest)
        self._tidy(target)

    def _write_together(
        self, target: Path, state: dict[str, Any], manifest: dict[str, Any], shards: dict[str, Any]
    ) -> None:
        """What ``_write`` does, by all processes of the group: process 0 makes the folder and gives it its name."""
        from tinytrain.distributed.group import on_first
        from tinytrain.distributed.shards import save_shards

        def begin() -> Path:
            path = self._unfinished_name(target)
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
            return path

        unfinished = on_first(begin)
        with self._unfinished(target):
            sums = save_shards(unfinished / SHARDS, shards)
            on_first(lambda: self._finish(unfinished, target, state, manifest | {"shards": sums}))
        on_first(lambda: self._tidy(target))

    def _finish(self, unfinished: Path, target: Path, state: dict[str, Any], manifest: dict[str, Any]) -> None:
        checksum = write_synced(unfinished / STATE, lambda file: torch.save(state, file), hash_of(manifest))
        text = json.dumps(manifest | {"checksum": checksum}, indent=1)
        write_synced(unfinished / MANIFEST, lambda file: file.write(text.encode()))
        sync_folder(unfinished)
        self._put_in_place(unfinished, target)

    def _unfinished_name(self, target: Path) -> Path:
        return self.folder / f"{TEMPORARY}{os.getpid()}_{target.name}"

    @contextmanager
    def _unfinished(self, target: Path) -> Iterator[Path]:
        """The temporary name; whatever goes wrong, the folder is removed, and the error says which checkpoint."""
        unfinished = self._unfinished_name(target)
        try:
            yield unfinished
        except BaseException as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            if not isinstance(error, Exception):
                raise
            raise CheckpointError(
                f"{target} could not be written: {error}. The checkpoints before it are as they were"
            ) from error

    def _put_in_place(self, unfinished: Path, target: Path) -> None:
        """Rename to the real name. If there is one already, from before a resume, it stays loadable until then."""
        if target.exists():
            replaced = self.folder / f"{REPLACED}{target.name}"
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
        unfinished.rename(target)
        sync_folder(self.folder)

    def _tidy(self, newest: Path) -> None:
        """Remove what is no longer kept, what was replaced, and what a crash left unfinished.

        Those with more steps than the newest are of a course that a resume has left. They do not count, and stay.
        """
        if newest.name.startswith(BEST):
            old = [folder for _, _, folder in self._named(BEST) if folder != newest]
        else:
            step = int(newest.name.removeprefix(PREFIX))
            replaced = [folder for _, own, folder in self._named(PREFIX) if not own and _own_name_of(folder).exists()]
            found = [c for c in self._found(PREFIX, warn=False) if c.step <= step and c.folder not in replaced]
            kinds = ([c.folder for c in found if c.full is full] for full in (True, False))
            old = replaced + [folder for kind in kinds for folder in kind[: -self.keep]]
        for folder in old:
            _remove(folder)
        for folder in self.folder.glob(f"{TEMPORARY}*"):
            shutil.rmtree(folder, ignore_errors=True)


def merged(state: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Both, also within dicts that stand in both.

    >>> merged({"a": {"x": 1}, "b": 2}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}, 'b': 2}
    """
    result = dict(state)
    for name, value in more.items():
        nested = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = merged(result[name], value) if nested else value
    return result


def _reason(error: Exception) -> str:
    """Why torch would not read a file, in one line, without its advice to read what may run code all the same."""
    text = str(error)
    if "weights_only" in text:
        named = re.search(r"GLOBAL (\S+)", text)
        return f"it holds more than tensors and plain values{f', {named[1]},' if named else ''} and may run code"
    return text.splitlines()[0] if text else type(error).__name__


def library_versions() -> dict[str, str]:
    """What wrote a checkpoint: Python, torch and NumPy decide its numbers to the last bit."""
    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}


def check_plain(value: Any, place: str = "state") -> None:
    """Raise ``CheckpointError`` that names the first part which ``weights_only=True`` would refuse to load again.

    >>> check_plain({"run": {"folder": Path("runs")}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    tinytrain.checkpoint.CheckpointError: state['run']['folder'] is a pathlib..., and a checkpoint holds tensors...
    """
    if type(value) in (dict, OrderedDict):
        for name, part in value.items():
            check_plain(name, f"the name {name!r} in {place}")
            check_plain(part, f"{place}[{name!r}]")
    elif type(value) in (list, tuple):
        for number, part in enumerate(value):
            check_plain(part, f"{place}[{number}]")
    elif type(value) not in PLAIN and not isinstance(value, Tensor):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CheckpointError(
            f"{place} is a {kind}, and a checkpoint holds tensors and plain values only: "
            f"convert it, for example with .item(), float(), str() or torch.from_numpy()"
        )


def _own_name_of(replaced: Path) -> Path:
    return replaced.with_name(replaced.name.removeprefix(REPLACED))


def _remove(folder: Path) -> None:
    """Remove a checkpoint so that a kill on the way leaves none with half of its files."""
    away = folder.with_name(f"{TEMPORARY}{os.getpid()}_old_{folder.name}")
    with suppress(OSError):  # what cannot be removed now is found again by the next save
        folder.rename(away)
    shutil.rmtree(away, ignore_errors=True)
