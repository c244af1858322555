"""Saving a checkpoint: what is refused, what a failure leaves, saving in the background, the copy it takes."""

import os
import subprocess
import sys
import threading
from collections import OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_states import filled, names, same, state_of

import tinytrain.checkpoint
from tinytrain.checkpoint import Checkpointer, CheckpointError, check_plain
from tinytrain.device import copy_to_host

# Refused before it is written


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (np.float64(1.5), "state['x']['y'][1] is a numpy.float64"),
        (np.zeros(3), "state['x']['y'][1] is a numpy.ndarray"),
        (Path("a"), "state['x']['y'][1] is a pathlib"),
        ({np.int64(1): 2}, "the name np.int64(1) in state['x']['y'][1] is a numpy.int64"),
        ({1, 2}, "is a builtins.set"),
        (Pair(1, 2), "Pair"),
    ],
)
def test_what_could_not_be_loaded_again_is_refused_and_named_and_nothing_is_written(tmp_path, part, named):
    """NumPy's float64 is a float: it would be written, and refused by every load."""
    store = filled(tmp_path, [1])
    with pytest.raises(CheckpointError) as caught:
        store.save({"x": {"y": [1, part]}}, step=2)
    assert named in str(caught.value) and "convert it" in str(caught.value)
    assert names(tmp_path) == ["step_00000001"]


def test_everything_that_is_let_through_can_be_loaded_again(tmp_path):
    plain = {
        "values": [None, True, 1, 2**100, 0.5, 1j, "a", b"b", torch.float16, torch.device("cpu"), torch.Size([2])],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "ordered": OrderedDict(a=torch.ones(1)),
        3: (1, (2,)),
    }
    check_plain(plain)
    store = Checkpointer(tmp_path)
    store.save(plain, step=1)
    loaded = store.load()[1]
    assert loaded["values"] == plain["values"] and loaded[3] == plain[3]


# Failure while saving


