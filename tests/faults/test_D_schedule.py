"""Group D: the learning rate over a run.

The kind of fault: a schedule that has a life of its own. It is stepped too often or too rarely, restored in the wrong
order, goes on after a step that was skipped, climbs again after its end, or begins at 0. Here the rate is a pure
function of completed updates, and each update is told its rate; the tests show that these faults have no place left.
"""

import copy
import math
from itertools import pairwise

import pytest
import torch
from paper import OnPaper, costs
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from tinytrain.data import RowBatches, TokenRows
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw, param_groups
from tinytrain.schedule import warmup_cosine
from tinytrain.train import TrainConfig, Trainer, train_step

ROWS = TokenRows(torch.randint(0, 256, (257,), generator=torch.Generator().manual_seed(1)), 16, vocab_size=256)
DATA = RowBatches(rows=ROWS, batch_size=4)


def nano():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


def curve(steps, **settings):
    return [warmup_cosine(step, **{"max_lr": 1.0, "min_lr": 0.0} | settings) for step in steps]


def torch_rates(optimizer, scheduler, updates):
    """The rate of each of the next updates with one of torch's scheduler objects."""
    rates = []
    for _ in range(updates):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def plain_sgd():
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


def test_D01_the_first_update_has_a_rate_above_0_and_moves_the_weights_by_it():
    """EleutherAI/gpt-neox#1379, pytorch/torchtitan#1010: step / warmup throws the first batch away."""
    rates = curve(range(6), warmup_steps=4, total_steps=10)
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0] and rates[5] < 1.0

    def largest_move(lr):
        model = nano()
        before = [p.detach().clone() for p in model.parameters()]
        train_step(model, DATA[0], build_adamw(model, lr=1.0, weight_decay=0.0), lr=lr)
        return max((a - b).abs().max().item() for a, b in zip(before, model.parameters(), strict=True))

    max_lr = 4e-2
    assert largest_move(max_lr * 0 / 4) == 0.0, "a batch was read and nothing learnt"
    config = TrainConfig(total_steps=10, max_lr=max_lr, warmup_steps=4)
    assert largest_move(config.lr(0)) == pytest.approx(max_lr / 4, abs=1e-6)


def test_D02_all_corners_of_warmup_and_total_are_defined():
    """deepspeedai/DeepSpeed#8142, mosaicml/composer#1077: a division by total - warmup, which is 0."""

    def naive(step, warmup, total):
        return (
            (step + 1) / warmup if step < warmup else 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / (total - warmup))
        )

    with pytest.raises(ZeroDivisionError):
        naive(10, 10, 10)
    for warmup_steps, total_steps in ((10, 10), (0, 10), (0, 1)):
        rates = curve((0, total_steps - 1, 10, 11), min_lr=0.1, warmup_steps=warmup_steps, total_steps=total_steps)
        assert rates[0] == (0.1 if warmup_steps else 1.0)
        assert rates[1] > 0.1 and rates[2:] == [0.1, 0.1]
    with pytest.raises(ValueError, match="warmup_steps=20 is more than total_steps=10"):
        curve([0], warmup_steps=20, total_steps=10)
    with pytest.raises(ValueError, match="warmup_steps=20 is more than total_steps=10"):
        TrainConfig(total_steps=10, warmup_steps=20, max_lr=1.0)


def test_D03_after_the_end_the_rate_stays_at_its_minimum():
    """allenai/allennlp#1647: a cosine is periodic, and the run goes on."""
    optimizer = plain_sgd()
    again = torch_rates(optimizer, CosineAnnealingLR(optimizer, T_max=4), 11)
    assert again == pytest.approx([1, 0.8536, 0.5, 0.1464, 0, 0.1464, 0.5, 0.8536, 1, 0.8536, 0.5], abs=1e-4)
    unclamped = 0.1 + 0.45 * (1 + math.cos(math.pi * (20 - 4) / (10 - 4)))
    assert unclamped == pytest.approx(0.325, abs=1e-6)

    rates = curve(range(13), min_lr=0.1, warmup_steps=4, total_steps=10)
    written = [0.25, 0.5, 0.75, 1, 1, 0.939711, 0.775, 0.55, 0.325, 0.160289, 0.1, 0.1, 0.1]
    assert rates == pytest.approx(written, abs=1e-6)
    assert curve((20, 10**6), min_lr=0.1, warmup_steps=4, total_steps=10) == [0.1, 0.1]


def two_phases(optimizer):
    return SequentialLR(optimizer, [LinearLR(optimizer, 0.25, total_iters=4), CosineAnnealingLR(optimizer, 6)], [4])


def torch_resumed_at_7():
    """Rates of updates 7, 8 and 9: uninterrupted, and resumed with the schedulers built last."""
    optimizer = plain_sgd()
    schedulers = two_phases(optimizer)
    torch_rates(optimizer, schedulers, 7)
    saved = copy.deepcopy((optimizer.state_dict(), schedulers.state_dict()))
    uninterrupted = torch_rates(optimizer, schedulers, 3)
    optimizer = plain_sgd()
    optimizer.load_state_dict(saved[0])
    schedulers = two_phases(optimizer)
    schedulers.load_state_dict(saved[1])
    return uninterrupted, torch_rates(optimizer, schedulers, 3)


