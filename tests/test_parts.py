"""The optimizer that is handed over: whose weights it has, and where its updates go."""

import pytest
import torch
from preflight_models import GROUPS, D, Plain, rows
from torch import nn

from tinytrain.optimizer import param_groups
from tinytrain.watch.preflight import preflight


def line_with(make, model=None):
    model = model or Plain()
    return preflight(model, rows(), optimizer=make(model))[GROUPS]


def decaying(kind, decay=0.1, **options):
    return lambda model: kind(param_groups(model, decay), **options)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (decaying(torch.optim.Adam, lr=1e-3), "Adam divides it by the gradient's size: use AdamW"),
        (decaying(torch.optim.RMSprop, lr=1e-3), "RMSprop divides"),
        (decaying(torch.optim.AdamW, lr=1e-3, maximize=True), "maximize=True climbs the loss"),
        (decaying(torch.optim.AdamW, lr=0.0), "lr is 0 in every group"),
        (decaying(torch.optim.AdamW, decay=10.0, lr=0.1), "lr * weight_decay is 1: one update takes all"),
        (lambda _: torch.optim.AdamW(Plain().parameters(), lr=1e-3), "none of the model's weights is in it"),
    ],
)
def test_updates_that_go_wrong_are_named(make, said):
    line = line_with(make)
    assert line.passed is False and said in line.measured


def warming_up(model):
    optimizer = torch.optim.AdamW(param_groups(model, 0.1), lr=1e-3)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    assert all(group["lr"] == 0 for group in optimizer.param_groups)
    return optimizer


def one_group_stands(model):
    optimizer = torch.optim.AdamW(param_groups(model, 0.1), lr=1e-3)
    optimizer.param_groups[1]["lr"] = 0.0
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        decaying(torch.optim.AdamW, lr=1e-3),
        decaying(torch.optim.AdamW, decay=9.9, lr=0.1),
        decaying(torch.optim.Adam, lr=1e-3, decoupled_weight_decay=True),
        decaying(torch.optim.Adam, decay=0.0, lr=1e-3),
        decaying(torch.optim.SGD, lr=0.1, momentum=0.9),
        warming_up,
        one_group_stands,
    ],
)
def test_ordinary_optimizers_pass(make):
    line = line_with(make)
    assert line.passed, line


def test_a_bare_table_of_positions_may_be_left_alone_and_a_layers_matrix_not():
    class Table(Plain):
        def finish(self):
            del self.positions
            self.table = nn.Parameter(torch.zeros(64, D))

        def embed(self, input_ids, attention_mask):
            return self.tokens(input_ids) + self.table[: input_ids.shape[1]]

    def without(*names):
        def make(model):
            still = [p for n, p in model.named_parameters() if p.dim() < 2 or n in names]
            others = [p for p in model.parameters() if not any(p is q for q in still)]
            return torch.optim.AdamW([{"params": others, "weight_decay": 0.1}, {"params": still, "weight_decay": 0.0}])

        return make

    line = line_with(without("table"), Table())
    assert line.passed and "not decayed: table" in line.measured
    line = line_with(without("table", "tokens.weight", "out.1.weight"), Table())
    assert line.passed is False and "not decayed with two axes: out.1.weight" in line.measured
