"""What notebook 13 measures with: updates set up in ways, the same Trainer, a slow link, runs by size."""

import math

import pytest
import torch

from tinytrain.course import lesson_13
from tinytrain.course.lesson_13 import (
    WORK,
    Link,
    Update,
    compare,
    draw_memory,
    end_of_step,
    exchanged,
    held_out,
    learn,
    own_loop,
    parts_of_a_step,
    peaks,
    plays,
    random_batch,
    slow_network,
    train,
    train_all,
)
from tinytrain.distributed import launch
from tinytrain.model import PRESETS, ModelConfig
from tinytrain.watch.planner import memory_of

SMALL = ModelConfig(vocab_size=300, d_model=32, n_layers=3, n_heads=2, max_positions=32)


def test_random_rows_are_shifted_once_and_lie_in_the_vocabulary():
    batch = random_batch(SMALL, 4)
    assert batch["input_ids"].shape == (4, 32)
    assert torch.equal(batch["input_ids"][:, 1:], batch["labels"][:, :-1])
    assert batch["labels"].min() >= 0 and batch["labels"].max() < 300
    assert not torch.equal(batch["labels"], random_batch(SMALL, 4, seed=1)["labels"])


def test_the_peak_is_that_of_the_plan_in_each_way():
    for how in ({}, {"recompute": True}, {"loss_chunk": 16}):
        planned = memory_of(SMALL, micro_batch_size=8, **how).total
        assert Update(SMALL, 8, **how).peak() == pytest.approx(planned, rel=0.03)
    update = Update(SMALL, 8, micro_batches=2)
    assert len(update.batches) == 2 and len(update.batches[0]["labels"]) == 4
    assert update.peak() == pytest.approx(memory_of(SMALL, micro_batch_size=4, accumulate=True).total, rel=0.03)


def test_the_model_to_measure_has_more_to_it_than_weights():
    memory = memory_of(WORK, micro_batch_size=8)
    assert memory.activations > memory.weights and memory.logits > memory.weights


def test_ways_of_the_same_updates_give_the_same_weights_in_less_memory():
    found = compare({"plain": {}, "recompute": {"recompute": True}, "other": {"loss_chunk": 16}}, SMALL, 8, 2)
    assert torch.equal(found["plain"]["weights"], found["recompute"]["weights"])
    assert torch.allclose(found["plain"]["weights"], found["other"]["weights"], atol=1e-5)
    assert max(found["recompute"]["bytes"], found["other"]["bytes"]) < found["plain"]["bytes"]
    assert all(this["seconds"] > 0 for this in found.values())


def test_a_step_has_its_six_parts():
    parts = parts_of_a_step(PRESETS["nano"], 4, 2)
    assert list(parts) == ["data", "forward", "loss", "backward", "clip", "optimizer"]
    assert all(milliseconds > 0 for milliseconds in parts.values())


@pytest.fixture(scope="module")
def alone():
    return train(0, {}, 7)


def test_a_run_saved_in_two_shares_goes_on_in_one_process(alone, tmp_path):
    cases = {"copies": ({}, 7), "saved": ({"shard": True}, 7, str(tmp_path), 6)}
    pair = launch(train_all, 2, cases, device="cpu")
    for result in pair:
        assert result["copies"]["weights"] == alone["weights"] == 2 * result["saved"]["weights"]
    first, rest = pair[0]["saved"]["losses"], train(0, {}, 7, str(tmp_path))["losses"]
    assert (list(first), list(rest)) == ([1, 2, 3, 4, 5, 6], [7])
    for step, loss in {**first, **rest}.items():
        assert loss == pytest.approx(alone["losses"][step], abs=1e-4)
        assert pair[0]["copies"]["losses"][step] == pytest.approx(alone["losses"][step], abs=1e-4)


@pytest.mark.parametrize("switch", [{"recompute": True}, {"loss_chunk": 64}, {"micro_batch_size": 8}])
def test_switches_leave_the_losses_alone(alone, switch):
    losses = train(0, switch, 4, stop_after=3)["losses"]
    assert len(losses) == 3
    for step, loss in losses.items():
        assert loss == pytest.approx(train(0, {}, 4)["losses"][step], abs=1e-5)


def test_an_optimizer_made_before_sharding_teaches_nothing():
    first, second = launch(own_loop, 2, 3, device="cpu")
    assert first["kept"] == 0
    for losses in (first, second):
        assert len(set(losses["before shard"])) == 1
        assert losses["after shard"][2] < losses["after shard"][0] == losses["before shard"][0]
    assert first["after shard"] != second["after shard"]  # each has rows of its own


def test_shares_send_more_than_copies():
    for sent in launch(exchanged, 2, 2, device="cpu"):
        assert sent["DDP"] == pytest.approx(1, abs=0.02) and sent["all-gather"] == pytest.approx(0.5, abs=0.02)
        gathers, sums = 2 * sent["all-gather"], sent["reduce-scatter"]
        assert sent["FSDP2"] == pytest.approx(gathers + sums, abs=0.05)


