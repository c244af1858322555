import math
import os
import signal
from dataclasses import replace

import pytest
import torch

from tinytrain.data import RowBatches, TokenRows
from tinytrain.model import GPT, PRESETS
from tinytrain.runlog import FIELDS, read_run
from tinytrain.train import TrainConfig, Trainer, TrainingFailedError, padding_share
from tinytrain.watch.live import LivePlot

CONFIG = TrainConfig(total_steps=6, max_lr=1e-3, warmup_steps=2)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


@pytest.fixture
def rows():
    return TokenRows(torch.randint(0, 256, (1009,), generator=torch.Generator().manual_seed(0)), 16, vocab_size=256)


@pytest.fixture
def data(rows):
    return RowBatches(rows=rows, batch_size=8, micro_batch_size=3)


def test_a_run_ends_after_its_updates_and_tells_how(model, data):
    report = Trainer(model, data, CONFIG).fit()
    assert (report.steps, report.stopped_by, report.record["batch"]) == (6, None, 6)


def test_every_line_of_the_log_has_the_fields_that_are_promised(model, data, rows, tmp_path):
    config = replace(CONFIG, out=tmp_path, eval_every=2)
    Trainer(model, data, config, validation=list(rows.batches(8, limit=8))).fit()
    run = read_run(tmp_path)
    assert [r["batch"] for r in run] == [1, 2, 3, 4, 5, 6]
    for record in run:
        assert set(FIELDS) - set(record) <= {"eval_loss", "reason", "where", "loss_scale"}
        assert set(record) <= set(FIELDS)
    assert [r["step"] for r in run if "eval_loss" in r] == [2, 4, 6]
    assert all(r["tokens"] == 8 * 16 and r["memory_bytes"] > 1e6 and r["tokens_per_second"] > 0 for r in run)
    assert run.records[-1]["tokens_seen"] == 6 * 8 * 16


def test_the_logged_learning_rates_are_those_of_the_schedule(model, data):
    seen = []
    Trainer(model, data, CONFIG, [lambda record: seen.append(record["lr"])]).fit()
    assert seen == [CONFIG.lr(step) for step in range(6)]


def test_a_callback_ends_the_run_with_false_and_fit_goes_on_from_there(model, data, tmp_path):
    trainer = Trainer(model, data, replace(CONFIG, out=tmp_path), [lambda record: record["step"] != 2])
    assert trainer.fit().stopped_by == "callback"
    report = trainer.fit()
    assert (report.steps, report.stopped_by, report.record["batch"]) == (6, None, 6)
    assert [r["batch"] for r in read_run(tmp_path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.skipif(os.name == "nt", reason="os.kill sends no SIGINT on Windows")
def test_an_interrupt_ends_the_run_between_two_updates(model, data, capsys):
    def interrupt(record):
        if record["step"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with LivePlot("loss") as live:
        report = Trainer(model, data, CONFIG, [interrupt, live]).fit()
    assert (report.steps, report.stopped_by) == (3, "interrupt")
    assert live.stopped_by == "interrupt"
    assert "stopped by interrupt at step 3" in capsys.readouterr().out


def test_a_list_or_a_function_serves_as_data(model, data):
    batches = [data[n] for n in range(6)]
    losses = []
    for source in (data, batches, lambda n: batches[n]):
        torch.manual_seed(0)
        losses.append(Trainer(GPT(PRESETS["nano"]), source, CONFIG).fit().record["loss"])
    assert losses[0] == losses[1] == losses[2]


def test_data_that_ends_too_early_is_named(model, data):
    with pytest.raises(ValueError, match=r"the data has no batch number 2, but 4 of total_steps=6 updates are still"):
        Trainer(model, [data[0], data[1]], CONFIG).fit()


def test_a_skipped_batch_is_counted_and_not_an_update(model, data):
    nothing = [{**data[1][0], "labels": torch.full_like(data[1][0]["labels"], -100)}]
    records = []
    Trainer(model, lambda n: nothing if n == 1 else data[n], CONFIG, [records.append]).fit()
    assert [(r["batch"], r["step"], r["skipped"]) for r in records[:3]] == [
        (1, 1, False),
        (2, 1, True),
        (3, 2, False),
    ]
    assert records[-1] | {"batch": 7, "step": 6, "skipped_steps": 1} == records[-1]
    assert records[1]["lr"] == records[2]["lr"] == CONFIG.lr(1)


def test_a_run_that_only_skips_ends_with_an_error_that_says_where_to_look(model, data):
    with torch.no_grad():
        model.tokens.weight[0, 0] = math.nan
    config = replace(CONFIG, max_skipped_in_a_row=3)
    with pytest.raises(TrainingFailedError, match=r"3 updates in a row were skipped, since batch 1; .*the loss is nan"):
        Trainer(model, data, config).fit()


def test_an_iterator_as_validation_is_refused(model, data, rows):
    with pytest.raises(TypeError, match="empty after one evaluation"):
        Trainer(model, data, CONFIG, validation=rows.batches(8))


def test_a_model_left_in_eval_mode_is_trained_in_train_mode(model, data):
    Trainer(model.eval(), data, CONFIG).fit()
    assert all(module.training for module in model.modules())


def test_padding_is_a_share_of_all_positions():
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    assert padding_share([{"input_ids": mask, "attention_mask": mask}]) == 0.25
    assert padding_share([{"input_ids": mask}]) == 0.0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"warmup_steps": 7}, "warmup_steps=7 is more than total_steps=6"),
        ({"eval_every": 0}, "eval_every=0"),
        ({"max_skipped_in_a_row": 0}, "max_skipped_in_a_row=0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0"),
        ({"min_lr": 1.0}, "min_lr=1.0"),
    ],
)
def test_a_config_that_makes_no_run_is_refused_when_it_is_made(changed, words):
    with pytest.raises(ValueError, match=words):
        replace(CONFIG, **changed)
