"""What goes in and what comes out: shapes, types, labels, and the loss of a model that should know nothing."""

import math

import torch
from torch import Tensor, nn

from tinytrain.loss import IGNORE_INDEX, cross_entropy
from tinytrain.watch.preflight.report import Line, listed
from tinytrain.watch.preflight.state import MODES, as_before
from tinytrain.watch.preflight.subject import NOT_FINITE, NotTestedError, Subject, first_line

ABOVE, BELOW = 0.5, 0.2  # nats around ln V; logits of standard deviation s start about s²/2 above it, and torch's
# default head behind a norm has s² of a third
SAMPLING = 3.0  # standard errors of the mean over the batch's targets
UNKNOWN = (torch.uint16, torch.uint32, torch.uint64)  # torch has them as storage: no minimum, no lookup
SHIFTS = {0: "the token itself: not shifted", 2: "the token after the next: shifted twice", -1: "the token before"}


def batch_fault(batch: dict) -> str | None:
    """What is wrong with a batch before any model sees it."""
    for name in ("input_ids", "labels"):
        tensor = batch.get(name)
        if not isinstance(tensor, Tensor):
            held = ", ".join(f"{n} ({type(value).__name__})" for n, value in batch.items())
            return f"the batch has no tensor {name}; it holds {held or 'nothing'}"
        if tensor.dtype in UNKNOWN:
            return f"{name} are {tensor.dtype}, which most of torch cannot count with: hand over {name}.long()"
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            return f"{name} are {tensor.dtype}; token ids are whole numbers (torch.long)"
    ids, labels = batch["input_ids"], batch["labels"]
    if ids.dim() != 2 or ids.numel() == 0:
        return f"input_ids have shape {list(ids.shape)}; [B,T] is wanted, with at least one token"
    if labels.shape != ids.shape:
        return f"labels {list(labels.shape)} do not have the shape of input_ids {list(ids.shape)}"
    if int(ids.min()) < 0:
        return f"input_ids hold {int(ids.min())}; token ids start at 0, and {IGNORE_INDEX} marks labels only"
    return None


def model_fault(model: nn.Module) -> str | None:
    """What is wrong with a model before anything is copied or called."""
    lazy = [n for n, t in (*model.named_parameters(), *model.named_buffers()) if nn.parameter.is_lazy(t)]
    return f"no shape yet: {listed(lazy)}" if lazy else None


def shapes_line(subject: Subject) -> Line:
    """Call the model once, and look at what it returns. Keeps the logits for the lines after it."""
    name, model, ids = "shapes and dtypes", subject.model, subject.batch["input_ids"]
    span = f"ids run from {int(ids.min())} to {int(ids.max())}"
    try:
        with as_before(model, "eval"):
            logits = subject.call(subject.batch).detach()
    except Exception as error:
        hint = f"; {span}, and tables have {_tables(model)} rows" if isinstance(error, IndexError) else ""
        advice = f"{_how_to_call(subject, error)} Nothing else was tested."
        return Line(name, False, f"the call raises {first_line(error)}{hint}", advice, fatal=True)
    B, T = ids.shape
    said = f"ids {[B, T]}, {span}; logits {list(logits.shape)} {str(logits.dtype).removeprefix('torch.')}"
    if logits.dim() != 3 or tuple(logits.shape[:2]) != (B, T) or logits.shape[2] < 2:
        cure = f"Logits are wanted as [B,T,V] = [{B}, {T}, V]: is an axis transposed, flattened or left out?"
        return Line(name, False, said, cure, fatal=True)
    if not logits.is_floating_point():
        return Line(name, False, said, "Logits are scores, in floating point: is there an argmax?", fatal=True)
    V = logits.shape[2]
    targets = subject.whole["labels"][subject.whole["labels"] != IGNORE_INDEX]
    spans = {
        "ids": subject.whole["input_ids"],
        "labels": targets,
    }  # of all rows, and not only of those that are cut out
    outside = {what: t for what, t in spans.items() if len(t) and not 0 <= int(t.min()) <= int(t.max()) < V}
    if outside:
        found = "; ".join(f"{what} run from {int(t.min())} to {int(t.max())}" for what, t in outside.items())
        cure = f"The model knows 0..{V - 1}: does the tokenizer belong to it, and do ignored labels carry -100?"
        return Line(name, False, f"{said}; in the whole batch {found}", cure, fatal=True)
    subject.logits, subject.dtype = logits.float(), logits.dtype
    if subject.row and (fault := _fault_of_a_whole_row(subject)):
        cure = "Give the model as many positions as rows have tokens, or cut the rows. Longer rows were not tested."
        subject.row = {}
        return Line(name, False, f"{said}; {fault}", cure)
    kinds = {n: p.dtype for n, p in model.named_parameters() if p.is_floating_point()}
    narrow = {n: dtype for n, dtype in kinds.items() if dtype.itemsize < 4}
    if narrow:
        first, kind = next(iter(narrow.items()))
        cure = "Keep weights in float32 and let autocast narrow the forward pass: small updates are lost in 16 bits."
        return Line(
            name, False, f"{said}; {len(narrow)} weights are narrower than float32, such as {first} ({kind})", cure
        )
    widths = sorted({str(dtype).removeprefix("torch.") for dtype in kinds.values()})
    return Line(name, True, f"{said}; weights {' and '.join(widths) or 'none'}")


