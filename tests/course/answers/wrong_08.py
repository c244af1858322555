"""Wrong and right answers to the exercises of notebook 08."""

import io
import json
import os
import random
import shutil
import tempfile
from os import fsync
from os import replace as rename_over
from pathlib import Path

import numpy as np
import torch


def three(saved=None, *, python=True, numpy=True, torchs=True, plain=True, parts=5):
    """The solution, with a part of it left out."""
    if saved is None:
        name, keys, *rest = np.random.get_state()
        return {
            "python": random.getstate(),
            "numpy": (name, keys.tolist() if plain else keys, *rest)[:parts],
            "torch": torch.get_rng_state(),
        }
    if python:
        random.setstate(saved["python"])
    if numpy:
        np.random.set_state(saved["numpy"])
    if torchs:
        torch.set_rng_state(saved["torch"])
    return saved


def leaving_out(**named):
    return lambda saved=None: three(saved, **named)


def seeds_anew(saved=None):
    """Draws a seed and puts all generators to its beginning, now and later."""
    seed = random.getrandbits(30) if saved is None else saved["seed"]
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return {"seed": seed}


def first_seed(saved=None):
    """Keeps torch's seed, which is where its stream began."""
    if saved is None:
        return {"seed": torch.initial_seed()}
    random.seed(saved["seed"])
    np.random.seed(saved["seed"] % 2**32)
    torch.manual_seed(saved["seed"])
    return saved


kept = {}


def keeps_the_first(saved=None):
    """Takes the states once, and hands out the same ones ever after."""
    if saved is None:
        kept.setdefault("states", three())
        return kept["states"]
    return three(saved)


beside = {}


def keeps_numpys_beside(saved=None):
    """Keeps NumPy's state in a variable of the module: another process has nothing there."""
    if saved is None:
        beside["numpy"] = np.random.get_state()
        return {"python": random.getstate(), "torch": torch.get_rng_state()}
    random.setstate(saved["python"])
    np.random.set_state(beside["numpy"])
    torch.set_rng_state(saved["torch"])
    return saved


def returns_only_the_names(saved=None):
    return dict.fromkeys(three(saved)) if saved is not None else three()


def uses_it_up(saved=None):
    if saved is not None:
        three(saved)
        saved["torch"].zero_()
        return saved
    return three()


def without_pythons_normal(saved=None):
    if saved is None:
        return three() | {"python": (*random.getstate()[:2], None)}
    return three(saved)


def as_text(saved=None):
    if saved is None:
        numpy = np.random.get_state(legacy=False)
        numpy["state"]["key"] = numpy["state"]["key"].tolist()
        return {"p": json.dumps(random.getstate()), "n": json.dumps(numpy), "t": torch.get_rng_state().tolist()}
    version, numbers, normal = json.loads(saved["p"])
    random.setstate((version, tuple(numbers), normal))
    np.random.set_state(json.loads(saved["n"]))
    torch.set_rng_state(torch.tensor(saved["t"], dtype=torch.uint8))
    return saved


def numpys_new_form(saved=None):
    if saved is None:
        numpy = np.random.get_state(legacy=False)
        numpy["state"]["key"] = numpy["state"]["key"].tolist()
        return {"python": random.getstate(), "numpy": numpy, "torch": torch.random.get_rng_state()}
    np.random.set_state(saved["numpy"] | {"state": saved["numpy"]["state"]})
    random.setstate(saved["python"])
    torch.random.set_rng_state(saved["torch"])
    return saved


def returns_nothing(saved=None):
    return None if three(saved) is saved else three()


