"""Law 2. However you cut it.

The same rows give the same update, whatever the size of the micro-batches, however they are padded, bucketed or
packed, and by however many processes. "The same" is said of the whole gradient: the difference of two gradients is at
most a millionth of their length. Element by element no such bound holds, since sums of floats depend on their order;
and AdamW divides by the size of an element, so one that is nearly zero may move its weight by a few percent of the
learning rate either way. Therefore gradients are compared here, and not weights.
"""

import pytest
import torch

from tinytrain.batches import bucket, collate, pack
from tinytrain.data import RowBatches, TokenRows
from tinytrain.distributed import launch, replicate
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.step import evaluate, train_step

LENGTHS = (3, 60, 7, 2, 33, 5, 12, 41, 9, 64, 1, 20)
PAD = 0


@pytest.fixture(scope="module")
def documents():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (n,), generator=generator) for n in LENGTHS]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


def padded(documents, groups, **options):
    return [collate([documents[i] for i in group], pad_id=PAD, **options) for group in groups]


def packed(documents, rows_at_once):
    rows = pack(documents, 64, pad_id=PAD)
    return [rows.batch(range(i, min(i + rows_at_once, len(rows)))) for i in range(0, len(rows), rows_at_once)]


def without(batch, name):
    return {key: tensor for key, tensor in batch.items() if key != name}


def in_order(size):
    return [list(range(i, min(i + size, len(LENGTHS)))) for i in range(0, len(LENGTHS), size)]


WAYS = {
    "all at once": lambda d: padded(d, in_order(12)),
    "micro-batches of 5": lambda d: padded(d, in_order(5)),
    "one document at a time": lambda d: padded(d, in_order(1)),
    "another order": lambda d: padded(d, [[11, 0, 5, 9], [3, 1, 2, 10], [8, 7, 6, 4]]),
    "padded to the model's length": lambda d: padded(d, in_order(4), length=63),
    "padded on the left": lambda d: padded(d, in_order(4), side="left"),
    "bucketed": lambda d: padded(d, bucket(LENGTHS, 3)),
    "packed": lambda d: packed(d, 99),
    "packed, one row at a time": lambda d: packed(d, 1),
    "packed, positions left to the model": lambda d: [without(batch, "positions") for batch in packed(d, 99)],
}


def gradient(model, micro_batches):
    optimizer = build_adamw(model, lr=0.0)
    report = train_step(model, micro_batches, optimizer, lr=0.0, max_grad_norm=float("inf"))
    return report, torch.cat([p.grad.flatten() for p in model.parameters()]).double()


@pytest.mark.parametrize("way", WAYS)
def test_the_same_documents_give_the_same_update(way, model, documents):
    reference, expected = gradient(model, padded(documents, in_order(12)))
    report, measured = gradient(model, WAYS[way](documents))
    assert report.tokens == reference.tokens == sum(n - 1 for n in LENGTHS)
    assert report.loss == pytest.approx(reference.loss, rel=1e-6)
    assert report.grad_norm == pytest.approx(reference.grad_norm, rel=1e-6)
    assert ((measured - expected).norm() / expected.norm()).item() <= 1e-6


@pytest.mark.parametrize("way", WAYS)
def test_the_same_documents_give_the_same_evaluation(way, model, documents):
    reference = evaluate(model, padded(documents, in_order(12)))
    measured = evaluate(model, WAYS[way](documents))
    assert measured.tokens == reference.tokens
    assert measured.loss == pytest.approx(reference.loss, abs=1e-6)


def test_the_mean_of_means_would_break_this_law(model, documents):
    """How far off the tempting way is on these documents: not a rounding error."""
    _, expected = gradient(model, padded(documents, in_order(12)))
    parts = [gradient(model, [batch])[1] for batch in padded(documents, in_order(1)) if (batch["labels"] != -100).any()]
    mean_of_means = torch.stack(parts).mean(0)
    assert ((mean_of_means - expected).norm() / expected.norm()).item() > 0.1


def gradient_of_process(rank, processes, micro_batch_size):
    """The whole gradient of one update of 7 rows, shared by some processes."""
    torch.manual_seed(0)
    model = GPT(PRESETS["nano"])
    ids = torch.randint(0, 256, (600,), generator=torch.Generator().manual_seed(0))
    data = RowBatches(rows=TokenRows(ids, 64, vocab_size=256), batch_size=7, micro_batch_size=micro_batch_size)
    wrapped, share = model, data[0]
    if processes > 1:
        wrapped, share = replicate(model), data.share(0, rank=rank, processes=processes)
    report = train_step(wrapped, share, build_adamw(model, lr=1e-3), lr=1e-3, max_grad_norm=float("inf"))
    return report.loss, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize(("processes", "micro_batch_size"), [(2, None), (2, 1), (3, 2)])
def test_by_however_many_processes(processes, micro_batch_size):
    loss, wanted = gradient_of_process(0, 1, None)
    for found_loss, found in launch(gradient_of_process, processes, processes, micro_batch_size):
        assert found_loss == pytest.approx(loss, rel=1e-6)
        assert (found - wanted).norm() <= 1e-6 * wanted.norm()
