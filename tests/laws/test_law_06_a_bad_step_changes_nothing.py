"""Law 6. A bad step changes nothing.

If a loss or a gradient is not finite, no weight, no moment and no learning rate moves. The step is counted, and the
log says in which batch and in which module the first bad number stood. Batches are counted as they are consumed,
updates as they are made; a run ends after so many *updates*. Too many bad steps in a row end the run with an error.

The proof: a run with bad batches in it is, update for update and bit for bit, the run without them.
"""

import math
from dataclasses import replace

import pytest
import torch

import tinytrain.precision
from tinytrain.data import RowBatches, TokenRows
from tinytrain.distributed import launch
from tinytrain.model import GPT, PRESETS
from tinytrain.precision import LossScaleError
from tinytrain.runlog import read_run
from tinytrain.train import TrainConfig, Trainer, TrainingFailedError

ROWS = TokenRows(torch.randint(0, 255, (1000,), generator=torch.Generator().manual_seed(1)), 16, vocab_size=256)
DATA = RowBatches(rows=ROWS, batch_size=4)
CONFIG = TrainConfig(total_steps=8, max_lr=3e-3, warmup_steps=3)
POISON = 255  # a token that never occurs in ROWS


class PoisonedGPT(GPT):
    """Goes bad where it reads the poison token: on the way forward, or only on the way back."""

    def __init__(self, config, on_the_way_back=False):
        super().__init__(config)
        self.on_the_way_back = on_the_way_back

    def _embed(self, input_ids):
        x = super()._embed(input_ids)
        poisoned = (input_ids == POISON)[..., None]
        if not poisoned.any():
            return x
        if self.on_the_way_back:
            return x + (x * 0).abs().sqrt()  # the root of 0 is 0, and its slope there is infinite
        return x.masked_fill(poisoned, math.inf)


pytestmark = pytest.mark.usefixtures("any_format_is_fast")


def poisoned_batch(n):
    batch = {name: tensor.clone() for name, tensor in DATA[n][0].items()}
    batch["input_ids"][1, 3] = POISON
    return [batch]


def run(bad_batches=(), on_the_way_back=False, **changes):
    """Train, with the bad batches put between the good ones; records, final weights and moments."""
    torch.manual_seed(0)
    model = PoisonedGPT(PRESETS["nano"], on_the_way_back)
    good = iter(range(10**6))
    records = []
    data = lambda n: poisoned_batch(n) if n in bad_batches else DATA[next(good)]  # noqa: E731
    trainer = Trainer(model, data, replace(CONFIG, **changes), [records.append])
    trainer.fit()
    state = [t for p in model.parameters() for t in (p.detach(), *trainer.optimizer.state[p].values())]
    return records, state


@pytest.mark.parametrize("on_the_way_back", [False, True])
def test_the_run_with_bad_batches_is_bit_for_bit_the_run_without(on_the_way_back):
    clean, expected = run()
    records, state = run({0, 3, 4}, on_the_way_back)
    assert all(torch.equal(a, b) for a, b in zip(expected, state, strict=True))
    assert [r["skipped"] for r in records] == [n in (0, 3, 4) for n in range(11)]
    made = [r for r in records if not r["skipped"]]
    for name in ("loss", "grad_norm", "lr", "step", "tokens_seen"):
        assert [r[name] for r in made] == [r[name] for r in clean], name