def two_functions(saved=None):
    if saved is not None:
        for put, name in ((random.setstate, "a"), (torch.set_rng_state, "c")):
            put(saved[name])
        name, keys, position, has_gauss, gauss = saved["b"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
        return saved
    name, keys, position, has_gauss, gauss = np.random.get_state()
    numpy = [name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss]
    return {"a": random.getstate(), "b": numpy, "c": torch.get_rng_state()}


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


def from_batch(first, *, keep_short=True):
    """Batches one after the other, from ``first(done, per_epoch)`` on."""

    def answer(order, n_rows, batch_size, done, count):
        per_epoch = -(-n_rows // batch_size)
        batches = [order(e)[i : i + batch_size] for e in range(done + count + 4) for i in range(0, n_rows, batch_size)]
        batches = [batch for batch in batches if keep_short or len(batch) == batch_size]
        start = first(done, per_epoch)
        return batches[start : start + count]

    return answer


def one_order(which):
    def answer(order, n_rows, batch_size, done, count):
        per_epoch = -(-n_rows // batch_size)
        found = []
        for batch in range(done, done + count):
            _, place = divmod(batch, per_epoch)
            found.append(order(which)[place * batch_size : (place + 1) * batch_size])
        return found

    return answer


def runs_over_the_end(order, n_rows, batch_size, done, count):
    epoch, place = divmod(done, -(-n_rows // batch_size))
    rows = order(epoch)
    return [rows[i * batch_size : (i + 1) * batch_size] for i in range(place, place + count)]


def one_long_stream(order, n_rows, batch_size, done, count):
    rows = [row for epoch in range(done + count) for row in order(epoch)]
    return [rows[i * batch_size : (i + 1) * batch_size] for i in range(done, done + count)]


def two_epochs_only(order, n_rows, batch_size, done, count):
    epoch, place = divmod(done, -(-n_rows // batch_size))
    batches = [order(e)[i : i + batch_size] for e in (epoch, epoch + 1) for i in range(0, n_rows, batch_size)]
    return batches[place : place + count]


def asked_for(change):
    """The solution, with what it is asked for changed first."""

    def answer(order, n_rows, batch_size, done, count):
        given = {"order": order, "n_rows": n_rows, "batch_size": batch_size, "done": done, "count": count}
        return generator(**given | change(**given))

    return answer


def splits_a_tensor(order, n_rows, batch_size, done, count):
    batches, epoch = [], 0
    while len(batches) < done + count:
        batches += [part.tolist() for part in torch.tensor(order(epoch)).split(batch_size)]
        epoch += 1
    return batches[done : done + count]


def every_epoch_first(order, n, size, done, count):
    return [order(e)[i : i + size] for e in range(done + count) for i in range(0, n, size)][done : done + count]


def splits_an_array(order, n_rows, batch_size, done, count):
    batches, epoch = [], 0
    while len(batches) < done + count:
        batches += [list(part) for part in np.split(np.array(order(epoch)), range(batch_size, n_rows, batch_size))]
        epoch += 1
    return batches[done : done + count]


def of_tensors(*given):
    return [list(torch.tensor(batch)) for batch in generator(*given)]


def generator(order, n_rows, batch_size, done, count):
    def forever():
        epoch = 0
        while True:
            rows = order(epoch)
            while rows:
                yield rows[:batch_size]
                rows = rows[batch_size:]
            epoch += 1

    batches = forever()
    for _ in range(done):
        next(batches)
    return [next(batches) for _ in range(count)]


WRONG = {
    1: {
        "torch's alone": (leaving_out(python=False, numpy=False), "Python's generator is not where it was"),
        "without Python's": (leaving_out(python=False), "Python's generator is not where it was"),
        "without NumPy's": (leaving_out(numpy=False), "NumPy's generator is not where it was"),
        "without torch's": (leaving_out(torchs=False), "torch's generator is not where it was"),
        "NumPy's as it is": (leaving_out(plain=False), "an array"),
        "without the second normal number": (leaving_out(parts=3), "in pairs"),
        "seeds anew": (seeds_anew, "something was drawn or seeded"),
        "the seed of the start": (first_seed, "not the place in it"),
        "always the first states": (keeps_the_first, "not the place in it"),
        "nothing at all": (lambda saved=None: {} if saved is None else saved, "not the place in it"),
        "returns nothing after putting back": (returns_nothing, "It returned NoneType"),
        "NumPy's in a variable beside": (keeps_numpys_beside, "a variable beside it"),
        "returns only the names": (returns_only_the_names, "change nothing in it"),
        "uses the saved states up": (uses_it_up, "change nothing in it"),
        "without Python's second normal number": (without_pythons_normal, "Python's generator is not where it was"),
    },
    2: {
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
    },
    3: {
        "the epoch begins again": (from_batch(lambda done, n: done // n * n), "The epoch begins again"),
        "jumps to the next epoch": (from_batch(lambda done, n: -(-done // n) * n), "jumps to the next epoch"),
        "the run begins again": (from_batch(lambda done, n: 0), "begins again"),
        "one too far": (from_batch(lambda done, n: done + 1), "passed over"),
        "one too few": (from_batch(lambda done, n: max(0, done - 1)), "comes twice"),
        "drops the short batch": (from_batch(lambda done, n: done, keep_short=False), "short batch"),
        "the first epoch's order": (one_order(0), "that of epoch 0"),
        "runs over the end": (runs_over_the_end, "stays in one epoch's order"),
        "one long stream": (one_long_stream, "rows of two epochs"),
        "one list of rows": (lambda o, n, b, d, c: o(0), "It returned a list of int"),
        "lists of tensors": (of_tensors, "list of list of Tensor"),
        "two epochs only": (two_epochs_only, "batches were asked for"),
        "three batches at least": (asked_for(lambda count, **_: {"count": max(3, count)}), "0 batches were asked for"),
        "one batch at least": (asked_for(lambda count, **_: {"count": max(1, count)}), "0 batches were asked for"),
        "six orders for ever": (asked_for(lambda order, **_: {"order": lambda e: order(e % 6)}), "far into the run"),
        "two rows at least": (asked_for(lambda batch_size, **_: {"batch_size": max(2, batch_size)}), "of one row"),
        "two batches at least": (
            asked_for(lambda n_rows, batch_size, **_: {"batch_size": min(batch_size, n_rows - 1)}),
            "holds an epoch",
        ),
    },
}
RIGHT = {
    1: {"with tensors": two_functions, "the same": three, "NumPy's new form": numpys_new_form, "as text": as_text},
    2: {
        "with tempfile": with_tempfile,
        "through memory": through_memory,
        "torch flushes": doing(flush=False),
        "again": opened_again,
        "imported by name": imported_by_name,
    },
    3: {
        "a generator": generator,
        "all batches, then a slice": from_batch(lambda done, n: done),
        "as many epochs as batches": every_epoch_first,
        "torch splits": splits_a_tensor,
        "NumPy splits": splits_an_array,
    },
}
