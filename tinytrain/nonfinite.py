"""Where did a number stop being finite? Asked only after a bad step, by running that step once more."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from tinytrain.loss import count_targets
from tinytrain.observe import keep_modes_and_buffers
from tinytrain.precision import Precision
from tinytrain.step import Batch, loss_sum


def first_nonfinite(
    model: nn.Module, micro_batches: Sequence[Batch], *, precision: Precision | None = None, scale: float = 1.0
) -> str:
    """The first place where an infinite or NaN value appears when these micro-batches run forward and backward.

    Looks at the weights, then at what each module passes on, in the order of the computation, then at the gradients
    on their way back. ``scale`` is the loss scale of the step in question. Returns one line that names the module,
    or an empty string if everything is finite. Gradients are cleared, buffers put back, hooks removed.
    """
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return f"the weight {name} {_worst(parameter)}"
    precision = precision or Precision()
    with keep_modes_and_buffers(model):
        for number, batch in enumerate(micro_batches):
            model.zero_grad(set_to_none=True)  # what the step in question has left is not of this batch alone
            where = _run(model, batch, precision, scale)
            model.zero_grad(set_to_none=True)
            if where:
                return where if len(micro_batches) == 1 else f"micro-batch {number}: {where}"
    return ""


def _run(model: nn.Module, batch: Batch, precision: Precision, scale: float) -> str:
    forward: list[str] = []
    backward: list[tuple[str, str]] = []
    with _watched(model, forward, backward):
        loss = loss_sum(model, batch, precision) / count_targets(batch["labels"]).clamp(min=1)
        if forward:
            return forward[0]
        if not loss.isfinite():
            return f"the loss {_worst(loss)}, though every module's output is finite"
        (loss * scale).backward()
    return _culprit(backward) or _bad_gradient(model)


def _culprit(events: list[tuple[str, str]]) -> str:
    """The innermost module into which the gradient came finite and out of which it did not; or else the first place
    that it reached in a bad state."""
    bad_at_output = {name for name, side in events if side == "output"}
    for name, side in sorted(events, key=lambda event: -event[0].count(".")):
        if side == "input" and name not in bad_at_output:
            return f"the gradient leaves {name} non-finite on its way back"
    return f"the gradient that comes back to {events[0][0]} is not finite" if events else ""


def _bad_gradient(model: nn.Module) -> str:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of {name} {_worst(parameter.grad)}"
    return ""


@contextmanager
def _watched(model: nn.Module, forward: list[str], backward: list[tuple[str, str]]) -> Iterator[None]:
    """Note each module whose output is not finite, and each tensor between modules whose gradient is not."""
    handles = []
    for name, module in model.named_modules():
        name = name or type(model).__name__
        handles.append(module.register_forward_pre_hook(_before(name, backward), with_kwargs=True))
        handles.append(module.register_forward_hook(_after(name, forward, backward)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _before(name: str, backward: list[tuple[str, str]]) -> Callable[..., None]:
    def hook(_module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        for tensor in _tensors((arguments, named)):
            _listen(tensor, (name, "input"), backward)

    return hook


def _after(name: str, forward: list[str], backward: list[tuple[str, str]]) -> Callable[..., None]:
    def hook(_module: nn.Module, _arguments: tuple[Any, ...], output: Any) -> None:
        for tensor in _tensors(output):
            if tensor.is_floating_point() and not tensor.isfinite().all():
                forward.append(f"the output of {name} {_worst(tensor)}")
            _listen(tensor, (name, "output"), backward)

    return hook


def _listen(tensor: Tensor, event: tuple[str, str], events: list[tuple[str, str]]) -> None:
    def hook(gradient: Tensor) -> None:
        if not gradient.isfinite().all():
            events.append(event)

    if tensor.requires_grad:
        tensor.register_hook(hook)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


def _worst(tensor: Tensor) -> str:
    kind = "NaN" if tensor.isnan().any() else "an infinite value"
    return f"holds {kind} in {int((~tensor.isfinite()).sum())} of {tensor.numel()} places"
