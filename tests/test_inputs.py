"""Preflight's lines on the batch and on the first loss: what lies in any row, and a band that fits usual models."""

import pytest
import torch
from torch import nn

from tinytrain.watch.preflight import preflight

V, T = 61, 100


class Plain(nn.Module):
    """A causal model with torch's own first weights: a norm before the head."""

    def __init__(self):
        super().__init__()
        self.tokens, self.norm, self.head = nn.Embedding(V, 64), nn.LayerNorm(64), nn.Linear(64, V)

    def forward(self, input_ids):
        return self.head(self.norm(self.tokens(input_ids).cumsum(1)))


@pytest.fixture
def batch():
    ids = torch.randint(0, V, (8, T + 1), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


def test_an_id_or_a_label_that_the_model_does_not_know_is_found_in_any_row_and_place(batch):
    for name, said in (("input_ids", "ids run from"), ("labels", "labels run from")):
        odd = {**batch, name: batch[name].clone()}
        odd[name][7, 99] = V + 5
        line = preflight(Plain(), odd)["shapes and dtypes"]
        assert line.passed is False and said in line.measured and str(V + 5) in line.measured
    minus = {**batch, "labels": batch["labels"].clone()}
    minus["labels"][7, 99] = -1
    assert "labels run from -1 to" in preflight(Plain(), minus)["shapes and dtypes"].measured


def test_rows_that_are_not_shifted_are_found_behind_those_that_are_cut_out(batch):
    batch["labels"][5:] = batch["input_ids"][5:]
    line = preflight(Plain(), batch)["labels shifted once"]
    assert line.passed is False and line.measured.endswith(f"of {8 * (T - 1)} labels are the next token")


def test_a_batch_without_any_target_fails(batch):
    report = preflight(Plain(), {**batch, "labels": torch.full_like(batch["labels"], -100)})
    assert report["labels shifted once"].passed is False and not report.passed
    assert "no position of the whole batch is a target" in str(report)


def test_a_model_that_needs_contiguous_ids_can_be_called_on_what_is_cut_out(batch):
    class Flat(Plain):
        def forward(self, input_ids):
            return super().forward(input_ids.view(-1).view(input_ids.shape))

    assert preflight(Flat(), batch)["shapes and dtypes"].passed is True


@pytest.mark.parametrize("targets", [16, 128])
def test_torchs_own_first_weights_are_no_fault_whatever_the_seed(targets, batch):
    labels = batch["labels"].clone()
    labels.view(-1)[targets:] = -100
    for seed in range(20):
        torch.manual_seed(seed)
        assert preflight(Plain(), {**batch, "labels": labels})["initial loss"].passed is True


def test_a_head_that_is_three_times_too_large_is_one(batch):
    torch.manual_seed(0)
    model = Plain()
    with torch.no_grad():
        model.head.weight.mul_(3)
    assert preflight(model, batch)["initial loss"].passed is False
