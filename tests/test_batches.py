from itertools import pairwise

import pytest
import torch

from tinytrain.batches import bucket, collate, count_positions, pack, padding_waste, pieces_of
from tinytrain.seeds import generator_for


def documents_of(*lengths, start=0):
    """Documents whose tokens are all different, so that every pair can be found again."""
    documents, at = [], start
    for n in lengths:
        documents.append(list(range(at, at + n)))
        at += n
    return documents


def pairs_of(batch):
    told = batch["labels"] != -100
    return sorted(zip(batch["input_ids"][told].tolist(), batch["labels"][told].tolist(), strict=True))


def all_pairs(documents):
    return sorted((a, b) for document in documents for a, b in pairwise(document))


def test_labels_are_masked_by_length_and_not_by_value():
    batch = collate([[5, 6, 2], [5, 6, 7, 8, 2]], pad_id=2)
    assert batch["labels"].tolist() == [[6, 2, -100, -100], [6, 7, 8, 2]]
    assert batch["input_ids"].tolist() == [[5, 6, 2, 2], [5, 6, 7, 8]]
    assert batch["attention_mask"].tolist() == [[True, True, False, False], [True] * 4]


@pytest.mark.parametrize("side", ["right", "left"])
def test_every_pair_of_neighbours_is_there_once(side):
    documents = documents_of(3, 7, 2, 1, 0, 5)
    batch = collate(documents, pad_id=999, side=side)
    assert pairs_of(batch) == all_pairs(documents)
    assert batch["input_ids"].shape == (6, 6)


def test_padding_on_the_left_stands_before_the_document():
    batch = collate([[1, 2], [1, 2, 3, 4]], pad_id=0, side="left")
    assert batch["input_ids"].tolist() == [[0, 0, 1], [1, 2, 3]]
    assert batch["labels"].tolist() == [[-100, -100, 2], [2, 3, 4]]


def test_rows_are_padded_to_the_longest_or_to_a_given_length():
    assert collate([[1, 2, 3]], pad_id=0)["labels"].shape == (1, 2)
    assert collate([[1, 2, 3]], pad_id=0, length=5)["labels"].tolist() == [[2, 3, -100, -100, -100]]


def test_the_smallest_batches_have_one_position():
    for document, label in (([1, 2], 2), ([1], -100), ([], -100)):
        batch = collate([document], pad_id=7)
        assert batch["labels"].tolist() == [[label]] and batch["input_ids"].tolist() == [[1 if label == 2 else 7]]
        assert batch["attention_mask"].dtype == torch.bool and bool(batch["attention_mask"]) == (label == 2)


