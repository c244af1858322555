"""Bytes counted by hand beside bytes counted by the mode."""

import gc

import torch

from tinytrain.watch.tensor_memory import TensorMemory


def test_what_is_made_counts_until_it_is_gone():
    with TensorMemory() as memory:
        first = torch.zeros(1000)
        second = first + 1
        assert memory.now == 8000
        del first
        assert memory.now == 4000 and memory.peak == 8000
    assert second.sum() == 1000


def test_views_and_in_place_operations_add_nothing():
    with TensorMemory() as memory:
        x = torch.zeros(10, 100)
        y = x.t()[3:].add_(1)
        assert memory.peak == 4000
    assert y.shape == (97, 10)


def test_what_is_held_counts_once_and_gone_storage_can_be_seen_again():
    weight = torch.zeros(50, 50)
    with TensorMemory([weight, weight.t()]) as memory:
        assert memory.now == 10_000
        for _ in range(3):
            weight.sum()
        assert memory.now == 10_000 and memory.peak == 10_004


def test_the_backward_pass_counts_too():
    weight = torch.nn.Parameter(torch.zeros(100, 100))
    x = torch.ones(20, 100)
    with TensorMemory([weight, x]) as memory:
        (x @ weight).square().sum().backward()
        assert memory.now == 40_000 + 8000 + 40_000  # weight, x and the gradient
        weight.grad = None
        gc.collect()
        assert memory.now == 48_000
    assert memory.peak > 88_000


def test_a_storage_counts_with_the_size_that_it_has():
    gathered = torch.zeros(1000)
    with TensorMemory([gathered]) as memory:
        gathered.untyped_storage().resize_(0)  # as fully_shard lets go of what it has put together
        other = torch.zeros(900)
        assert memory.now == 3600 and memory.peak == 4000
        gathered.untyped_storage().resize_(4000)
        torch.zeros(1)
        assert memory.peak == memory.now + 4 == 7604
        del gathered
        assert memory.now == 3600
    assert other.sum() == 0
