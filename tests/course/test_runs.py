import math
import os
import time

import pytest
import torch

from tinytrain.course.runs import run_many
from tinytrain.schedule import warmup_cosine

SCHEDULE = {"max_lr": 1.0, "min_lr": 0.0, "warmup_steps": 2, "total_steps": 10}


def where(seed):
    return seed, os.getpid(), torch.get_num_threads()


def slow_or_broken(seed):
    if seed == 0:
        raise ValueError("this run is broken")
    time.sleep(0.05)
    return seed


def test_results_come_in_the_order_of_the_settings():
    found = run_many(warmup_cosine, [{"step": step, **SCHEDULE} for step in range(12)])
    assert found == [warmup_cosine(step, **SCHEDULE) for step in range(12)]


def test_runs_go_to_other_processes_with_one_thread_each(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # what a new process would take by itself
    found = run_many(where, [{"seed": seed} for seed in range(6)])
    assert [seed for seed, _, _ in found] == list(range(6))
    assert os.getpid() not in {process for _, process, _ in found}
    assert {threads for _, _, threads in found} == {1}


def test_an_error_in_a_run_reaches_the_caller():
    with pytest.raises(ValueError, match="this run is broken"):
        run_many(slow_or_broken, [{"seed": seed} for seed in range(50)])


def test_a_function_of_the_notebook_is_refused_with_the_cure(monkeypatch):
    def here(seed):
        return math.nan

    monkeypatch.setattr(here, "__module__", "__main__")
    with pytest.raises(ValueError, match=r"here is defined in this notebook.*Put it into a module"):
        run_many(here, [{"seed": 0}])


def test_nothing_to_do_is_done():
    assert run_many(where, []) == []
