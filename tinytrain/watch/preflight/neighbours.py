"""What shares a row or a batch changes nothing: padding, other documents, other rows."""

import torch
from torch import Tensor

from tinytrain.watch.preflight.report import Line
from tinytrain.watch.preflight.state import MODES, as_before
from tinytrain.watch.preflight.subject import (
    LEAK_TOLERANCE,
    NotTestedError,
    Subject,
    largest,
    other_tokens,
    takes,
)


def _moved(subject: Subject, ids: Tensor, others: Tensor, place: tuple, modes=MODES, **extras: Tensor) -> float:
    """How far the logits at ``place`` move when ``others`` stand where they must not matter; the shape is the same."""
    found = 0.0
    for mode in modes:
        with as_before(subject.model, mode) as draw_again:
            before = subject.ask(ids, **extras)[place]
            draw_again()
            found = max(found, largest(subject.ask(others, **extras)[place] - before))
    return found


def _by_shape(subject: Subject, alone: tuple[Tensor, dict], among: tuple[Tensor, dict], place: tuple) -> float:
    """How far logits move, as a share of the largest, when only the shape around them changes; in eval mode."""
    if subject.noisy:  # another shape draws another dropout
        return 0.0
    with as_before(subject.model, "eval") as draw_again:
        expected = subject.ask(alone[0], **alone[1])
        draw_again()
        return largest(subject.ask(among[0], **among[1])[place] - expected) / max(largest(expected), 1e-30)


def _past(subject: Subject, ids: Tensor, **extras: Tensor) -> float:
    """What an honest change moves: all tokens replaced."""
    return _moved(subject, ids, other_tokens(ids), (slice(None),), ("eval",), **extras)


def _said(moved: float, by_shape: float, what: str) -> str:
    same = "bit-identical" if moved == 0 else f"logits move by {moved:.3g}"
    return f"{same} whatever {what}; alone, they differ by {by_shape:.1e} of the largest"


def padding_line(subject: Subject, name: str, side: str) -> Line:
    """Neither what stands at padded places nor how many there are."""
    takes_mask, ids = subject.takes("attention_mask"), subject.rows()
    if side == "left" and not takes_mask:
        raise NotTestedError("the model takes no attention_mask: pad on the right")
    L = ids.shape[1]
    n = L - L // 3
    if n == L or n < 2:
        raise NotTestedError(f"rows of {L} tokens are too short")
    real = torch.zeros_like(ids)
    place = (slice(None), slice(0, n) if side == "right" else slice(L - n, L))
    real[place] = 1
    extras = {"attention_mask": real} if takes_mask else {}
    others = torch.where(real.bool(), ids, other_tokens(ids))
    needed = "attention_mask" in subject.batch and _side_of(subject.batch["attention_mask"]) == side
    try:
        moved, past = _moved(subject, ids, others, place, **extras), _past(subject, ids, **extras)
        full = {"attention_mask": torch.ones_like(ids[place])} if takes_mask else {}
        alone = (ids[place].contiguous(), full)
        by_shape = _by_shape(subject, alone, (ids, extras), place)
        if by_shape > subject.tolerance and side == "left" and subject.takes("positions"):
            counted = {"positions": (real.cumsum(1) - 1).clamp(min=0)}
            by_shape = _by_shape(subject, alone, (ids, extras | counted), place)
    except NotTestedError as error:
        if side == "left" and not needed:
            raise NotTestedError(f"{error} with padding on the left: pad this model on the right") from None
        raise
    said = _said(moved, by_shape, "stands there")
    if moved > LEAK_TOLERANCE * past:
        return Line(name, False, said, "Real positions see padding: is the mask used, and in which convention?")
    if by_shape > subject.tolerance and side == "left" and not needed:
        return Line(name, None, f"{said}: positions count from the row's start, so pad this model on the right")
    cure = "How much padding there is changes real positions: look at the mask, and at what counts or averages over T."
    return Line(name, by_shape <= subject.tolerance, said, cure)


def _side_of(mask: Tensor) -> str | None:
    if bool((mask != 0).all()):
        return None
    return "left" if bool((mask[:, 0] == 0).any()) else "right"


def documents_line(subject: Subject) -> Line:
    """Two documents in one row, for models that take ``doc_ids``."""
    name, ids = "packed documents are strangers", subject.rows()
    if not (subject.takes("doc_ids") if subject.forward else takes(subject.model, "doc_ids")):
        raise NotTestedError("the model takes no doc_ids")
    L = ids.shape[1]
    if L < 4:
        raise NotTestedError(f"rows of {L} tokens are too short")
    n = L // 2
    doc_ids = (torch.arange(L, device=ids.device) >= n).long().expand_as(ids).contiguous()
    second = (slice(None), slice(n, L))
    others = torch.cat([other_tokens(ids[:, :n]), ids[:, n:]], dim=1)
    moved, past = _moved(subject, ids, others, second, doc_ids=doc_ids), _past(subject, ids, doc_ids=doc_ids)
    alone = (ids[second].contiguous(), {"doc_ids": torch.zeros_like(ids[second])})
    by_shape = _by_shape(subject, alone, (ids, {"doc_ids": doc_ids}), second)
    cure = "A document sees the one before it in its row: look at the mask within rows, and restart positions."
    fine = moved <= LEAK_TOLERANCE * past and by_shape <= subject.tolerance
    return Line(name, fine, _said(moved, by_shape, "document comes before"), cure)


def rows_line(subject: Subject) -> Line:
    """The first row's logits, with other rows beside it and alone."""
    name, ids = "other rows change nothing", subject.rows()
    moved = dict.fromkeys(MODES, 0.0)
    by_shape = 0.0
    for row in (0, 1):  # both, for attention over the batch axis may be causal there
        others, place = other_tokens(ids), (slice(row, row + 1),)
        others[place] = ids[place]
        for mode in MODES:
            moved[mode] = max(moved[mode], _moved(subject, ids, others, place, (mode,)))
        by_shape = max(by_shape, _by_shape(subject, (ids[place], {}), (ids, {}), place))
    past = _past(subject, ids)
    where = ", ".join(mode for mode in MODES if moved[mode] > LEAK_TOLERANCE * past)
    said = _said(max(moved.values()), by_shape, "stands in the other row") + (f" ({where} mode)" if where else "")
    cure = "Rows mix: BatchNorm, a mean over axis 0, or attention over the batch axis (batch_first=True forgotten)."
    return Line(name, not where and by_shape <= subject.tolerance, said, cure)
