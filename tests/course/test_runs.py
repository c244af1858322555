import math
import os
import time
from multiprocessing import active_children

import pytest
import torch

from tinytrain.course.runs import run_many
from tinytrain.schedule import warmup_cosine

SCHEDULE = {"max_lr": 1.0, "min_lr": 0.0, "warmup_steps": 2, "total_steps": 10}


def where(seed):
    return seed, os.getpid(), torch.get_num_threads()


def slow_or_broken(seed, folder):
    if seed == 1:
        raise ValueError("this run is broken")
    time.sleep(60)
    (folder / str(seed)).touch()


def dies(seed):
    os._exit(3)


def test_results_come_in_the_order_of_the_settings():
    found = run_many(warmup_cosine, [{"step": step, **SCHEDULE} for step in range(12)])
    assert found == [warmup_cosine(step, **SCHEDULE) for step in range(12)]


def test_runs_go_to_other_processes_with_one_thread_each(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # what a new process would take by itself
    found = run_many(where, ({"seed": seed} for seed in range(6)))
    assert [seed for seed, _, _ in found] == list(range(6))
    assert os.getpid() not in {process for _, process, _ in found}
    assert {threads for _, _, threads in found} == {1}


def test_the_first_error_reaches_the_caller_and_ends_all(tmp_path):
    before, start = set(active_children()), time.monotonic()
    with pytest.raises(ValueError, match="this run is broken"):
        run_many(slow_or_broken, [{"seed": seed, "folder": tmp_path} for seed in range(9)])
    assert time.monotonic() - start < 55, "it did not wait for the run of 60 seconds beside the broken one"
    assert set(active_children()) <= before and list(tmp_path.iterdir()) == []


def test_a_process_that_dies_is_told_with_a_cure():
    with pytest.raises(RuntimeError, match=r"a process that ran dies died.*one run by hand: dies\(\*\*{'seed': 0}\)"):
        run_many(dies, [{"seed": seed} for seed in range(3)])


def test_too_few_processes_are_refused():
    with pytest.raises(ValueError, match="processes=0 must be at least 1"):
        run_many(where, [{"seed": 0}], processes=0)


def test_a_function_of_the_notebook_is_refused_with_the_cure(monkeypatch):
    def here(seed):
        return math.nan

    monkeypatch.setattr(here, "__module__", "__main__")
    with pytest.raises(ValueError, match=r"here is defined in this notebook.*Put it into a module"):
        run_many(here, [{"seed": 0}])


def test_nothing_to_do_is_done():
    assert run_many(where, []) == []
