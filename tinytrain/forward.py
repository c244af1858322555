"""One way to call any language model: a batch in, logits ``[B,T,V]`` out."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from tinytrain.weights import unwrap

KEPT = ("input_ids", "labels")
_TAKEN: "WeakKeyDictionary[Callable[..., Any], tuple[frozenset[str], bool]]" = WeakKeyDictionary()


def forward_logits(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Logits ``[B,T,V]`` of ``model`` for ``batch["input_ids"]`` ``[B,T]``.

    Everything in the batch but the labels is handed over by name. The labels stay here: they are shifted once, by
    the data, and a model that is given labels may shift them again.

    ``positions`` goes to ``position_ids`` where that is the model's name for it. An ``attention_mask`` stays here if
    the model takes none and a causal model needs none, which is so with no padding or padding on the right.

    Raises ``ValueError`` for what the model does not take. ``**kwargs`` take any name but ``positions`` and
    ``doc_ids``: in a model that overlooks one of those, packed documents would see each other, and no error say so.
    """
    return fitted_logits(model, fitted(model, batch))


def fitted_logits(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Logits ``[B,T,V]`` for a batch that ``fitted`` gave, wherever its tensors lie by now."""
    extras = {name: value for name, value in batch.items() if name not in KEPT}
    try:
        return logits_of(model(batch["input_ids"], **extras))
    except IndexError as error:
        ids = batch["input_ids"]
        span = f"go from {int(ids.min())} to {int(ids.max())}" if ids.numel() else "are none"
        error.add_note(f"The ids of this batch {span}, {ids.shape[-1]} in a row.")
        error.add_note("Has a table of the model fewer rows than the vocabulary has tokens, or a row positions?")
        raise


def fitted(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The batch under the model's own names, without a mask that the model neither takes nor needs.

    On a batch that is still on the CPU this waits for no device. Raises as ``forward_logits`` does.
    """
    kept = {name: value for name, value in batch.items() if name in KEPT}
    extras = {name: value for name, value in batch.items() if name not in KEPT}
    return kept | _taken(model, extras) if extras else kept


def _taken(model: nn.Module, extras: dict[str, Tensor]) -> dict[str, Tensor]:
    """``extras`` under the model's own names, without a mask that it neither takes nor needs."""
    names, takes_any = _parameters_of(unwrap(model))
    taken = {}
    for name, value in extras.items():
        if name in names or (takes_any and name not in ("positions", "doc_ids")):
            taken[name] = value
        elif name == "positions" and "position_ids" in names:
            taken["position_ids"] = value
        elif name != "attention_mask" or value.device.type != "cpu" or not _padded_on_the_right(value):
            raise ValueError(_refusal(model, name, value))
    return taken


def _parameters_of(model: nn.Module) -> tuple[frozenset[str], bool]:
    """(names that ``model.forward`` takes, whether it takes any other as well), looked up once per function."""
    forward = getattr(model.forward, "__func__", model.forward)
    with suppress(KeyError, TypeError):  # TypeError: a callable that cannot be a key
        return _TAKEN[forward]
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):  # not written in Python: who takes what shows in the call
        return frozenset({"positions", "doc_ids"}), True
    names = frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    found = names, any(p.kind is p.VAR_KEYWORD for p in parameters)
    with suppress(TypeError):
        _TAKEN[forward] = found
    return found


def _padded_on_the_right(mask: Tensor) -> bool:
    """True if no token follows padding, so that no token of a causal model sees any; also without padding."""
    real = mask != 0
    return not bool((real[:, 1:] & ~real[:, :-1]).any())


def _refusal(model: nn.Module, name: str, value: Tensor) -> str:
    kind = type(unwrap(model)).__name__
    if name == "doc_ids":
        why = "its documents would see each other in packed rows"
        cure = f"Name doc_ids in {kind}.forward and keep documents apart there, or pad instead of packing"
    elif name == "positions":
        why = "it would count positions in its own way"
        cure = f"Name positions (or position_ids) in {kind}.forward, or leave positions out of the batch"
    elif name == "attention_mask":
        if value.device.type == "cpu":
            why = "there are tokens behind padding, and they would see it"
        else:
            why = f"the mask is on {value.device}, where looking at it would wait for the device"
        cure = (
            f"Name attention_mask in {kind}.forward, or pad on the right (collate(..., side='right')) and leave "
            f"attention_mask out of the batch"
        )
    else:
        why = "nothing in a batch is dropped silently"
        cure = f"Name {name} in {kind}.forward, or leave it out of the batch"
    return f"{kind}.forward takes no {name} {list(value.shape)}, which the batch holds: {why}. {cure}"


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returned: a tensor, a mapping with ``"logits"``, or an object with ``.logits``."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise TypeError(
        f"the model returned {type(output).__name__}, in which no logits were found: return a tensor, "
        f'a dict with "logits", or an object with .logits, if need be from a module around it'
    )
