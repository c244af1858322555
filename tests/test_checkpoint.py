"""What was saved is found again: which are kept, what a crash leaves, and damage."""

import json
import os
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from checkpoint_states import filled, names, same, state_of

import tinytrain.checkpoint
from tinytrain.checkpoint import Checkpointer, CheckpointError, merged
from tinytrain.durable import checksum_of


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


def test_a_folder_in_a_folder_is_made_and_two_are_kept_where_nobody_said_how_many(tmp_path):
    filled(tmp_path / "runs" / "first", [1, 2, 3])
    assert names(tmp_path / "runs" / "first") == ["step_00000002", "step_00000003"]


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


def test_of_two_best_ones_that_a_kill_has_left_the_later_counts(tmp_path, monkeypatch):
    store = Checkpointer(tmp_path)
    monkeypatch.setattr(store, "_tidy", lambda newest: None)
    for step in (1, 5, 9):
        store.save(state_of(step), step=step, full=False, best=True)
    assert store.best().step == 9


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_one_process_alone_writes_and_reads_what_several_would_share_out(tmp_path):
    runs = tmp_path / "runs" / "first"
    store = Checkpointer(runs, keep=1)
    for step in (1, 2):
        if step == 2:  # another run of this process number was killed while it wrote
            (runs / f"unfinished_{os.getpid()}_step_00000002").mkdir()
        folder = store.save(
            {"note": "beside"}, step=step, eval_loss=2.5, shards={"model": {"w": torch.full((2,), float(step))}}
        )
    assert names(runs) == ["step_00000002"] and "shards" in names(folder)
    checkpoint, state = store.load()
    assert checkpoint.shards == folder / "shards" and checkpoint.manifest["eval_loss"] == 2.5
    assert same(state, {"note": "beside", "model": {"w": torch.full((2,), 2.0)}}) and same(state, checkpoint.read())
    assert store.load(shards=False)[1] == {"note": "beside"}
    part = next(path for path in (folder / "shards").iterdir() if path.name.startswith("__0"))
    damage_last_byte(part)
    with pytest.raises(CheckpointError, match=f"{part.name} is damaged: its checksum is"):
        checkpoint.read()
    with pytest.raises(CheckpointError, match=r"shards\['w'\] is a builtins\.set"):
        store.save({}, step=3, shards={"w": {1}})


def test_no_checkpoint_is_an_error_that_says_where_it_looked_and_what_to_do(tmp_path):
    store = Checkpointer(tmp_path / "none")
    assert store.all() == [] and store.latest() is None
    with pytest.raises(CheckpointError, match=r"none: no whole checkpoint to resume from\. Nothing was saved here$"):
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
    (tmp_path / "unfinished_notes").write_text("a file, which nobody takes for a leftover")
    assert [found.step for found in store.all()] == [1] and store.load()[0].step == 1
    store.save(state_of(2), step=2)
    assert names(tmp_path) == ["step_00000001", "step_00000002", "unfinished_notes"]


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


def test_what_an_earlier_replacement_left_is_not_in_the_way_of_the_next(tmp_path):
    store = filled(tmp_path, [2])
    (tmp_path / "replaced_step_00000002").mkdir()
    (tmp_path / "replaced_step_00000002" / "state.pt").write_bytes(b"old")
    store.save(state_of(99), step=2)
    assert same(store.load()[1], state_of(99)) and names(tmp_path) == ["step_00000002"]


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


def test_an_old_one_that_cannot_be_removed_now_is_in_nobodys_way_and_goes_with_the_next_save(tmp_path, monkeypatch):
    store = filled(tmp_path, [1], keep=1)
    rename = Path.rename

    def held_open(path, target):
        if path.name == "step_00000001":
            raise PermissionError(13, "another program has it open")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", held_open)
    store.save(state_of(2), step=2)
    assert names(tmp_path) == ["step_00000001", "step_00000002"]
    monkeypatch.undo()
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
    words = r"step_00000002.state\.pt .*\. Going back to the checkpoint before it$"
    with pytest.warns(UserWarning, match=words):
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
    words = r"step_00000002 has no readable manifest \(it is not of this step, or incomplete\); it is passed over"
    with pytest.warns(UserWarning, match=words):
        assert [found.step for found in store.all()] == [1]


def test_if_all_are_damaged_the_error_lists_what_was_tried(tmp_path):
    store = filled(tmp_path, [1, 2])
    for step in (1, 2):
        damage_half(tmp_path / f"step_{step:08d}" / "state.pt")
    with pytest.warns(UserWarning) as warned, pytest.raises(CheckpointError) as caught:
        store.load()
    tried = [str(warning.message).removesuffix(". Going back to the checkpoint before it") for warning in warned]
    assert "step_00000002" in tried[0] and "step_00000001" in tried[1]
    cure = "Copy one back, or start again in another folder"
    assert str(caught.value).endswith(f"resume from. Tried and refused: {'; '.join(tried)} {cure}")


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


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("the file ends early\nand here is much advice"), "the file ends early"),
        (EOFError(), "EOFError"),
        (
            pickle.UnpicklingError("weights_only=False would read it. GLOBAL builtins.exec was not allowed"),
            "it holds more than tensors and plain values, builtins.exec, and may run code",
        ),
        (
            pickle.UnpicklingError("weights_only=False would read it"),
            "it holds more than tensors and plain values and may run code",
        ),
    ],
)
def test_why_a_state_was_not_read_is_told_in_one_line_and_without_advice_to_read_it_all_the_same(
    tmp_path, monkeypatch, error, words
):
    def refused(*_args, **_options):
        raise error

    newest = filled(tmp_path, [1]).latest()
    monkeypatch.setattr(tinytrain.checkpoint.torch, "load", refused)
    with pytest.raises(CheckpointError) as caught:
        newest.read()
    assert str(caught.value) == f"{newest.folder / 'state.pt'} cannot be read: {words}"


def test_merging_joins_what_is_nested_in_both_and_changes_neither():
    first, second = {"a": {"x": 1, "y": 2}, "b": 3, "c": {"z": 4}}, {"a": {"y": 5}, "b": {"w": 6}, "c": 7, "d": 8}
    assert merged(first, second) == {"a": {"x": 1, "y": 5}, "b": {"w": 6}, "c": 7, "d": 8}
    assert first["a"] == {"x": 1, "y": 2} and second["a"] == {"y": 5}


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
