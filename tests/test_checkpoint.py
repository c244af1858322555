import json
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections import OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch

import tinytrain.checkpoint
from tinytrain.checkpoint import Checkpointer, CheckpointError, check_plain
from tinytrain.device import copy_to_host
from tinytrain.durable import checksum_of


def state_of(step):
    return {
        "model": {"weight": torch.full((3, 4), float(step)), "empty": torch.empty(0)},
        "counters": {"step": step, "nothing": None, "name": "a", "pair": (1, 2.5), "list": [True, b"x"]},
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def filled(folder, steps, **options):
    store = Checkpointer(folder, **options)
    for step in steps:
        store.save(state_of(step), step=step)
    store.close()
    return store


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("background", [False, True])
def test_what_was_saved_is_loaded_again_with_the_facts_beside_it(tmp_path, background):
    with Checkpointer(tmp_path, background=background) as store:
        folder = store.save(state_of(7), step=7, eval_loss=2.5, sizes=(1, 2))
    checkpoint, state = Checkpointer(tmp_path).load()
    assert same(state, state_of(7))
    assert (checkpoint.folder, checkpoint.step, checkpoint.full) == (folder, 7, True)
    assert checkpoint.manifest["eval_loss"] == 2.5 and checkpoint.manifest["sizes"] == [1, 2]
    assert folder == tmp_path / "step_00000007"


def test_the_newest_is_loaded_and_only_as_many_as_asked_are_kept(tmp_path):
    store = filled(tmp_path, [1, 2, 3, 4], keep=2)
    assert [found.step for found in store.all()] == [3, 4]
    assert store.latest().step == 4 and same(store.load()[1], state_of(4))


def test_steps_are_ordered_as_numbers_also_beyond_eight_digits(tmp_path):
    store = filled(tmp_path, [99_999_999, 100_000_000], keep=2)
    assert [found.step for found in store.all()] == [99_999_999, 100_000_000]
    assert store.latest().step == 100_000_000
    filled(tmp_path, [100_000_001], keep=2)
    assert [found.step for found in store.all()] == [100_000_000, 100_000_001]


def test_weights_alone_are_kept_apart_and_never_resumed_from(tmp_path):
    store = Checkpointer(tmp_path, keep=1)
    for step, full in ((1, True), (2, False), (3, False), (4, False)):
        store.save(state_of(step), step=step, full=full)
    assert [(found.step, found.full) for found in store.all()] == [(1, True), (4, False)]
    assert store.latest().step == store.load()[0].step == 1


def test_the_best_one_stays_whatever_else_is_saved_and_there_is_one(tmp_path):
    store = Checkpointer(tmp_path, keep=1)
    assert store.best() is None
    store.save(state_of(1), step=1, full=False, best=True)
    for step in (2, 3, 4):
        store.save(state_of(step), step=step)
    assert store.best().step == 1 and same(store.best().read(), state_of(1))
    store.save(state_of(5), step=5, full=False, best=True)
    assert names(tmp_path) == ["best_00000005", "step_00000004"]


def test_no_checkpoint_is_an_error_that_says_where_it_looked_and_what_to_do(tmp_path):
    store = Checkpointer(tmp_path / "none")
    assert store.all() == [] and store.latest() is None
    with pytest.raises(CheckpointError, match=r"none: no whole checkpoint to resume from\. Copy one back, or start"):
        store.load()


def test_keeping_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="keep=0 must be at least 1 checkpoint"):
        Checkpointer(tmp_path, keep=0)


# What a crash leaves, and what is in the way


def test_unfinished_folders_are_not_seen_and_the_next_save_removes_them(tmp_path):
    store = filled(tmp_path, [1])
    leftover = tmp_path / "unfinished_123_step_00000009"
    leftover.mkdir()
    (leftover / "state.pt").write_bytes(b"half")
    assert [found.step for found in store.all()] == [1] and store.load()[0].step == 1
    store.save(state_of(2), step=2)
    assert names(tmp_path) == ["step_00000001", "step_00000002"]


