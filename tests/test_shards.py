"""Files that each process writes a part of: read whole by one, refused when damaged or hostile."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from tinytrain.checkpoint import Checkpointer, CheckpointError
from tinytrain.distributed import launch, shard
from tinytrain.distributed.shards import ShardsError, read_own_shards, read_shards, save_shards, shared_out
from tinytrain.distributed.wrap import is_sharded, sharers
from tinytrain.model import GPT, PRESETS

SHAPE = (6, 4)


def nano():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


def save_nano(rank, folder):
    """A sharded model saved through a Checkpointer; how much of it lies in this process."""
    model = shard(nano())
    weights = {name: value for name, value in model.state_dict().items() if name != "head.weight"}
    with Checkpointer(folder) as store:
        store.save({"note": "beside"}, step=3, shards={"model": weights, "count": {"updates": 7}})
    local = sum(p.to_local().numel() for p in model.parameters())
    return is_sharded(model), sharers(model), local, model.head.weight is model.tokens.weight


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    return folder, launch(save_nano, 2, str(folder))


@pytest.fixture
def store(saved, tmp_path):
    import shutil

    shutil.copytree(saved[0], tmp_path, dirs_exist_ok=True)
    return Checkpointer(tmp_path)


def test_each_process_holds_half_of_the_weights_and_ties_stay(saved):
    whole = sum(p.numel() for p in nano().parameters())
    assert [(sharded, n, tied) for sharded, n, _, tied in saved[1]] == [(True, 2, True)] * 2
    assert sum(local for _, _, local, _ in saved[1]) == whole
    assert max(local for _, _, local, _ in saved[1]) < 0.6 * whole


def test_one_process_reads_it_whole(store):
    checkpoint, state = store.load()
    wanted = nano().state_dict()
    assert (checkpoint.step, state["note"], state["count"]) == (3, "beside", {"updates": 7})
    assert set(state["model"]) == set(wanted) - {"head.weight"}
    assert all(torch.equal(value, wanted[name]) for name, value in state["model"].items())


def test_each_process_wrote_a_file_and_all_are_in_the_manifest(store):
    folder = store.latest().folder
    written = {path.name for path in (folder / "shards").iterdir()}
    assert set(json.loads((folder / "manifest.json").read_text())["shards"]) == written
    assert {name.split("_")[2] for name in written if name.startswith("__")} == {"0", "1"}


def read_in_three(rank, folder):
    """The shares that three processes read, put together again."""
    model = shard(nano())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    tree = read_own_shards(Path(folder), dict(model.named_parameters()))
    wanted = nano().state_dict()
    mine = tree["model"]["tokens.weight"]
    return mine.to_local().shape[0], all(torch.equal(v.full_tensor(), wanted[n]) for n, v in tree["model"].items())


def test_any_other_number_of_processes_reads_a_share_each(store):
    rows = launch(read_in_three, 3, str(store.latest().folder / "shards"))
    assert sum(n for n, _ in rows) == 256 and max(n for n, _ in rows) < 90
    assert [equal for _, equal in rows] == [True] * 3


@pytest.mark.parametrize("how", ["a flipped byte", "cut short", "missing"])
def test_a_damaged_share_is_named(store, how):
    path = next((store.latest().folder / "shards").glob("__1_*"))
    whole = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + (bytes([whole[middle] ^ 1]) + whole[middle + 1 :]) * (how != "cut short"))
    with pytest.raises(CheckpointError, match=rf"{path.name} is (damaged|missing)"):
        store.latest().read()
    with pytest.warns(UserWarning, match=path.name), pytest.raises(CheckpointError, match="no whole checkpoint"):
        store.load(shards=False)


class Hostile:
    """Runs code when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_metadata_that_would_run_code_is_refused(store, tmp_path):
    folder, marker = store.latest().folder / "shards", tmp_path / "was here"
    (folder / ".metadata").write_bytes(pickle.dumps(Hostile(marker)))
    with pytest.raises(ShardsError, match=r"it names .*touch|it names .*getattr|it names pathlib"):
        read_shards(folder)
    assert not marker.exists()
    pickle.loads((folder / ".metadata").read_bytes())  # the same bytes, read without care
    assert marker.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.distributed.checkpoint.utils", "os.system"),
        ("torch.distributed.checkpoint.metadata", "os.path.os.system"),
        ("torch.distributed.checkpoint.format_utils", "torch_save_to_dcp"),
        ("torch", "load"),
    ],
)
def test_no_way_leads_out_of_the_modules_that_metadata_may_name(store, module, name):
    """What pickle would call is named by a module and a path of attributes in it."""
    folder = store.latest().folder / "shards"
    short = pickle.SHORT_BINUNICODE
    named = b"".join(short + bytes([len(text)]) + text.encode() for text in (module, name))
    code = named + pickle.STACK_GLOBAL + short + b"\x04true" + pickle.TUPLE1 + pickle.REDUCE
    (folder / ".metadata").write_bytes(b"\x80\x04" + code + pickle.STOP)
    with pytest.raises(ShardsError, match=f"it names {module}.{name}, which"):
        read_shards(folder)


