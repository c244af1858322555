"""Law 7. Weights and moments are float32 in every precision, and the loss is computed from float32 logits.

A bfloat16 number has eight bits of mantissa: next to 1.0 the next one is 1.0078. A weight of 1.0 that is to move by a
thousandth does not move at all, update after update.
"""

import math

import pytest
import torch

import tinytrain.precision
import tinytrain.step
from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.precision import DTYPES, Precision
from tinytrain.step import train_step
from tinytrain.train import TrainConfig, Trainer

pytestmark = pytest.mark.usefixtures("any_format_is_fast")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


def batch_of():
    ids = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


@pytest.mark.parametrize("mode", DTYPES)
def test_every_weight_gradient_and_moment_is_float32(model, mode):
    optimizer, precision = build_adamw(model, lr=1e-3), Precision(mode)
    for _ in range(3):
        train_step(model, [batch_of()], optimizer, lr=1e-3, precision=precision)
    tensors = [t for p in model.parameters() for t in (p, p.grad, *optimizer.state[p].values())]
    assert {t.dtype for t in tensors} == {torch.float32}


@pytest.mark.parametrize("mode", DTYPES)
def test_the_loss_is_taken_from_float32_logits(model, mode, monkeypatch):
    seen = []

    def spy(logits, labels, **options):
        loss = cross_entropy(logits, labels, **options)
        seen.append((logits.dtype, loss.dtype))
        return loss

    monkeypatch.setattr(tinytrain.step, "cross_entropy", spy)
    train_step(model, [batch_of()], build_adamw(model, lr=1e-3), lr=1e-3, precision=Precision(mode))
    assert seen == [(DTYPES[mode], torch.float32)]


def test_a_sum_over_many_tokens_in_half_precision_would_be_wrong():
    """Why: 50,000 equal logits cost ln 50,000 = 10.82 nats; in float16 their sum alone is near its largest number."""
    logits, label = torch.zeros(1, 100_000, dtype=torch.float16), torch.tensor([0])
    assert cross_entropy(logits, label).item() == pytest.approx(math.log(100_000), abs=1e-4)
    by_hand = logits.exp().sum().log() - logits[0, 0]  # 100,000 is more than float16 can hold
    assert by_hand.isinf()


def test_a_small_update_moves_a_float32_weight_and_not_a_bfloat16_one():
    moved = {}
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.nn.Parameter(torch.ones(1, dtype=dtype))
        optimizer = torch.optim.AdamW([weight], lr=1e-3, weight_decay=0.0)
        for _ in range(100):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        moved[dtype] = 1.0 - weight.item()
    assert moved[torch.float32] == pytest.approx(0.1, rel=1e-3)
    assert moved[torch.bfloat16] == 0.0


def test_a_model_in_half_precision_is_refused_before_the_first_step(model):
    with pytest.raises(ValueError, match=r"tokens\.weight is torch\.bfloat16: keep weights in float32"):
        Trainer(model.to(torch.bfloat16), [[batch_of()]], TrainConfig(total_steps=1, max_lr=1e-3))


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_a_short_run_in_half_precision_learns_as_the_one_in_float32_does(mode):
    final = {}
    for name in ("fp32", mode):
        torch.manual_seed(0)
        config = TrainConfig(total_steps=30, max_lr=3e-3, precision=name)
        final[name] = Trainer(GPT(PRESETS["nano"]), lambda n: [batch_of()], config).fit().record["loss"]
    assert final["fp32"] < 3.5
    assert final[mode] == pytest.approx(final["fp32"], abs=0.05)
