"""What the processes of notebook 09 do is what the notebook says of it."""

import os
import subprocess
import sys
import time

import pytest
import torch

from tinytrain.course.accidents_09 import read_and_wrap, save_and_read, train_until
from tinytrain.course.costs_09 import Times, accumulate, bytes_sent, memory, ring_beside_torch, stay_silent
from tinytrain.course.lesson_09 import (
    average_at_once,
    average_gradients,
    batches,
    fresh,
    gradients_of,
    meet,
    spawned,
    step_of,
    train,
)
from tinytrain.course.machines_09 import NAMES, first_line, fit, join_as, join_without, tell, torchrun
from tinytrain.course.trained_09 import apart, train_with, weights_of_one
from tinytrain.distributed import LaunchError, launch


def on_cpu(function, *arguments, processes=2, **settings):
    return launch(function, processes, *arguments, device="cpu", **settings)


def test_all_processes_meet_and_have_the_sums():
    assert [(met["rank"], met["of"], met["now has"]) for met in on_cpu(meet, processes=3)] == [
        (rank, 3, [6.0, 60.0]) for rank in range(3)
    ]


def test_replicas_stay_alike_only_if_gradients_are_averaged():
    (first, second), alone = on_cpu(train, ["none", "by hand", "DDP", "DDP, float64"], 3), train(0, ["none"], 3)
    assert [max(first[way]["apart"]) == 0 for way in ("none", "by hand", "DDP")] == [False, True, True]
    wanted = alone["none"]["first gradient"]
    for way in ("by hand", "DDP"):
        assert apart(first[way]["first gradient"], wanted) < 1e-6
        mean = [(a + b) / 2 for a, b in zip(first[way]["losses"], second[way]["losses"], strict=True)]
        assert mean == pytest.approx(alone["none"]["losses"], rel=1e-5)
    assert apart(first["none"]["first gradient"], wanted) > 0.01
    assert first["DDP, float64"]["weights"].dtype == torch.float64


def test_the_divisor_decides_whether_unequal_shares_are_one_batch():
    (whole,) = batches(4)[0]
    whole = whole | {"labels": whole["labels"].clone()}
    whole["labels"][:2, 5:] = -100
    shares = [{name: value[rows] for name, value in whole.items()} for rows in (slice(2), slice(2, 4))]
    cases = {divide: (shares, divide) for divide in ("own targets", "all targets", "all / processes")}
    found, wanted = on_cpu(gradients_of, cases)[1], gradients_of(0, {"": ([whole], "own targets")})[""]
    assert apart(found["all / processes"], wanted) < 1e-6
    assert apart(2 * found["all targets"], wanted) < 1e-6
    assert apart(found["own targets"], wanted) > 0.05


@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_the_ring_adds_up_and_counts_what_it_sends(processes):
    for result in on_cpu(ring_beside_torch, 15 * 4, processes=processes):
        assert result["sent"] == pytest.approx(2 * (processes - 1) / processes)
        assert result["off by"] < 1e-6


def test_exchanging_with_the_last_micro_batch_only_gives_the_same_gradient_for_fewer_bytes():
    for found in on_cpu(accumulate, 4, 2):
        each, last = found["with each"], found["with the last"]
        assert apart(last["gradient"], each["gradient"]) < 1e-6
        assert each["bytes"] == 4 * last["bytes"] and len(last["seconds"]) == 2


def test_no_sync_is_decided_in_the_forward_pass():
    assert on_cpu(stay_silent) == [
        {"both inside": 1.0, "only backward": 2.0},
        {"both inside": 3.0, "only backward": 2.0},
    ]


def test_ddp_sends_buckets_while_backward_runs():
    found = on_cpu(step_of, 3)[0]
    assert len(found["ready when sent"]) < found["weights"] == found["ready when sent"][-1]
    assert found["ready when sent"][0] < found["weights"]
    assert [len(seconds) for seconds in found["seconds"].values()] == [3, 3, 3]


def averaged(rank):
    """The same gradients averaged in many messages and in one."""
    results = []
    for average in (average_gradients, average_at_once):
        model = Times()
        model.v = torch.nn.Parameter(torch.ones(2, 3))
        (model(torch.tensor(rank + 1.0)) + (rank * model.v).sum()).backward()
        average(model)
        results.append((model.w.grad.item(), model.v.grad.tolist()))
    return results


def test_one_message_averages_as_many_do():
    assert on_cpu(averaged) == [[(1.5, [[0.5] * 3] * 2)] * 2] * 2


