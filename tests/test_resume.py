import copy
import json
import random
from dataclasses import make_dataclass, replace

import numpy as np
import pytest
import torch

from tinytrain.checkpoint import Checkpointer, CheckpointError
from tinytrain.data import RowBatches
from tinytrain.generators import all_states
from tinytrain.model import GPT, PRESETS
from tinytrain.resume import COUNTERS
from tinytrain.runlog import RunLog, read_run
from tinytrain.train import TrainConfig, Trainer, TrainingFailedError

CONFIG = TrainConfig(total_steps=6, max_lr=1e-3, warmup_steps=2)


def with_checkpoints(folder, **changed):
    return replace(CONFIG, out=folder, checkpoint_every=2, **changed)


def state_of(trainer):
    """Everything that a resume may change."""
    return copy.deepcopy(
        (
            trainer.model.state_dict(),
            [trainer.optimizer.state.get(p) for p in trainer.model.parameters()],
            trainer.precision.state_dict(),
            [getattr(trainer, name) for name in COUNTERS],
            trainer.best_loss,
            all_states(),
        )
    )


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.fixture
def saved(data, tmp_path):
    """The folder of a run that was stopped after 4 of 6 updates."""
    Trainer(nano(1), data, with_checkpoints(tmp_path), [lambda record: record["step"] != 4]).fit()
    return tmp_path


def nano(seed=0, **changed):
    torch.manual_seed(seed)
    return GPT(replace(PRESETS["nano"], **changed))


def test_a_resumed_run_goes_on_with_the_next_batch(data, saved):
    trainer = Trainer(nano(), data, with_checkpoints(saved))
    checkpoint = trainer.resume()
    assert (checkpoint.step, trainer.step, trainer.batch, trainer.tokens_seen) == (4, 4, 4, 4 * 8 * 16)
    assert trainer.fit().steps == 6
    assert [record["batch"] for record in read_run(saved)] == [1, 2, 3, 4, 5, 6]


def renamed(model):
    model.final = model.norm
    del model.norm
    return model


class Larger(GPT):
    """The same config and a part more."""

    def __init__(self, config):
        super().__init__(config)
        self.more = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.nn.Linear(2, 2), ["model.vocab_size: 256 in the checkpoint, None now"]),
        (lambda: nano(d_model=32), ["model.d_model: 64 in the checkpoint, 32 now"]),
        (lambda: nano(n_heads=8), ["model.n_heads: 4 in the checkpoint, 8 now"]),  # the same shapes
        (lambda: nano(dropout=0.5), ["model.dropout: 0.0 in the checkpoint, 0.5 now"]),
        (lambda: renamed(nano()), ["final.weight: only in the model", "norm.weight: only in the file"]),
        (lambda: Larger(PRESETS["nano"]), ["more.weight: only in the model"]),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_and_nothing_is_loaded(data, saved, make, words):
    trainer = Trainer(make(), data, with_checkpoints(saved))
    before = state_of(trainer)
    with pytest.raises(CheckpointError) as caught:
        trainer.resume()
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)
    assert same(state_of(trainer), before)


def test_other_sizes_are_refused_by_their_tensors_too(data, saved):
    trainer = Trainer(nano(d_model=32), data, with_checkpoints(saved))
    before = state_of(trainer)
    with pytest.raises(CheckpointError, match=r"tokens\.weight: \[256, 64\] in the file, \[256, 32\] in the model"):
        trainer.resume(override=["model.d_model"])
    assert same(state_of(trainer), before)


class Halves(torch.nn.Module):
    """An embedding and a head, tied or not; without a config, so that no setting tells."""

    def __init__(self, tied):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(256, 8), torch.nn.Linear(8, 256, bias=False)
        self.head.weight.requires_grad_(False)  # so that no moment tells either
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, input_ids):
        return self.head(self.embedding(input_ids))


def test_two_different_tensors_do_not_resume_as_a_tied_one(data, tmp_path):
    config = with_checkpoints(tmp_path)
    Trainer(Halves(tied=False), data, config, [lambda record: record["step"] != 2]).fit()
    trainer = Trainer(Halves(tied=True), data, config)
    before = state_of(trainer)
    with pytest.raises(CheckpointError, match=r"head\.weight: another tensor than embedding\.weight in the file"):
        trainer.resume()
    assert same(state_of(trainer), before)


