"""Law 1. One divisor.

The loss of an update is the sum of all its token losses over the number of all its targets. Every target then weighs
the same, wherever it stands. The tempting alternative, the mean of each micro-batch's mean, gives a lone token in a
short micro-batch as much weight as all tokens of a long one together.
"""

import pytest
import torch
from torch import nn

from tinytrain.distributed import launch, replicate
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.step import evaluate, train_step


class CostsItsId(nn.Module):
    """A model whose loss at a position is ``weight * id`` nats, so that losses and gradients can be done on paper.

    Of its two tokens the target is token 0, with probability exp(-weight * id).
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        nats = self.weight * input_ids
        return torch.stack([-nats, torch.log(-torch.expm1(-nats))], dim=-1)


def costs(*nats: int) -> dict[str, torch.Tensor]:
    ids = torch.tensor([nats])
    return {"input_ids": ids, "labels": torch.zeros_like(ids)}


def no_targets(*ids: int) -> dict[str, torch.Tensor]:
    return costs(*ids) | {"labels": torch.full((1, len(ids)), -100)}


def step(micro_batches, max_grad_norm=float("inf"), lr=0.0):
    model = CostsItsId()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    report = train_step(model, micro_batches, optimizer, lr=lr, max_grad_norm=max_grad_norm)
    return model, report


def test_every_token_weighs_the_same_whatever_micro_batch_it_is_in():
    model, report = step([costs(4), costs(1, 1, 2)])
    # On paper: (4 + 1 + 1 + 2) / 4 = 2. The mean of the two means would be (4 + 4/3) / 2 = 2.667.
    assert report.loss == pytest.approx(2.0, abs=1e-6)
    assert model.weight.grad.item() == pytest.approx(2.0, abs=1e-6)
    assert report.tokens == 4


def test_what_is_logged_is_what_was_optimized_for_any_number_of_micro_batches():
    for k in (1, 2, 4):
        model, report = step([costs(1, 2, 3)] * k)
        assert report.loss == pytest.approx(2.0, abs=1e-6)  # and not k times as much
        assert report.grad_norm == pytest.approx(2.0, abs=1e-6)
        assert model.weight.grad.item() == pytest.approx(report.grad_norm, abs=1e-9)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_micro_batch_without_targets_may_stand_anywhere(place):
    micro_batches = [costs(4), costs(1, 1, 2)]
    micro_batches.insert(place, no_targets(7, 7))
    model, report = step(micro_batches)
    assert (report.loss, report.tokens) == (pytest.approx(2.0, abs=1e-6), 4)
    assert model.weight.grad.item() == pytest.approx(2.0, abs=1e-6)


def test_the_last_smaller_window_of_an_epoch_has_its_own_divisor():
    model = CostsItsId()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    # Ten micro-batches of gradient 1, four to a window: three updates of size 1, also the last, which has only two.
    windows = [[costs(1)] * 4, [costs(1)] * 4, [costs(1)] * 2]
    with torch.no_grad():
        model.weight.fill_(4.0)
    for window in windows:
        train_step(model, window, optimizer, lr=1.0, max_grad_norm=float("inf"))
    assert model.weight.item() == pytest.approx(1.0, abs=1e-6)


def test_evaluation_is_the_same_sum_over_the_same_count():
    model = CostsItsId()
    for batches in ([costs(1), costs(2, 2, 2)], [costs(1, 2), costs(2, 2)], [costs(1, 2, 2, 2)]):
        assert evaluate(model, batches).loss == pytest.approx(1.75, abs=1e-6)  # mean of means: 1.5, 1.75, 1.75


def test_a_real_model_agrees_with_the_rows_taken_at_once():
    torch.manual_seed(0)
    model = GPT(PRESETS["nano"])
    optimizer = build_adamw(model, lr=1e-3)
    ids = torch.randint(0, 256, (6, 33))
    whole = {"input_ids": ids[:, :-1], "labels": ids[:, 1:].clone()}
    whole["labels"][0, 3:] = whole["labels"][4, 1:] = -100  # rows with very few targets
    gradients = []
    for size in (6, 4, 1):
        pieces = [{name: t[i : i + size] for name, t in whole.items()} for i in range(0, 6, size)]
        report = train_step(model, pieces, optimizer, lr=0.0, max_grad_norm=float("inf"))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]).double())
        assert report.tokens == int((whole["labels"] != -100).sum())
    for gradient in gradients[1:]:
        assert ((gradient - gradients[0]).norm() / gradients[0].norm()).item() <= 1e-6


def step_of_process(rank, shares):
    model = CostsItsId()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    report = train_step(replicate(model), shares[rank], optimizer, lr=0.0, max_grad_norm=float("inf"))
    return model.weight.grad.item(), report.loss, report.grad_norm, report.tokens


@pytest.mark.parametrize(
    "shares",
    [
        [[costs(4)], [costs(1, 1, 2)]],  # the mean of the processes' means would be 2.667
        [[costs(4), costs(1)], [costs(1), costs(2)]],
        [[costs(4), no_targets(9)], [costs(1), costs(1, 2)]],
        [[no_targets(5, 5)], [costs(4, 1, 1, 2)]],  # a process that has nothing to predict
    ],
)
def test_the_divisor_is_that_of_all_processes_and_all_their_micro_batches(shares):
    for found in launch(step_of_process, 2, shares):
        assert found == pytest.approx((2.0, 2.0, 2.0, 4), abs=1e-6)


def test_where_no_process_has_a_target_the_step_is_skipped_in_all():
    assert [tokens for *_, tokens in launch(step_of_process, 2, [[no_targets(1)], [no_targets(2)]])] == [0, 0]
