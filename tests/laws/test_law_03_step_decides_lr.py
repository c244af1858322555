"""Law 3. The step decides the learning rate.

The rate is a function of the number of completed updates, and of nothing else: not of how often a scheduler object was
called, nor of the order in which states were loaded. Its first value is not 0, or the first batch would be thrown
away. It does not jump where the warmup meets the cosine. After the end it stays at its minimum for ever.
"""

import math
from itertools import pairwise

import pytest
import torch

from tinytrain.data import RowBatches, TokenRows
from tinytrain.model import GPT, PRESETS
from tinytrain.schedule import warmup_cosine
from tinytrain.train import TrainConfig, Trainer

CURVE = {"max_lr": 1.0, "min_lr": 0.1, "warmup_steps": 4, "total_steps": 10}
WRITTEN = [0.25, 0.5, 0.75, 1, 1, 0.939711, 0.775, 0.55, 0.325, 0.160289, 0.1, 0.1, 0.1]


def test_the_rate_is_the_one_written_down():
    assert [warmup_cosine(s, **CURVE) for s in range(13)] == pytest.approx(WRITTEN, abs=1e-6)


def test_the_order_of_asking_does_not_matter():
    steps = [7, 0, 12, 3, 7, 7, 1]
    assert [warmup_cosine(s, **CURVE) for s in steps] == pytest.approx([WRITTEN[s] for s in steps], abs=1e-6)


@pytest.mark.parametrize("warmup_steps", [0, 1, 10, 500, 1000])
def test_the_first_update_moves_and_the_curve_has_no_jump(warmup_steps):
    curve = [warmup_cosine(s, max_lr=1.0, min_lr=0.1, warmup_steps=warmup_steps, total_steps=1000) for s in range(1000)]
    assert curve[0] > 0
    assert max(curve) == 1.0
    steepest = max(1 / max(warmup_steps, 1), 0.9 * math.pi / 2 / max(1000 - warmup_steps, 1))
    jumps = [abs(b - a) for a, b in pairwise(curve)]
    assert max(jumps) <= steepest * (1 + 1e-9)


def trained(total_steps, data):
    torch.manual_seed(0)
    rates = []
    config = TrainConfig(total_steps=total_steps, max_lr=1.0e-3, min_lr=1.0e-4, warmup_steps=2)
    Trainer(GPT(PRESETS["nano"]), data, config, [lambda record: rates.append((record["skipped"], record["lr"]))]).fit()
    return rates


def make_data(micro_batch_size):
    rows = TokenRows(torch.arange(600) % 256, 16, vocab_size=256)
    return RowBatches(rows=rows, batch_size=8, micro_batch_size=micro_batch_size)


def test_in_a_run_the_rate_moves_once_per_update_and_not_per_micro_batch():
    whole, cut = trained(6, make_data(8)), trained(6, make_data(2))
    assert whole == cut
    assert [lr for _, lr in whole[:3]] == pytest.approx([0.5e-3, 1.0e-3, 1.0e-3])


def test_a_skipped_update_does_not_move_the_rate():
    data = make_data(8)
    nothing = [{**data[2][0], "labels": torch.full_like(data[2][0]["labels"], -100)}]
    rates = trained(6, lambda n: nothing if n == 2 else data[n])
    assert [skipped for skipped, _ in rates] == [False, False, True, False, False, False, False]
    assert [lr for skipped, lr in rates if not skipped] == [lr for _, lr in trained(6, data)]