def test_copies_save_no_memory_and_shares_do():
    ways = ["DDP", "DDP, views", "fully_shard"]
    alone, (ddp, views, shared) = memory(0, ["alone"])["alone"], on_cpu(memory, ways)[0].values()
    assert alone["moments"] == 2 * alone["weights"] == 2 * alone["gradients"] and alone["buckets"] == 0
    assert views == alone
    assert ddp == alone | {"buckets": alone["gradients"]}
    assert sum(shared.values()) == pytest.approx(sum(alone.values()) / 2, rel=0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes of each connection")
def test_asking_for_the_bytes_leaves_no_file_open(tmp_path):
    with (tmp_path / "a file").open("w"):
        before = len(os.listdir("/proc/self/fd"))
        bytes_sent()
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes of each connection")
def test_torch_sends_as_many_bytes_as_the_ring():
    for processes in (2, 4):
        for result in on_cpu(ring_beside_torch, 400_000, processes=processes):
            assert result["by torch"] == pytest.approx(result["sent"], rel=0.02)


def test_a_file_is_whole_if_all_wait(tmp_path):
    for way in ("both write, all wait", "0 writes, all wait"):
        assert on_cpu(save_and_read, str(tmp_path), way, 10) == [0, 0]
    assert min(on_cpu(save_and_read, str(tmp_path), "0 writes, nobody waits", 10)) > 0


def test_weights_that_are_read_after_wrapping_stay_in_process_0(tmp_path):
    from tinytrain.model import GPT, PRESETS

    torch.save(GPT(PRESETS["nano"]).state_dict(), tmp_path / "weights.pt")
    ways = ["all read", "0 before DDP", "0 after DDP"]
    for found in on_cpu(read_and_wrap, str(tmp_path / "weights.pt"), ways):
        assert [found[way] == 0 for way in ways] == [True, True, False]


@pytest.mark.parametrize(
    ("accident", "told"),
    [
        ("process 1 is killed", "SIGKILL"),
        ("process 0 has no batch left", "onnection"),
        ("process 0 is busy", "imed out"),
    ],
)
def test_an_accident_is_told(accident, told):
    with pytest.raises(LaunchError, match=f"process 1 of 2 .*{told}"):
        on_cpu(train_until, accident, timeout_s=1)


def test_two_processes_of_one_number_wait_in_vain(tmp_path):
    assert on_cpu(join_as, [0, 1], str(tmp_path / "right"), 5.0) == ["2 processes added up"] * 2
    assert all("timeout" in said for said in on_cpu(join_as, [0, 0], str(tmp_path / "wrong"), 1.0))


def test_each_of_four_variables_is_missed():
    ((*without, all_set),) = on_cpu(join_without, [*NAMES, None], processes=1)
    assert [name in said for name, said in zip(NAMES, without, strict=True)] == [True] * 4
    assert all_set == ""


def test_a_fresh_process_says_what_went_wrong():
    assert spawned(os.getpid) == (True, "")
    ran, said = spawned(os.listdir, "there is no such folder")
    assert not ran and said.startswith("FileNotFoundError")


def test_one_run_in_one_process_or_two_stopped_and_resumed(tmp_path):
    whole, folder = fit(0, 7)["losses"], str(tmp_path)
    begun = fit(0, 7, folder, 4)
    rest = on_cpu(fit, 7, folder)[0]
    assert (begun["steps"], begun["stopped by"], rest["stopped by"]) == (4, "callback", None)
    assert begun["losses"] + rest["losses"] == pytest.approx(whole, rel=1e-6)


def test_each_process_tells_its_rows_and_process_0_the_losses():
    first, second = on_cpu(tell, 2)
    assert sorted(first["rows by RANK"] + second["rows by RANK"]) == list(range(64))
    assert first["rows by LOCAL_RANK"] == first["rows by RANK"]  # launch: one machine
    assert len(first["losses"]) == 2 and on_cpu(tell, 0)[0]["losses"] == []


def test_the_first_line_is_read_and_what_goes_on_is_ended():
    def python(code):
        return subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True)

    start = time.monotonic()
    assert first_line([python("print('a line', flush=True)"), python("import time; time.sleep(600)")]) == "a line\n"
    assert time.monotonic() - start < 60
    with pytest.raises(RuntimeError, match=r"printed nothing.*a reason"):
        first_line([python("import sys; sys.exit('a reason')")])


def test_exchanging_in_the_right_places_trains_as_one_process_does():
    ids = [torch.randint(0, 11, (n, 6)) for n in (6, 5)]
    plans = [[(i + 1) % 4 == 0 or i + 1 == len(own) for i in range(len(own))] for own in ids]
    for found in on_cpu(train_with, plans, 4, ids):
        assert max(apart(a, b) for a, b in zip(found, weights_of_one([6, 5], 4, ids), strict=True)) < 1e-9


def test_small_steps_are_smaller():
    runs = train(0, ["none", "none, lr / 3"], 1)
    assert torch.equal(runs["none"]["first gradient"], runs["none, lr / 3"]["first gradient"])
    start = torch.cat([p.detach().flatten() for p in fresh().parameters()])
    usual, small = ((run["weights"] - start).norm() for run in runs.values())
    assert usual > 2 * small > 0


def test_torchrun_runs_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(os.environ['RANK'], os.environ['UPDATES'], flush=True)\nos._exit(0)\n")
    assert first_line([torchrun(script, "--standalone", "--nproc-per-node", "1", updates=3)]) == "0 3\n"