def _how_to_call(subject: Subject, error: Exception) -> str:
    """What to do about a model that does not take the batch, or does not give logits."""
    cannot, ids = "The model cannot be called on this batch", subject.batch["input_ids"]
    if ids.dtype not in (torch.int32, torch.int64):
        return f"{cannot}: a lookup takes torch.long, and input_ids are {ids.dtype}: hand over input_ids.long()."
    if subject.forward is not None:
        return f"{cannot}: forward(model, batch) must return the logits."
    if not isinstance(error, TypeError):  # neither another signature nor another kind of answer
        return f"{cannot}."
    return (
        "Put what it asks for into the batch, or say how it is called, with a forward that returns the logits [B,T,V]: "
        "preflight(model, batch, forward=lambda model, batch: model(batch['input_ids'], batch['labels'])[0]). On the "
        "command line, let the factory return a module that does so."
    )


def _fault_of_a_whole_row(subject: Subject) -> str | None:
    """Rows are cut for every line; here one goes in as long as it is."""
    L, T = subject.batch["input_ids"].shape[1], subject.row["input_ids"].shape[1]
    try:
        with as_before(subject.model, "eval"):
            shape = list(subject.call(subject.row).shape)
    except Exception as error:
        return f"a whole row of {T} tokens raises {first_line(error)}, and tables have {_tables(subject.model)} rows"
    if shape[:2] == [1, T]:
        return None
    return f"a whole row of {T} tokens gives logits {shape}, and one of {L} tokens {L} of them"


def _tables(model: nn.Module) -> str:
    return ", ".join(str(m.num_embeddings) for m in model.modules() if isinstance(m, nn.Embedding)) or "no"


def finite_line(subject: Subject) -> Line:
    """Every weight and every buffer that the model came with."""
    name, tensors = "weights are finite", dict(subject.model.named_parameters())
    bad = {n: int((~p.isfinite()).sum()) for n, p in tensors.items() if not p.isfinite().all()}
    if bad:
        first, count = next(iter(bad.items()))
        said = f"{count} of {tensors[first].numel()} entries of {first} are NaN or infinite; {len(bad)} such weights"
        return Line(name, False, said, "Look at its initialisation, or at the file it was loaded from.", fatal=True)
    return Line(name, True, f"{len(tensors)} tensors, {sum(p.numel() for p in tensors.values()):,} numbers")


def raw_line(subject: Subject) -> Line:
    """Scores, and not what softmax or log_softmax made of them: cross-entropy does that itself."""
    name, logits = "logits are raw", subject.logits
    if not logits.isfinite().all():
        raise NotTestedError("the logits are not finite")
    sums, normaliser = logits.sum(-1), logits.logsumexp(-1).abs().max().item()
    if logits.min() >= 0 and (sums - 1).abs().max() < 1e-3:
        cure = "Return what comes before softmax: cross-entropy applies it, and twice flattens every gradient."
        return Line(name, False, "each position's logits are at least 0 and add up to 1: probabilities", cure)
    if normaliser < 1e-3:
        cure = "Return what comes before log_softmax: cross-entropy applies it, and sampling wants scores."
        return Line(name, False, "each position's exp(logits) add up to 1: log-probabilities", cure)
    return Line(name, True, f"exp(logits) add up to e^{normaliser:.3g} at most, where log-probabilities have 1")


