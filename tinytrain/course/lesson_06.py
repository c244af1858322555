"""Runs of notebook 06: a small model trained on accumulated gradients, with one thing done differently in each."""

import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from tinytrain.batches import collate
from tinytrain.corpus import Corpus, load_corpus
from tinytrain.data import RowBatches, TokenRows
from tinytrain.forward import forward_logits
from tinytrain.loss import count_targets, cross_entropy
from tinytrain.model import GPT, ModelConfig
from tinytrain.optimizer import build_adamw
from tinytrain.step import evaluate
from tinytrain.tokenizer import ByteTokenizer

Batch = dict[str, Tensor]
ROW_LENGTH = 32  # tokens
BATCH_SIZE, MICRO_BATCH_SIZE = 32, 4  # rows
STEPS = 80  # updates of a run, where nothing else is said
LONGEST_SPEECH = 64  # targets


def accumulate(model: nn.Module, micro_batches: Sequence[Batch], divide: str = "all targets") -> float:
    """Add the gradient of all micro-batches to each ``.grad``; returns the loss that it is the gradient of.

    ``divide``: ``"all targets"`` divides each summed loss by the targets of all micro-batches together,
    ``"mean of means"`` takes the mean of the micro-batches' means, ``"nothing"`` adds their means up.
    """
    counts = [int(count_targets(batch["labels"])) for batch in micro_batches]
    total = 0.0
    for batch, own in zip(micro_batches, counts, strict=True):
        divisor = {"all targets": sum(counts), "mean of means": own * len(counts), "nothing": own}[divide]
        loss = cross_entropy(forward_logits(model, batch), batch["labels"], reduction="sum") / divisor
        loss.backward()
        total += loss.item()
    return total


def train(
    *,
    optimizer: str = "AdamW",
    lr: float = 3e-3,
    lr_of: Callable[[int], float] | None = None,
    divide: str = "all targets",
    micro_batch_size: int = MICRO_BATCH_SIZE,
    max_grad_norm: float = math.inf,
    eps: float = 1e-8,
    dropout: float = 0.0,
    dropout_seed: int = 0,
    seed: int = 0,
    steps: int = STEPS,
    dtype: torch.dtype = torch.float32,
) -> dict[str, list[float] | float]:
    """Train on Shakespeare for ``steps`` updates of 32 rows of 32 bytes; a loss that is not finite ends the run.

    ``lr_of(step)`` overrides ``lr``. ``seed`` is that of the weights and of the rows, ``dropout_seed`` that of what
    is dropped. Returns ``losses`` (of each update, in nats per target), ``norms`` (of each gradient, before clipping)
    and ``held_out`` (nats per byte on held-out plays; inf if it is not finite).
    """
    train_rows, held_out = _rows()
    torch.manual_seed(seed)
    sizes = {"vocab_size": 256, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_positions": ROW_LENGTH}
    model = GPT(ModelConfig(**sizes, dropout=dropout)).to(dtype)
    data = RowBatches(rows=train_rows, batch_size=BATCH_SIZE, micro_batch_size=micro_batch_size, seed=seed)
    update = build(optimizer, model, lr, eps)
    torch.manual_seed(1000 * seed + dropout_seed)
    losses, norms = [], []
    for step in range(steps):
        for group in update.param_groups:
            group["lr"] = lr_of(step) if lr_of else lr
        update.zero_grad()
        loss = accumulate(model, data[step], divide)
        losses.append(loss / len(data[step]) if divide == "nothing" else loss)  # what is added up, per target
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)))
        update.step()
        if not math.isfinite(loss):
            break
    loss = evaluate(model, held_out).loss if dtype == torch.float32 else math.inf
    return {"losses": losses, "norms": norms, "held_out": loss if math.isfinite(loss) else math.inf}


def build(name: str, model: nn.Module, lr: float, eps: float) -> torch.optim.Optimizer:
    """``"SGD"`` (plain: no momentum, no decay) or ``"AdamW"``."""
    return torch.optim.SGD(model.parameters(), lr=lr) if name == "SGD" else build_adamw(model, lr=lr, eps=eps)


@cache
def _rows() -> tuple[TokenRows, list[Batch]]:
    parts = load_corpus().split(validation_fraction=0.1)
    training, held_out = (TokenRows(ByteTokenizer().encode(part.text), ROW_LENGTH, 256, part.name) for part in parts)
    return training, list(held_out.batches(64, limit=256))


def speeches(corpus: Corpus) -> list[Tensor]:
    """What stands between blank lines, as token ids, each cut after ``LONGEST_SPEECH`` targets."""
    texts = [text for document in corpus.documents for text in document.text.split("\n\n")]
    return [ByteTokenizer().encode(text)[: LONGEST_SPEECH + 1] for text in texts if len(text) > 1]


def cut(documents: Sequence[Tensor], size: int) -> list[Batch]:
    """Micro-batches of ``size`` documents, each padded to its longest."""
    return [collate(documents[i : i + size], pad_id=0) for i in range(0, len(documents), size)]


def train_on_speeches(*, divide: str, steps: int, seed: int = 0, lr: float = 3e-3) -> dict[str, float]:
    """Train on speeches, grouped by length in each update; held-out nats per byte on short and on long ones."""
    own, held_out = (speeches(part) for part in load_corpus().split(validation_fraction=0.1))
    torch.manual_seed(seed)
    model = GPT(ModelConfig(vocab_size=256, d_model=32, n_layers=2, n_heads=4, max_positions=LONGEST_SPEECH))
    optimizer, generator = build_adamw(model, lr=lr), torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randint(len(own), (BATCH_SIZE,), generator=generator).tolist()
        optimizer.zero_grad()
        accumulate(model, cut(sorted((own[i] for i in chosen), key=len), MICRO_BATCH_SIZE), divide)
        optimizer.step()
    kinds = {
        "16 bytes or fewer": [speech for speech in held_out if len(speech) <= 17],
        "64 bytes or more": [speech for speech in held_out if len(speech) > LONGEST_SPEECH],
    }
    return {kind: evaluate(model, cut(some[:192], 64)).loss for kind, some in kinds.items()}


def bytes_kept(model: nn.Module, micro_batches: Sequence[Batch], *, one_backward: bool = False) -> int:
    """The most bytes that were kept for backward at any time, without the weights.

    ``backward()`` follows each micro-batch, or, with ``one_backward``, comes once at the end for the sum of all losses.
    """
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    most, kept, losses = 0, {}, []  # kept: bytes by storage, since several tensors may share one

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    for batch in micro_batches:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            losses.append(cross_entropy(model(batch["input_ids"]), batch["labels"], reduction="sum"))
        most = max(most, sum(kept.values()))
        if not one_backward:
            losses.pop().backward()
            kept.clear()
    if losses:
        sum(losses).backward()
    return most
