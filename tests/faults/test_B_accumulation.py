"""Group B: gradient accumulation.

The kind of fault: the result depends on how the rows of an update were cut into micro-batches. A mean of means, a sum
of means, a last window that is dropped or divided by a number that is not its own, a schedule that counts
micro-batches, a share for each device where one for each process was meant. Here the cut is a question of memory only.
"""

import math

import pytest
import torch
from paper import OnPaper, costs

from tinytrain.data import RowBatches, TokenRows, micro_batches_per_step
from tinytrain.loss import cross_entropy
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.step import train_step
from tinytrain.train import TrainConfig, Trainer


def nano(dtype=torch.float32):
    torch.manual_seed(0)
    return GPT(PRESETS["nano"]).to(dtype)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def text_rows(n_rows, row_length=16):
    ids = torch.randint(0, 256, (n_rows * row_length + 1,), generator=torch.Generator().manual_seed(1))
    return TokenRows(ids, row_length, vocab_size=256)


def descend(model):
    return torch.optim.SGD(model.parameters(), lr=1.0)


def test_B01_the_gradient_is_that_of_all_tokens_together_and_not_a_mean_of_means():
    """huggingface/transformers#34191: each micro-batch's mean, then the mean of these."""
    micro_batches = [costs(4), costs(1, 1, 2)]
    naive = OnPaper()
    for batch in micro_batches:
        (cross_entropy(naive(batch["input_ids"]), batch["labels"]) / len(micro_batches)).backward()
    assert naive.weight.grad.item() == pytest.approx(2.666667, abs=1e-6)

    model = OnPaper()
    report = train_step(model, micro_batches, descend(model), lr=0.0, max_grad_norm=math.inf)
    assert report.loss == pytest.approx(2.0, abs=1e-6)
    assert model.weight.grad.item() == pytest.approx(2.0, abs=1e-12)


def test_B01_three_updates_give_the_same_weights_however_the_rows_are_cut():
    batches = [text_rows(8).stack(list(range(8))) for _ in range(3)]
    for n, batch in enumerate(batches):
        for row in range(8):
            batch["labels"][row, 1 + (3 * row + n) % 16 :] = -100  # rows with 1 to 16 targets

    def train(size):
        model = nano(torch.float64)
        optimizer = build_adamw(model, lr=1e-2)
        for batch in batches:
            pieces = [{name: t[i : i + size] for name, t in batch.items()} for i in range(0, 8, size)]
            train_step(model, pieces, optimizer, lr=1e-2)
        return flat(model)

    whole = train(8)
    for size in (4, 3, 2, 1):
        assert torch.allclose(train(size), whole, rtol=0, atol=1e-10)