def test_tensors_and_another_ignore_index_are_taken():
    batch = collate([torch.tensor([1, 2, 3], dtype=torch.uint8), [4, 5]], pad_id=0, ignore_index=-1)
    assert batch["labels"].tolist() == [[2, 3], [5, -1]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: collate([], pad_id=0), "^collate needs at least one document$"),
        (
            lambda: collate([[1], [1, 2, 3, 4]], pad_id=0, length=2),
            "document 1 has 4 tokens; a row of length=2 holds 3",
        ),
        (lambda: collate([[1, 2]], pad_id=0, side="top"), "side='top'"),
        (lambda: bucket([1, 2], 0), "batch_size=0"),
        (lambda: bucket([1, 2], 1, window_batches=0), "window_batches=0"),
        (lambda: pack([[1, 2]], 0), "row_length=0"),
        (lambda: pack([[1], []], 4), "none of the 2 documents has two tokens"),
    ],
)
def test_what_makes_no_batch_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("n", [1, 7, 40, 41, 403])
def test_buckets_hold_each_index_exactly_once(n):
    lengths = torch.randint(1, 100, (n,), generator=torch.Generator().manual_seed(n)).tolist()
    for epoch in range(3):
        batches = bucket(lengths, 4, epoch=epoch, window_batches=5)
        assert sorted(i for batch in batches for i in batch) == list(range(n))
        assert len(batches) == -(-n // 4)
        assert sum(len(batch) < 4 for batch in batches) == (n % 4 > 0)


def test_a_bucket_may_be_of_one_document_and_a_window_of_one_batch():
    assert sorted(bucket([5, 6, 7], 1, window_batches=1)) == [[0], [1], [2]]


def test_buckets_differ_between_seeds_and_are_drawn_for_this_purpose_alone():
    lengths = list(range(64))
    assert bucket(lengths, 8, seed=1) != bucket(lengths, 8, seed=2)
    assert bucket(lengths, 8) == bucket(lengths, 8, seed=0, epoch=0)
    generator = generator_for("buckets", seed=1, epoch=3)
    shuffled = torch.randperm(20, generator=generator).tolist()
    order = torch.randperm(20, generator=generator).tolist()
    assert bucket([1] * 20, 1, seed=1, epoch=3) == [[shuffled[i]] for i in order]


def test_buckets_waste_less_than_random_batches():
    lengths = torch.randint(1, 1000, (400,), generator=torch.Generator().manual_seed(0)).tolist()
    random = [list(range(i, i + 8)) for i in range(0, 400, 8)]
    assert padding_waste(lengths, bucket(lengths, 8, window_batches=10)) < 0.1 < 0.4 < padding_waste(lengths, random)


def test_the_reported_waste_is_that_of_the_tensors():
    documents = documents_of(3, 9, 5, 5, 2)
    lengths = [len(document) - 1 for document in documents]
    batches = [[0, 1], [2, 3], [4]]
    masks = [collate([documents[i] for i in batch], pad_id=0)["attention_mask"] for batch in batches]
    real, positions = sum(int(m.sum()) for m in masks), sum(m.numel() for m in masks)
    assert padding_waste(lengths, batches) == pytest.approx(1 - real / positions)


def test_no_batch_wastes_nothing():
    assert padding_waste([3, 4], []) == 0.0


def test_positions_are_counted_with_those_that_carry_no_token():
    mask = torch.tensor([[True, True, False, False], [True] * 4])
    ids = torch.zeros(2, 4, dtype=torch.long)
    padded = {"input_ids": ids, "attention_mask": mask}
    packed = {"input_ids": ids, "doc_ids": torch.tensor([[0, 0, 1, -1], [0, 1, 2, 3]])}
    counts = count_positions([padded, packed, {"input_ids": ids}])
    assert [count.item() for count in counts] == [24, 3] and {count.dtype for count in counts} == {torch.int64}
    for one, all_of_three in ((padded, 6), (packed, 3)):
        assert [count.item() for count in count_positions([one] * 3)] == [24, all_of_three]


def test_positions_are_counted_where_the_batches_are():
    counts = count_positions([{"input_ids": torch.zeros(2, 4, device="meta")}])
    assert [(count.device.type, count.shape) for count in counts] == [("meta", ())] * 2


def test_batch_order_differs_between_epochs_and_does_not_follow_length():
    lengths = list(range(64))
    orders = [bucket(lengths, 8, epoch=epoch) for epoch in range(4)]
    assert orders[2] == bucket(lengths, 8, epoch=2)
    assert len({str(order) for order in orders}) == 4
    for batches in orders:
        means = torch.tensor([sum(b) / len(b) for b in batches])
        ranks = means.argsort().argsort().float()
        correlation = torch.corrcoef(torch.stack([ranks, torch.arange(8.0)]))[0, 1].item()
        assert abs(correlation) < 0.8
    assert any(order != sorted(order, key=lambda b: lengths[b[0]]) for order in orders)


@pytest.mark.parametrize("row_length", [1, 3, 4, 8, 64])
def test_packing_keeps_every_pair_once_and_none_across_a_boundary(row_length):
    documents = documents_of(3, 9, 1, 5, 0, 2, 17, 4)
    packed = pack(documents, row_length)
    assert pairs_of(packed.batch(range(len(packed)))) == all_pairs(documents)
    assert packed.input_ids.shape[1] == row_length


def test_positions_restart_and_document_ids_change_at_each_piece():
    packed = pack([[1, 2, 3], [4, 5, 6], [7, 8]], 5)
    assert packed.labels.tolist() == [[2, 3, 5, 6, 8]]
    assert packed.positions.tolist() == [[0, 1, 0, 1, 0]]
    assert packed.doc_ids.tolist() == [[0, 0, 1, 1, 2]]


def test_the_largest_comes_first_and_goes_where_it_fits_best():
    packed = pack([[1, 2, 3], [7, 8], [4, 5, 6]], 4)
    assert packed.labels.tolist() == [[2, 3, 5, 6], [8, -100, -100, -100]]
    assert packed.doc_ids.tolist() == [[0, 0, 1, 1], [0, -1, -1, -1]]
    assert packed.positions.tolist() == [[0, 1, 0, 1], [0, 0, 0, 0]]
    names = ("input_ids", "labels", "doc_ids", "positions")
    assert {value.dtype for value in packed.batch([]).values()} == {torch.int64}
    assert {name: value.shape for name, value in packed.batch([]).items()} == dict.fromkeys(names, (0, 4))


def test_a_document_that_just_fills_a_row_is_whole_and_one_longer_is_split():
    assert [pack([list(range(n))], 6).statistics.split_documents for n in (7, 8)] == [0, 1]


def test_pieces_hold_ids_as_wide_as_the_model_takes_them_and_padding_is_0_where_nobody_said_otherwise():
    assert [piece.dtype for piece in pieces_of(torch.tensor([1, 2], dtype=torch.uint8), 4)] == [torch.int64]
    assert pack([[1, 2]], 2).input_ids.tolist() == [[1, 0]]


def test_a_long_document_is_cut_and_its_tail_kept():
    packed = pack([list(range(12))], 4)
    assert packed.labels.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, -100]]
    assert packed.statistics.split_documents == 1


def test_the_statistics_are_those_of_the_tensors():
    documents = documents_of(3, 9, 1, 5, 0, 2)
    packed = pack(documents, 6, pad_id=7)
    statistics = packed.statistics
    assert (statistics.documents, statistics.rows) == (6, len(packed))
    assert statistics.targets == len(all_pairs(documents)) == 2 + 8 + 4 + 1
    assert (statistics.split_documents, statistics.documents_without_target) == (1, 2)
    assert statistics.waste == pytest.approx(1 - statistics.targets / packed.labels.numel())
    assert (packed.input_ids[packed.doc_ids < 0] == 7).all()


def test_packing_fills_rows_well():
    lengths = torch.randint(2, 200, (500,), generator=torch.Generator().manual_seed(0)).tolist()
    assert pack([torch.zeros(n) for n in lengths], 256).statistics.waste < 0.02
