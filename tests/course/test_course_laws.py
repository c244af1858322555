"""The laws, run on trainers: one that keeps them all, many with one fault each, and some that only look busy."""

import math

import laws_faults_loss
import laws_faults_run
import laws_faults_update
import pytest
import torch
from laws_faults_loss import finish
from laws_honest import HONEST, Adapted, Bare, WrittenOtherwise

from tinytrain.course.laws import CannotUseError, run_laws
from tinytrain.course.laws.plain_trainer import PlainTrainer

PLAIN = "tinytrain.course.laws.plain_trainer"
FAULTS = laws_faults_loss.FAULTS | laws_faults_update.FAULTS | laws_faults_run.FAULTS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_single_fault_breaks_the_law_it_should_and_the_cause_is_named(fault):
    laws, cause = FAULTS[fault]
    verdicts = run_laws(fault)
    assert set(verdicts.broken) == laws, f"\n{verdicts}"
    first = min(laws, key=lambda law: int(law.split()[-1]) if law.startswith("law") else 0)
    assert cause in " ".join(str(verdicts[first]).split()), f"\n{verdicts}"


# Those that keep them


def test_the_plain_trainer_keeps_them_all_and_a_real_kill_shows_it():
    verdicts = run_laws(PLAIN)
    assert verdicts.broken == verdicts.untested == [], f"\n{verdicts}"
    assert "killed with signal 9 in the middle of its fifth save; resumed after update 4" in " ".join(
        str(verdicts).split()
    )


@pytest.mark.usefixtures("any_format_is_fast")
def test_the_packages_own_trainer_keeps_them_all():
    verdicts = run_laws(Adapted)
    assert verdicts.broken == verdicts.untested == [], f"\n{verdicts}"


def test_another_right_way_keeps_them_and_what_it_lacks_is_said():
    verdicts = run_laws(WrittenOtherwise)
    assert verdicts.broken == [], f"\n{verdicts}"
    assert "it takes no argument named precision" in str(verdicts["law 7"])


@pytest.mark.parametrize("honest", HONEST, ids=lambda honest: honest.__name__)
def test_no_honest_way_is_refused(honest):
    verdicts = run_laws(honest)
    assert verdicts.broken == verdicts.untested == [], f"\n{verdicts}"


def test_what_a_trainer_lacks_could_not_be_tested_and_is_not_held_to_hold():
    verdicts = run_laws(Bare)
    assert verdicts.broken == [], f"\n{verdicts}"
    assert set(verdicts.untested) == {"law 5", "law 8"}
    said = str(verdicts)
    assert "law 9: it has no evaluate(batches)" in verdicts.untested_lines
    assert f"of those that hold, {len(verdicts.untested_lines)} lines could not be tested" in said
    assert all(words in said for words in ("no resume()", "no evaluate(batches)", 'no trainer.log with "loss"'))


# Those that only look busy


class DoesNothing(PlainTrainer):
    def fit(self):
        self.log = [{"batch": n, "loss": 2.0, "lr": 1e-3, "skipped": False} for n in range(self.total_steps)]

    def evaluate(self, batches):
        return 2.0


class MovesAtRandom(PlainTrainer):
    """Takes the data, ignores them, and takes steps with gradients that do not depend on them."""

    def update(self, micro_batches):
        for p in self.model.parameters():
            p.grad = torch.ones_like(p)
        finish(self, 2.0, 1.0, self.rate())

    def evaluate(self, batches):
        return math.log(23)


class TrainsOnItsOwn(PlainTrainer):
    """A batch of its own in place of those that it is given."""

    def update(self, micro_batches):
        ids = torch.arange(12)[None] % 20
        super().update([{"input_ids": ids, "labels": ids + 1}])


class StepsADecoy(PlainTrainer):
    """Its optimizer holds a copy of the weights; the model's own move by hand."""

    def __init__(self, model, *args, **settings):
        super().__init__(model, *args, **settings)
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

    def update(self, micro_batches):
        self.model.zero_grad()
        self.loss_sum(micro_batches[0]).backward()
        with torch.no_grad():
            for p in self.model.parameters():
                p -= 1e-3 * p.grad
        self.step += 1
        self.batch += 1


BUSY = {
    DoesNothing: ({"law 1"}, {"law 10"}),
    MovesAtRandom: ({"law 1", "law 2"}, {"law 3", "law 7", "decay"}),
    TrainsOnItsOwn: ({"law 1", "law 2", "law 4"}, {"law 3", "law 7", "law 8", "decay"}),
    StepsADecoy: (set(), set()),
}


@pytest.mark.parametrize("busy", BUSY, ids=lambda busy: busy.__name__)
def test_no_law_holds_for_want_of_work(busy):
    """Besides those that must be broken, only those may hold which the trainer does keep."""
    broken, may_hold = BUSY[busy]
    verdicts = run_laws(busy)
    print(verdicts)
    assert broken <= set(verdicts.broken)
    if busy is not StepsADecoy:
        assert set(verdicts.held) <= may_hold, f"\n{verdicts}"
    else:
        assert {"law 1", "law 2", "law 3", "law 4", "clipping", "decay"} <= {*verdicts.untested, *verdicts.broken}


class NeverEnds(PlainTrainer):
    def fit(self):
        while True:
            self.update(self.data[self.batch])


def test_a_trainer_that_never_ends_is_ended():
    with pytest.raises(CannotUseError, match=r"fit\(\) ended with endless"):
        run_laws(NeverEnds)


class WantsTenUpdates(PlainTrainer):
    def __init__(self, *args, total_steps, **settings):
        if total_steps < 10:
            raise AssertionError
        super().__init__(*args, total_steps=total_steps, **settings)


def test_what_refuses_the_first_settings_is_told_which_and_where():
    with pytest.raises(CannotUseError) as refused:
        run_laws(WantsTenUpdates)
    assert "with total_steps=2, max_lr=0.01, warmup_steps=1, max_grad_norm=100.0" in str(refused.value)
    assert "AssertionError: raise AssertionError (test_course_laws.py, line " in str(refused.value)


class WantsShortRuns(PlainTrainer):
    def __init__(self, *args, total_steps, **settings):
        assert total_steps < 20, "too long"
        super().__init__(*args, total_steps=total_steps, **settings)


def test_what_refuses_other_settings_could_not_be_tested_there_and_is_not_broken():
    verdicts = run_laws(WantsShortRuns, only=["law 3", "law 4", "decay"])
    assert verdicts.untested == ["law 3", "law 4"] and verdicts.held == ["decay"], f"\n{verdicts}"
    assert "could not be made with total_steps=24" in " ".join(str(verdicts["law 3"]).split())


def test_a_kill_is_judged_alike_whatever_number_of_threads_the_caller_has():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert run_laws("tinytrain.course.laws.plain_trainer", only=["law 5"]).broken == []
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
