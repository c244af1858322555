"""What shares a row or a batch changes nothing: padding, other documents, other rows."""

from contextlib import suppress

import torch
from torch import Tensor

from tinytrain.watch.preflight.report import Line
from tinytrain.watch.preflight.state import MODES, as_before
from tinytrain.watch.preflight.subject import LEAK_TOLERANCE, NotTestedError, Subject, largest, other_tokens


def _moved(subject: Subject, ids: Tensor, others: Tensor, place: Tensor, modes=MODES, **extras: Tensor) -> float:
    """How far the logits at ``place`` ``[B,T]`` move when ``others`` stand where they must not matter."""
    found = 0.0
    for mode in modes:
        with as_before(subject.model, mode) as draw_again:
            before = subject.ask(ids, **extras)[place]
            draw_again()
            found = max(found, largest(subject.ask(others, **extras)[place] - before))
    return found


def _by_shape(subject: Subject, ids: Tensor, extras: dict, place: Tensor, alone: dict) -> float | None:
    """How far logits move, as a share of the largest, when only the shape around them changes; in eval mode.

    Each row's tokens at ``place`` are asked alone, with ``alone``'s extras of the same places. None where chance is on
    in eval mode: another shape draws another dropout.
    """
    if subject.noisy:
        return None
    found = 0.0
    with as_before(subject.model, "eval") as draw_again:
        among = subject.ask(ids, **extras)
        for row, real in enumerate(place):
            if real.any():
                draw_again()
                own = {name: value[row, real][None].contiguous() for name, value in alone.items()}
                expected = subject.ask(ids[row, real][None].contiguous(), **own)[0]
                found = max(found, largest(among[row, real] - expected) / max(largest(expected), 1e-30))
    return found


def _past(subject: Subject, ids: Tensor, place: Tensor, **extras: Tensor) -> float:
    """What an honest change moves: the last logits at ``place``, as the tokens there before them are replaced."""
    columns = torch.arange(ids.shape[1], device=ids.device)
    last = columns == torch.where(place, columns, -1).amax(1, keepdim=True)
    past = _moved(subject, ids, torch.where(place & ~last, other_tokens(ids), ids), last, ("eval",), **extras)
    if past == 0:
        raise NotTestedError("no token moves the logits of another position")
    return past


def _said(moved: float, by_shape: float | None, what: str) -> str:
    same = "bit-identical" if moved == 0 else f"logits move by {moved:.3g}"
    alone = "not compared: chance is on in eval mode" if by_shape is None else f"they differ by {by_shape:.1e}"
    return f"{same} whatever {what}; alone, {alone}" + ("" if by_shape is None else " of the largest")


