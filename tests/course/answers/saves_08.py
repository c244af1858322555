"""Answers to exercise 08.2: saves that can be cut in two, and saves that cannot."""

import io
import os
import random
import shutil
import tempfile
from os import fsync
from os import replace as rename_over
from pathlib import Path

import torch


def straight(state, path):
    torch.save(state, path)


def aside(state, path, *, flush=True, sync=True, sync_late=False, tidy="finally", put=os.replace, folder=None):
    """The solution, with one thing done differently."""
    other = Path(folder or path.parent, f"{path.name}.tmp{random.random()}")
    try:
        with open(other, "wb") as file:
            torch.save(state, file)
            if flush:
                file.flush()
            if sync:
                os.fsync(file.fileno())
        put(other, path)
        if sync_late:
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
    except Exception:
        if tidy == "except":
            other.unlink(missing_ok=True)
        raise
    finally:
        if tidy == "finally":
            other.unlink(missing_ok=True)


def doing(**named):
    return lambda state, path: aside(state, path, **named)


def in_pieces(state, path):
    """Syncs while the last piece is still in Python's buffer."""
    memory, other = io.BytesIO(), path.with_suffix(".new")
    try:
        torch.save(state, memory)
        memory.seek(0)
        with open(other, "wb") as file:
            while piece := memory.read(1000):
                file.write(piece)
            os.fsync(file.fileno())
        os.replace(other, path)
    finally:
        other.unlink(missing_ok=True)


def opened_again(state, path):
    other = path.parent / f".{path.name}"
    try:
        torch.save(state, str(other))
        with open(other, "rb+") as file:
            os.fsync(file)
        other.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)  # the rename too
        os.close(folder)
    except BaseException:
        other.unlink(missing_ok=True)
        raise


def removes_first(state, path):
    path.unlink(missing_ok=True)
    aside(state, path)


def swallows(state, path):
    try:
        aside(state, path)
    except BaseException as error:
        print("not saved:", type(error).__name__)


def keeps_a_backup(state, path):
    if path.exists():
        shutil.copy(path, path.with_suffix(".bak"))
    torch.save(state, path)


def leaves_a_backup(state, path):
    if path.exists():
        shutil.copy(path, path.with_suffix(".bak"))
    aside(state, path)


def with_tempfile(state, path):
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).rename(path)
        except BaseException:
            os.unlink(file.name)
            raise


def through_memory(state, path):
    memory, other = io.BytesIO(), path.parent / "x"
    torch.save(state, memory)
    try:
        descriptor = os.open(other, os.O_CREAT | os.O_WRONLY)
        try:
            os.write(descriptor, memory.getvalue())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(other, path)
    except BaseException:
        other.unlink()
        raise


def imported_by_name(state, path):
    other = path.with_name(f"{path.name}.new")
    try:
        with open(other, "wb") as file:
            torch.save(state, file)
            file.flush()
            fsync(file.fileno())
        rename_over(other, path)
    finally:
        other.unlink(missing_ok=True)


def removes_before_it_renames(state, path):
    def put(other, path):
        if path.exists():
            path.unlink()
        other.rename(path)

    aside(state, path, put=put)


def moves_the_old_away(state, path):
    def put(other, path):
        old = path.with_suffix(".old")
        if path.exists():
            path.rename(old)
        other.rename(path)
        old.unlink(missing_ok=True)

    aside(state, path, put=put)


def writes_again_in_place(state, path):
    aside(state, path)
    data = path.read_bytes()
    path.write_bytes(data)


def syncs_zeros(state, path):
    """What is synced has the right size; what is written afterwards is not synced."""
    memory, other = io.BytesIO(), path.with_suffix(".new")
    torch.save(state, memory)
    try:
        with open(other, "wb") as file:
            file.write(bytes(len(memory.getvalue())))
            file.flush()
            os.fsync(file.fileno())
        other.write_bytes(memory.getvalue())
        os.replace(other, path)
    finally:
        other.unlink(missing_ok=True)


def swallows_the_renames_error(state, path):
    other = path.with_suffix(".new")
    try:
        with open(other, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        other.unlink(missing_ok=True)
        raise
    try:
        os.replace(other, path)
    except OSError:
        other.unlink()


def tidies_after_torch_save_only(state, path):
    other = path.with_suffix(".new")
    with open(other, "wb") as file:
        try:
            torch.save(state, file)
        except BaseException:
            other.unlink()
            raise
        file.flush()
        os.fsync(file.fileno())
    os.replace(other, path)


def tidies_before_the_rename_only(state, path):
    other = path.with_suffix(".new")
    try:
        with open(other, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        other.unlink()
        raise
    os.replace(other, path)


def in_a_folder_of_its_own(state, path):
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        with open(Path(folder, "state"), "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)


WRONG = {
    "straight onto the file": (straight, "the old file was gone or cut"),
    "a backup, then straight": (keeps_a_backup, "the old file was gone or cut"),
    "removes the old one first": (removes_first, "the old file was gone or cut"),
    "no fsync": (doing(sync=False), "was not called"),
    "in pieces, fsync before flush": (in_pieces, "flush first"),
    "fsync after the rename": (doing(sync=False, sync_late=True), "after it had its name"),
    "copies": (doing(put=shutil.copyfile), "was it copied?"),
    "in the system's folder": (doing(folder=tempfile.gettempdir(), put=shutil.move), "may be on another disk"),
    "leaves half a file": (doing(tidy="never"), "was left behind"),
    "leaves half a file after a Stop": (doing(tidy="except"), "was left behind"),
    "swallows the error": (swallows, "swallowed"),
    "leaves a backup": (leaves_a_backup, "Look into the folder"),
    "nothing at all": (lambda state, path: None, "The old file is still there"),
    "removes the old one before the rename": (removes_before_it_renames, "never remove it"),
    "moves the old one away": (moves_the_old_away, "never remove it"),
    "renamed, then written again in place": (writes_again_in_place, "under its own name"),
    "syncs zeros": (syncs_zeros, "written to again, after the sync"),
    "swallows the rename's error": (swallows_the_renames_error, "swallowed"),
    "tidies after torch.save only": (tidies_after_torch_save_only, "was left behind"),
    "tidies before the rename only": (tidies_before_the_rename_only, "was left behind"),
    "in a folder of its own": (in_a_folder_of_its_own, "beside `path`"),
}
RIGHT = {
    "with tempfile": with_tempfile,
    "through memory": through_memory,
    "torch flushes": doing(flush=False),
    "again": opened_again,
    "imported by name": imported_by_name,
}
