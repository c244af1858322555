from dataclasses import replace

import pytest
import torch

from tinytrain.attention import (
    Causal,
    Documents,
    Masked,
    _boundaries,
    _has_varlen,
    _same_document,
    attention_for,
    positions_for,
)
from tinytrain.batches import pack
from tinytrain.model import GPT, PRESETS

DOC_IDS = torch.tensor([[0, 0, 0, 1, 1, 2, -1, -1], [0, 0, 0, 0, 0, 0, 0, 0]])


@pytest.fixture
def qkv():
    return torch.randn(3, 2, 4, 8, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)


def random_ids(*shape, seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


def test_one_document_at_a_time_equals_the_mask_forward_and_backward(qkv):
    results = []
    for attend in (Documents(DOC_IDS), Masked(_same_document(DOC_IDS))):
        mixed = attend(*qkv, 0.0)
        (gradient,) = torch.autograd.grad(mixed.square().sum(), qkv)
        results.append((mixed, gradient))
    for mine, masked in zip(*results, strict=True):
        assert torch.allclose(mine, masked, atol=1e-5)


def test_the_mask_of_documents_is_the_one_drawn_by_hand():
    assert _same_document(torch.tensor([[0, 0, 1, -1]]))[0, 0].int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
    ]


def test_four_and_three_tokens_allow_sixteen_pairs_and_not_twenty_eight():
    packed = pack([[1] * 5, [2] * 4], 7)
    assert int(_same_document(packed.doc_ids).sum()) == 16
    assert 7 * 8 // 2 == 28


def test_boundaries_have_a_fixed_length_and_end_with_the_batch():
    assert _boundaries(torch.tensor([[0, 0, 1, -1], [0, 0, 0, 0]])).tolist() == [0, 2, 3, 4, 8, 8, 8, 8, 8]
    assert _boundaries(DOC_IDS).dtype == torch.int32


def test_positions_count_from_a_documents_start():
    assert positions_for(DOC_IDS, None, DOC_IDS).tolist() == [[0, 1, 2, 0, 1, 0, 0, 1], list(range(8))]


def test_positions_count_from_the_first_real_token():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])
    assert positions_for(mask, mask, None).tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        ([[1, 1, 1], [1, 1, 1]], Causal),
        ([[1, 1, 0], [1, 0, 0]], Causal),  # a causal query never looks right
        ([[0, 1, 1], [1, 1, 1]], Masked),
        ([[1, 0, 1], [1, 1, 1]], Masked),
    ],
)
def test_padding_on_the_right_needs_no_mask(mask, kind):
    assert isinstance(attention_for(torch.tensor(mask), None), kind)


def test_a_mask_of_ones_changes_no_bit(model):
    ids = random_ids(2, 8)
    assert torch.equal(model(ids), model(ids, attention_mask=torch.ones(2, 8)))
    packed = model(ids, doc_ids=DOC_IDS)
    assert torch.equal(packed, model(ids, doc_ids=DOC_IDS, attention_mask=torch.ones(2, 8)))


def test_document_ids_alone_are_enough_for_the_model_to_restart_positions(model):
    ids = random_ids(2, 8)
    assert torch.equal(
        model(ids, doc_ids=DOC_IDS), model(ids, doc_ids=DOC_IDS, positions=positions_for(ids, None, DOC_IDS))
    )


def test_the_pinned_torch_has_variable_length_attention():
    assert _has_varlen()


def test_dropout_reaches_the_attention_weights():
    torch.manual_seed(0)
    model = GPT(replace(PRESETS["nano"], dropout=0.5))
    ids = random_ids(2, 8)
    assert not torch.equal(model(ids, doc_ids=DOC_IDS), model(ids, doc_ids=DOC_IDS))