def test_changed_settings_are_listed_and_override_lets_them_through(data, saved):
    other = RowBatches(rows=data.rows, batch_size=4, micro_batch_size=3)
    trainer = Trainer(nano(), other, with_checkpoints(saved, max_lr=2e-3, betas=(0.9, 0.99), eval_every=1))
    before = state_of(trainer)
    with pytest.raises(CheckpointError) as caught:
        trainer.resume()
    assert str(caught.value).splitlines()[1:] == [
        "  betas: [0.9, 0.95] in the checkpoint, [0.9, 0.99] now",
        "  data.batch_size: 8 in the checkpoint, 4 now",
        "  max_lr: 0.001 in the checkpoint, 0.002 now",
        "Set them as they were, or name those that are meant to differ in override",
    ]
    with pytest.raises(CheckpointError, match=r"curve:\n  betas: [^\n]*\nSet them"):
        trainer.resume(override=["data.batch_size", "max_lr", "min_lr"])
    assert same(state_of(trainer), before)
    assert trainer.resume(override=["data.batch_size", "max_lr", "min_lr", "betas"]).step == 4


def test_an_override_that_is_no_setting_is_named(data, saved):
    with pytest.raises(CheckpointError, match="override names batchsize; settings are total_steps, max_lr"):
        Trainer(nano(), data, with_checkpoints(saved)).resume(override=["batchsize"])


def test_settings_without_a_say_in_the_curve_may_change(data, saved):
    smaller = RowBatches(rows=data.rows, batch_size=8, micro_batch_size=8)
    changed = with_checkpoints(saved, eval_every=3, keep=5, weights_every=7, max_skipped_in_a_row=3)
    assert Trainer(nano(), smaller, replace(changed, checkpoint_every=1)).resume().step == 4


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_another_precision_is_refused_and_a_loss_scale_cannot_be_made_up(data, saved, precision):
    trainer = Trainer(nano(), data, with_checkpoints(saved, precision=precision))
    before = state_of(trainer)
    with pytest.raises(CheckpointError, match=f"precision: 'fp32' in the checkpoint, '{precision}' now"):
        trainer.resume()
    if precision == "fp16":
        with pytest.raises(CheckpointError, match="saved without a loss scale"):
            trainer.resume(override=["precision"])
        assert same(state_of(trainer), before)
    else:
        assert trainer.resume(override=["precision"]).step == 4


def test_a_model_in_half_precision_is_refused_by_name(data, saved):
    with pytest.raises(ValueError, match=r"tokens\.weight is torch\.bfloat16: keep weights in float32"):
        Trainer(nano().bfloat16(), data, with_checkpoints(saved)).resume()
    trainer = Trainer(nano(), data, with_checkpoints(saved))
    trainer.model.norm.half()
    with pytest.raises(CheckpointError, match=r"norm\.weight: torch\.float32 in the file, torch\.float16 in the model"):
        trainer.resume()


def test_moments_of_another_optimizer_are_refused(data, saved):
    model = nano()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    with pytest.raises(CheckpointError, match="optimizer: 'AdamW' in the checkpoint, 'SGD' now"):
        Trainer(model, data, with_checkpoints(saved), optimizer=sgd).resume()


def test_moments_that_do_not_fit_leave_the_weights_as_they_were(data, saved):
    """The weights fit and the moments do not: one parameter is frozen now."""
    trained = nano()
    trained.norm.bias.requires_grad_(False)
    trainer = Trainer(trained, data, with_checkpoints(saved))
    before = state_of(trainer)
    with pytest.raises(CheckpointError, match=r"optimizer state has norm\.bias, which this model does not train"):
        trainer.resume()
    assert same(state_of(trainer), before)


def test_a_checkpoint_that_no_trainer_saved_is_refused(data, tmp_path):
    Checkpointer(tmp_path / "checkpoints").save({"model": nano().state_dict()}, step=3)
    with pytest.raises(CheckpointError, match="was not saved by a Trainer: it has no best_loss, counters"):
        Trainer(nano(), data, with_checkpoints(tmp_path)).resume()


def test_without_checkpoints_there_is_nothing_to_resume(data, tmp_path):
    with pytest.raises(CheckpointError, match=r"set TrainConfig\.out and TrainConfig\.checkpoint_every"):
        Trainer(nano(), data, replace(CONFIG, out=tmp_path)).resume()


