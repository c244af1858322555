"""Which weights the loss reaches: all that are trained, and no other."""

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor, nn

from tinytrain.seeds import generator_for
from tinytrain.watch.preflight.gradients import descend, loss_and_gradients, loss_of, trainable, weights_back
from tinytrain.watch.preflight.learning import LEARNING_RATES
from tinytrain.watch.preflight.report import Line, listed
from tinytrain.watch.preflight.state import as_before, plain_attributes
from tinytrain.watch.preflight.subject import NotTestedError, Subject, other_tokens

FRUITLESS = 8  # tries in a row: the last expert, if a try reaches it half the time, is overlooked once in 256


def gradient_line(subject: Subject) -> Line:
    """Every trainable weight's gradient: there, finite, not all zero. And no weight beside those of the model."""
    name = "every weight gets a gradient"
    frozen = [n for n, p in subject.model.named_parameters() if not p.requires_grad]
    note = f"; frozen: {listed(frozen)}" if frozen else ""
    with as_before(subject.model, "train") as draw_again:
        strangers = _strangers(subject, draw_again)
        if not trainable(subject.model) and not strangers:
            return Line(name, False, f"nothing is trainable{note}", "Set requires_grad to True where it should learn.")
        _, found = loss_and_gradients(subject, draw_again)
        absent = [n for n, g in found.items() if g is None]
        broken = [n for n, g in found.items() if g is not None and not g.isfinite().all()]
        zero = [n for n, g in found.items() if g is not None and not g.any()]
        late: list[str] = []
        if zero and not broken:  # behind a projection that starts at 0, gradients come with the second update
            later = _after_steps(subject, draw_again)
            late = [n for n in zero if _arrives(later[n])]
        missing = [n for n in absent + zero if n not in late]
        chosen = _chosen_by_others(subject, missing, draw_again) if missing and len(missing) < len(found) else []
    absent, zero = ([n for n in names if n not in (*late, *chosen)] for names in (absent, zero))
    note += f"; from the second update on: {listed(late)}" if late else ""
    note += f"; chosen by no token of this batch, but by others: {listed(chosen)}" if chosen else ""
    faults = {"not registered, so no optimizer and no checkpoint has them": strangers}
    faults |= {"none at all": absent, "not finite": broken, "zero": zero}
    said = "; ".join(f"{kind}: {listed(names)}" for kind, names in faults.items() if names)
    advice = "None at all: unused in forward, or cut off by detach, no_grad or .data. Zero: nothing depends on it. "
    advice += "Not finite: 0 times infinity in backward, as where() over a NaN, or sqrt at 0."
    if strangers:
        advice = "Keep modules in nn.ModuleList or nn.ModuleDict instead of a list or dict, and single tensors as "
        advice += "nn.Parameter: only then do .parameters(), .to() and state_dict() see them."
    return Line(name, not said, (said or f"{len(found)} of {len(found)} finite and not zero") + note, advice)


def _arrives(gradient: Tensor | None) -> bool:
    return gradient is not None and bool(gradient.isfinite().all() and gradient.any())


def _after_steps(subject: Subject, draw_again: Callable[[], None], steps: int = 2) -> dict[str, Tensor | None]:
    with weights_back(subject.model):
        descend(subject, LEARNING_RATES[0], steps, draw_again)
        return loss_and_gradients(subject, draw_again)[1]


def _chosen_by_others(subject: Subject, missing: list[str], draw_again: Callable[[], None]) -> list[str]:
    """Those of ``missing`` that other tokens reach, under weights as large but drawn anew: experts of a router.

    What forward never uses stays unused whatever the tokens and the router's weights are.
    """
    found: list[str] = []
    batch, draws = subject.batch, generator_for("reach")
    fruitless = 0
    try:
        while fruitless < FRUITLESS and len(found) < len(missing):
            gradients: dict[str, Tensor | None] = {}
            subject.batch = subject.batch | {"input_ids": other_tokens(subject.batch["input_ids"])}
            with weights_back(subject.model):
                with torch.no_grad():
                    for p in trainable(subject.model).values():
                        if p.dim() >= 2:
                            p.add_(torch.randn(p.shape, generator=draws).to(p) * p.std(correction=0))
                with suppress(NotTestedError):  # of weights drawn anew, the loss may well be infinite
                    gradients = loss_and_gradients(subject, draw_again)[1]
            new = [n for n in missing if n not in found and _arrives(gradients.get(n))]
            found, fruitless = found + new, 0 if new else fruitless + 1
    finally:
        subject.batch = batch
    return found


def _strangers(subject: Subject, draw_again: Callable[[], None]) -> list[str]:
    """Names of tensors that the loss depends on and would train, and that are no parameters of the model.

    A tensor that a call makes for itself is none of them: another call makes another one.
    """
    found = _leaves(subject, draw_again)
    if not found:
        return []
    again = {id(leaf) for leaf in _leaves(subject, draw_again)}  # ``found`` is alive, so an id is not used twice
    kept = {id(leaf): leaf for leaf in found if id(leaf) in again}
    names = {key: name for key, name in _names_of_others(subject.model).items() if key in kept}
    return [*names.values(), *(f"a tensor {list(leaf.shape)}" for key, leaf in kept.items() if key not in names)]


def _leaves(subject: Subject, draw_again: Callable[[], None]) -> list[Tensor]:
    draw_again()
    own = {id(p) for p in subject.model.parameters()}
    todo, seen, found = [loss_of(subject).grad_fn], set(), []
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)  # of torch's AccumulateGrad alone
        if isinstance(leaf, Tensor) and id(leaf) not in own:
            found.append(leaf)
        todo += [following for following, _ in node.next_functions]
    return found


def _names_of_others(model: nn.Module) -> dict[int, str]:
    names = {id(buffer): f"{name} (a buffer)" for name, buffer in model.named_buffers()}
    for name, value in plain_attributes(model):
        own = value.named_parameters() if isinstance(value, nn.Module) else [("", value)]
        for inner, tensor in own:
            names.setdefault(id(tensor), f"{name}.{inner}" if inner else name)
    return names
