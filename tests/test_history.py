import math

import pytest

from tinytrain.model import GPT, PRESETS
from tinytrain.runlog import RunLog, read_run
from tinytrain.train import TrainConfig, Trainer
from tinytrain.watch.history import History


def logged(folder, records):
    with RunLog(folder) as log:
        for n, record in enumerate(records, 1):
            log.write({"batch": n} | record)
    return read_run(folder)


def test_values_lie_where_the_axis_says(tmp_path):
    records = [
        {"step": n, "tokens_seen": 10 * n, "seconds_data": 0.5, "seconds_step": 1.0, "loss": 5.0 - n} for n in (1, 2)
    ]
    run = logged(tmp_path, records)
    assert History("a", run).values("loss")[0].tolist() == [1, 2]
    assert History("a", run, "tokens_seen").values("loss")[0].tolist() == [10, 20]
    xs, ys = History("a", str(tmp_path), "seconds").values("loss")
    assert (xs.tolist(), ys.tolist()) == ([1.5, 3.0], [4.0, 3.0])


def test_skipped_updates_and_where_a_run_ends(tmp_path):
    steps = [(1, False), (2, False), (2, True), (3, False), (3, True), (3, True)]
    run = logged(tmp_path, [{"step": s, "loss": math.nan if bad else 2.0, "skipped": bad} for s, bad in steps])
    history = History("a", run)
    assert history.skipped.tolist() == [2, 3, 3] and history.skipped_at_end == 2 and history.end == 3


def test_a_line_without_the_name_or_the_axis_is_left_out(tmp_path):
    run = logged(tmp_path, [{"step": 1, "loss": 3.0}, {"loss": 2.0}, {"step": 3}, {"step": 4, "loss": math.inf}])
    xs, ys = History("a", run).values("loss")
    assert (xs.tolist(), ys.tolist()) == ([1, 4], [3.0, math.inf])
    assert math.isnan(History("a", run, "tokens_seen").end)
    assert History("a", run, "seconds").values("loss")[0].tolist() == []


def test_text_and_unknown_axes_are_refused(tmp_path):
    run = logged(tmp_path, [{"step": 1, "where": "the output of head"}])
    with pytest.raises(ValueError, match="hot: 'where' holds text"):
        History("hot", run).values("where")
    with pytest.raises(ValueError, match=r"over='hours' is not known: .* over step, tokens_seen, seconds"):
        History("a", run, "hours")
    with pytest.raises(FileNotFoundError, match="no log there"):
        History("a", tmp_path / "nowhere")


def test_checkpoints_are_those_that_are_whole_on_the_disk(tmp_path, random_batches):
    config = TrainConfig(total_steps=9, max_lr=1e-3, out=tmp_path, checkpoint_every=3, weights_every=2, keep=2)
    Trainer(GPT(PRESETS["nano"]), random_batches, config).fit()
    history = History("a", tmp_path)
    assert history.checkpoints == [(4.0, False), (6.0, True), (8.0, False), (9.0, True)]
    (tmp_path / "checkpoints" / "step_00000009" / "manifest.json").write_text("{")
    assert History("a", tmp_path).checkpoints == [(4.0, False), (6.0, True), (8.0, False)]


@pytest.fixture
def random_batches():
    import torch

    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 256, (2, 9), generator=generator)
    return lambda n: [{"input_ids": ids[:, :-1], "labels": ids[:, 1:]}]
