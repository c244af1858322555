"""A model's weights by name: out of wrappers, into files that others read, and back with every difference named."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

WRAPPERS = ("module", "_orig_mod")  # DistributedDataParallel and torch.compile


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside ``DistributedDataParallel`` and ``torch.compile``, however they are nested."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model.get_submodule("_orig_mod")
        else:
            return model


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers put before it.

    >>> plain_name("module._orig_mod.tokens.weight")
    'tokens.weight'
    """
    while name.split(".", 1)[0] in WRAPPERS:
        name = name.split(".", 1)[1]
    return name


def load_model_state(model: nn.Module, state: Mapping[str, Tensor], source: str = "the saved weights") -> None:
    """Copy ``state`` into ``model``; names may carry wrappers' prefixes. Nothing is copied unless everything fits.

    Raises ``ValueError`` that lists names which only one side has, and tensors of another shape or dtype.
    """
    model = unwrap(model)
    own = model.state_dict()
    saved = _with_names_of(own, state)
    if differences := model_differences(own, saved):
        lines = "\n  ".join(differences)
        raise ValueError(f"{source} do not belong to this {type(model).__name__}:\n  {lines}")
    model.load_state_dict(saved)


def model_differences(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> list[str]:
    """One line for each name that only one side has, and for each tensor of another shape or dtype."""
    lines = [f"{name}: only in the model" for name in sorted(set(own) - set(saved))]
    lines += [f"{name}: only in the file" for name in sorted(set(saved) - set(own))]
    for name in sorted(set(own) & set(saved)):
        here, there = own[name], saved[name]
        if here.shape != there.shape:
            lines.append(f"{name}: {list(there.shape)} in the file, {list(here.shape)} in the model")
        elif here.dtype != there.dtype:
            lines.append(f"{name}: {there.dtype} in the file, {here.dtype} in the model")
    return lines


def _with_names_of(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``state`` without wrappers' prefixes, unless the model itself has a part of such a name."""
    return {name if name in own else plain_name(name): tensor for name, tensor in state.items()}


def export_weights(model: nn.Module, path: str | Path) -> None:
    """Write the weights as a safetensors file, which holds no code and which other libraries read. Tied once."""
    from safetensors.torch import save_model

    save_model(unwrap(model), str(path))


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Read weights that ``export_weights`` wrote; tied weights are tied again.

    Raises ``ValueError`` that lists the differences if they belong to another model.
    """
    from safetensors.torch import load_file

    model = unwrap(model)
    own = model.state_dict()
    saved = _with_names_of(own, load_file(str(path)))
    for name, alias in _tied(own).items():  # a tied weight is stored under one of its names
        if name not in saved and alias in saved:
            saved[name] = saved[alias]
        elif alias not in saved and name in saved:
            saved[alias] = saved[name]
    load_model_state(model, saved, source=str(path))


def _tied(state: Mapping[str, Tensor]) -> dict[str, str]:
    """{name: an earlier name of the same tensor}."""
    first: dict[int, str] = {}
    tied = {}
    for name, tensor in state.items():
        if tensor.data_ptr() in first:
            tied[name] = first[tensor.data_ptr()]
        first.setdefault(tensor.data_ptr(), name)
    return tied
