"""AdamW with weight decay where it belongs: on matrices, and nowhere else."""

import copy
from collections.abc import Iterable
from typing import Any

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


def optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, dict[str, Any]]:
    """The optimizer's state by parameter *name*: ``{name: {"exp_avg": tensor, …}}``, empty before the first update.

    Torch's own ``state_dict`` goes by position, so a model whose parameters come in another order would be given the
    moments of other parameters, without an error.
    """
    return {name: dict(optimizer.state.get(p, {})) for p, name in _names(optimizer, model).items()}


def load_optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module, states: dict[str, dict[str, Any]]) -> None:
    """Give each parameter a copy of the state saved under its name; options such as lr stay the optimizer's own.

    Raises ``ValueError``, with nothing loaded, as ``check_optimizer_state`` does.
    """
    by_name = check_optimizer_state(optimizer, model, states)
    whole = optimizer.state_dict()
    numbers = {p: i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    whole["state"] = {numbers[by_name[name]]: copy.deepcopy(state) for name, state in states.items() if state}
    optimizer.load_state_dict(whole)


def check_optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module, states: dict[str, dict[str, Any]]
) -> dict[str, Tensor]:
    """The optimizer's parameters by name, if ``states`` fit them.

    Raises ``ValueError`` that lists names which only one side has, and for a state of another shape or dtype.
    """
    by_name = {name: p for p, name in _names(optimizer, model).items()}
    if unknown := sorted(set(states) - set(by_name)):
        raise ValueError(f"the saved optimizer state has {', '.join(unknown)}, which this model does not train")
    if absent := sorted(set(by_name) - set(states)):
        raise ValueError(f"the saved optimizer state has nothing for {', '.join(absent)}")
    for name, state in states.items():
        _check_moments(name, by_name[name], state)
    return by_name


def check_parameters(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raise ``ValueError`` for an optimizer that was made for another model, and would train nothing of this one."""
    _names(optimizer, model)


def _names(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[Tensor, str]:
    known = {p: name for name, p in model.named_parameters()}
    params = [p for group in optimizer.param_groups for p in group["params"]]
    if strangers := sum(p not in known for p in params):
        raise ValueError(
            f"{strangers} of the optimizer's {len(params)} parameters are not the model's: make the optimizer from "
            f"model.parameters() once the model is built, loaded and shared out"
        )
    return {p: known[p] for p in params}


def _check_moments(name: str, parameter: Tensor, state: dict[str, Any]) -> None:
    """Moments have the parameter's shape, or one that spreads over it, such as Adafactor's rows and columns."""
    for part, value in state.items():
        if isinstance(value, Tensor) and value.dim() > 0:
            if not _spreads_over(value.shape, parameter.shape):
                raise ValueError(f"{part} of {name} has shape {list(value.shape)}; {name} has {list(parameter.shape)}")
            if value.dtype != parameter.dtype:
                raise ValueError(f"{part} of {name} is {value.dtype}; {name} is {parameter.dtype}, and would round it")


def _spreads_over(shape: torch.Size, whole: torch.Size) -> bool:
    return len(shape) == len(whole) and all(a in (1, b) for a, b in zip(shape, whole, strict=True))
