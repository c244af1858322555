import pytest
import torch

from tinytrain.data import MicroBatches, RowBatches, TokenRows, micro_batches_per_step, row_order, share_of, share_rows
from tinytrain.seeds import generator_for


def rows_of_range(n, row_length):
    return TokenRows(torch.arange(n), row_length, vocab_size=n)


@pytest.mark.parametrize(("n", "row_length"), [(11, 4), (5, 4), (9, 4), (10, 4), (100, 7), (2, 1)])
def test_every_token_but_the_first_is_a_target_exactly_once(n, row_length):
    rows = rows_of_range(n, row_length)
    targets = [label for i in range(len(rows)) for label in rows[i]["labels"].tolist() if label != -100]
    assert targets == list(range(1, n))


def test_a_label_is_the_token_after_its_input():
    for i in range(len(rows := rows_of_range(50, 8))):
        row = rows[i]
        told = row["labels"] != -100
        assert torch.equal(row["labels"][told], row["input_ids"][told] + 1)
        assert row["input_ids"].shape == row["labels"].shape == (8,)


def test_a_text_shorter_than_a_row_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"poem: 4 tokens are too few for one row of row_length=4"):
        TokenRows(torch.arange(4), 4, vocab_size=4, name="poem")


def test_an_id_outside_the_vocabulary_is_refused_before_training():
    with pytest.raises(ValueError, match=r"poem: token id 5 at position 2 is outside the vocabulary 0\.\.4"):
        TokenRows(torch.tensor([0, 1, 5, 2]), 2, vocab_size=5, name="poem")


def test_ids_of_the_wrong_kind_are_refused():
    with pytest.raises(ValueError, match=r"torch.float32 \[8\]; need integers"):
        TokenRows(torch.zeros(8), 2, vocab_size=5)
    with pytest.raises(TypeError, match=r"poem: ids are a list; give a tensor, such as torch\.tensor\(ids\)"):
        TokenRows([0, 1, 2, 3], 2, vocab_size=5, name="poem")


def test_ids_in_a_table_are_refused():
    with pytest.raises(ValueError, match=r"torch.int64 \[2, 4\]; need integers of shape \[n\]"):
        TokenRows(torch.zeros(2, 4, dtype=torch.long), 2, vocab_size=5)


def test_a_row_that_is_not_there_is_refused():
    with pytest.raises(IndexError, match="row 3 is not one of its 3 rows"):
        rows_of_range(11, 4)[3]


@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_an_epoch_visits_every_row_once_and_its_last_batch_holds_the_rest(batch_size):
    batches = RowBatches(rows=rows_of_range(101, 10), batch_size=batch_size, seed=3)
    per_epoch = batches.batches_per_epoch
    for epoch in range(3):
        visited = [row for n in range(per_epoch) for row in batches.rows_of(epoch * per_epoch + n)]
        assert sorted(visited) == list(range(10))


def test_the_order_differs_between_epochs_and_seeds_and_is_the_same_when_asked_again():
    orders = {
        (seed, epoch): tuple(row_order(50, seed=seed, epoch=epoch).tolist()) for seed in range(3) for epoch in range(3)
    }
    assert len(set(orders.values())) == 9  # with seed + epoch as the seed, only 5 would differ
    assert orders[1, 2] == tuple(row_order(50, seed=1, epoch=2).tolist())


def test_the_order_is_drawn_for_this_purpose_alone():
    """A run that is resumed years later must meet its rows in the order that it left."""
    drawn = torch.randperm(50, generator=generator_for("row order", seed=1, epoch=2))
    assert torch.equal(row_order(50, seed=1, epoch=2), drawn)


def test_what_decides_the_batches_is_told_and_stays():
    """Checkpoints hold it: another value for the same text would refuse every run that was started before."""
    for ids in (torch.arange(11), torch.arange(11, dtype=torch.uint8)):
        rows = TokenRows(ids, 4, vocab_size=11)
        assert RowBatches(rows=rows, batch_size=2, micro_batch_size=1, seed=7).fingerprint() == {
            "batch_size": 2,
            "row_length": 4,
            "seed": 7,
            "shuffle": True,
            "text": "56ee9ecb61eb100a",
        }


def test_the_order_does_not_move_or_read_the_global_generator():
    torch.manual_seed(1)
    first = row_order(20, seed=0, epoch=0)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(first, row_order(20, seed=0, epoch=0))
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())


def test_batches_come_in_the_order_of_their_seed_and_their_epoch():
    batches = RowBatches(rows=rows_of_range(101, 10), batch_size=10, seed=3)
    for epoch in (0, 1):
        assert batches.rows_of(epoch) == row_order(10, seed=3, epoch=epoch).tolist()


