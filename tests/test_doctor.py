"""What the doctor names: runs made sick on purpose, and healthy ones."""

import pytest
import torch

import tinytrain.course.sick_parts as parts
from tinytrain.config import TrainConfig
from tinytrain.course.sick import HEALTHY, SICK, make
from tinytrain.runlog import read_run
from tinytrain.watch.doctor import diagnose

BY_THE_CLOCK = {"slow: waiting for data", "slow: exchange", "throughput falls", "memory grows"}
"""findings that another program on the machine can bring about; a run that draws one is made again, twice at most"""


@pytest.fixture(scope="module")
def run_called(tmp_path_factory):
    """Trains a run of the two lists, once for all tests."""
    made = {}

    def run_called(name, attempt=0):
        if (name, attempt) not in made:
            made[name, attempt] = make(name, tmp_path_factory.mktemp("run") / "out")
        return made[name, attempt]

    return run_called


def findings_of(run_called, name, wanted):
    for attempt in range(3):
        found = diagnose(run_called(name, attempt)).names()
        if found[:1] == wanted or not {*found, *wanted} & BY_THE_CLOCK:
            break
    return found


@pytest.mark.parametrize("name", SICK)
def test_the_table_each_injected_fault_is_named_first(name, run_called):
    wanted = [SICK[name].finding] if SICK[name].finding else []
    found = findings_of(run_called, name, wanted)
    print(f"| {name} | {SICK[name].done} | {', '.join(found) or '-'} |")
    assert found[:1] == wanted


@pytest.mark.parametrize("name", HEALTHY)
def test_the_table_healthy_runs_draw_nothing(name, run_called):
    found = findings_of(run_called, name, [])
    print(f"| {name} | healthy | {', '.join(found) or '-'} |")
    assert found == []


def test_there_are_at_least_twelve_healthy_runs():
    assert len(HEALTHY) >= 12


@pytest.mark.parametrize("name", [name for name, sick in SICK.items() if sick.beside])
def test_what_a_log_alone_cannot_show_is_seen_beside_a_healthy_run(name, run_called, tmp_path):
    found = diagnose(run_called(name), beside=run_called("small"))
    assert found.names()[:1] == [SICK[name].beside]
    other_seed = make("small", tmp_path / "out", seed=1)
    assert diagnose(run_called("small"), beside=other_seed).names() == []
    assert diagnose(other_seed, beside=run_called("small")).names() == []


UNSEEN = ["mask lets see", "mask inverted", "labels not shifted", "labels shuffled", "embedding init", "much decay"]


@pytest.mark.parametrize("name", UNSEEN)
def test_a_cause_that_no_log_can_show_is_sent_on_to_preflight(name, run_called):
    first = diagnose(run_called(name), beside=run_called("small"))[0]
    assert any("preflight" in check for check in first.checks)


def test_the_place_is_that_of_the_fault(run_called):
    def since(name):
        return diagnose(run_called(name))[0].since

    assert abs(since("bad batch") - 121) <= 2 and since("all labels ignored") == 41 and since("NaN in the data") == 91
    assert since("some batches without labels") == 81 and since("lr stays 0") == 1
    assert 95 <= since("lr jumps") <= 105 and since("embedding init") == 1


def test_a_resumed_run_and_its_folder(run_called):
    run = run_called("resumed")
    assert diagnose(run.folder).names() == diagnose(run).names() == diagnose(read_run(run.folder).records).names() == []


def test_a_config_shows_what_a_rate_alone_can_only_be_guessed_from(run_called):
    config = TrainConfig(total_steps=parts.STEPS, max_lr=parts.LR, warmup_steps=parts.WARMUP_STEPS)
    told = diagnose(run_called("schedule per micro-batch"), config=config)[0]
    assert told.name == "lr off its plan" and told.cause == "the schedule is moved on 4 times in each update"
    assert diagnose(run_called("small"), config=config).names() == []


def test_making_a_sick_run_leaves_the_generators_and_the_threads_alone(tmp_path):
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    make("clipped to nothing", tmp_path, seed=1)
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads
