"""A state whose tensors are shared out over processes, in files: each process writes its part, any number reads it.

The files are those of ``torch.distributed.checkpoint``.
"""

import io
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.tensor import DTensor, distribute_tensor, zeros

from tinytrain.distributed.group import gathered, in_group, rank
from tinytrain.durable import checksum_of

METADATA = ".metadata"
SAFE = {
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
            "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("collections", "OrderedDict"),
    *(("pathlib", name) for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")),
    *(("torch", name) for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
}  # fmt: skip
"""(module, name) of all that may stand in the metadata, which is a pickle"""

Tree = dict[str, Any]
"""nested dicts with tensors, sharded or whole, and plain values"""


class ShardsError(ValueError):
    """The files are damaged, incomplete, or hold what no such files should hold."""


def save_shards(folder: Path, tree: Tree) -> dict[str, str]:
    """Write ``tree`` into ``folder``; all processes of the group call this. Returns {file name: checksum}, in all.

    Empty dicts leave nothing in the files. Raises ``ShardsError`` in all processes if one could not write.
    """
    try:
        dcp.save(tree, checkpoint_id=folder, no_dist=not in_group())
    except dcp.CheckpointException as error:
        raise ShardsError(f"{folder} could not be written: {_reason(error)}") from error
    mine = [path for path in folder.iterdir() if path.name.startswith(f"__{rank()}_")]
    mine += [folder / METADATA] if rank() == 0 else []
    sums = {path.name: checksum_of(path) for path in mine}
    return {name: value for part in gathered(sums) for name, value in part.items()}


def check_shards(folder: Path, checksums: Mapping[str, str]) -> None:
    """Raise ``ShardsError`` that names the first file which is missing or is not what was written."""
    for name, wanted in checksums.items():
        path = folder / name
        if not path.is_file():
            raise ShardsError(f"{path} is missing")
        if (found := checksum_of(path)) != wanted:
            raise ShardsError(f"{path} is damaged: its checksum is {found}, not {wanted}")


def read_shards(folder: Path) -> Tree:
    """Everything in ``folder`` as whole tensors on the CPU, read by this process alone, in a group or not.

    Raises ``ShardsError`` for files that are damaged or would run code.
    """
    return _filled(_empty(_metadata(folder), like={}), folder, no_dist=True)


def read_own_shards(folder: Path, parameters: Mapping[str, Tensor]) -> Tree:
    """What is in ``folder``, each process its own part only; all processes call this.

    A tensor under the name of a parameter, and of its shape, is shared out as that parameter is. Raises as
    ``read_shards`` does.
    """
    return _filled(_empty(_metadata(folder), like=parameters), folder, no_dist=False)


def _filled(tree: Tree, folder: Path, *, no_dist: bool) -> Tree:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # reading alone is what is meant
            dcp.load(tree, checkpoint_id=folder, planner=_CarefulPlanner(), no_dist=no_dist)
    except (Exception, dcp.CheckpointException) as error:
        raise ShardsError(f"{folder} cannot be read: {_reason(error)}") from error
    return tree


def _reason(error: BaseException) -> str:
    """What went wrong in the first process that failed: torch packs the errors of all into one that is no Exception."""
    inner = next(iter(error.failures.values()))[0] if isinstance(error, dcp.CheckpointException) else error
    if "weights_only" in str(inner):
        return "it holds more than tensors and plain values and may run code"
    return f"{type(inner).__name__}: {inner}"


def shared_out(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, the same in every process, shared out as ``like`` is; itself if ``like`` is whole."""
    if not isinstance(like, DTensor) or isinstance(tensor, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


def _empty(metadata: Metadata, like: Mapping[str, Tensor]) -> Tree:
    """A tree of the same form, for ``dcp.load`` to fill."""
    tree: Tree = {}
    for key, what in metadata.state_dict_metadata.items():
        *path, last = (metadata.planner_data or {}).get(key, tuple(key.split(".")))
        place = tree
        for name in path:
            place = place.setdefault(name, {})
        place[last] = _room_for(what, next((like[name] for name in (last, *path) if name in like), None))
    return tree


def _room_for(what: Any, like: Tensor | None) -> Any:
    if not isinstance(what, TensorStorageMetadata):
        return None
    dtype = what.properties.dtype
    if isinstance(like, DTensor) and like.shape == what.size:
        return zeros(what.size, dtype=dtype, device_mesh=like.device_mesh, placements=like.placements)
    return torch.empty(what.size, dtype=dtype)


class _Careful(pickle.Unpickler):
    """Reads what ``torch.distributed.checkpoint`` writes, and runs nothing else: a pickle could hold any call."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in SAFE:  # exactly: a name with a dot in it would lead on to other modules
            raise ShardsError(f"it names {module}.{name}, which has no place in a checkpoint")
        return super().find_class(module, name)


class _CarefulPlanner(dcp.DefaultLoadPlanner):
    """Reads values that are no tensors as ``torch.load`` does by default; torch's own planner would run their code."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)
        value.seek(0)
        super().load_bytes(read_item, value)


def _metadata(folder: Path) -> Metadata:
    path = folder / METADATA
    try:
        with path.open("rb") as file:
            metadata = _Careful(file).load()
    except Exception as error:  # a damaged pickle raises almost anything
        raise ShardsError(f"{path} cannot be read: {error}") from error
    if not isinstance(metadata, Metadata):
        raise ShardsError(f"{path} holds a {type(metadata).__name__} where the list of tensors should be")
    return metadata


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name, tied ones under each of their names."""
    return dict(model.named_parameters(remove_duplicate=False))
