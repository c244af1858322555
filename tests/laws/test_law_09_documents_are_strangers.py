"""Law 9. Documents are strangers.

What shares a row or a batch with a document never changes its output: bit for bit at the same shape, to 1e-5 across
shapes, where sums run in another order. No target crosses from one document into the next. No token is lost silently.
"""

import pytest
import torch

from tinytrain.batches import collate, pack
from tinytrain.model import GPT, PRESETS


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


def documents_of(*lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (n,), generator=generator) for n in lengths]


def logits_of(model, batch):
    return model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).detach()


def test_changing_one_packed_document_changes_no_bit_of_another(model):
    batch = pack(documents_of(12, 9, 20), 64).batch([0])
    first = batch["doc_ids"] == 0
    other = {**batch, "input_ids": torch.where(first, (batch["input_ids"] + 1) % 256, batch["input_ids"])}
    before, after = logits_of(model, batch), logits_of(model, other)
    assert torch.equal(before[~first], after[~first])
    assert not torch.equal(before[first], after[first])


def test_a_packed_document_gives_what_it_gives_alone(model):
    documents = documents_of(12, 9, 20)
    batch = pack(documents, 64).batch([0])
    logits = logits_of(model, batch)
    order = sorted(range(3), key=lambda i: -len(documents[i]))  # pack takes the longest first
    for number, i in enumerate(order):
        alone = model(documents[i][None, :-1])[0]
        assert torch.allclose(logits[batch["doc_ids"] == number], alone, atol=1e-5)


@pytest.mark.parametrize(
    "forgotten", [("doc_ids", "positions"), ("doc_ids",)], ids=["neither ids nor positions", "positions only"]
)
def test_without_document_ids_it_would_leak(model, forgotten):
    """The two usual mistakes: nothing is marked, or positions restart but attention still crosses."""
    documents = documents_of(12, 9)
    batch = pack(documents, 64).batch([0])
    second = batch["doc_ids"] == 1
    crippled = {name: tensor for name, tensor in batch.items() if name not in forgotten}
    alone = model(documents[1][None, :-1])[0]
    assert (logits_of(model, crippled)[second] - alone).abs().max().item() > 1e-3


@pytest.mark.parametrize("side", ["right", "left"])
def test_what_stands_in_other_rows_or_in_the_padding_changes_no_bit(model, side):
    batch = collate(documents_of(12, 5, 20), pad_id=0, side=side)
    real = batch["attention_mask"]
    other = {**batch, "input_ids": torch.where(real, batch["input_ids"], 77)}
    assert torch.equal(logits_of(model, batch)[real], logits_of(model, other)[real])
    strangers = {**batch, "input_ids": batch["input_ids"].clone()}
    strangers["input_ids"][2] = 99
    assert torch.equal(logits_of(model, batch)[:2], logits_of(model, strangers)[:2])


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_padded_document_gives_what_it_gives_alone(model, side):
    documents = documents_of(12, 5, 20)
    batch = collate(documents, pad_id=0, side=side)
    logits = logits_of(model, batch)
    for i, document in enumerate(documents):
        assert torch.allclose(logits[i][batch["attention_mask"][i]], model(document[None, :-1])[0], atol=1e-5)


@pytest.mark.parametrize("row_length", [5, 16, 64])
def test_no_target_crosses_a_boundary_and_none_is_lost(row_length):
    documents = [range(100 * i, 100 * i + n) for i, n in enumerate((30, 1, 2, 17, 0, 64))]
    packed = pack([list(document) for document in documents], row_length)
    told = packed.labels != -100
    assert torch.equal(packed.labels[told], packed.input_ids[told] + 1)  # 99 -> 200 would be a crossing
    wanted = sorted(token for document in documents for token in document[1:])
    assert sorted(packed.labels[told].tolist()) == wanted


def test_an_empty_document_beside_a_real_one_is_finite_and_changes_nothing(model):
    real, _ = documents_of(12, 1)
    for side in ("right", "left"):
        batch = collate([real, []], pad_id=0, side=side)
        logits = model(**{name: tensor for name, tensor in batch.items() if name != "labels"})
        logits[0].sum().backward()
        assert logits.isfinite().all()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        model.zero_grad()
        assert torch.allclose(logits[0], model(real[None, :-1])[0], atol=1e-5)
