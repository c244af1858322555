"""Which learning rate the verdict on one batch comes from, and that nothing is left of the updates."""

import pytest
import torch
from preflight_models import Plain, rows

from tinytrain.watch.preflight import learning
from tinytrain.watch.preflight.subject import NotTestedError, subject_of


@pytest.mark.parametrize(
    ("ends", "passed", "said"),
    [
        ({3e-3: 1.0}, True, "4.000 nats before, 1.000 after 1 updates at lr 0.003"),
        ({3e-3: 3.9, 1e-2: 3.1}, True, "3.100 after 1 updates at lr 0.01"),
        ({3e-3: float("nan"), 1e-2: float("inf"), 5e-4: 3.3}, False, "3.300 after 1 updates at lr 0.0005"),
    ],
)
def test_the_first_learning_rate_that_lowers_the_loss_decides(ends, passed, said, monkeypatch):
    monkeypatch.setattr(learning, "descend", lambda subject, lr, steps, draw_again: [4.0, ends[lr]])
    line = learning.overfit_line(subject_of(Plain(), rows(), None, None))
    assert line.passed is passed and said in line.measured


def test_a_loss_that_is_not_finite_before_any_update_is_not_judged(monkeypatch):
    monkeypatch.setattr(learning, "descend", lambda *_: [float("nan")])
    with pytest.raises(NotTestedError, match="the loss is not finite in train mode"):
        learning.overfit_line(subject_of(Plain(), rows(), None, None))


def test_updates_are_taken_back():
    torch.manual_seed(0)
    model = Plain()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert learning.overfit_line(subject_of(model, rows(), None, None)).passed
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in model.named_parameters())
