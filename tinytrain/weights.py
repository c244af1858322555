"""A model's weights by name: out of wrappers, into files that others read, and back with every difference named."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

WRAPPERS = ("module", "_orig_mod")  # DistributedDataParallel and torch.compile


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside ``DistributedDataParallel``, ``DataParallel`` and ``torch.compile``, however they are nested."""
    model = uncompiled(model)
    while isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        model = uncompiled(model.module)
    return model


def uncompiled(model: nn.Module) -> nn.Module:
    """The model inside ``torch.compile``."""
    while "_orig_mod" in model._modules:
        model = model.get_submodule("_orig_mod")
    return model


def load_model_state(model: nn.Module, state: Mapping[str, Tensor], source: str = "the saved weights") -> None:
    """Copy ``state`` into ``model``; names may carry wrappers' prefixes. Nothing is copied unless everything fits.

    Raises ``ValueError`` as ``check_model_state`` does.
    """
    unwrap(model).load_state_dict(check_model_state(model, state, source))


def check_model_state(
    model: nn.Module, state: Mapping[str, Tensor], source: str = "the saved weights"
) -> dict[str, Tensor]:
    """``state`` under the model's own names, if it fits the model.

    Raises ``ValueError`` that lists names which only one side has, tensors of another shape or dtype, and names that
    are one tensor in the model and two different ones in ``state``.
    """
    model = unwrap(model)
    own = model.state_dict()
    saved = _with_names_of(own, state)
    if differences := model_differences(own, saved):
        lines = "\n  ".join(differences)
        raise ValueError(f"{source} do not belong to this {type(model).__name__}:\n  {lines}")
    return saved


def model_differences(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> list[str]:
    """One line for each name that only one side has, each tensor of another shape or dtype, each tie that differs."""
    lines = [f"{name}: only in the model" for name in sorted(set(own) - set(saved))]
    lines += [f"{name}: only in the file" for name in sorted(set(saved) - set(own))]
    for name in sorted(set(own) & set(saved)):
        here, there = own[name], saved[name]
        if not (isinstance(here, Tensor) and isinstance(there, Tensor)):
            continue  # what a module's own get_extra_state gave, which only that module can judge
        if here.shape != there.shape:
            lines.append(f"{name}: {list(there.shape)} in the file, {list(here.shape)} in the model")
        elif here.dtype != there.dtype:
            lines.append(f"{name}: {there.dtype} in the file, {here.dtype} in the model")
    for name, first in tied_names(own).items():
        if name in saved and first in saved and not _alike(saved[name], saved[first]):
            lines.append(f"{name}: another tensor than {first} in the file, the same one in the model")
    return lines


def _alike(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all()))


def _with_names_of(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``state`` without wrappers' prefixes.

    A wrapper's prefix stands before every name, so it is taken off all of them or of none; and of none as soon as the
    names are the model's own, which may have a part called ``module`` itself.
    """
    names = list(state)
    while set(names) - set(own) and len({name.partition(".")[0] for name in names}) == 1:
        if names[0].partition(".")[0] not in WRAPPERS or not all("." in name for name in names):
            break
        names = [name.partition(".")[2] for name in names]
    return dict(zip(names, state.values(), strict=True))


def export_weights(model: nn.Module, path: str | Path) -> None:
    """Write the weights as a safetensors file, which holds no code and which other libraries read. Tied once.

    Written under another name and renamed, so that ``path`` is the old file or the new one.
    """
    from safetensors.torch import save_model

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished_{os.getpid()}")
    try:
        save_model(unwrap(model), str(unfinished))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Read weights that ``export_weights`` wrote; tied weights are tied again.

    Raises ``FileNotFoundError`` if there is no such file, and ``ValueError`` if it is damaged or of another model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    model = unwrap(model)
    own = model.state_dict()
    try:
        loaded = load_file(str(path))
    except SafetensorError as error:
        raise ValueError(f"{path} is no whole safetensors file ({error}): export it again") from error
    load_model_state(model, with_ties(own, _with_names_of(own, loaded)), source=str(path))


def with_ties(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``saved``, where a tied weight may stand under one of its names, with all the names that it has in ``own``."""
    saved = dict(saved)
    for name, alias in tied_names(own).items():
        if name not in saved and alias in saved:
            saved[name] = saved[alias]
        elif alias not in saved and name in saved:
            saved[alias] = saved[name]
    return saved


def tied_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """{name: an earlier name of the same tensor}."""
    first: dict[tuple[int, torch.Size], str] = {}
    tied = {}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            continue
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # the part that this process has
        if local.numel() == 0:
            continue
        key = (local.data_ptr(), tensor.shape)
        if key in first:
            tied[name] = first[key]
        first.setdefault(key, name)
    return tied
