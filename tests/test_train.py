import math
import os
import signal
import time
from dataclasses import replace

import pytest
import torch

import tinytrain.train
from tinytrain.batches import count_positions
from tinytrain.model import GPT, PRESETS
from tinytrain.record import clip_factor
from tinytrain.runlog import FIELDS, read_run
from tinytrain.step import train_step
from tinytrain.train import TrainConfig, Trainer, TrainingFailedError
from tinytrain.watch.live import LivePlot

CONFIG = TrainConfig(total_steps=6, max_lr=1e-3, warmup_steps=2)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(PRESETS["nano"])


def test_a_run_ends_after_its_updates_and_tells_how(model, data):
    report = Trainer(model, data, CONFIG).fit()
    assert (report.steps, report.stopped_by, report.record["batch"]) == (6, None, 6)


def test_every_line_of_the_log_has_the_fields_that_are_promised(model, data, rows, tmp_path):
    config = replace(CONFIG, out=tmp_path, eval_every=2)
    Trainer(model, data, config, validation=list(rows.batches(8, limit=8)), bytes_per_token=1.0).fit()
    run = read_run(tmp_path)
    sometimes = {"eval_loss", "eval_bits_per_byte", "reason", "where", "loss_scale", "seconds_communication"}
    assert [r["batch"] for r in run] == [1, 2, 3, 4, 5, 6]
    for record in run:
        assert set(FIELDS) - set(record) <= sometimes
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


def test_a_stop_in_the_last_update_is_the_runs_own_end(model, data):
    assert Trainer(model, data, CONFIG, [lambda record: record["step"] != 6]).fit().stopped_by is None


def test_a_list_or_a_function_serves_as_data(model, data):
    batches = [data[n] for n in range(6)]
    losses = []
    for source in (data, batches, lambda n: batches[n]):
        torch.manual_seed(0)
        losses.append(Trainer(GPT(PRESETS["nano"]), source, CONFIG).fit().record["loss"])
    assert losses[0] == losses[1] == losses[2]


def test_a_loader_as_data_is_refused_with_what_to_give_instead(model, data):
    loader = torch.utils.data.DataLoader(data[0], batch_size=None)
    with pytest.raises(TypeError, match=r"data is a DataLoader: .* batches = list"):
        Trainer(model, loader, TrainConfig(total_steps=1, max_lr=1e-3))
    batches = list(loader)
    Trainer(model, lambda n: [batches[n % len(batches)]], TrainConfig(total_steps=1, max_lr=1e-3)).fit()


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


def test_the_log_says_what_clipping_left_how_many_positions_and_how_much_memory_there_is(tmp_path):
    ids = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:].masked_fill(mask == 0, -100), "attention_mask": mask}
    config = TrainConfig(total_steps=3, max_lr=1e-3, max_grad_norm=0.5, out=tmp_path)
    Trainer(GPT(PRESETS["nano"]), lambda n: [batch, batch], config).fit()
    for record in read_run(tmp_path):
        assert record["clip_factor"] == pytest.approx(0.5 / record["grad_norm"], rel=1e-4) and record["clip_factor"] < 1
        assert (record["positions"], record["tokens"], record["padding"]) == (32, 26, 6 / 32)
        assert record["memory_limit_bytes"] > record["memory_bytes"]


def test_a_short_gradient_is_left_alone_and_of_a_bad_one_nothing_is_said():
    assert clip_factor(0.3, 1.0) == 1.0 and clip_factor(4.0, math.inf) == 1.0
    assert clip_factor(4.0, 1.0) == pytest.approx(0.25, rel=1e-5)
    assert math.isnan(clip_factor(math.inf, 1.0)) and math.isnan(clip_factor(math.nan, 1.0))


def test_padding_is_a_share_of_all_positions():
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    assert count_positions([{"input_ids": mask, "attention_mask": mask}]) == [8, 2]
    assert count_positions([{"input_ids": mask, "doc_ids": mask - 1}, {"input_ids": mask}]) == [16, 2]


def test_an_update_uses_every_setting_of_the_config(model, data, monkeypatch):
    seen = {}

    def spy(_model, _batches, optimizer, **options):
        seen.update(options, groups=optimizer.param_groups)
        return train_step(_model, _batches, optimizer, **options)

    monkeypatch.setattr(tinytrain.train, "train_step", spy)
    config = replace(CONFIG, weight_decay=0.03, betas=(0.8, 0.9), eps=1e-5, max_grad_norm=0.7, precision="fp32")
    Trainer(model, data, config).fit()
    assert seen["max_grad_norm"] == 0.7
    assert [group["weight_decay"] for group in seen["groups"]] == [0.03, 0.0]
    assert all(group["betas"] == (0.8, 0.9) and group["eps"] == 1e-5 for group in seen["groups"])


def test_an_optimizer_of_ones_own_is_the_one_that_is_used(model, data):
    own = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = Trainer(model, data, CONFIG, optimizer=own)
    trainer.fit()
    assert trainer.optimizer is own and own.param_groups[0]["lr"] == CONFIG.lr(5)


def test_every_callback_is_called_and_only_false_itself_ends_the_run(model, data):
    calls = {"a": 0, "b": 0, "c": 0}

    def count(name, answer):
        def callback(record):
            calls[name] += 1
            return answer

        return callback

    callbacks = [count("a", 0), count("b", None), count("c", torch.zeros(2))]
    assert Trainer(model, data, CONFIG, callbacks).fit().stopped_by is None
    assert calls == {"a": 6, "b": 6, "c": 6}


