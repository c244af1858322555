"""One way to call any language model: a batch in, logits ``[B,T,V]`` out."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def forward_logits(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Logits ``[B,T,V]`` of ``model`` for ``batch["input_ids"]`` ``[B,T]``.

    Everything in the batch but the labels is handed over by name. The labels stay here: they are shifted once, by
    the data, and a model that is given labels may shift them again.
    """
    extras = {name: value for name, value in batch.items() if name not in ("input_ids", "labels")}
    return logits_of(model(batch["input_ids"], **extras))


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returned: a tensor, a mapping with ``"logits"``, or an object with ``.logits``."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise TypeError(
        f"the model returned {type(output).__name__}, in which no logits were found: return a tensor, "
        f'a dict with "logits", or an object with .logits'
    )