def test_any_batch_can_be_asked_for_at_any_time():
    batches = RowBatches(rows=rows_of_range(101, 10), batch_size=4, seed=3)
    forwards = [batches.rows_of(n) for n in range(9)]
    assert [batches.rows_of(n) for n in reversed(range(9))] == forwards[::-1]
    assert batches.place(0) == (0, 0) and batches.place(3) == (1, 0) and batches.place(7) == (2, 1)


def test_micro_batches_cut_the_same_rows():
    rows = rows_of_range(101, 10)
    whole = RowBatches(rows=rows, batch_size=8, seed=3)
    cut = RowBatches(rows=rows, batch_size=8, micro_batch_size=3, seed=3)
    assert [len(piece["input_ids"]) for piece in cut[0]] == [3, 3, 2]
    assert torch.equal(torch.cat([piece["labels"] for piece in cut[0]]), whole[0][0]["labels"])


def test_without_shuffling_rows_come_in_the_order_of_the_text():
    batches = RowBatches(rows=rows_of_range(101, 10), batch_size=4, shuffle=False)
    assert batches.rows_of(1) == [4, 5, 6, 7] and batches.rows_of(4) == [4, 5, 6, 7]


def test_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match="batch_size=0"):
        RowBatches(rows=rows_of_range(11, 4), batch_size=0)


def test_an_evaluation_set_can_be_limited_to_rows_spread_over_the_text():
    rows = rows_of_range(101, 10)
    assert sum(len(batch["labels"]) for batch in rows.batches(4)) == 10
    few = torch.cat([batch["input_ids"][:, 0] for batch in rows.batches(2, limit=5)])
    assert few.tolist() == [0, 20, 40, 60, 80]


def test_an_evaluation_may_be_of_one_row_and_asks_for_no_more_than_there_are():
    rows = rows_of_range(11, 4)
    (batch,) = rows.batches(1, limit=1)
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3]]
    assert [len(batch["input_ids"]) for batch in rows.batches(1, limit=99)] == [1, 1, 1]


def test_writing_into_a_batch_does_not_change_the_text():
    rows = rows_of_range(11, 4)
    row = rows[0]
    row["input_ids"][0] = row["labels"][0] = 9
    assert rows[0]["input_ids"].tolist() == [0, 1, 2, 3] and rows[0]["labels"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("chosen", [[0], [2], [0, 2]])
def test_inputs_labels_and_text_lie_in_memory_of_their_own(chosen):
    rows = rows_of_range(11, 4)
    wanted = rows.stack(chosen)["input_ids"].tolist()
    batch = rows.stack(chosen)
    batch["labels"].fill_(9)
    assert batch["input_ids"].tolist() == rows.stack(chosen)["input_ids"].tolist() == wanted
    batch["input_ids"].fill_(8)
    assert batch["labels"].eq(9).all() and rows.ids.tolist() == list(range(11))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32])
def test_ids_in_a_narrow_type_are_taken(dtype):
    rows = TokenRows(torch.arange(11).to(dtype), 4, vocab_size=11)
    assert rows[2]["labels"].tolist() == [-100, -100, 9, 10] and rows[0]["input_ids"].dtype == torch.int64


def test_truth_values_are_no_ids():
    with pytest.raises(ValueError, match=r"ids are torch\.bool"):
        TokenRows(torch.ones(9, dtype=torch.bool), 4, vocab_size=5)


def test_row_length_and_batch_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match="row_length=0"):
        rows_of_range(11, 0)
    with pytest.raises(ValueError, match="micro_batch_size=0"):
        RowBatches(rows=rows_of_range(11, 4), batch_size=2, micro_batch_size=0)
    for call in ({"batch_size": 0}, {"batch_size": 2, "limit": 0}):
        with pytest.raises(ValueError, match="must be at least 1 row"):
            list(rows_of_range(11, 4).batches(**call))


def test_batches_before_the_first_are_refused():
    with pytest.raises(IndexError, match="batch -1: batches are counted from 0"):
        RowBatches(rows=rows_of_range(11, 4), batch_size=2)[-1]


def test_a_thousand_epochs_of_one_seed_are_not_those_of_the_next():
    seen = {tuple(row_order(30, seed=s, epoch=e).tolist()) for s in (0, 1, 2) for e in (0, 1000, 2000)}
    assert len(seen) == 9


def test_only_one_order_is_kept_in_memory():
    batches = RowBatches(rows=rows_of_range(101, 10), batch_size=4)
    for n in range(30):
        batches.rows_of(n)
    assert len(batches._orders) == 1


def test_the_shares_of_all_processes_are_the_batch_and_equally_many():
    data = RowBatches(rows=rows_of_range(29, 4), batch_size=5, micro_batch_size=2, shuffle=False)
    first, second = (data.share(0, rank=rank, processes=2) for rank in (0, 1))
    assert [piece["input_ids"][:, 0].tolist() for piece in first] == [[0, 8], [16]]
    assert [piece["input_ids"][:, 0].tolist() for piece in second] == [[4, 12], [0]]
    assert (second[1]["labels"] == -100).all()
    assert [share_rows(range(5), rank=rank, processes=2, micro_batch_size=2) for rank in (0, 1)] == [
        [[0, 2], [4]],
        [[1, 3], []],
    ]