def test_B02_loss_and_norm_are_logged_as_for_one_large_batch():
    """huggingface/transformers#37766: the sum of the micro-batches' means is k times too large."""
    rows = text_rows(8)

    def first_record(micro_batch_size):
        records = []
        data = RowBatches(rows=rows, batch_size=8, micro_batch_size=micro_batch_size)
        Trainer(nano(), data, TrainConfig(total_steps=1, max_lr=1e-3), [records.append]).fit()
        return records[0]

    whole, model = first_record(8), nano()
    naive = sum(cross_entropy(model(piece["input_ids"]), piece["labels"]).item() for piece in rows.batches(2))
    assert naive / whole["loss"] == pytest.approx(4.0, rel=1e-6)
    for k in (2, 4):
        record = first_record(8 // k)
        assert record["loss"] / whole["loss"] == pytest.approx(1.0, rel=1e-6)
        assert record["grad_norm"] / whole["grad_norm"] == pytest.approx(1.0, rel=1e-6)


def four_at_a_time(n_rows):
    """Rows whose every target costs ``weight`` nats, so that each has gradient 1; four of them make an update."""
    ones = TokenRows(torch.ones(4 * n_rows + 1, dtype=torch.long), 4, vocab_size=2)
    return RowBatches(rows=ones, batch_size=4, micro_batch_size=1)


def moved_in_an_epoch(data):
    model = OnPaper(start=4.0)
    config = TrainConfig(total_steps=data.batches_per_epoch, max_lr=1.0, min_lr=1.0, max_grad_norm=math.inf)
    report = Trainer(model, data, config, optimizer=descend(model)).fit()
    assert report.record["epoch"] == 0 and report.record["step"] == data.batches_per_epoch
    return model.weight.item() - 4.0


def test_B03_the_last_partial_window_is_a_real_update_of_full_size():
    """Lightning-AI/pytorch-lightning#19987, NVIDIA-NeMo/Automodel#2257: the tail dropped, or divided by the window."""
    dropped, divided_by_four = -(4 / 4 + 4 / 4), -(4 / 4 + 4 / 4 + 2 / 4)
    assert (dropped, divided_by_four) == (-2.0, -2.5)

    data = four_at_a_time(10)
    assert [len(data[n]) for n in range(4)] == [4, 4, 2, 4], "the fourth window belongs to the next epoch"
    assert moved_in_an_epoch(data) == pytest.approx(-3.0, abs=1e-12)


def test_B03_an_epoch_shorter_than_a_window_makes_exactly_one_update():
    data = four_at_a_time(3)
    assert data.batches_per_epoch == 1
    assert moved_in_an_epoch(data) == pytest.approx(-1.0, abs=1e-12)


def test_B06_the_learning_rate_moves_once_per_update():
    """Lightning-AI/pytorch-lightning#1476: stepped once per micro-batch, a warmup is over four times too early."""
    naive = [min(1.0, (4 * update + 3 + 1) / 8) for update in range(4)]  # three or more calls before each update
    assert naive == [0.5, 1.0, 1.0, 1.0]

    model, used = nano(), []
    optimizer = build_adamw(model, lr=1.0)
    optimizer.register_step_pre_hook(lambda *_: used.append([group["lr"] for group in optimizer.param_groups]))
    data = RowBatches(rows=text_rows(4), batch_size=4, micro_batch_size=1)
    assert len(data[0]) == 4
    config = TrainConfig(total_steps=8, max_lr=1.0, warmup_steps=8)
    Trainer(model, data, config, [lambda record: record["step"] < 4], optimizer=optimizer).fit()
    assert used == [[0.125, 0.125], [0.25, 0.25], [0.375, 0.375], [0.5, 0.5]], "and alike in both groups"


@pytest.mark.parametrize(("processes", "micro_batches"), [(1, 16), (2, 8), (4, 4)])
def test_B07_the_work_is_divided_among_processes_and_not_among_devices(processes, micro_batches):
    """karpathy/nanoGPT#283: a machine with four devices, and two processes started."""
    each = micro_batches_per_step(batch_size=64, micro_batch_size=4, processes=processes)
    assert each == micro_batches
    assert each * 4 * processes == 64, "rows of an update, whatever the number of processes"

    devices = 4
    naive = 64 // (4 * devices)
    assert naive * 4 * processes == 16 * processes, "with two processes half of the batch is gone"


def test_B07_one_process_is_given_just_as_many_micro_batches():
    data = RowBatches(rows=text_rows(64), batch_size=64, micro_batch_size=4)
    assert len(data[0]) == micro_batches_per_step(batch_size=64, micro_batch_size=4)


def test_B07_a_batch_that_does_not_divide_is_refused_with_all_three_numbers():
    with pytest.raises(ValueError, match=r"batch_size=64 .*micro_batch_size=4 .*processes=3 .*: choose 60 or 72"):
        micro_batches_per_step(batch_size=64, micro_batch_size=4, processes=3)
    with pytest.raises(ValueError, match="processes=0 must be at least 1"):
        micro_batches_per_step(batch_size=64, micro_batch_size=4, processes=0)
