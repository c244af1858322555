"""Starting processes: who they are, what comes back, what is refused, and nothing is left behind."""

import functools
import os
import pickle
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from launched import sum_over_all, workers

from tinytrain.distributed import LaunchError, in_group, launch, rank, under_torchrun, world_size


def surroundings(rank):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TINYTRAIN_TEST")
    numbers = {name: os.environ.get(name) for name in names}
    return numbers | {"cwd": os.getcwd(), "threads": torch.get_num_threads(), "backend": dist.get_backend()}


def fill(rank, tensor):
    tensor.fill_(rank + 1)
    return tensor


def test_results_come_back_in_the_order_of_ranks():
    assert launch(sum_over_all, 2, 5) == [(0, 11.0), (1, 11.0)]
    assert launch(sum_over_all, 3, 0) == [(0, 3.0), (1, 3.0), (2, 3.0)]


def test_one_process_is_a_group_as_well():
    assert launch(sum_over_all, 1, 5) == [(0, 5.0)]


def test_each_process_knows_who_it_is_and_sees_the_callers_surroundings_of_now(monkeypatch, tmp_path):
    launch(sum_over_all, 1, 0)  # from here on the fork server has an environment of its own
    monkeypatch.setenv("TINYTRAIN_TEST", "set after the fork server was started")
    monkeypatch.chdir(tmp_path)
    first, second = launch(surroundings, 2)
    assert (first["RANK"], second["RANK"], second["LOCAL_RANK"]) == ("0", "1", "1")
    assert second["WORLD_SIZE"] == second["LOCAL_WORLD_SIZE"] == "2"
    assert second["TINYTRAIN_TEST"] == "set after the fork server was started"
    assert second["cwd"] == str(tmp_path.resolve())
    assert (second["threads"], second["backend"]) == (1, "gloo")


def test_arguments_are_copies():
    mine = torch.zeros(3)
    assert [result.tolist() for result in launch(fill, 2, mine)] == [[1, 1, 1], [2, 2, 2]]
    assert mine.tolist() == [0, 0, 0]


def test_a_large_result_comes_back_whole():
    large = torch.arange(3_000_000)
    assert torch.equal(launch(functools.partial(returns, value=large), 1)[0], large)


def returns(rank, value):
    return value


class LostFile:
    """Opens, where it is put together again, a file that is not there."""

    def __reduce__(self):
        return open, ("no/such/file",)


def a_lost_file(rank):
    return LostFile()


def test_a_result_that_cannot_be_put_together_for_want_of_a_file_is_told_as_such():
    with pytest.raises(LaunchError, match="returned what cannot be read here: FileNotFoundError"):
        launch(a_lost_file, 1)


def test_a_launch_error_can_be_pickled():
    error = LaunchError(1, 2, "failed: ValueError: x", "trace")
    again = pickle.loads(pickle.dumps(error))
    assert (again.rank, again.cause, again.remote_traceback, str(again)) == (1, error.cause, "trace", str(error))


@pytest.mark.parametrize("nprocs", [0, -1, 2.0, True, "2"])
def test_a_number_of_processes_that_is_none_is_refused(nprocs):
    with pytest.raises(ValueError, match="nprocs="):
        launch(sum_over_all, nprocs, 0)


def test_a_function_that_cannot_be_found_again_is_refused():
    with pytest.raises(ValueError, match="must stand at the top level of a module"):
        launch(lambda rank: rank, 2)

    def inner(rank):
        return rank

    with pytest.raises(ValueError, match=r"inner.*must stand at the top level of a module"):
        launch(inner, 2)


def test_what_a_session_defines_is_refused_by_name():
    code = (
        "from tinytrain.distributed import launch\n"
        "def work(rank, settings): return rank\n"
        "class Settings: pass\n"
        "for fn, args in ((work, ()), (print, (Settings(),))):\n"
        "    try: launch(fn, 2, *args)\n"
        "    except ValueError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120).stdout.splitlines()
    assert said[0].startswith("work is defined in this notebook or session") and "%%writefile" in said[0]
    assert said[1].startswith("Settings is defined in this notebook or session")


def test_a_program_that_is_no_file_is_told_so():
    code = (
        "from tinytrain.distributed import launch\n"
        "from tinytrain.device import best_device\n"
        "try: launch(best_device, 2)\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, timeout=120)
    assert "the running program is no file (<stdin>)" in done.stdout, done


def nothing(rank):
    return rank


def test_processes_that_exchange_nothing_do_not_miss_each_other():
    for _ in range(3):
        assert launch(nothing, 5) == [0, 1, 2, 3, 4]


def test_a_script_may_launch_what_it_defines(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from tinytrain.distributed import launch, world_size\n"
        "def work(rank): return rank, world_size()\n"
        "if __name__ == '__main__': print(launch(work, 2))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[(0, 2), (1, 2)]\n", "")


def test_outside_a_group_there_is_one_process():
    assert (rank(), world_size(), in_group(), under_torchrun()) == (0, 1, False, False)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "5"])
def test_a_timeout_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match="timeout_s="):
        launch(sum_over_all, 2, 0, timeout_s=seconds)


def leftovers():
    own = psutil.Process()
    return own.num_fds() if hasattr(own, "num_fds") else own.num_handles(), len(workers()), threading.active_count()


def many_launches(n):
    launch(sum_over_all, 2, 0)
    before, seconds = leftovers(), []
    for number in range(n):
        start = time.monotonic()
        assert launch(sum_over_all, 2, number) == [(0, 2 * number + 1.0), (1, 2 * number + 1.0)]
        seconds.append(time.monotonic() - start)
    assert leftovers() == before
    return sorted(seconds)[n // 2]


def test_launches_in_a_row_leave_nothing_behind():
    many_launches(5)


@pytest.mark.soak
def test_a_hundred_launches_in_a_row_leave_nothing_behind(capsys):
    median = many_launches(100)
    with capsys.disabled():
        print(f"\nmedian of 100 launches of two processes: {median:.2f} s")


def test_under_torchrun_the_same_script_runs_in_the_processes_that_are_there(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch.distributed as dist\n"
        "from tinytrain.distributed import launch, under_torchrun\n"
        "def work(rank, number): return rank, dist.get_world_size(), number, under_torchrun()\n"
        "if __name__ == '__main__': print(launch(work, 5, 7), flush=True)\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    wanted = "[(0, 2, 7, True), (1, 2, 7, True)]"
    assert done.stdout.count(wanted) == 2, done.stderr[-2000:]  # their line ends may come in any order