@pytest.mark.parametrize("on_the_way_back", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_no_weight_moment_or_rate_moves_in_a_bad_step_of_any_precision(precision, on_the_way_back):
    """In FP16 a bad step halves the loss scale, so later gradients are rounded elsewhere: look at each bad step."""
    torch.manual_seed(0)
    model = PoisonedGPT(PRESETS["nano"], on_the_way_back)
    states = []

    def remember(record):
        tensors = [t.clone() for p in model.parameters() for t in (p.detach(), *trainer.optimizer.state[p].values())]
        rates = [group["lr"] for group in trainer.optimizer.param_groups]
        states.append((record["skipped"], rates, tensors))

    data = lambda n: poisoned_batch(n) if n in (2, 5) else DATA[n]  # noqa: E731
    trainer = Trainer(model, data, replace(CONFIG, precision=precision), [remember])
    trainer.fit()
    for bad in (2, 5):
        (_, rates, before), (skipped, same_rates, after) = states[bad - 1], states[bad]
        assert skipped and rates == same_rates
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_batches_and_updates_are_counted_apart(tmp_path):
    records, _ = run({0, 3, 4}, out=tmp_path)
    assert [r["batch"] for r in records] == list(range(1, 12))
    assert [r["step"] for r in records] == [0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8]
    assert records[-1]["skipped_steps"] == 3
    assert [r["batch"] for r in read_run(tmp_path)] == list(range(1, 12))


def test_the_log_names_the_batch_and_the_place(tmp_path):
    run({2}, out=tmp_path)
    (bad,) = [r for r in read_run(tmp_path) if r["skipped"]]
    assert (bad["batch"], bad["reason"]) == (3, "the loss is nan")
    assert math.isnan(bad["loss"])
    assert bad["where"].startswith("the input of dropout holds")  # poisoned between the embedding and this module
    assert bad["where"].endswith("made in the code of PoisonedGPT")
    run({2}, on_the_way_back=True, out=tmp_path / "back")
    (bad,) = [r for r in read_run(tmp_path / "back") if r["skipped"]]
    assert "gradient's norm is" in bad["reason"]
    assert bad["where"].startswith("the gradient that comes back to tokens is not finite: look at the code of Poisoned")
    assert math.isfinite(bad["loss"])


def test_too_many_bad_steps_in_a_row_end_the_run_and_say_where_to_look():
    with pytest.raises(
        TrainingFailedError, match=r"5 updates in a row were skipped, since batch 3; .*code of PoisonedGPT"
    ):
        run(range(2, 100), max_skipped_in_a_row=5)


def test_bad_steps_that_are_not_in_a_row_do_not():
    records, _ = run(range(0, 16, 2), max_skipped_in_a_row=2)
    assert records[-1]["skipped_steps"] == 8


def test_a_loss_scale_under_its_floor_ends_the_run():
    with pytest.raises(LossScaleError, match=r"the loss scale is 0\.5, under its floor"):
        run(range(2, 100), on_the_way_back=True, precision="fp16")


def test_later_averages_are_not_poisoned():
    records, _ = run({3})
    assert all(math.isfinite(r["loss"]) for r in records if not r["skipped"])
    assert records[-1]["tokens_seen"] == 8 * 4 * 16


def bad_in_process_1(rank, precision):
    """The third batch holds a NaN in the share of process 1 only."""
    tinytrain.precision.cpu_supports = lambda dtype: True
    torch.manual_seed(0)
    model = GPT(PRESETS["nano"])

    class Shares:
        def share(self, batch, **who):
            self.poisoned = rank == 1 and batch == 2
            return DATA.share(batch, **who)

    shares = Shares()
    model.norm.register_forward_hook(lambda _m, _i, out: out * float("nan") if shares.poisoned else out)
    records, weights = [], []
    trainer = Trainer(model, shares, replace(CONFIG, precision=precision), [records.append])
    trainer.optimizer.register_step_pre_hook(
        lambda *_: weights.append([p.detach().clone() for p in model.parameters()])
    )
    trainer.fit()
    return records, weights, (trainer.step, trainer.batch, trainer.precision.state_dict())


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_bad_step_in_one_process_is_skipped_by_all_and_told_with_its_process(precision):
    (records, weights_0, counts_0), (_, weights_1, counts_1) = launch(bad_in_process_1, 2, precision)
    assert counts_0 == counts_1 and counts_0[:2] == (8, 9)
    assert [record["skipped"] for record in records] == [False, False, True] + [False] * 6
    assert records[2]["where"].startswith("process 1: the output of norm holds NaN")
    for before_0, before_1 in zip(weights_0, weights_1, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(before_0, before_1, strict=True))
