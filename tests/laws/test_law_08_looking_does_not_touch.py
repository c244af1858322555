"""Law 8. Looking does not touch.

Evaluating, sampling, logging, plotting and preflight leave the training curve bit-identical. The usual ways to break
this: an evaluation that leaves the model in eval mode, a sample that draws from the generator that dropout uses, a
buffer that is updated by a forward pass that was only meant to look.
"""

from dataclasses import replace

import pytest
import torch

from tinytrain.data import RowBatches, TokenRows
from tinytrain.generate import sample
from tinytrain.model import GPT, PRESETS
from tinytrain.step import evaluate
from tinytrain.tokenizer import ByteTokenizer
from tinytrain.train import TrainConfig, Trainer
from tinytrain.watch.live import LivePlot
from tinytrain.watch.preflight import preflight

ROWS = TokenRows(torch.randint(0, 256, (1000,), generator=torch.Generator().manual_seed(1)), 16, vocab_size=256)


def train(look=None, **changes):
    """Ten updates with dropout, with ``look`` called after each; the losses and the final weights."""
    torch.manual_seed(0)
    model = GPT(replace(PRESETS["nano"], dropout=0.2))
    losses = []

    def callback(record):
        losses.append(record["loss"])
        if look is not None:
            look(model)

    config = TrainConfig(total_steps=10, max_lr=3e-3, **changes)
    validation = list(ROWS.batches(8, limit=16)) if "eval_every" in changes else None
    Trainer(model, RowBatches(rows=ROWS, batch_size=8), config, [callback], validation=validation).fit()
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.fixture(scope="module")
def undisturbed():
    return train()


def same(run, reference):
    return run[0] == reference[0] and torch.equal(run[1], reference[1])


def evaluates(model):
    evaluate(model, ROWS.batches(8))


def samples(model):
    sample(model, ByteTokenizer(), "ROMEO", 5)


def preflights(model):
    preflight(model, next(ROWS.batches(4)))


def draws_from_the_generator(_model):
    torch.rand(1)


@pytest.mark.parametrize("look", [evaluates, samples, preflights])
def test_looking_leaves_the_run_bit_identical(look, undisturbed):
    assert same(train(look), undisturbed)


def test_this_test_would_notice_a_single_draw(undisturbed):
    assert not same(train(draws_from_the_generator), undisturbed)


def test_evaluating_and_logging_inside_the_trainer_leave_the_run_bit_identical(undisturbed, tmp_path):
    assert same(train(eval_every=3, out=tmp_path), undisturbed)


def test_plotting_leaves_the_run_bit_identical(undisturbed, capsys):
    with LivePlot("loss", "grad_norm") as live:
        steps = iter(range(1, 11))
        assert same(train(lambda model: live.log(next(steps), loss=1.0, grad_norm=2.0)), undisturbed)
