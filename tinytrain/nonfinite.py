"""Where did a number stop being finite? Asked only after a bad step, by running that step once more."""

from collections.abc import Sequence

from torch import Tensor, nn

from tinytrain.batches import Batch
from tinytrain.blame import Blame, Passage, blame, blamed
from tinytrain.loss import count_targets
from tinytrain.observe import keep_modes_and_buffers
from tinytrain.precision import Precision
from tinytrain.step import loss_sum
from tinytrain.tensors import Phase, is_bad
from tinytrain.trace import Role, Trace


def first_nonfinite(
    model: nn.Module, micro_batches: Sequence[Batch], *, precision: Precision | None = None, scale: float = 1.0
) -> str:
    """The first place where an infinite or NaN value appears when these micro-batches run forward and backward.

    Looks at the weights, then at what each module passes on, in the order of the computation, and for NaN in the
    buffers of a module that breaks; then at the gradients on their way back. ``scale`` is the loss scale of the step
    in question. Returns one line that names the module, or an empty string if everything is finite. Gradients are
    cleared, buffers put back, hooks removed.
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
    passages: list[Passage] = []
    worst: list[str] = []  # of each passage that is bad

    def see(phase: Phase, roles: Sequence[Role], tensor: Tensor) -> None:
        bad = bool(is_bad(tensor, phase, buffer=roles[0].buffer))
        passages.append(Passage(phase, tuple(roles), bad))
        worst.append(_worst(tensor) if bad else "")

    with Trace(model, see).watching():
        loss = loss_sum(model, batch, precision) / count_targets(batch["labels"]).clamp(min=1)
        passed = blame(passages) is None
        if passed and not loss.isfinite():
            return f"the loss {_worst(loss)}, though every module's output is finite"
        if passed:
            (loss * scale).backward()
    found = blame(passages)
    return _in_words(found, worst[blamed(passages, found)]) if found is not None else ""


def _in_words(found: Blame, worst: str) -> str:
    if found.how == "kept":
        return f"the buffer {found.role} {worst}"
    if found.phase == "forward":
        what = f"the {found.role.side} of {found.role} {worst}"
        if found.role.side == "input":
            return what + (f", made in the code of {found.module}" if found.module else "")
        return what
    if found.how == "output":
        return f"the gradient leaves {found.module} non-finite on its way back"
    if found.role.side == "weight":
        apart = found.module != found.role.module and found.module
        return f"the gradient of {found.role} {worst}" + (f", made in the code of {found.module}" if apart else "")
    behind = f": look at the code of {found.module} behind it" if found.module else ""
    return f"the gradient that comes back to {found.role} is not finite{behind}"


def _worst(tensor: Tensor) -> str:
    kind = "NaN" if tensor.isnan().any() else "an infinite value"
    return f"holds {kind} in {int((~tensor.isfinite()).sum())} of {tensor.numel()} places"
