"""The lines of a preflight, in the order of their likely causes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from tinytrain.watch.preflight.calls import dropout_line, same_call_line
from tinytrain.watch.preflight.inputs import (
    batch_fault,
    finite_line,
    labels_line,
    loss_line,
    model_fault,
    raw_line,
    shapes_line,
)
from tinytrain.watch.preflight.leak import leak_line
from tinytrain.watch.preflight.learning import overfit_line
from tinytrain.watch.preflight.neighbours import documents_line, padding_line, rows_line
from tinytrain.watch.preflight.nudge import nudged
from tinytrain.watch.preflight.order import order_line
from tinytrain.watch.preflight.parts import groups_line, tied_line
from tinytrain.watch.preflight.reach import gradient_line
from tinytrain.watch.preflight.report import Line, Report, listed
from tinytrain.watch.preflight.slope import slope_line
from tinytrain.watch.preflight.state import as_before
from tinytrain.watch.preflight.subject import Forward, NotTestedError, Subject, first_line, subject_of

LEAKS = {
    f"no future leak ({mode}, {'with' if mask else 'without'} padding mask)": (mode, mask)
    for mode in ("train", "eval")
    for mask in (False, True)
}
PADDING = {f"padding on the {side} changes nothing": side for side in ("right", "left")}
SAME_CALL = "the same call twice"
TESTS: dict[str, Callable[[Subject], Line]] = {
    "shapes and dtypes": shapes_line,
    "weights are finite": finite_line,
    "logits are raw": raw_line,
    "labels shifted once": labels_line,
    "initial loss": loss_line,
    SAME_CALL: same_call_line,
    "dropout off in eval": dropout_line,
    "other rows change nothing": rows_line,
    **{name: partial(leak_line, name=name, mode=mode, with_mask=mask) for name, (mode, mask) in LEAKS.items()},
    "order matters": order_line,
    **{name: partial(padding_line, name=name, side=side) for name, side in PADDING.items()},
    "packed documents are strangers": documents_line,
    "tied weights": tied_line,
    "every weight gets a gradient": gradient_line,
    "gradients are the loss's slope": slope_line,
    "decay groups": groups_line,
    "one batch can be overfitted": overfit_line,
}
NEEDS_EQUAL_ANSWERS = frozenset(TESTS).difference(
    ("shapes and dtypes", "weights are finite", "logits are raw", "labels shifted once", "initial loss"),
    ("tied weights", "every weight gets a gradient", "decay groups", "one batch can be overfitted"),
)  # compare two calls: where a call leaves something behind, or weights of zero hide what moves, they would be wrong


def preflight(
    model: nn.Module,
    batch: Mapping[str, Any],
    *,
    forward: Forward | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Report:
    """Test a fresh model on one batch (``input_ids`` and ``labels`` ``[B,T]``); seconds on a small model.

    Ids and labels are looked at in all rows; for what needs the model the batch is cut to 128 tokens, rows to 64, and
    one row of up to 1024 tokens is looked at for leaks. Lines that compare two calls first move weights that are all
    zero, such as a head that starts so, and name them: what zeros switch off could not be seen.
    ``forward`` is for models that are called otherwise: ``forward(model, batch)`` returns the logits; what such a
    model takes is then what the batch holds. ``optimizer`` is looked at, not used.

    Costs, in forward passes of 128 tokens or fewer: about 160 for the four lines on the future (32 rows one by one in
    each), 100 for all others, and up to 40 updates for the last line, three times as many where they do not lower it.
    Memory: one copy of the weights, one gradient and AdamW's two moments, all given back.

    Weights, gradients, buffers, modes, random generators and plain attributes of modules are as before afterwards:
    tensors, generators, and lists, dicts, sets and deques of them. What an object of another class keeps is not seen.
    A line that could not be tested says why; where nothing can be tested, one line says so.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(f"batch is {type(batch).__name__}; a dict with input_ids and labels [B,T] is wanted")
    name = "shapes and dtypes"
    if torch.is_inference_mode_enabled():
        cure = "Call preflight outside of torch.inference_mode()."
        return Report((Line(name, False, "inside torch.inference_mode() no gradient can be made", cure),))
    if fault := batch_fault(dict(batch)):
        return Report((Line(name, False, fault, "Mend the batch. Nothing else was tested."),))
    if fault := model_fault(model):
        cure = "Call the model once on a batch before anything else: lazy layers get their shape there."
        return Report((Line(name, False, fault, cure),))
    try:
        subject = subject_of(model, batch, forward, optimizer)
    except Exception as error:  # the model does not take what the batch holds
        return Report((Line(name, False, first_line(error), "Nothing else was tested."),))
    lines: list[Line] = []
    blocked: frozenset[str] = frozenset()
    for name, test in TESTS.items():
        if lines and lines[-1].name == SAME_CALL and lines[-1].passed is False:
            blocked = NEEDS_EQUAL_ANSWERS
        if name in blocked:
            lines.append(Line(name, None, f"not tested: first mend {SAME_CALL!r}"))
            continue
        lines.append(_guarded(name, test, subject))
        if lines[-1].fatal:
            break
    return Report(tuple(lines))


def _guarded(name: str, test: Callable[[Subject], Line], subject: Subject) -> Line:
    """A model that cannot be called in one situation still gets its other lines."""
    try:
        with as_before(subject.model, "train" if subject.model.training else "eval"), torch.enable_grad():
            if name not in NEEDS_EQUAL_ANSWERS:
                return test(subject)
            with nudged(subject) as names:
                line = test(subject)
            return replace(line, measured=f"{line.measured}; moved off zero: {listed(names)}") if names else line
    except NotTestedError as reason:
        return Line(name, None, f"not tested: {reason}")
    except Exception as error:
        return Line(name, None, f"not tested: {first_line(error)}")