def test_without_micro_batches_a_share_is_in_one_piece():
    data = RowBatches(rows=rows_of_range(29, 4), batch_size=5, shuffle=False)
    assert [len(piece["input_ids"]) for piece in data.share(0, rank=0, processes=2)] == [3]


def test_the_number_of_micro_batches_says_what_would_fit():
    assert micro_batches_per_step(batch_size=6, micro_batch_size=3) == 2
    assert micro_batches_per_step(batch_size=1, micro_batch_size=1, processes=1) == 1
    assert list(range(micro_batches_per_step(batch_size=6, micro_batch_size=3))) == [0, 1]  # a whole number
    with pytest.raises(ValueError, match=r"processes=3 \(12 rows at once\): choose 60 or 72$"):
        micro_batches_per_step(batch_size=64, micro_batch_size=4, processes=3)
    with pytest.raises(ValueError, match=r"choose 8$"):
        micro_batches_per_step(batch_size=6, micro_batch_size=4, processes=2)
    for name in ("batch_size", "micro_batch_size", "processes"):
        with pytest.raises(ValueError, match=f"^{name}=0 must be at least 1"):
            micro_batches_per_step(**{"batch_size": 4, "micro_batch_size": 2, "processes": 1} | {name: 0})


def test_batches_of_ones_own_need_to_say_how_many_there_are_which_rows_and_what_they_hold():
    unfinished = MicroBatches()
    for asked in (
        lambda: unfinished.batches_per_epoch,
        lambda: unfinished.rows_of(0),
        lambda: unfinished._batch_of([0]),
    ):
        with pytest.raises(NotImplementedError):
            asked()


def test_a_batch_cut_without_a_thought_of_processes_is_shared_out_whole():
    ids = torch.arange(3 * 4).reshape(3, 4)
    batch = {"input_ids": ids, "labels": ids + 1, "number": torch.tensor(7), "scale": torch.ones(2)}
    shares = [share_of([batch], rank=rank, processes=4) for rank in range(4)]
    assert [len(share) for share in shares] == [1] * 4
    assert torch.equal(torch.cat([share[0]["input_ids"] for share in shares[:3]]), ids)
    assert shares[3][0]["input_ids"].shape == (1, 4) and bool((shares[3][0]["labels"] == -100).all())
    assert all(share[0]["number"] == 7 and len(share[0]["scale"]) == 2 for share in shares)


def test_whole_micro_batches_are_dealt_out_where_there_are_enough():
    pieces = [{"input_ids": torch.full((2, 3), n), "labels": torch.zeros(2, 3, dtype=torch.long)} for n in range(5)]
    first, second = (share_of(pieces, rank=rank, processes=2) for rank in (0, 1))
    assert [int(piece["input_ids"][0, 0]) for piece in first] == [0, 2, 4]
    assert [int(piece["input_ids"][0, 0]) for piece in second] == [1, 3, 0]
    assert [bool((piece["labels"] == -100).all()) for piece in second] == [False, False, True]
    assert bool((pieces[0]["labels"] == 0).all())  # the given ones are left as they were


def test_as_many_micro_batches_as_processes_are_one_for_each():
    pieces = [{"input_ids": torch.full((2, 3), n), "labels": torch.zeros(2, 3, dtype=torch.long)} for n in range(2)]
    for rank in (0, 1):
        (share,) = share_of(pieces, rank=rank, processes=2)
        assert share["input_ids"].tolist() == [[rank] * 3] * 2


def test_what_has_numbers_for_each_position_goes_with_its_row():
    ids = torch.arange(6).reshape(2, 3)
    batch = {"input_ids": ids, "labels": ids, "features": torch.arange(24).reshape(2, 3, 4)}
    (share,) = share_of([batch], rank=1, processes=4)
    assert share["features"].tolist() == [[[12, 13, 14, 15], [16, 17, 18, 19], [20, 21, 22, 23]]]


def test_numbers_that_may_go_with_rows_or_with_positions_are_refused():
    ids = torch.zeros(4, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="start has 4 numbers, as many as there are rows and as there are positions"):
        share_of([{"input_ids": ids, "labels": ids, "start": torch.zeros(4)}], rank=0, processes=2)
    lengths = {"input_ids": ids[:, :3], "labels": ids[:, :3], "lengths": torch.arange(4), "table": torch.zeros(4, 9)}
    (share,) = share_of([lengths], rank=1, processes=2)
    assert share["lengths"].tolist() == [1, 3] and share["table"].shape == (4, 9)
