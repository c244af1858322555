"""Processes that fail, hang, or are interrupted: it is told within seconds, and nothing is left behind."""

import functools
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from launched import sum_over_all, wait_for_ever, workers

from tinytrain.distributed import LaunchError, launch

SECONDS = 15
"""within which the caller is told of a failure on a busy machine; nothing here ends by itself before that"""


def unlucky(rank, how):
    """Process 1 fails; process 0 waits for it."""
    if rank == 1:
        how()
    dist.barrier()


def raise_value_error():
    raise ValueError("the number 7 is odd")


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt_myself():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)


def run_out_of_memory():
    raise torch.OutOfMemoryError("asked for too much")


def leave_early(rank):
    if rank == 0:
        dist.barrier()


def hang_in_process_1(rank):
    if rank == 1:
        time.sleep(1000)
    dist.barrier()


def start_a_child_and_fail(rank, folder):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    Path(folder, str(rank)).write_text(str(child.pid))
    dist.barrier()
    raise_value_error()


def something_unpicklable(rank):
    return lambda: rank


def launch_again(rank):
    return launch(sum_over_all, 2, 0)


class OddError(Exception):
    """Cannot be put together from its text alone."""

    def __init__(self, number, text):
        super().__init__(text)


def raise_odd_error(rank):
    raise OddError(3, "odd")


@pytest.fixture
def told_in_time(tmp_path_factory, monkeypatch):
    """The test took seconds, and left no process and no folder."""
    launch(sum_over_all, 1, 0)  # the fork server is there
    folder, start = tmp_path_factory.mktemp("temporary"), time.monotonic()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert time.monotonic() - start < SECONDS
    assert workers() == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (raise_value_error, "failed: ValueError: the number 7 is odd"),
        (functools.partial(os._exit, 3), "ended with exit code 3 before it returned"),
        (functools.partial(sys.exit, 4), "failed: SystemExit: 4"),
        (kill_myself, "was killed by signal 9 (SIGKILL); the system does this when memory runs out"),
        (interrupt_myself, "failed: KeyboardInterrupt"),
        (run_out_of_memory, "failed: OutOfMemoryError: asked for too much"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_first_failure_stops_all_and_is_told(how, told, told_in_time):
    with pytest.raises(LaunchError) as caught:
        launch(unlucky, 2, how)
    assert (caught.value.rank, caught.value.cause) == (1, told)
    assert str(caught.value).startswith(f"process 1 of 2 {told}. All processes were stopped")


def test_the_traceback_shows_where_it_happened_and_not_our_own_lines(told_in_time):
    with pytest.raises(LaunchError) as caught:
        launch(unlucky, 2, raise_value_error)
    trace = caught.value.remote_traceback
    assert "in raise_value_error" in trace and trace.rstrip().endswith("ValueError: the number 7 is odd")
    assert "worker.py" not in trace
    assert trace.rstrip() in str(caught.value)


def test_an_error_that_cannot_be_pickled_is_told_as_text(told_in_time):
    with pytest.raises(LaunchError, match=r"process \d of 2 failed: OddError: odd"):
        launch(raise_odd_error, 2)


def test_a_process_that_leaves_early_does_not_leave_the_others_waiting(told_in_time):
    with pytest.raises(LaunchError, match="process 0 of 2 failed: RuntimeError"):
        launch(leave_early, 2)


def test_a_process_that_hangs_is_found_out_by_the_timeout(told_in_time):
    with pytest.raises(LaunchError, match=r"process 0 of 2 failed: RuntimeError.*[Tt]imed out"):
        launch(hang_in_process_1, 2, timeout_s=1)


def test_what_a_process_started_ends_with_it(tmp_path, told_in_time):
    with pytest.raises(LaunchError, match="ValueError"):
        launch(start_a_child_and_fail, 2, str(tmp_path))
    children = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(children) == 2
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in children))


def test_a_result_that_cannot_be_sent_back_is_named(told_in_time):
    with pytest.raises(LaunchError, match="TypeError: its result, a function, cannot be sent back"):
        launch(something_unpicklable, 2)


