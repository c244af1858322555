"""The runs of notebook 06 do what their arguments say."""

import math

import pytest
import torch
from torch import nn

from tinytrain.corpus import Corpus, Document
from tinytrain.course.lesson_06 import accumulate, bytes_kept, cut, speeches, train
from tinytrain.model import GPT, PRESETS


class Costs(nn.Module):
    """A loss of ``weight * id`` nats at each position, so that sums can be done on paper."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, input_ids):
        nats = self.weight * input_ids
        return torch.stack([-nats, torch.log(-torch.expm1(-nats))], dim=-1)


def costs(*nats):
    ids = torch.tensor([nats])
    return {"input_ids": ids, "labels": torch.zeros_like(ids)}


@pytest.mark.parametrize(("divide", "loss"), [("all targets", 2), ("mean of means", 8 / 3), ("nothing", 16 / 3)])
def test_accumulation_divides_as_it_is_told_and_the_gradient_is_that_of_the_loss(divide, loss):
    model = Costs()
    assert accumulate(model, [costs(4), costs(1, 1, 2)], divide) == pytest.approx(loss, abs=1e-6)
    assert model.weight.grad.item() == pytest.approx(loss, abs=1e-6)


def test_a_run_depends_on_its_settings_and_not_on_how_it_is_cut():
    few = {"steps": 4}
    plain, whole = train(**few), train(micro_batch_size=32, **few)
    assert plain["losses"] == train(**few)["losses"]
    assert plain["losses"] == pytest.approx(whole["losses"], abs=1e-5)
    assert plain["losses"] != pytest.approx(train(seed=1, **few)["losses"], abs=1e-3)
    assert plain["norms"] != pytest.approx(train(divide="nothing", **few)["norms"], rel=0.5)
    assert plain["losses"] != pytest.approx(train(lr_of=lambda step: 1e-4, **few)["losses"], abs=1e-3)
    dropped = [train(dropout=0.1, dropout_seed=s, **few)["losses"] for s in (0, 0, 1)]
    assert dropped[0] == dropped[1] != dropped[2]


def test_a_loss_that_is_not_finite_ends_the_run():
    run = train(optimizer="SGD", lr=1e6, steps=20)
    assert len(run["losses"]) < 20 and not math.isfinite(run["losses"][-1])
    assert run["held_out"] == math.inf


def test_speeches_are_what_stands_between_blank_lines():
    corpus = Corpus("two", (Document("play", "HAMLET\nTo be\n\nB\n\n" + "x" * 200),))
    found = speeches(corpus)
    assert [bytes(speech.tolist()) for speech in found] == [b"HAMLET\nTo be", b"x" * 65]
    assert [batch["labels"].shape[0] for batch in cut(found * 3, 4)] == [4, 2]
    assert accumulate(GPT(PRESETS["nano"]), cut(found, 2)) > 5


def test_bytes_are_kept_for_one_micro_batch_or_for_all_and_the_gradient_is_the_same():
    model, ids = GPT(PRESETS["nano"]), torch.randint(0, 256, (4, 16))
    pieces = [{"input_ids": ids[i : i + 1], "labels": ids[i : i + 1]} for i in range(4)]
    gradients, kept = [], []
    for one_backward in (False, True):
        model.zero_grad()
        kept.append(bytes_kept(model, pieces, one_backward=one_backward))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert kept[0] == bytes_kept(model, pieces[:1]) and 0.95 * kept[1] < 4 * kept[0] < 1.05 * kept[1]
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-5)