def labels_line(subject: Subject) -> Line:
    """``labels[b,t] == input_ids[b,t+1]`` wherever both are real tokens of one document, in all rows of the batch."""
    name, batch = "labels shifted once", subject.whole
    ids, labels = batch["input_ids"], batch["labels"]
    if not (labels != IGNORE_INDEX).any():
        cure = f"Every label is {IGNORE_INDEX}: was the part masked that should be learnt?"
        return Line(name, False, "no position of the whole batch is a target", cure)
    real = batch["attention_mask"] != 0 if "attention_mask" in batch else torch.ones_like(ids, dtype=torch.bool)
    if at_padding := int(((labels != IGNORE_INDEX) & ~real).sum()):
        cure = f"Padding is nothing to predict: set its labels to {IGNORE_INDEX}, by length and not by value."
        return Line(name, False, f"{at_padding} targets stand at padding", cure)
    hits = {shift: _agreement(ids, labels, real, batch.get("doc_ids"), shift) for shift in (1, *SHIFTS)}
    right, compared = hits[1]
    if compared == 0:
        return Line(name, None, "not tested: no target of this batch has its token in the same row")
    perfect = [shift for shift in SHIFTS if 0 < hits[shift][1] == hits[shift][0]]
    said = f"{right} of {compared} labels are the next token"
    if right == compared:
        if perfect:
            return Line(name, None, f"not tested: {said}, and also {SHIFTS[perfect[0]]}: these rows repeat themselves")
        return Line(name, True, said)
    if "attention_mask" not in batch and (tail := _same_id_behind_the_targets(ids, labels)) is not None:
        n, of = _agreement(ids, labels, ~tail, batch.get("doc_ids"), 1)
        if 0 < n == of:
            padding = f"id {ids[tail][0]} behind a row's last target is taken for padding"
            return Line(name, True, f"{n} of {of} labels are the next token; without attention_mask, {padding}")
    cure = "labels[b,t] must be input_ids[b,t+1]: shift once, in the data. Neither loss nor model shifts again"
    if perfect:
        return Line(name, False, f"{said}; all are {SHIFTS[perfect[0]]}", f"{cure}.")
    return Line(name, False, said, f"{cure}. Were rows and labels shuffled apart, or is this noise on purpose?")


def _same_id_behind_the_targets(ids: Tensor, labels: Tensor) -> Tensor | None:
    """``[B,T]``: what stands behind the last target of each row, if it is one and the same id; None otherwise."""
    targets_to_come = (labels != IGNORE_INDEX).flip(1).cumsum(1).flip(1)
    tail = targets_to_come == 0
    return tail if len(ids[tail].unique()) == 1 else None


def _agreement(ids: Tensor, labels: Tensor, real: Tensor, doc_ids: Tensor | None, shift: int) -> tuple[int, int]:
    """(labels equal to the token ``shift`` places on, labels compared)."""
    T = ids.shape[1]
    here, there = slice(max(0, -shift), T - max(0, shift)), slice(max(0, shift), T - max(0, -shift))
    both = (labels[:, here] != IGNORE_INDEX) & real[:, here] & real[:, there]
    if doc_ids is not None:
        both &= doc_ids[:, here] == doc_ids[:, there]
    return int((both & (labels[:, here] == ids[:, there])).sum()), int(both.sum())


def loss_line(subject: Subject) -> Line:
    """The loss of knowing nothing is ln V; in eval mode, and in train mode where that differs."""
    name, labels = "initial loss", subject.batch["labels"]
    targets = int((labels != IGNORE_INDEX).sum())
    if targets == 0:
        return Line(name, None, "not tested: no position of this batch is a target")
    losses, error = {}, 0.0
    for mode in MODES:
        with as_before(subject.model, mode):
            each = cross_entropy(subject.call(subject.batch).detach().float(), labels, reduction="none")
        each = each[labels != IGNORE_INDEX]
        losses[mode], error = each.mean().item(), max(error, each.std(correction=0).item() / math.sqrt(targets))
    uniform = math.log(subject.vocab_size)
    measured = f"{losses['eval']:.3f} nats on {targets} tokens, ln V = {uniform:.3f}"
    if f"{losses['train']:.3f}" != f"{losses['eval']:.3f}":
        measured += f"; {losses['train']:.3f} in train mode"
    if not all(map(math.isfinite, losses.values())):
        return Line(name, False, measured, NOT_FINITE)
    return Line(
        name,
        all(-BELOW - SAMPLING * error <= loss - uniform <= ABOVE + SAMPLING * error for loss in losses.values()),
        measured,
        "A fresh model should know nothing. Above ln V: look at the initial scale of embeddings and head. "
        "Below: look at the mask and at the labels. Of a model that is trained already this line says nothing.",
    )
