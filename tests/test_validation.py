"""Evaluations of a run: what is tried before it, what the log says of them, and which process has which batch."""

import math
from types import SimpleNamespace

import pytest
import torch

import tinytrain.validation
from tinytrain.loss import IGNORE_INDEX
from tinytrain.train import TrainConfig, Trainer
from tinytrain.validation import _own_batches, try_validation, validate


class Next(torch.nn.Module):
    """Logits of the next token, of the one before it alone."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(8, 8)

    def forward(self, input_ids):
        return self.table(input_ids)


def batch_of(number):
    ids = torch.tensor([[number, 1, 2]])
    return {"input_ids": ids, "labels": ids.roll(-1, 1)}


def a_trainer(validation, *, eval_every=None, bytes_per_token=None):
    torch.manual_seed(0)
    config = TrainConfig(total_steps=2, max_lr=1e-3, eval_every=eval_every)
    return Trainer(Next(), lambda n: [batch_of(n)], config, validation=validation, bytes_per_token=bytes_per_token)


@pytest.fixture
def evaluated(monkeypatch):
    """What evaluations are given; each of them finds a loss of 3."""
    seen = []

    def evaluate(model, batches, *, precision=None):
        seen.append((model, list(batches), precision))
        return SimpleNamespace(loss=3.0)

    monkeypatch.setattr(tinytrain.validation, "evaluate", evaluate)
    return seen


# Before the first update


def test_the_first_batch_alone_is_tried_as_every_evaluation_does_it(evaluated):
    batches = [batch_of(3), "not looked at"]
    trainer = a_trainer(batches, eval_every=1)
    try_validation(trainer)
    assert evaluated == [(trainer.model, batches[:1], trainer.precision)]


def test_nothing_is_tried_of_a_function_of_no_validation_or_in_a_run_that_goes_on(evaluated):
    def never():
        raise AssertionError("it was called")

    for validation in (never, None):
        try_validation(a_trainer(validation))
    going_on = a_trainer(["not looked at"])
    going_on.batch = 1
    try_validation(going_on)
    assert evaluated == []


def test_trying_moves_no_generator():
    class Drawing(list):
        def __iter__(self):
            torch.rand(1)
            return super().__iter__()

    trainer = a_trainer(Drawing([batch_of(3)]))
    before = torch.get_rng_state()
    try_validation(trainer)
    validate(trainer)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_validation_without_a_batch_is_refused_before_the_run_and_in_it():
    with pytest.raises(ValueError) as caught:
        try_validation(a_trainer([]))
    assert str(caught.value) == "validation holds no batch: give at least one, or None for no evaluation"
    with pytest.raises(ValueError) as caught:
        validate(a_trainer(lambda: iter(())))
    assert str(caught.value) == "validation gave no batch: it must give at least one at each call"


def test_evaluations_that_were_asked_for_need_batches_and_the_error_says_how_to_give_them():
    with pytest.raises(ValueError) as caught:
        try_validation(a_trainer(None, eval_every=7))
    assert str(caught.value) == (
        "TrainConfig.eval_every=7 asks for evaluations, and the Trainer has no batches for them: "
        "give it validation=[...], batches that it does not train on, or leave eval_every out"
    )


# In the run


def test_the_log_has_the_loss_of_all_batches_and_bits_per_byte_where_the_bytes_are_known(evaluated):
    for validation in ([batch_of(1), batch_of(2)], lambda: iter([batch_of(1), batch_of(2)])):
        for bytes_per_token, more in ((None, {}), (2.0, {"eval_bits_per_byte": 3.0 / math.log(2) / 2.0})):
            trainer = a_trainer(validation, bytes_per_token=bytes_per_token)
            assert validate(trainer) == {"eval_loss": 3.0} | more
            model, batches, precision = evaluated.pop()
            assert model is trainer.model and precision is trainer.precision
            assert [batch["input_ids"][0, 0] for batch in batches] == [1, 2]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_that_share_a_model_have_the_same_buffers_first(evaluated, monkeypatch, processes):
    same = []
    monkeypatch.setattr(tinytrain.validation, "same_buffers", same.append)
    trainer = a_trainer([batch_of(1)])
    trainer.processes = processes
    validate(trainer)
    assert same == ([trainer.model] if processes > 1 else [])


@pytest.mark.parametrize("given", [1, 4, 5, 6])
@pytest.mark.parametrize("processes", [2, 3])
def test_each_process_has_every_nth_batch_and_all_have_equally_many(processes, given):
    trainer, owned = a_trainer([batch_of(number) for number in range(given)]), []
    trainer.processes = processes
    for trainer.rank in range(processes):
        own = list(_own_batches(trainer))
        counted = [batch for batch in own if (batch["labels"] != IGNORE_INDEX).all()]
        assert len(own) == -(-given // processes)
        assert all((batch["labels"] == IGNORE_INDEX).all() for batch in own[len(counted) :])
        owned.append([int(batch["input_ids"][0, 0]) for batch in counted])
    assert owned == [list(range(given))[rank::processes] for rank in range(processes)]


def test_a_process_with_a_model_of_its_own_evaluates_on_every_batch():
    trainer = a_trainer([batch_of(number) for number in range(3)])
    assert trainer.processes == 1
    trainer.rank = 1  # in a group whose processes do not share this model
    assert [int(batch["input_ids"][0, 0]) for batch in _own_batches(trainer)] == [0, 1, 2]
