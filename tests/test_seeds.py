import torch

from tinytrain.seeds import generator_for


def draw(**numbers):
    return torch.rand(4, generator=generator_for("test", **numbers)).tolist()


def test_the_same_purpose_and_numbers_give_the_same_draws_wherever_they_stand():
    assert draw(seed=1, epoch=2) == draw(epoch=2, seed=1)


def test_any_other_number_or_purpose_gives_others():
    draws = [draw(seed=s, epoch=e) for s in range(3) for e in range(3)]
    draws.append(torch.rand(4, generator=generator_for("another", seed=0, epoch=0)).tolist())
    assert len({tuple(d) for d in draws}) == 10


def test_the_global_generator_is_neither_read_nor_moved():
    torch.manual_seed(1)
    one, state = draw(seed=0), torch.get_rng_state()
    torch.manual_seed(2)
    assert draw(seed=0) == one
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_draws_are_those_of_every_other_day():
    assert torch.randperm(8, generator=generator_for("row order", seed=0, epoch=0)).tolist() == WRITTEN_DOWN


WRITTEN_DOWN = [2, 4, 6, 3, 1, 7, 0, 5]  # from a run on 2026-11-29; resuming an older run needs the same order
