from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tinytrain.forward import forward_logits, logits_of

LOGITS = torch.ones(1, 2, 3)


@pytest.mark.parametrize("output", [LOGITS, {"logits": LOGITS}, SimpleNamespace(logits=LOGITS)])
def test_logits_are_found_in_a_tensor_a_dict_and_an_object(output):
    assert logits_of(output) is LOGITS


@pytest.mark.parametrize("output", [{"loss": LOGITS}, None, (LOGITS,)])
def test_an_output_without_logits_is_refused(output):
    with pytest.raises(TypeError, match=rf"returned {type(output).__name__}, in which no logits were found"):
        logits_of(output)


def test_the_model_gets_everything_but_the_labels_by_name():
    class Spy(nn.Module):
        def forward(self, input_ids, **extras):
            self.seen = {"input_ids": input_ids} | extras
            return LOGITS

    spy, batch = Spy(), {name: torch.zeros(1, 2) for name in ("input_ids", "labels", "attention_mask")}
    forward_logits(spy, batch)
    assert set(spy.seen) == {"input_ids", "attention_mask"}