def test_copies_keep_the_weights_and_shares_halve_them():
    weights = ModelConfig(vocab_size=900, d_model=64, n_layers=6, n_heads=2, max_positions=4)
    cases = {"weights": (weights, 2), "rows": (SMALL, 16)}
    one = peaks(0, cases, "alone")
    for name, (config, rows) in cases.items():
        assert one[name] == pytest.approx(memory_of(config, micro_batch_size=rows).total, rel=0.03)
    copies, shares = (launch(peaks, 2, cases, way, device="cpu") for way in ("copies", "shares"))
    for copy, share in zip(copies, shares, strict=True):
        assert 0.95 * one["weights"] < copy["weights"] < 1.4 * one["weights"]
        assert share["weights"] < 0.75 * one["weights"]
        assert max(copy["rows"], share["rows"]) < 0.75 * one["rows"]
        for name, (config, rows) in cases.items():  # an estimate
            planned = memory_of(config, micro_batch_size=rows // 2, shards=2).total
            assert share[name] == pytest.approx(planned, rel=0.15)


def test_a_link_sends_one_message_at_a_time():
    assert end_of_step(10, [4, 7, 10], [2, 2, 2], 1) == 12
    assert end_of_step(10, [1, 2, 3], [4, 4, 4], 1) == 13  # 1 to 5, to 9, to 13
    assert end_of_step(20, [1, 2, 3], [4, 4, 4], 1) == 20
    assert end_of_step(10, [10], [6], 2) == 13
    assert end_of_step(10, [4, 10], [6, 6], math.inf) == 10


def test_a_step_over_a_slow_link_takes_as_long_as_the_link_at_least():
    found = launch(slow_network, 1, {"fast": (1, 1.0, 0.0), "slow": (1, 1.0, 0.3), "one": (1, 1000.0, 0.0)}, 1)[0]
    assert found["slow"]["seconds"] >= 0.3
    assert sum(found["slow"]["sizes"]) == sum(found["one"]["sizes"]) == 4 * 842_496
    assert len(found["one"]["ready"]) == 1 < len(found["fast"]["ready"]) == len(found["fast"]["sizes"])
    assert found["fast"]["ready"] == sorted(found["fast"]["ready"])


class Bucket:
    def __init__(self, n):
        self.values = torch.ones(n)

    def buffer(self):
        return self.values


def test_messages_wait_in_line_and_come_back_as_they_were():
    link = Link(4000.0)
    first, second = link.send(None, Bucket(100)), link.send(None, Bucket(50))
    assert link.sizes == [400, 200] and link.free - link.start >= 0.15
    assert second.wait().sum() == 50 and first.done()
    link.restart()
    assert link.ready == link.sizes == []


def test_a_run_by_size_is_repeatable_and_evaluates_eight_times():
    run = learn(16, 4000, 4e-3, 0, 16)
    assert list(run["evals"]) == list(range(2, 17, 2))
    assert run == learn(16, 4000, 4e-3, 0, 16) != learn(16, 4000, 4e-3, 1, 16)
    assert run["evals"][16] < 5.6


def test_a_seed_chooses_the_first_weights_and_the_order_of_rows(monkeypatch):
    begun, trainer = [], lesson_13.Trainer

    def look(model, data, *rest, **named):
        begun.append((next(model.parameters()).sum().item(), data.rows_of(0)))
        return trainer(model, data, *rest, **named)

    monkeypatch.setattr(lesson_13, "Trainer", look)
    for seed in (0, 1):
        learn(16, 4000, 4e-3, seed, 16)
    (weights, order), (other_weights, other_order) = begun
    assert weights != other_weights and order != other_order


def test_texts_grow_from_the_same_start_and_held_out_rows_are_others():
    assert len(plays(4000)) == 63 and len(plays(64_000)) == 1000
    assert torch.equal(plays(4000)[5]["input_ids"], plays(64_000)[5]["input_ids"])
    rows = torch.cat([batch["input_ids"] for batch in held_out()])
    assert rows.shape == (512, 64)
    seen = {tuple(plays(64_000)[i]["input_ids"].tolist()) for i in range(1000)}
    assert not seen & {tuple(row.tolist()) for row in rows}


def test_the_picture_of_a_plan_has_a_bar_for_each_kind():
    figure = draw_memory("350m", 16, "bf16", "no", "no", 1)
    memory = memory_of(PRESETS["350m"], micro_batch_size=16, precision="bf16")
    (ax,) = figure.axes
    kinds = [size for size in vars(memory).values() if size]
    assert len(ax.patches) == len(kinds) == len(figure.legends[0].get_texts())
    assert sum(patch.get_width() for patch in ax.patches) == pytest.approx(memory.total / 2**30)
    smaller = draw_memory("350m", 16, "bf16", "yes", "yes", 8)
    assert "estimate" in smaller.axes[0].get_title() and "estimate" not in ax.get_title()
    assert sum(patch.get_width() for patch in smaller.axes[0].patches) < 0.5 * memory.total / 2**30


def test_every_kind_of_memory_has_its_colour():
    assert set(lesson_13.COLOURS) == set(vars(memory_of(SMALL, micro_batch_size=1)))