def test_with_missing_ok_one_script_starts_a_run_and_goes_on_with_it(data, tmp_path):
    """Also after a kill that left lines of a log, and no checkpoint."""
    config = TrainConfig(total_steps=4, max_lr=1e-3, warmup_steps=1, out=str(tmp_path), checkpoint_every=2)
    (tmp_path / "log.jsonl").write_text('{"batch": 1, "step": 1, "loss": 5.0}\n', "utf-8")

    def start():
        return Trainer(GPT(PRESETS["nano"]), data, config)

    with pytest.raises(CheckpointError, match="Nothing was saved here"):
        start().resume()
    first, second = start(), start()
    assert first.resume(missing_ok=True) is None
    assert first.fit().steps == 4
    assert [record["batch"] for record in read_run(tmp_path)] == [1, 2, 3, 4]
    assert second.resume(missing_ok=True).step == 4
    for checkpoint in tmp_path.glob("checkpoints/step_*"):
        (checkpoint / "state.pt").write_bytes(b"")
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="Copy one back"):
        start().resume(missing_ok=True)


@pytest.mark.parametrize(("background", "longest"), [(False, 2), (True, 4)])
def test_with_missing_ok_a_log_too_long_to_be_this_runs_is_refused_and_kept(data, tmp_path, background, longest):
    config = TrainConfig(
        total_steps=9, max_lr=1e-3, out=str(tmp_path), checkpoint_every=2, save_in_background=background
    )
    log = tmp_path / "log.jsonl"
    lines = [f'{{"batch": {n}, "step": {n}, "loss": 5.0}}\n' for n in range(1, longest + 2)]
    log.write_text("".join(lines[:longest]), "utf-8")
    assert Trainer(GPT(PRESETS["nano"]), data, config).resume(missing_ok=True) is None
    log.write_text("".join(lines), "utf-8")
    with pytest.raises(CheckpointError, match=rf"has {longest + 1} updates and .* saves every 2: it is the log"):
        Trainer(GPT(PRESETS["nano"]), data, config).resume(missing_ok=True)
    assert log.read_text("utf-8") == "".join(lines)


def test_a_new_run_is_not_mixed_into_the_checkpoints_of_an_earlier_one(data, saved):
    (saved / "log.jsonl").unlink()
    with pytest.raises(CheckpointError, match="holds checkpoints of an earlier run, the newest of update 4"):
        Trainer(nano(), data, with_checkpoints(saved)).fit()


def test_what_is_drawn_between_resume_and_fit_does_not_matter(data, tmp_path, saved):
    def ends(draw):
        trainer = Trainer(nano(), data, with_checkpoints(saved), optimizer=None)
        trainer.resume()
        if draw:
            torch.rand(5), random.random(), np.random.random()
        trainer.fit()
        return torch.rand(1).item(), random.random(), np.random.random()

    assert ends(False) == ends(True)


def test_callbacks_that_draw_do_not_make_a_resumed_run_fork(data, tmp_path):
    def fitted(folder, stop, resume=False):
        trainer = Trainer(
            nano(dropout=0.1),
            data,
            with_checkpoints(folder),
            [lambda record: bool(torch.rand(1) < 2) and record["step"] != stop],
        )
        if resume:
            trainer.resume()
        trainer.fit()
        return trainer.model.state_dict()

    whole = fitted(tmp_path / "whole", None)
    fitted(tmp_path / "stopped", 4)
    assert same(fitted(tmp_path / "stopped", None, resume=True), whole)


@pytest.mark.parametrize("number", [np.float64(1e-3), np.float32(1e-3), torch.tensor(1e-3)])
def test_numpys_numbers_in_a_config_do_not_make_checkpoints_that_nobody_can_load(data, tmp_path, number):
    config = with_checkpoints(tmp_path, max_lr=number, min_lr=number / 10)
    Trainer(nano(), data, config, [lambda record: record["step"] != 2]).fit()
    trainer = Trainer(nano(), data, config)
    assert trainer.resume().step == 2


def test_the_text_is_read_for_its_fingerprint_once_a_run(data, tmp_path, monkeypatch):
    calls = []
    fingerprint = RowBatches.fingerprint
    monkeypatch.setattr(RowBatches, "fingerprint", lambda self: calls.append(1) or fingerprint(self))
    Trainer(nano(), data, with_checkpoints(tmp_path)).fit()
    assert len(calls) == 1