def padding_line(subject: Subject, name: str, side: str) -> Line:
    """Neither what stands at padded places nor how many there are, which is another number in the middle row."""
    takes_mask, ids = subject.takes("attention_mask"), subject.rows(3)
    if side == "left" and not takes_mask:
        raise NotTestedError("the model takes no attention_mask: pad on the right")
    L = ids.shape[1]
    n = L - L // 3
    if n == L or n < 2:
        raise NotTestedError(f"rows of {L} tokens are too short")
    columns = torch.arange(L, device=ids.device) if side == "right" else torch.arange(L, device=ids.device).flip(0)
    real = columns < torch.tensor([[n], [max(2, L - 2 * (L // 3))], [n]], device=ids.device)
    extras = {"attention_mask": real.long()} if takes_mask else {}
    full = {name: torch.ones_like(mask) for name, mask in extras.items()}
    others = torch.where(real, ids, other_tokens(ids))
    needed = "attention_mask" in subject.batch and _side_of(subject.batch["attention_mask"]) == side
    counted = "positions" in subject.batch or "position_ids" in subject.batch
    try:
        moved, past = _moved(subject, ids, others, real, **extras), _past(subject, ids, real, **extras)
        by_shape = _by_shape(subject, ids, extras, real, full)
        differs = (by_shape or 0.0) > subject.tolerance
        if differs and side == "left" and subject.takes("positions") and (counted or not needed):
            positions = (real.long().cumsum(1) - 1).clamp(min=0)
            by_shape = _by_shape(subject, ids, extras | {"positions": positions}, real, full)
            differs = (by_shape or 0.0) > subject.tolerance
    except NotTestedError as error:
        if side == "left" and not needed:
            raise NotTestedError(f"{error} with padding on the left: pad this model on the right") from None
        raise
    said = _said(moved, by_shape, "stands there")
    if moved > LEAK_TOLERANCE * past:
        return Line(name, False, said, "Real positions see padding: is the mask used, and in which convention?")
    if differs and side == "left" and not needed:
        return Line(name, None, f"{said}: positions count from the row's start, so pad this model on the right")
    if differs and side == "left" and subject.takes("positions"):
        cure = "Put positions into the batch, (attention_mask.cumsum(1) - 1).clamp(min=0), or pad on the right."
        return Line(name, False, said, cure)
    if not differs and side == "right" and (ones := _effect_of_ones(subject, ids, full)) > subject.tolerance:
        cure = "Where nothing is padded, mask or no mask must be the same: look at what counts positions by the mask."
        return Line(name, False, f"{said}; a mask of ones moves logits by {ones:.1e} of the largest", cure)
    cure = "How much padding there is changes real positions: look at the mask, and at what counts or averages over T."
    return Line(name, not differs, said, cure)


def _effect_of_ones(subject: Subject, ids: Tensor, ones: dict) -> float:
    """How far a mask that says all tokens are real moves the logits; 0.0 if the model cannot do without a mask."""
    with suppress(Exception):
        everywhere = torch.ones_like(ids, dtype=torch.bool)
        return _by_shape(subject, ids, ones, everywhere, {}) or 0.0
    return 0.0


def _side_of(mask: Tensor) -> str | None:
    """The side of the padding; rows of nothing else have none."""
    real = mask != 0
    if bool(real.all()):
        return None
    return "left" if bool((~real[:, 0] & real.any(1)).any()) else "right"


def documents_line(subject: Subject) -> Line:
    """Two documents in one row, for models that take ``doc_ids``; in the middle row the second begins elsewhere."""
    name, ids = "packed documents are strangers", subject.rows(3)
    if not subject.takes("doc_ids"):
        raise NotTestedError("the model takes no doc_ids")
    L = ids.shape[1]
    if L < 4:
        raise NotTestedError(f"rows of {L} tokens are too short")
    starts = torch.tensor([[L // 2], [L // 4], [L // 2]], device=ids.device)
    doc_ids = (torch.arange(L, device=ids.device) >= starts).long()
    second = doc_ids == 1
    others = torch.where(second, ids, other_tokens(ids))
    moved = _moved(subject, ids, others, second, doc_ids=doc_ids)
    past = _past(subject, ids, second, doc_ids=doc_ids)
    by_shape = _by_shape(subject, ids, {"doc_ids": doc_ids}, second, {"doc_ids": torch.zeros_like(doc_ids)})
    cure = "A document sees the one before it in its row: look at the mask within rows, and restart positions."
    fine = moved <= LEAK_TOLERANCE * past and (by_shape or 0.0) <= subject.tolerance
    return Line(name, fine, _said(moved, by_shape, "document comes before"), cure)


def rows_line(subject: Subject) -> Line:
    """Each row's logits, with another row beside it and alone."""
    name, ids = "other rows change nothing", subject.rows()
    moved = dict.fromkeys(MODES, 0.0)
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    for row in (0, 1):  # both, for attention over the batch axis may be causal there
        place = torch.zeros_like(everywhere)
        place[row] = True
        others = torch.where(place, ids, other_tokens(ids))
        for mode in MODES:
            moved[mode] = max(moved[mode], _moved(subject, ids, others, place, (mode,)))
    past = _moved(subject, ids, other_tokens(ids), everywhere, ("eval",))
    if past == 0:
        raise NotTestedError("no token moves any logit")
    by_shape = _by_shape(subject, ids, {}, everywhere, {})
    where = ", ".join(mode for mode in MODES if moved[mode] > LEAK_TOLERANCE * past)
    said = _said(max(moved.values()), by_shape, "stands in the other row") + (f" ({where} mode)" if where else "")
    cure = "Rows mix: BatchNorm, a mean over axis 0, or attention over the batch axis (batch_first=True forgotten)."
    return Line(name, not where and (by_shape or 0.0) <= subject.tolerance, said, cure)
