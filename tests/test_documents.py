import pytest
import torch

from tinytrain.documents import WAYS, DocumentBatches
from tinytrain.model import GPT, PRESETS
from tinytrain.train import TrainConfig, Trainer

LENGTHS = (3, 60, 7, 2, 33, 5, 0, 150, 9, 64, 1, 20, 31, 8)


def documents_of(lengths=LENGTHS):
    documents, at = [], 0
    for n in lengths:
        documents.append(list(range(at, at + n)))
        at += n
    return documents


def make(kind, **changes):
    options = {"documents": documents_of(), "row_length": 64, "batch_size": 4, "vocab_size": 1000, "way": kind}
    return DocumentBatches(**(options | changes))


def targets_of(batches):
    return sorted(t for batch in batches for part in batch for t in part["labels"].flatten().tolist() if t != -100)


WANTED = sorted(token for document in documents_of() for token in document[1:])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row_length", [5, 64, 200])
def test_every_target_comes_exactly_once_in_each_epoch(way, row_length):
    data = make(way, row_length=row_length)
    per_epoch = data.batches_per_epoch
    for epoch in range(3):
        assert targets_of(data[epoch * per_epoch + n] for n in range(per_epoch)) == WANTED


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_can_be_asked_for_at_any_time_and_epochs_differ(way):
    data = make(way, row_length=16)
    in_order = [[part["labels"].tolist() for part in data[n]] for n in range(3 * data.batches_per_epoch)]
    again = make(way, row_length=16)
    assert [[part["labels"].tolist() for part in again[n]] for n in reversed(range(len(in_order)))] == in_order[::-1]
    assert in_order[: data.batches_per_epoch] != in_order[data.batches_per_epoch : 2 * data.batches_per_epoch]


@pytest.mark.parametrize("way", WAYS)
def test_micro_batches_hold_the_rows_of_their_batch(way):
    whole, cut = make(way), make(way, micro_batch_size=3)
    assert all(len(part["labels"]) <= 3 for part in cut[0])
    assert targets_of([cut[0]]) == targets_of([whole[0]])


def test_the_reported_waste_is_that_of_the_tensors_and_buckets_and_packing_lower_it():
    lengths = torch.randint(2, 64, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    waste = {}
    for way in WAYS:
        data = make(way, documents=[[1] * n for n in lengths], batch_size=8)
        labels = [part["labels"] for n in range(data.batches_per_epoch) for part in data[n]]
        measured = sum(int((part == -100).sum()) for part in labels) / sum(part.numel() for part in labels)
        assert data.waste() == pytest.approx(measured)
        waste[way] = measured
    assert max(waste["packed"], waste["bucketed"]) < waste["random"] / 5


@pytest.mark.parametrize("way", WAYS)
def test_a_trainer_takes_it(way):
    torch.manual_seed(0)
    documents = [torch.randint(0, 256, (n,)) for n in LENGTHS]
    data = DocumentBatches(documents=documents, row_length=64, batch_size=4, vocab_size=256, way=way)
    records = []
    steps = 2 * data.batches_per_epoch
    Trainer(GPT(PRESETS["nano"]), data, TrainConfig(total_steps=steps, max_lr=3e-3), [records.append]).fit()
    assert records[-1]["epoch"] == 1
    assert sum(r["tokens"] for r in records) == 2 * sum(max(n - 1, 0) for n in LENGTHS)
    assert records[0]["padding"] > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"way": "sorted"}, "way='sorted' is not one of random, bucketed, packed"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"vocab_size": 10}, r"document 1: token id 10 at position 7 is outside the vocabulary 0\.\.9"),
        ({"documents": [[1], []]}, "none of the 2 documents"),
        ({"documents": [[1], []], "way": "packed"}, "none of the 2 documents"),
    ],
)
def test_what_makes_no_batches_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        make("bucketed", **changes)


def test_the_fingerprint_tells_other_texts_orders_and_ways_apart():
    changes = [{}, {"seed": 1}, {"way": "packed"}, {"batch_size": 5}, {"documents": [*documents_of()[:-1], [1, 2]]}]
    assert len({str(make("bucketed", **change).fingerprint()) for change in changes}) == 5
    assert make("random", micro_batch_size=2).fingerprint() == make("random").fingerprint()
