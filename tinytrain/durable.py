"""Files that outlive a power cut once their writing has returned, and whose damage is found when they are read."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


class _Hashing:
    """A file that hashes what passes through it, so that nothing is read back to be hashed."""

    def __init__(self, file: BinaryIO, digest: "hashlib.blake2b") -> None:
        self._file, self.hash, self.failure = file, digest, None

    def write(self, data: bytes) -> int:
        try:
            self.hash.update(data)
            return self._file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An ``OSError`` inside that names no file, as that of a full disk, gets the name of ``path``."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_synced(path: Path, write: Callable[[Any], object], digest: "hashlib.blake2b | None" = None) -> str:
    """Write a file, force it to disk, and return the checksum of what ``digest`` holds and of what was written."""
    with naming(path), path.open("wb") as file:
        hashing = _Hashing(file, digest or hash_of({}))
        try:
            write(hashing)
        except RuntimeError as error:  # torch puts one of its own in place of "No space left on device"
            raise hashing.failure or error from error
        file.flush()
        os.fsync(file.fileno())
    return hashing.hash.hexdigest()


def hash_of(manifest: dict[str, Any]) -> "hashlib.blake2b":
    """A hash that has taken in the manifest: a flipped bit there is found as well as one in the state."""
    facts = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)


def checksum_of(path: Path, manifest: dict[str, Any] | None = None) -> str:
    """The checksum of a file, or that over a manifest and a file which ``write_synced`` returned for both."""
    with path.open("rb") as file:
        digest = hashlib.blake2b(digest_size=16) if manifest is None else hash_of(manifest)
        return hashlib.file_digest(file, lambda: digest).hexdigest()


def replace_file(path: Path, data: bytes) -> None:
    """Put a file in its place: the old one or the new one is there, never half of one."""
    unfinished = path.with_name(f"{path.name}.unfinished_{os.getpid()}")
    try:
        write_synced(unfinished, lambda file: file.write(data))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force a rename to disk; Windows has no such call and needs none."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hold(folder: Path) -> int | None:
    """Hold a folder for one writer, until ``release`` or the end of the process, be it a kill.

    Returns what ``release`` takes; None where there are no such locks (Windows, some network disks). Then nothing is
    held. Raises ``BlockingIOError`` while somebody else holds the folder.
    """
    if fcntl is None:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BlockingIOError(
            f"{folder} is being written by another run, which is still going. Wait until it has ended, stop it, or "
            f"choose another folder"
        ) from None
    except OSError:  # a disk that has no locks
        os.close(descriptor)
        return None
    return descriptor


def release(held: int | None) -> None:
    """Let go of what ``hold`` returned."""
    if held is not None:
        fcntl.flock(held, fcntl.LOCK_UN)  # also for child processes that have inherited it
        os.close(held)