def test_the_evaluation_at_the_end_is_made_and_a_function_may_give_the_batches(model, data, rows):
    records, calls = [], []
    config = replace(CONFIG, eval_every=4)
    validation = lambda: calls.append(1) or rows.batches(8, limit=8)  # noqa: E731
    Trainer(model, data, config, [records.append], validation=validation).fit()
    assert [r["step"] for r in records if "eval_loss" in r] == [4, 6]
    assert len(calls) == 2


def test_drawing_validation_batches_at_random_leaves_the_run_as_it_is(data, rows):
    losses = []
    for validation in (None, lambda: [rows.stack(torch.randint(0, len(rows), (4,)).tolist())]):
        torch.manual_seed(0)
        model = GPT(replace(PRESETS["nano"], dropout=0.2))
        records = []
        config = replace(CONFIG, eval_every=None if validation is None else 1)
        Trainer(model, data, config, [records.append], validation=validation).fit()
        losses.append([r["loss"] for r in records])
    assert losses[0] == losses[1]


def test_a_loader_as_validation_does_not_move_the_generators(model, data, rows):
    batches = [row | {} for row in rows.batches(4, limit=8)]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    before = torch.get_rng_state()
    trainer = Trainer(model, data, CONFIG, validation=loader)
    assert torch.equal(torch.get_rng_state(), before)
    trainer.fit()


@pytest.mark.parametrize(
    ("validation", "error", "words"),
    [
        ([], ValueError, "validation holds no batch"),
        ([torch.zeros(1, 2)], TypeError, "micro-batch 0 is a Tensor; it must be a dict"),
        (
            [{"input_ids": torch.zeros(1, 65).long(), "labels": torch.zeros(1, 65).long()}],
            ValueError,
            "row of 65 tokens",
        ),
    ],
)
def test_a_validation_that_cannot_work_is_found_before_the_first_update(model, data, validation, error, words):
    trainer = Trainer(model, data, CONFIG, validation=validation)
    with pytest.raises(error, match=words):
        trainer.fit()
    assert trainer.batch == 0


def test_an_evaluation_that_fails_takes_no_line_from_the_log(model, data, rows, tmp_path):
    calls = []

    def fails_once():
        calls.append(1)
        if len(calls) == 2:
            raise OSError("the disk is away")
        return rows.batches(8, limit=8)

    trainer = Trainer(model, data, replace(CONFIG, out=tmp_path, eval_every=2), validation=fails_once)
    with pytest.raises(OSError, match="the disk is away"):
        trainer.fit()
    trainer.fit()
    assert [r["batch"] for r in read_run(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_fit_goes_on_after_an_error_in_the_first_batch(model, data, tmp_path):
    broken = [True]

    def source(n):
        if broken:
            broken.pop()
            raise OSError("the disk is away")
        return data[n]

    trainer = Trainer(model, source, replace(CONFIG, out=tmp_path))
    with pytest.raises(OSError, match="the disk is away"):
        trainer.fit()
    assert trainer.fit().steps == 6
    assert [r["batch"] for r in read_run(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_speed_and_waiting_are_measured_from_batch_to_batch(model, data):
    def slow(n):
        time.sleep(0.02)
        return data[n]

    records = []
    Trainer(model, slow, CONFIG, [records.append]).fit()
    for r in records:
        assert r["seconds_data"] >= 0.02
        assert r["tokens_per_second"] == pytest.approx(r["tokens"] / (r["seconds_data"] + r["seconds_step"]))


def test_a_function_that_gives_no_batch_to_validate_on_is_refused(model, data):
    with pytest.raises(ValueError, match="validation gave no batch"):
        Trainer(model, data, CONFIG, validation=lambda: iter(())).fit()


def test_evaluations_without_anything_to_evaluate_on_are_refused(model, data):
    with pytest.raises(ValueError, match=r"eval_every=7 asks for evaluations.*validation=\[\.\.\.\]"):
        Trainer(model, data, replace(CONFIG, eval_every=7)).fit()


def test_an_optimizer_of_another_model_is_refused(model, data):
    for others in ([], model.parameters()):
        optimizer = torch.optim.AdamW([*others, torch.nn.Parameter(torch.zeros(3))])
        n = len(optimizer.param_groups[0]["params"])
        with pytest.raises(ValueError, match=f"^1 of the optimizer's {n} parameters are not the model's: make the opt"):
            Trainer(model, data, CONFIG, optimizer=optimizer)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (GPT, "model is the class GPT: give a model"),
        ([], "model is a list: give"),
    ],
)
def test_what_is_no_model_is_refused(data, given, words):
    with pytest.raises(TypeError, match=words):
        Trainer(given, data, CONFIG)


def test_validation_that_is_one_batch_or_has_no_target_is_refused(model, data, rows):
    batch = next(iter(rows.batches(4)))
    with pytest.raises(TypeError, match=r"validation is a dict, which is one batch: give a list, \[batch\]"):
        Trainer(model, data, CONFIG, validation=batch)
    nothing = batch | {"labels": torch.full_like(batch["labels"], -100)}
    with pytest.raises(ValueError, match="validation has no target: every label in it is -100"):
        Trainer(model, data, CONFIG, validation=[nothing, nothing]).fit()
    assert Trainer(model, data, CONFIG, validation=[nothing, batch]).fit().record["eval_loss"] > 0