def test_folders_of_other_names_are_neither_read_nor_removed(tmp_path):
    store = filled(tmp_path, [1])
    for name in ("step_00000001_mine", "my_step_00000001", "step_notes"):
        (tmp_path / name).mkdir()
    filled(tmp_path, [2, 3, 4], keep=1)
    assert [found.step for found in store.all()] == [4]
    assert names(tmp_path) == ["my_step_00000001", "step_00000001_mine", "step_00000004", "step_notes"]


def test_the_same_step_saved_twice_is_the_second_one(tmp_path):
    store = filled(tmp_path, [1, 2])
    store.save(state_of(99), step=2)
    assert same(store.load()[1], state_of(99))
    assert names(tmp_path) == ["step_00000001", "step_00000002"]


class Killed(BaseException):
    """Stands for the moment at which a process is killed: nothing behind it runs."""


def test_a_kill_while_a_checkpoint_is_replaced_leaves_the_one_that_was_there(tmp_path, monkeypatch):
    store = filled(tmp_path, [2], keep=1)
    rename = Path.rename

    def killed_at_the_second(path, target):
        if path.name.startswith("unfinished_"):
            raise Killed
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed_at_the_second)
    with pytest.raises(Killed):
        store.save(state_of(99), step=2)
    monkeypatch.undo()
    assert same(Checkpointer(tmp_path).load()[1], state_of(2))
    filled(tmp_path, [3], keep=2)
    assert [found.step for found in store.all()] == [2, 3]
    store.save(state_of(100), step=2)
    store.save(state_of(4), step=4)
    assert names(tmp_path) == ["step_00000004"]


def test_a_kill_while_an_old_one_is_removed_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    store = filled(tmp_path, [1], keep=1)
    remove = tinytrain.checkpoint.shutil.rmtree

    def killed_half_way(folder, **options):
        if (folder / "manifest.json").exists():
            (folder / "manifest.json").unlink()
            raise Killed
        remove(folder, **options)

    monkeypatch.setattr(tinytrain.checkpoint.shutil, "rmtree", killed_half_way)
    with pytest.raises(Killed):
        store.save(state_of(2), step=2)
    monkeypatch.undo()
    assert [found.step for found in store.all()] == [2]  # and no warning of a folder without a manifest
    store.save(state_of(3), step=3)
    assert names(tmp_path) == ["step_00000003"]


def test_the_one_just_saved_stays_though_damaged_ones_have_more_steps(tmp_path):
    """After going back behind damaged checkpoints, a count of the highest steps would remove the only good one."""
    store = filled(tmp_path, [100, 200, 300], keep=3)
    for step in (200, 300):
        (tmp_path / f"step_{step:08d}" / "state.pt").write_bytes(b"")
    filled(tmp_path, [150], keep=1)
    assert [found.step for found in store.all()] == [150, 200, 300]
    with pytest.warns(UserWarning, match="Going back") as caught:
        assert store.load()[0].step == 150
    assert len(caught) == 2


# Damage


def damage_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_last_byte(path):
    path.write_bytes(path.read_bytes()[:-1])


def damage_all(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [damage_half, damage_last_byte, damage_all, os.remove])
def test_a_damaged_state_is_named_and_the_older_one_is_used(tmp_path, damage):
    store = filled(tmp_path, [1, 2])
    damage(tmp_path / "step_00000002" / "state.pt")
    with pytest.warns(UserWarning, match=r"step_00000002.state\.pt .*\. Going back to the checkpoint before it"):
        checkpoint, state = store.load()
    assert checkpoint.step == 1 and same(state, state_of(1))


@pytest.mark.parametrize("damage", [damage_half, damage_last_byte, damage_all, os.remove])
def test_a_damaged_manifest_is_named_and_the_older_one_is_used(tmp_path, damage):
    store = filled(tmp_path, [1, 2])
    damage(tmp_path / "step_00000002" / "manifest.json")
    with pytest.warns(UserWarning, match="step_00000002 has no readable manifest"):
        assert store.load()[0].step == 1
    store.save(state_of(3), step=3)  # no warning at every save