def test_a_launch_inside_a_group_is_refused(told_in_time):
    with pytest.raises(LaunchError, match="launch was called inside a process group"):
        launch(launch_again, 2)


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_when_the_caller_is_killed_its_processes_end(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time, pathlib\n"
        "from tinytrain.distributed import launch\n"
        "def work(rank, folder):\n"
        "    pathlib.Path(folder, str(rank)).write_text(str(os.getpid()))\n"
        "    time.sleep(1000)\n"
        "if __name__ == '__main__': launch(work, 2, sys.argv[1])\n"
    )
    pids = tmp_path / "pids"
    pids.mkdir()
    caller = subprocess.Popen([sys.executable, str(script), str(pids)])
    wait_until(lambda: len([p for p in pids.iterdir() if p.read_text()]) == 2, seconds=60)
    started = [int(path.read_text()) for path in pids.iterdir()]
    caller.kill()
    caller.wait()
    wait_until(lambda: not any(alive(pid) for pid in started))


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_an_interrupt_ends_processes_that_do_not_end_by_themselves(told_in_time):
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        launch(wait_for_ever, 2)


TWO_INTERRUPTS = """
import os, signal, sys, tempfile, threading, time
from launched import sum_over_all, wait_for_ever, workers
from tinytrain.distributed import launch

def interrupted_twice(moment):
    came = []
    def interrupt():
        came.append(1)
        os.kill(os.getpid(), signal.SIGINT)
    try:
        for later in (moment, moment + 0.01):
            threading.Timer(later, interrupt).start()
        launch(wait_for_ever, 2)
    except KeyboardInterrupt:
        pass  # as it should: what is looked at is what launch leaves
    for _ in range(3):
        try:
            time.sleep(0.2)
        except KeyboardInterrupt:
            pass  # one that came only after launch had ended; both are counted as they come
    return len(came)

if __name__ == "__main__":
    launch(sum_over_all, 1, 0)
    tempfile.tempdir = sys.argv[1]
    for moment in (0.005, 0.01, 0.02, 0.04, 0.08, 0.16):
        print(interrupted_twice(moment), len(workers()), os.listdir(sys.argv[1]), flush=True)
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_two_interrupts_while_the_processes_start_leave_none_of_them(tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / "temporary"
    script.write_text(TWO_INTERRUPTS)
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines() == ["2 0 []"] * 6 + ["True"], done.stderr[-2000:]


def die_and_leave_a_child(rank):
    if rank == 1:
        if os.fork() == 0:
            time.sleep(1000)  # holds all that the process has open
        kill_myself()
    dist.barrier()


def fork_and_return_in_both(rank):
    return "the child" if os.fork() == 0 else "the process"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_death_is_noticed_though_a_child_holds_its_pipe(told_in_time):
    with pytest.raises(LaunchError, match="process 1 of 2 was killed by signal 9"):
        launch(die_and_leave_a_child, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_comes_out_of_the_function_does_not_report(told_in_time):
    assert launch(fork_and_return_in_both, 2) == ["the process"] * 2


SLOW_MODULE = """
import os, time
if os.environ.get("RANK") == "1":
    time.sleep(3)
def work(rank): return rank
"""


def test_a_process_that_takes_long_to_start_is_waited_for_whatever_the_timeout(tmp_path, monkeypatch, told_in_time):
    (tmp_path / "slow_to_import.py").write_text(SLOW_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    work = importlib.import_module("slow_to_import").work
    assert launch(work, 2, timeout_s=1) == [0, 1]


class EndsTheCaller:
    def __reduce__(self):
        return sys.exit, (5,)


class MuteError(Exception):
    def __str__(self):
        raise TypeError("no words")


def odd(rank, how):
    if how == "leaves the group":
        dist.destroy_process_group()
    elif how == "closes its output":
        sys.stdout.close()
    elif how == "loses its output":
        sys.stdout = None
    elif how == "returns an end":
        return EndsTheCaller()
    elif how == "fails without words":
        raise MuteError
    elif how == "fails with too many":
        raise ValueError("x" * 10_000_000 + " at the end")
    return how


@pytest.mark.parametrize("how", ["leaves the group", "closes its output", "loses its output"])
def test_a_result_comes_back_whatever_the_function_did_to_its_process(how, told_in_time):
    assert launch(odd, 2, how) == [how] * 2


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("returns an end", r"returned what cannot be read here: SystemExit: 5"),
        ("fails without words", r"failed: MuteError: its message cannot be read"),
        ("fails with too many", r"failed: ValueError: xxx.* … xxx.* at the end\. All"),
    ],
)
def test_odd_results_and_errors_are_told(how, told, told_in_time):
    with pytest.raises(LaunchError, match=told) as caught:
        launch(odd, 2, how)
    assert len(str(caught.value)) < 30_000


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_an_interrupt_in_the_middle_of_a_failure_leaves_nothing(told_in_time):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises((KeyboardInterrupt, LaunchError)):
        launch(hang_in_process_1, 2, timeout_s=0.5)
    time.sleep(0.6)


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition, seconds=SECONDS):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass in time"
        time.sleep(0.02)
