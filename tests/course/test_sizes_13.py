"""Notebook 13's runs by size: repeatable, seeded, on texts that grow, judged on other plays."""

import pytest
import torch

from tinytrain.course import sizes_13
from tinytrain.course.sizes_13 import held_out, learn, plays


def test_a_run_by_size_is_repeatable_and_evaluates_eight_times():
    run = learn(16, 4000, 4e-3, 0, 16)
    assert list(run["evals"]) == list(range(2, 17, 2))
    assert run == learn(16, 4000, 4e-3, 0, 16) != learn(16, 4000, 4e-3, 1, 16)
    assert run["evals"][16] < 5.6


@pytest.fixture
def begun(monkeypatch):
    """The models and the data that runs begin with."""
    seen, trainer = [], sizes_13.Trainer

    def look(model, data, *rest, **named):
        seen.append((next(model.parameters()).sum().item(), data))
        return trainer(model, data, *rest, **named)

    monkeypatch.setattr(sizes_13, "Trainer", look)
    return seen


def test_a_seed_chooses_the_first_weights_and_the_order_of_rows(begun):
    for seed in (0, 1):
        learn(16, 4000, 4e-3, seed, 16)
    (weights, data), (other_weights, other_data) = begun
    assert weights != other_weights and data.rows_of(0) != other_data.rows_of(0)


def test_a_batch_has_as_many_rows_as_asked_for_and_evaluations_do_not_change_a_run(begun):
    small = learn(16, 4000, 4e-3, 0, 16, rows=4, evaluations=1)
    usual = learn(16, 4000, 4e-3, 0, 16)
    assert [len(data.rows_of(0)) for _, data in begun] == [4, 16]
    assert list(small["evals"]) == [16] and small["evals"] != usual["evals"]
    assert learn(16, 4000, 4e-3, 0, 16, rows=4)["evals"][16] == small["evals"][16]


def test_texts_grow_from_the_same_start_and_held_out_rows_are_others():
    assert len(plays(4000)) == 63 and len(plays(64_000)) == 1000
    assert torch.equal(plays(4000)[5]["input_ids"], plays(64_000)[5]["input_ids"])
    rows = torch.cat([batch["input_ids"] for batch in held_out()])
    assert rows.shape == (512, 64)
    seen = {tuple(plays(64_000)[i]["input_ids"].tolist()) for i in range(1000)}
    assert not seen & {tuple(row.tolist()) for row in rows}