@pytest.mark.parametrize("change", [{"step": 1}, {"full": "yes"}, {"checksum": None}])
def test_a_manifest_that_cannot_be_this_checkpoints_is_passed_over_before_anything_is_read(tmp_path, change):
    store = filled(tmp_path, [1, 2])
    path = tmp_path / "step_00000002" / "manifest.json"
    manifest = json.loads(path.read_text("utf-8")) | change
    path.write_text(json.dumps({name: value for name, value in manifest.items() if value is not None}), "utf-8")
    with pytest.warns(UserWarning, match="step_00000002 has no readable manifest"):
        assert [found.step for found in store.all()] == [1]


def test_if_all_are_damaged_the_error_lists_what_was_tried(tmp_path):
    store = filled(tmp_path, [1, 2])
    for step in (1, 2):
        damage_half(tmp_path / f"step_{step:08d}" / "state.pt")
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="Tried and refused") as caught:
        store.load()
    assert "step_00000001" in str(caught.value) and "step_00000002" in str(caught.value)


def with_one_bit_flipped(path):
    """Writes each version of the file in turn, one flipped bit per byte, and yields the byte's place."""
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        yield at


def test_one_flipped_bit_anywhere_in_the_state_is_found(tmp_path):
    newest = filled(tmp_path, [1]).latest()
    for at in with_one_bit_flipped(newest.folder / "state.pt"):
        with pytest.raises(CheckpointError, match="is damaged: its checksum is"):
            print(at, newest.read())


def test_one_flipped_bit_anywhere_in_the_manifest_is_found_or_changes_nothing_that_it_says(tmp_path):
    store = filled(tmp_path, [1, 2])
    expected, harmless = store.latest().manifest, 0
    for at in with_one_bit_flipped(tmp_path / "step_00000002" / "manifest.json"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint, state = store.load()
        if checkpoint.step == 2:  # white space between its words
            assert checkpoint.manifest == expected and same(state, state_of(2)), at
            harmless += 1
    assert harmless < 10


class Hostile:
    def __reduce__(self):
        return exec, ("import pathlib; pathlib.Path(__import__('os').environ['TRACE']).touch()",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_code_in_a_file_with_a_valid_checksum_is_refused_and_does_not_run(tmp_path, monkeypatch, how):
    trace = tmp_path / "it_ran"
    monkeypatch.setenv("TRACE", str(trace))
    store = filled(tmp_path / "run", [1])
    monkeypatch.setattr(tinytrain.checkpoint, "check_plain", lambda state: None)
    if how == "pickle":
        monkeypatch.setattr(tinytrain.checkpoint.torch, "save", lambda state, file: file.write(pickle.dumps(state)))
    store.save({"model": Hostile()}, step=2)
    newest = store.latest()
    assert newest.step == 2
    assert checksum_of(newest.folder / "state.pt", newest.manifest) == newest.manifest["checksum"]
    with pytest.warns(UserWarning, match=r"step_00000002.state\.pt cannot be read: it holds more than tensors and pl"):
        assert store.load()[0].step == 1
    assert not trace.exists()


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


def test_a_second_save_waits_for_the_first(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    with Checkpointer(tmp_path, background=True) as store:
        store.save(state_of(1), step=1)
        timer = threading.Timer(0.2, gate.opened.set)
        timer.start()
        store.save(state_of(2), step=2)
        assert gate.opened.is_set() and (tmp_path / "step_00000001").exists()
    assert [found.step for found in store.all()] == [1, 2]


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


def test_the_manifest_says_what_it_is_in_words(tmp_path):
    filled(tmp_path, [3])
    manifest = json.loads((tmp_path / "step_00000003" / "manifest.json").read_text("utf-8"))
    assert (manifest["step"], manifest["full"], manifest["format"]) == (3, True, 1)
    assert manifest["versions"]["torch"] == torch.__version__ and set(manifest["versions"]) == {
        "python",
        "torch",
        "numpy",
    }
    assert len(manifest["checksum"]) == 32