def test_a_value_that_would_run_code_is_refused(tmp_path):
    marker = tmp_path / "was here"
    with pytest.warns(UserWarning, match="single process"):
        save_shards(tmp_path / "shards", {"a": torch.zeros(3), "n": Hostile(marker)})
    with pytest.raises(ShardsError, match="cannot be read: it holds more than tensors and plain values"):
        read_shards(tmp_path / "shards")
    assert not marker.exists()
    with pytest.raises(CheckpointError, match=r"shards\['n'\] is a"):
        Checkpointer(tmp_path / "run").save({}, step=1, shards={"n": Hostile(marker)})


def test_metadata_that_is_something_else_is_refused(store):
    folder = store.latest().folder / "shards"
    (folder / ".metadata").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(ShardsError, match="holds a list where the list of tensors should be"):
        read_shards(folder)
    (folder / ".metadata").write_bytes(b"")
    with pytest.raises(ShardsError, match="cannot be read"):
        read_shards(folder)


def test_one_process_without_a_group_can_write_them_as_well(tmp_path):
    tensor = torch.arange(24.0).reshape(SHAPE)
    with pytest.warns(UserWarning, match="single process"):
        sums = save_shards(tmp_path, {"a": {"b.c": tensor}, "n": 3})
    assert set(sums) == {path.name for path in tmp_path.iterdir()}
    tree = read_shards(tmp_path)
    assert torch.equal(tree["a"]["b.c"], tensor) and tree["n"] == 3


def test_a_whole_tensor_stays_whole_where_the_model_is_whole():
    tensor = torch.zeros(SHAPE)
    assert shared_out(tensor, torch.zeros(SHAPE)) is tensor


def cut_short(rank, folder):
    """The file system fails in process 1, in the middle of a save."""
    import tinytrain.distributed.shards as shards

    model = shard(nano())
    if rank == 1:
        shards.checksum_of = lambda path: (_ for _ in ()).throw(OSError(5, "Input/output error"))
    with Checkpointer(folder) as store:
        store.save({}, step=4, shards={"model": model.state_dict()})


def test_a_save_that_fails_in_one_process_leaves_the_earlier_checkpoint(store):
    from tinytrain.distributed import LaunchError

    with pytest.raises(LaunchError, match=r"step_00000004 could not be written.*Input/output error"):
        launch(cut_short, 2, str(store.folder))
    assert [checkpoint.step for checkpoint in store.all()] == [3]


def write_to_a_folder_that_went_away(rank, folder):
    model = shard(nano())
    if rank == 1:
        import torch.distributed.checkpoint.filesystem as filesystem

        filesystem._write_item = lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    try:
        save_shards(Path(folder), {"model": model.state_dict()})
    except ShardsError as error:
        return str(error)
    return "nothing happened"


def test_a_share_that_cannot_be_written_is_an_error_in_all_processes(tmp_path):
    for told in launch(write_to_a_folder_that_went_away, 2, str(tmp_path)):
        assert "could not be written: OSError: [Errno 28] No space left on device" in told