def test_the_log_is_on_disk_before_the_checkpoint_that_needs_it(data, tmp_path, monkeypatch):
    happened = []
    sync, write = RunLog.sync, Checkpointer.save
    monkeypatch.setattr(RunLog, "sync", lambda log: happened.append("log") or sync(log))
    monkeypatch.setattr(Checkpointer, "save", lambda *a, **k: happened.append("save") or write(*a, **k))
    Trainer(nano(), data, with_checkpoints(tmp_path)).fit()
    assert happened == ["log", "save"] * 3


def test_a_stop_saves_even_between_two_checkpoints_and_a_finished_run_has_nothing_to_do(data, tmp_path):
    Trainer(nano(), data, with_checkpoints(tmp_path), [lambda record: record["step"] != 3]).fit()
    trainer = Trainer(nano(), data, with_checkpoints(tmp_path))
    assert trainer.resume().step == 3
    trainer.fit()
    finished = Trainer(nano(), data, with_checkpoints(tmp_path))
    assert finished.resume().step == 6
    report = finished.fit()
    assert (report.steps, report.stopped_by, report.record) == (6, None, {})
    assert len(read_run(tmp_path)) == 6


def test_an_error_ends_the_run_with_the_last_good_checkpoint_in_place(data, tmp_path):
    def breaks(n):
        if n == 5:
            raise RuntimeError("the cable")
        return data[n]

    with pytest.raises(RuntimeError, match="the cable"):
        Trainer(nano(), breaks, with_checkpoints(tmp_path, save_in_background=True)).fit()
    assert Checkpointer(tmp_path / "checkpoints").load()[0].step == 4


def test_skipped_batches_before_a_stop_count_towards_giving_up(data, tmp_path):
    empty = [{"input_ids": torch.zeros(1, 4, dtype=torch.long), "labels": torch.full((1, 4), -100)}]

    def without_targets_from_2_on(n):
        return data[n] if n < 2 else empty

    config = with_checkpoints(tmp_path, max_skipped_in_a_row=5)
    Trainer(nano(), without_targets_from_2_on, config, [lambda record: record["batch"] != 5]).fit()
    trainer = Trainer(nano(), without_targets_from_2_on, config)
    trainer.resume()
    assert [getattr(trainer, name) for name in COUNTERS] == [2, 5, 2 * 8 * 16, 3, 3]
    with pytest.raises(TrainingFailedError, match="5 updates in a row were skipped, since batch 3"):
        trainer.fit()


def test_a_checkpoints_manifest_says_in_words_where_it_was_made(data, tmp_path):
    trainer = Trainer(nano(), data, replace(CONFIG, total_steps=9, out=tmp_path, checkpoint_every=9))
    trainer.fit()
    manifest = json.loads((tmp_path / "checkpoints" / "step_00000009" / "manifest.json").read_text())
    assert (manifest["step"], manifest["batch"]) == (9, 9)
    assert (manifest["epoch"], manifest["batch_in_epoch"]) == divmod(9, data.batches_per_epoch) == (1, 1)
    assert manifest["settings"]["max_lr"] == CONFIG.max_lr


def with_many_settings(moved):
    """A model whose config has 30 fields of its own, as those of others have."""
    parts = [(f"part_{n:02}", int, n + moved) for n in range(30)]
    model = nano()
    model.config = make_dataclass("Config", parts, bases=(type(model.config),), frozen=True)(**vars(model.config))
    return model


def test_of_another_model_the_error_lists_the_first_few_settings(data, tmp_path):
    Trainer(with_many_settings(0), data, with_checkpoints(tmp_path), [lambda record: record["step"] != 4]).fit()
    with pytest.raises(CheckpointError) as caught:
        Trainer(with_many_settings(1), data, with_checkpoints(tmp_path, max_lr=2e-3)).resume()
    told = str(caught.value).splitlines()[1:]
    assert told[0] == "  max_lr: 0.001 in the checkpoint, 0.002 now"
    assert told[1:9] == [f"  model.part_{n:02}: {n} in the checkpoint, {n + 1} now" for n in range(8)]
    assert told[9] == "  22 more of the model's config: it is another model" and len(told) == 11