class FullDisk:
    """A file on a disk that has room for so many bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise OSError(28, "No space left on device")
        return self.file.write(data)

    def flush(self):
        self.file.flush()


def full_disk(monkeypatch, room):
    make = tinytrain.durable._Hashing.__init__
    monkeypatch.setattr(
        tinytrain.durable._Hashing,
        "__init__",
        lambda self, file, digest: make(self, FullDisk(file, room), digest),
    )


@pytest.mark.parametrize("after", [0, 100, 600, 900])
@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_is_told_and_leaves_the_earlier_checkpoints_good(tmp_path, monkeypatch, after, background):
    store = filled(tmp_path, [1, 2], background=background)
    full_disk(monkeypatch, after)
    with pytest.raises(CheckpointError, match=r"step_00000003 could not be written: .*No space left on device"):
        store.save(state_of(3), step=3)
        store.close()
    monkeypatch.undo()
    assert names(tmp_path) == ["step_00000001", "step_00000002"]
    assert same(store.load()[1], state_of(2))
    store.save(state_of(3), step=3)
    store.close()
    assert store.load()[0].step == 3


LIMITED = """
import resource, sys, torch
from tinytrain.checkpoint import Checkpointer
store = Checkpointer(sys.argv[1])
store.save({"w": torch.ones(10)}, step=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
try:
    store.save({"a": torch.ones(300_000), "b": torch.ones(300_000)}, step=2)
except ValueError as error:
    print(error)
print(store.load()[0].step)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit on the size of a file")
def test_the_systems_own_refusal_to_write_is_told_by_its_name(tmp_path):
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "step_00000002 could not be written: [Errno 27] File too large" in done.stdout
    assert done.stdout.splitlines()[-1] == "1"
    assert names(tmp_path) == ["step_00000001"]


def test_a_file_where_the_folder_should_be_is_told_with_the_name_of_the_checkpoint(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(CheckpointError, match=r"step_00000001 could not be written: .* before it are as they were$"):
        Checkpointer(tmp_path / "run").save(state_of(1), step=1)
    assert (tmp_path / "run").read_text() == "mine"


def test_an_interrupt_in_the_middle_goes_through_and_leaves_nothing_behind(tmp_path, monkeypatch):
    store = filled(tmp_path, [1])

    def interrupted(state, file):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(tinytrain.checkpoint.torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.save(state_of(2), step=2)
    assert names(tmp_path) == ["step_00000001"]


def test_every_file_and_folder_is_forced_to_disk_before_the_rename_and_the_rename_after(tmp_path, monkeypatch):
    happened, fsync, rename = [], os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: (happened.append("sync"), fsync(descriptor)))
    monkeypatch.setattr(Path, "rename", lambda path, to: (happened.append("rename"), rename(path, to)))
    Checkpointer(tmp_path).save(state_of(1), step=1)
    on_posix = ["sync", "sync", "sync", "rename", "sync"]  # two files, their folder; then the folder above
    assert happened == (["sync", "sync", "rename"] if os.name == "nt" else on_posix)


# In the background


class Gate:
    """Holds ``torch.save`` back until it is opened."""

    def __init__(self, monkeypatch, failure=None):
        self.opened, self.save, self.failure = threading.Event(), torch.save, failure
        monkeypatch.setattr(tinytrain.checkpoint.torch, "save", self)

    def __call__(self, state, file):
        assert self.opened.wait(30)
        if self.failure:
            raise self.failure
        self.save(state, file)


def test_what_is_saved_in_the_background_is_the_state_of_the_moment(tmp_path, monkeypatch):
    gate, state = Gate(monkeypatch), state_of(1)
    with Checkpointer(tmp_path, background=True) as store:
        store.save(state, step=1)
        state["model"]["weight"].add_(5)
        state["counters"]["step"] = 6
        state["counters"]["list"].append(7)
        gate.opened.set()
    assert same(store.load()[1], state_of(1))


def test_a_failure_in_the_background_is_raised_by_the_next_save_or_by_close_once(tmp_path, monkeypatch):
    gate = Gate(monkeypatch, OSError(5, "Input/output error"))
    gate.opened.set()
    store = Checkpointer(tmp_path, background=True)
    store.save(state_of(1), step=1)
    with pytest.raises(CheckpointError, match=r"in the background .* failed: .*Input/output error"):
        store.save(state_of(2), step=2)
    store.save(state_of(3), step=3)
    with pytest.raises(CheckpointError, match=r"in the background .* failed"):
        store.close()
    store.close()
    assert names(tmp_path) == []


def test_the_memory_of_the_copy_is_kept_for_the_next_save(tmp_path):
    state, where = state_of(1), []
    with Checkpointer(tmp_path, background=True) as store:
        for step in (1, 2):
            store.save(state, step=step)
            where.append([copied.data_ptr() for copied in store._snapshot.values()])
    assert where[0] == where[1] != []


def test_a_second_save_waits_for_the_first(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    with Checkpointer(tmp_path, background=True) as store:
        store.save(state_of(1), step=1)
        assert not store._thread.daemon  # at its end a process waits for it
        timer = threading.Timer(0.2, gate.opened.set)
        timer.start()
        store.save(state_of(2), step=2)
        assert gate.opened.is_set() and (tmp_path / "step_00000001").exists()
    assert [found.step for found in store.all()] == [1, 2]


def test_the_end_of_a_process_waits_for_a_checkpoint_also_where_a_thread_saves_that_it_does_not_wait_for(
    tmp_path, monkeypatch
):
    gate, store = Gate(monkeypatch), Checkpointer(tmp_path, background=True)
    saving = threading.Thread(target=store.save, args=(state_of(1),), kwargs={"step": 1}, daemon=True)
    saving.start()
    saving.join()
    assert not store._thread.daemon
    gate.opened.set()
    store.close()
    assert store.latest().step == 1


# The copy


def test_a_tied_tensor_is_copied_once_and_the_copy_is_nobody_elses():
    weight = torch.ones(3)
    copied = copy_to_host({"a": weight, "b": [weight], "c": torch.ones(3)})
    assert copied["a"] is copied["b"][0] and copied["c"] is not copied["a"]
    weight.add_(1)
    assert torch.equal(copied["a"], torch.ones(3))


def test_the_second_copy_writes_over_the_memory_of_the_first():
    state, kept = {"a": torch.ones(3), "b": torch.zeros(2, 3).t(), "n": 1}, {}
    first = copy_to_host(state, kept)
    where = [first[name].data_ptr() for name in "ab"]
    state["a"].add_(1)
    second = copy_to_host(state, kept)
    assert [second[name].data_ptr() for name in "ab"] == where
    assert same(second, {"a": torch.full((3,), 2.0), "b": torch.zeros(3, 2), "n": 1})


def test_memory_that_is_no_longer_needed_is_let_go_and_another_shape_gets_its_own():
    kept, storage = {}, torch.arange(6.0)
    copy_to_host({"a": storage, "b": torch.ones(2)}, kept)
    assert len(kept) == 2
    seen_otherwise = copy_to_host({"a": storage.view(2, 3)}, kept)
    assert len(kept) == 1 and same(seen_otherwise["a"], torch.arange(6.0).view(2, 3))


def test_gradients_are_not_asked_of_a_copy():
    copied = copy_to_host({"w": torch.nn.Parameter(torch.ones(2))})
    assert copied["w"].requires_grad is False
