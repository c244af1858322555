"""``module:factory`` or ``path/to/file.py:factory``: where the command line gets a model of yours from."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from tinytrain.generate import longest_row


def load_target(target: str) -> tuple[nn.Module, dict[str, Any] | None, torch.optim.Optimizer | None]:
    """Call the factory; (model, batch, optimizer), the last two None if it returns only a model.

    Raises ``ValueError`` that says which of it failed: the import, the name, the call, or what came back.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise ValueError(f"{target!r} names no factory: write module:factory or path/to/file.py:factory")
    factory = _factory(_import(place), place, name)
    try:
        made = factory()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{target}() raises {_told(error)}") from error
    parts = made if isinstance(made, tuple) else (made,)
    kinds = (nn.Module, dict, torch.optim.Optimizer)
    if not 1 <= len(parts) <= 3 or not all(map(isinstance, parts, kinds)):
        found = ", ".join(type(part).__name__ for part in parts)
        raise ValueError(f"{target}() returned ({found}); model, (model, batch) or (model, batch, optimizer) is wanted")
    model, batch, optimizer = (*parts, None, None)[:3]
    return model, batch, optimizer


def _import(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix == ".py" and not path.is_file():
        raise ValueError(f"{place}: no such file")
    try:
        if path.suffix != ".py":
            if "" not in sys.path and str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(place)
        name = _free_name(path)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickles look a class's module up there
        beside = {file.stem for file in path.parent.glob("*.py")} & {*sys.stdlib_module_names, "torch", "numpy"}
        # Files beside it can be imported, and come first, unless one of them would stand in for Python's or torch's.
        sys.path.insert(len(sys.path) if beside else 0, str(path.parent.resolve()))
        spec.loader.exec_module(module)
        return module
    except (Exception, SystemExit) as error:
        raise ValueError(f"importing {place} raises {_told(error)}") from error


def _free_name(path: Path) -> str:
    """The file's own name, or another one where that is taken: a file may be called torch.py or math.py."""
    loaded = sys.modules.get(path.stem)
    spec = importlib.util.find_spec(path.stem) if loaded is None and path.stem.isidentifier() else None
    place = str(path) if spec is None and loaded is None else getattr(loaded, "__file__", getattr(spec, "origin", None))
    own = path.stem not in sys.stdlib_module_names and Path(place or "").resolve() == path.resolve()
    return path.stem if own else f"{path.stem}_of_preflight"


def _factory(module: ModuleType, place: str, name: str) -> Callable[[], Any]:
    factory = getattr(module, name, None)
    if callable(factory):
        return factory
    offered = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    raise ValueError(f"{place} has no function {name}; it has {', '.join(offered) or 'none'}")


def _told(error: BaseException) -> str:
    """The error, and the file and line it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def vocabulary_of(model: nn.Module) -> int:
    """V of a model that came without a batch. Raises ``ValueError`` where it does not show."""
    V = getattr(getattr(model, "config", None), "vocab_size", None)
    if isinstance(V, int) and V > 0:
        return V
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    heads = {m.out_features for m in model.modules() if isinstance(m, nn.Linear)}
    found = sorted({size for size in sizes if size in heads} or set(sizes[:1]))
    if len(found) == 1:
        return found[0]
    raise ValueError("the model does not say how large its vocabulary is: let the factory return (model, batch)")


def row_length_of(model: nn.Module, longest: int = 64) -> int:
    """Positions of a row that the model takes, as far as its config says, and at most ``longest``."""
    return min(longest, longest_row(model) or longest)
