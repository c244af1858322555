"""Preflight's line on slopes: a path that is cut in backward only is found where its gradient is tiny."""

import pytest
import torch
from torch import nn

from tinytrain.model import GPT, PRESETS
from tinytrain.watch.preflight import preflight

LINE = "gradients are the loss's slope"


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
    assert preflight(model, batch)[LINE].passed is True
    model.blocks[0] = Cut(model.blocks[0])
    assert preflight(model, batch)[LINE].passed is False
