"""Batches made in advance: the same batches, made at the right time."""

import threading

import pytest
import torch

from tinytrain.ahead import Ahead
from tinytrain.data import RowBatches, TokenRows
from tinytrain.model import GPT, PRESETS
from tinytrain.train import TrainConfig, Trainer


def rows_of(n=5000):
    ids = torch.randint(0, 256, (n,), generator=torch.Generator().manual_seed(0))
    return RowBatches(rows=TokenRows(ids, 32, 256), batch_size=4, micro_batch_size=2, seed=1)


def test_batches_are_the_same_in_any_order():
    data = rows_of()
    with Ahead(data) as ahead:
        for number in (0, 1, 2, 7, 8, 3, 3, 4):
            for ours, plain in zip(ahead[number], data[number], strict=True):
                assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_the_next_batch_is_made_while_this_one_is_out():
    begun = [threading.Event() for _ in range(4)]

    def data(number):
        begun[number].set()
        return [number]

    with Ahead(data, pin=False) as ahead:
        assert ahead[0] == [0]
        assert begun[1].wait(10) and not begun[2].is_set()
        assert ahead[1] == [1] and begun[2].wait(10)


class Counted:
    """Data that notes which batches were made, and by which thread."""

    def __init__(self):
        self.made = []

    def __getitem__(self, number):
        self.made.append((number, threading.current_thread().name))
        return [number]

    def share(self, number, *, rank, processes):
        return self[number]


@pytest.mark.parametrize("shared", [False, True])
def test_each_batch_is_made_once_and_all_but_the_first_in_advance(shared):
    data = Counted()
    with Ahead(data, pin=False) as ahead:
        for number in range(4):
            made = ahead.share(number, rank=0, processes=2) if shared else ahead[number]
            assert made == [number]
    first, *others = data.made[:4]
    assert first == (0, threading.main_thread().name)
    assert [number for number, _ in others] == [1, 2, 3]
    assert all(thread.startswith("tinytrain-ahead") for _, thread in others)


def test_an_error_is_raised_at_its_own_batch():
    class Short(list):
        def __getitem__(self, number):
            if number == 2:
                raise IndexError("no more text")
            return [number]

    with Ahead(Short(), pin=False) as ahead:
        assert [ahead[0], ahead[1]] == [[0], [1]]
        with pytest.raises(IndexError, match="no more text"):
            ahead[2]
        assert ahead[3] == [3]


def test_what_else_the_data_has_is_passed_on_and_nothing_is_invented():
    data = rows_of()
    with Ahead(data) as ahead:
        assert ahead.place(3) == data.place(3)
        parts = [ahead.share(5, rank=rank, processes=2) for rank in (0, 1)]
        for ours, plain in zip(parts, (data.share(5, rank=rank, processes=2) for rank in (0, 1)), strict=True):
            assert all(torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(ours, plain, strict=True))
    with Ahead([[1]]) as ahead:
        assert not hasattr(ahead, "share") and not hasattr(ahead, "place")


def test_a_closed_one_says_so():
    with Ahead([["a"], ["b"]], pin=False) as batches:
        assert batches[0] == ["a"]
    with pytest.raises(ValueError, match="batch 1 is asked of an Ahead that is closed: make a new one"):
        batches[1]


def test_a_run_is_the_same_run_also_after_a_resume(tmp_path):
    def trained(out, data, steps, resumed=False):
        torch.manual_seed(0)
        trainer = Trainer(
            GPT(PRESETS["nano"]),
            data,
            TrainConfig(total_steps=12, max_lr=1e-3, warmup_steps=2, out=out, checkpoint_every=6),
            [lambda record: record["step"] < steps],
        )
        if resumed:
            trainer.resume()
        trainer.fit()
        return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])

    whole = trained(tmp_path / "whole", rows_of(), 12)
    with Ahead(rows_of()) as ahead:
        trained(tmp_path / "cut", ahead, 7)
    with Ahead(rows_of()) as ahead:
        assert torch.equal(trained(tmp_path / "cut", ahead, 12, resumed=True), whole)


def test_one_that_is_being_unpickled_has_no_data_to_ask_yet():
    """Its attributes come after it is made; asking itself for ``data`` for ever would be a RecursionError."""
    assert not hasattr(Ahead.__new__(Ahead), "batch_size")