class Resumable:
    """A run of ten updates that notes the rate of each at the moment of the update."""

    config = TrainConfig(total_steps=10, max_lr=1.0, min_lr=0.0, warmup_steps=4)

    def __init__(self):
        self.model, self.used = OnPaper(start=30.0), []
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=123.0)
        self.optimizer.register_step_pre_hook(lambda *_: self.used.append(self.optimizer.param_groups[0]["lr"]))

    def fit(self, first=0, until=10, load_after=None):
        callbacks = [lambda record: record["step"] < until]
        trainer = Trainer(self.model, lambda n: [costs(1)], self.config, callbacks, optimizer=self.optimizer)
        if load_after is not None:
            self.optimizer.load_state_dict(load_after)
        trainer.step = trainer.batch = first
        trainer.fit()
        return self.used


def test_D05_the_order_of_loading_changes_torchs_rates_and_not_these():
    """pytorch/pytorch#149942: building a scheduler writes into the optimizer that it is given.

    Here the number of completed updates is all that a resumed run needs to know: inside the warmup (2), where it
    meets the cosine (4) and behind (7), whatever the optimizer was loaded with, and when.
    """
    uninterrupted, resumed = torch_resumed_at_7()
    assert uninterrupted == pytest.approx([0.5, 0.25, 0.066987], abs=1e-6)
    assert resumed[1:] == pytest.approx([0.125, 0.033494], abs=1e-6)

    whole = Resumable().fit()
    assert whole == curve(range(10), warmup_steps=4, total_steps=10)
    for k in (2, 4, 7):
        stopped = Resumable()
        before = stopped.fit(until=k)
        saved = copy.deepcopy(stopped.optimizer.state_dict())
        early = Resumable()
        early.optimizer.load_state_dict(saved)
        assert before + early.fit(k) == whole
        assert before + Resumable().fit(k, load_after=saved) == whole
        assert before + Resumable().fit(k) == whole, "the optimizer still at its 123"


class Overflowing(nn.Module):
    """Gradient 1 for a batch of id 1, infinite for one of id 2; the loss is finite in both."""

    def __init__(self):
        super().__init__()
        self.inner = OnPaper(start=3.0, dtype=torch.float32)
        self.inner.weight.register_hook(lambda gradient: gradient * (math.inf if self.bad else 1.0))

    def forward(self, input_ids):
        self.bad = bool((input_ids == 2).any())
        return self.inner(input_ids)


def torch_recipe():
    """One overflowing step as torch's manual has it: (weight, scale, rate of the next step)."""
    model = Overflowing()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1.0), torch.amp.GradScaler("cpu")
    schedule = LambdaLR(optimizer, lambda step: 1 / (step + 1))
    scaler.scale(-model(torch.tensor([[2]]))[0, 0, 1]).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    return model.inner.weight.item(), scaler.get_scale(), schedule.get_last_lr()[0]


@pytest.mark.filterwarnings("ignore:this CPU has no hardware for float16")
def test_D07_an_update_that_the_scaler_skipped_leaves_the_rate_where_it_was():
    """pytorch/pytorch#44511, huggingface/transformers#11106."""
    with pytest.warns(UserWarning, match=r"lr_scheduler.step\(\)` before `optimizer.step\(\)"):
        assert torch_recipe() == (3.0, 32768.0, 0.5), "no update was made, and the rate is at its second value"

    model, records = Overflowing(), []
    batches = [[costs(2)], [costs(1)], [costs(1)]]
    config = TrainConfig(total_steps=2, max_lr=1.0, min_lr=0.0, precision="fp16", max_grad_norm=math.inf)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    Trainer(model, batches, config, [records.append], optimizer=optimizer).fit()
    assert [(r["skipped"], r["step"], r["lr"], r["loss_scale"]) for r in records] == [
        (True, 0, 1.0, 65536.0),
        (False, 1, 1.0, 32768.0),
        (False, 2, 0.5, 32768.0),  # the middle of the cosine
    ]
    assert model.inner.weight.item() == pytest.approx(3.0 - 1.0 - 0.5, abs=1e-6)


def norm_of(optimizer):
    return torch.cat([p.grad.flatten() for group in optimizer.param_groups for p in group["params"]]).norm().item()


@pytest.mark.parametrize("given_lr", [True, False])
def test_D08_every_update_is_clipped_and_the_peak_is_the_configured_one(given_lr):
    """rasbt/LLMs-from-scratch#427: clipped only when step > warmup; the peak taken from an optimizer without lr."""
    model, at_update, records = nano(), [], []
    groups = param_groups(model, 0.1)
    optimizer = torch.optim.AdamW(groups, lr=5e-4) if given_lr else torch.optim.AdamW(groups)
    assert given_lr or optimizer.defaults["lr"] == 1e-3, "the peak of the faulty version"
    optimizer.register_step_pre_hook(lambda *_: at_update.append((norm_of(optimizer), optimizer.param_groups[0]["lr"])))
    config = TrainConfig(total_steps=24, max_lr=5e-4, warmup_steps=18, max_grad_norm=0.01)
    Trainer(model, DATA, config, [records.append], optimizer=optimizer).fit()
    assert all(r["grad_norm"] > 0.1 for r in records), "so every one of them needs clipping"
    assert [norm for norm, _ in at_update] == pytest.approx([0.01] * 24, rel=1e-3)

    rates = [lr for _, lr in at_update]
    assert rates == [r["lr"] for r in records]
    assert max(rates) == 5e-4
    rising = sum(b > a for a, b in pairwise([0.0, *rates]))
    assert rising == config.warmup_steps and rates[17] == rates[18] == 5e-4 > rates[19]
