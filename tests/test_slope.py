"""A slope is judged where the loss is smooth, and only there."""

import pytest
import torch
from preflight_broken import detached_residual
from preflight_honest import Rounded, mixture
from preflight_models import SLOPE, Plain, V, rows, variant
from torch import nn

from tinytrain.model import GPT, PRESETS
from tinytrain.watch.preflight import preflight


class Coarse(Plain):
    """Its table is used as whole numbers, and no small move reaches the next one."""

    def finish(self):
        with torch.no_grad():
            self.tokens.weight.copy_(self.tokens.weight.sign())

    def embed(self, input_ids, attention_mask):
        table = self.tokens.weight
        return (table + (table.round() - table).detach())[input_ids] + self.positions(torch.arange(input_ids.shape[1]))


@pytest.mark.parametrize("kind", [mixture(8), Rounded, Coarse])
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_that_jumps_is_not_judged(kind, seed):
    torch.manual_seed(seed)
    line = preflight(kind(), rows())[SLOPE]
    assert line.passed is None and "the loss jumps as weights move (" in line.measured


def test_the_row_of_padding_gets_no_gradient_and_that_is_no_fault():
    def table(self):
        self.tokens = nn.Embedding(V, self.head.in_features, padding_idx=0)

    torch.manual_seed(0)
    batch = {name: ids.masked_fill(torch.arange(16) % 3 == 0, 0) for name, ids in rows().items()}
    assert preflight(variant(finish=table)(), batch)[SLOPE].passed
    assert preflight(variant(finish=table, block=detached_residual)(), batch)[SLOPE].passed is False


def test_a_gradient_that_is_smaller_than_rounding_is_no_jump():
    def embed(self, input_ids, attention_mask):
        return self.tokens(input_ids) + 1e-6 * self.positions(torch.arange(input_ids.shape[1]))

    torch.manual_seed(0)
    assert preflight(variant(embed=embed)(), rows())[SLOPE].passed


def test_weights_stand_where_they_stood():
    model = Plain()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    preflight(model, rows())
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


class Untied(GPT):
    """Its head is a table of its own, so that nothing else carries a gradient to the embedding."""

    def _tie(self):
        pass


class Cut(nn.Module):
    """A block whose residual stream ends in backward."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x, attend):
        x = x.detach() + self.block.attention(self.block.attention_norm(x), attend)
        return x + self.block.feed_forward(self.block.feed_forward_norm(x))


@pytest.fixture
def batch():
    ids = torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


@pytest.mark.parametrize("seed", range(4))
def test_a_detached_residual_is_found_in_an_untied_model_and_a_whole_one_passes(seed, batch):
    torch.manual_seed(seed)
    model = Untied(PRESETS["nano"])
    assert preflight(model, batch)[SLOPE].passed is True
    model.blocks[0] = Cut(model.blocks[0])
    assert preflight(model, batch)[SLOPE].passed is False
