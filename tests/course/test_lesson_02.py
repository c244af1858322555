import math

import pytest
import torch

from tinytrain import GPT, param_groups
from tinytrain.course import lesson_02
from tinytrain.course.lesson_02 import (
    LOWEST,
    SMALL,
    UntiedGPT,
    draw_ravine,
    lr_range,
    make_optimizer,
    mean_gain,
    oscillation,
    rows_of,
    train_one,
    turned,
)

QUICK = {"lr": 3e-3, "seed": 0, "total_steps": 4, "batch_size": 2}


def test_a_run_repeats_exactly_and_learns():
    first, again = train_one(**QUICK), train_one(**QUICK)
    assert first == again
    assert len(first["losses"]) == 4 and first["losses"][-1] < first["losses"][0]
    assert first["late"] == []


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"optimizer": "Adam"},
        {"optimizer": "SGD"},
        {"weight_decay": 1.0},
        {"decay_on": "everything"},
        {"betas": (0.9, 0.5)},
        {"eps": 1e-2},
        {"tied": False},
        {"text": "little"},
        {"lr": 1e-3},
    ],
)
def test_each_choice_reaches_the_run(change):
    assert train_one(**{**QUICK, **change})["held_out"] != train_one(**QUICK)["held_out"]


def test_clipping_reaches_the_run():
    loose, tight = (train_one(**{**QUICK, "optimizer": "SGD", "lr": 1.0}, max_grad_norm=norm) for norm in (1.0, 0.1))
    assert loose["held_out"] < tight["held_out"]


def test_the_seed_chooses_the_rows_as_well(monkeypatch):
    seed_all = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda _seed: seed_all(0))  # the weights are the same now
    first, other = train_one(**QUICK), train_one(**{**QUICK, "seed": 1})
    assert first["losses"][0] != other["losses"][0]


def test_late_steps_are_measured_at_a_constant_rate():
    run = train_one(**QUICK, late_steps=2)
    assert len(run["late"]) == 2
    assert run["held_out"] != train_one(**QUICK)["held_out"]  # which ends at a tenth of the rate


def test_the_untied_model_differs_in_its_head_alone():
    torch.manual_seed(0)
    tied = GPT(SMALL)
    torch.manual_seed(0)
    untied = UntiedGPT(SMALL)
    theirs = dict(untied.named_parameters())
    assert all(torch.equal(p, theirs[name]) for name, p in tied.named_parameters())
    assert set(theirs) - {name for name, _ in tied.named_parameters()} == {"head.weight"}
    assert untied.head.weight is not untied.tokens.weight
    assert untied.num_parameters() - tied.num_parameters() == SMALL.vocab_size * SMALL.d_model


@pytest.mark.parametrize(
    ("name", "kind", "momentum"),
    [
        ("SGD", torch.optim.SGD, 0),
        ("SGD, momentum", torch.optim.SGD, 0.9),
        ("Adam", torch.optim.Adam, None),
        ("AdamW", torch.optim.AdamW, None),
    ],
)
def test_the_optimizers_are_torchs_own(name, kind, momentum):
    optimizer = make_optimizer(name, param_groups(GPT(SMALL), 0.3), lr=0.1, betas=(0.8, 0.9), eps=1e-3)
    assert type(optimizer) is kind
    first, second = optimizer.param_groups
    assert first["weight_decay"] == 0.3 and second["weight_decay"] == 0 and first["lr"] == 0.1
    if momentum is None:
        assert first["betas"] == (0.8, 0.9) and first["eps"] == 1e-3
    else:
        assert first["momentum"] == momentum


def test_little_text_is_the_beginning_of_plenty_and_held_out_is_another():
    little, plenty, held_out = rows_of("little"), rows_of("plenty"), rows_of("held out")
    assert 10_000 <= len(little.ids) < 10_100  # a character may take several bytes
    assert torch.equal(little.ids, plenty.ids[: len(little.ids)])
    assert len(held_out.ids) > 100_000 and not torch.equal(held_out.ids[:10_000], plenty.ids[:10_000])


def test_the_mean_gain_counts_norms_alone():
    model = GPT(SMALL)
    assert mean_gain(model) == 1
    with torch.no_grad():
        model.norm.weight.fill_(6.0)  # one of five norms
    assert mean_gain(model) == pytest.approx(2.0)


def test_a_straight_line_does_not_oscillate_and_a_zigzag_does():
    assert oscillation([3.0 - 0.1 * i for i in range(20)]) < 1e-12
    zigzag = [1.0, -1.0] * 50
    assert oscillation([x + 0.3 * i for i, x in enumerate(zigzag)]) == pytest.approx(1.0, abs=0.02)


def test_the_range_of_rates_ends_where_the_straight_line_passes_the_limit():
    losses = {0.1: 3.0, 1.0: 2.0, 10.0: 2.5}
    # down: 0.1 of 1.0 nats in a decade; up: 0.1 of 0.5 nats in a decade
    assert lr_range(losses, within=0.1) == pytest.approx(10 ** (0.1 + 0.2))


def test_the_range_of_rates_claims_nothing_beyond_what_was_tried_and_leaves_out_infinities():
    assert lr_range({0.1: 2.0, 1.0: 2.05, 10.0: math.inf}, within=0.1) == pytest.approx(10)
    assert lr_range({0.1: math.nan, 1.0: 2.0, 10.0: 2.05}, within=0.1) == pytest.approx(10)
    assert lr_range({1.0: 2.0}, within=0.1) == 1


def test_the_range_of_rates_is_that_around_the_best():
    assert lr_range({0.1: 2.01, 1.0: 4.0, 10.0: 2.0}, within=0.5) == pytest.approx(10**0.25)
    assert lr_range({0.1: 2.0, 1.0: 4.0, 10.0: 2.01}, within=0.5) == pytest.approx(10**0.25)


def test_a_ravine_that_is_turned_is_as_steep_along_its_own_directions():
    slopes = turned(torch.tensor([1.0, 100.0]), 45)
    along, across = torch.tensor([[1.0, 1.0], [-1.0, 1.0]]) / math.sqrt(2)
    assert torch.allclose(slopes @ along, along, atol=1e-4)
    assert torch.allclose(slopes @ across, 100 * across, atol=1e-4)


def test_the_ravine_says_how_far_from_the_lowest_point_each_path_ends():
    (x, y), slopes = LOWEST, turned(torch.tensor([1.0, 100.0]), 20)
    figure = draw_ravine({"there": [(-3.0, 1.0), LOWEST], "beside": [(-3.0, 1.0), (x + 3, y + 4)]}, slopes)
    (ax,) = figure.axes
    assert ax.get_title(loc="left").endswith("there 0.00, beside 5.00")


def test_the_height_that_is_drawn_has_the_slopes_that_a_walk_follows(monkeypatch):
    drawn = []
    monkeypatch.setattr(lesson_02, "plot_paths", lambda ax, height, *_, **__: drawn.append(height) or ax)
    slopes = turned(torch.tensor([1.0, 100.0]), 20).double()
    draw_ravine({}, slopes)
    point = torch.tensor([-3.0, 1.0], dtype=torch.float64, requires_grad=True)
    drawn[0](*point).backward()
    assert torch.allclose(point.grad, slopes @ (point.detach() - torch.tensor(LOWEST, dtype=torch.float64)))
