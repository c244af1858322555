"""What notebook 13 measures one process with: updates set up in ways, their bytes, the parts of a step."""

import pytest
import torch

from tinytrain.course.lesson_13 import WORK, Update, compare, parts_of_a_step, random_batch
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
