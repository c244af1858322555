"""Notebook 13's runs by size: repeatable, seeded, on texts that grow, judged on other plays."""

import torch

from tinytrain.course import sizes_13
from tinytrain.course.sizes_13 import held_out, learn, plays


def test_a_run_by_size_is_repeatable_and_evaluates_eight_times():
    run = learn(16, 4000, 4e-3, 0, 16)
    assert list(run["evals"]) == list(range(2, 17, 2))
    assert run == learn(16, 4000, 4e-3, 0, 16) != learn(16, 4000, 4e-3, 1, 16)
    assert run["evals"][16] < 5.6


def test_a_seed_chooses_the_first_weights_and_the_order_of_rows(monkeypatch):
    begun, trainer = [], sizes_13.Trainer

    def look(model, data, *rest, **named):
        begun.append((next(model.parameters()).sum().item(), data.rows_of(0)))
        return trainer(model, data, *rest, **named)

    monkeypatch.setattr(sizes_13, "Trainer", look)
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
