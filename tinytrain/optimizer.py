"""AdamW with weight decay where it belongs: on matrices, and nowhere else."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_FUSED_DEVICES = ("cpu", "cuda", "mps")


def param_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Split a model's trainable parameters into those that decay and those that do not.

    Tensors with two axes or more (embeddings, projections) decay by ``weight_decay``; biases and norm gains have one
    axis and do not. A tied tensor appears once, under the first of its names; frozen ones are left out. Each group is
    ``{"params": [tensors], "names": [str], "weight_decay": float}``; a group without tensors is not returned.

    Raises ``ValueError`` if nothing is trainable.

    >>> [(g["names"], g["weight_decay"]) for g in param_groups(nn.Linear(3, 2), 0.1)]
    [(['weight'], 0.1), (['bias'], 0.0)]
    """
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trainable:
        raise ValueError(f"{type(model).__name__} has no trainable parameter: is every requires_grad False?")
    matrices = [(name, p) for name, p in trainable if p.dim() >= 2]
    vectors = [(name, p) for name, p in trainable if p.dim() < 2]
    return [_group(*pair) for pair in ((matrices, weight_decay), (vectors, 0.0)) if pair[0]]


def _group(named: list[tuple[str, Tensor]], weight_decay: float) -> dict:
    return {
        "params": [p for _, p in named],
        "names": [name for name, _ in named],
        "weight_decay": weight_decay,
    }


def build_adamw(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    fused: bool | None = None,
) -> torch.optim.AdamW:
    """``torch.optim.AdamW`` over ``param_groups(model, weight_decay)``.

    ``lr`` is the step size before any schedule, ``weight_decay`` the share of a weight that is removed per unit of lr.
    ``fused=None`` takes torch's one-kernel version where every parameter's device has it; on CPU it costs about a
    third of the loop version. Source: Loshchilov and Hutter 2019; the defaults are those common for language models
    (Brown et al. 2020, appendix B).
    """
    groups = param_groups(model, weight_decay)
    if fused is None:
        fused = _can_fuse(p for group in groups for p in group["params"])
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=fused)


def _can_fuse(params: Iterable[Tensor]) -> bool:
    return all(p.is_floating_point() and p.device.type in _FUSED_DEVICES for p in params)
