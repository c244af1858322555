"""Notebook 14's own parts: its models, the child that is killed, the toy trainers."""

import signal
import sys

import pytest
import torch

from tinytrain.course.laws.first_trainer import FirstTrainer
from tinytrain.course.laws.plain_trainer import PlainTrainer
from tinytrain.course.lesson_14 import (
    MODELS,
    StoppedError,
    T,
    ToyData,
    V,
    furthest,
    killed_child,
    lines_of,
    make,
    rates_of,
    rows_in_a_new_program,
    toy_trainer,
    trainer_for,
)
from tinytrain.forward import forward_logits


@pytest.mark.parametrize("name", MODELS)
def test_each_model_gives_logits_in_its_own_form_and_is_made_the_same_each_time(name):
    model = make(name)
    assert forward_logits(model, {"input_ids": torch.zeros(2, T, dtype=torch.long)}).shape == (2, T, V)
    assert furthest(model, make(name)) == 0
    assert sum(p.numel() for p in model.parameters()) < 100_000


def test_the_forms_are_three():
    kinds = {type(make(name)(torch.zeros(1, 4, dtype=torch.long))).__name__ for name in MODELS}
    assert {"Tensor", "dict"} <= kinds and len(kinds) == len(MODELS) - 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_child_that_was_killed_and_resumed_is_the_run_that_was_not(tmp_path):
    name = "a plain module"
    whole = trainer_for(name, tmp_path / "whole")
    whole.fit()
    assert killed_child(tmp_path / "killed", name, after=23) == -signal.SIGKILL
    assert 20 <= len(lines_of(tmp_path / "killed")) < 60
    again = trainer_for(name, tmp_path / "killed")
    assert again.resume().step in (20, 25)
    again.fit()
    assert furthest(whole.model, again.model) == 0
    assert lines_of(tmp_path / "killed") == lines_of(tmp_path / "whole")


def test_toy_data_end_where_they_are_told_to():
    data = ToyData(stop=3)
    assert data[2][0]["input_ids"].shape == (8, 16)
    assert torch.equal(data[1][0]["labels"], ToyData()[1][0]["labels"])
    with pytest.raises(StoppedError):
        data[3]


@pytest.mark.parametrize(("kind", "updates", "batches"), [(FirstTrainer, 30, 40), (PlainTrainer, 40, 53)])
def test_in_fp16_some_updates_are_skipped_and_the_rates_are_of_those_that_were_made(tmp_path, kind, updates, batches):
    trainer = toy_trainer(kind, tmp_path / "a", precision="fp16")
    rates = rates_of(trainer)
    assert len(rates) < len(trainer.log)
    assert abs(len(rates) - updates) <= 3 and abs(len(trainer.log) - batches) <= 5
    plan = rates_of(toy_trainer(kind, tmp_path / "b"))
    assert (rates == plan) is (kind is PlainTrainer)


def test_a_data_set_without_a_seed_is_another_one_in_each_program():
    one, other = rows_in_a_new_program(), rows_in_a_new_program()
    assert one["seeded"] == other["seeded"] and len(one["seeded"]) == 500
    assert one["as it stands"] != other["as it stands"]
