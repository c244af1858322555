"""Group I: many processes.

The kind of fault: processes that each do something sensible and together something else. A mean of means, a gradient
that is exchanged too early, batches of which one process has more, an order that is the same in every epoch, a weight
that takes no part; and launches that hang, meet an old one's address, or leave processes behind.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext

import nbformat
import psutil
import pytest
import torch
import torch.distributed as dist
from nbclient import NotebookClient
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tinytrain.checkpoint import Checkpointer
from tinytrain.data import RowBatches, TokenRows, row_order, share_rows
from tinytrain.distributed import LaunchError, launch, replicate
from tinytrain.distributed.wrap import synchronising
from tinytrain.loss import IGNORE_INDEX
from tinytrain.model import GPT, PRESETS
from tinytrain.optimizer import build_adamw
from tinytrain.step import evaluate, train_step


class Priced(nn.Module):
    """Two tokens to choose from; predicting token 0 costs ``x`` times the weight, whatever the rest."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1.0))

    def forward(self, input_ids):
        return self.w * input_ids


def averaged_gradient(rank, scale):
    """The gradient of w*x in each process's own mean or share of the sum, as DistributedDataParallel averages it."""
    model = DistributedDataParallel(Priced())
    x = torch.tensor([[4.0], [1.0]])[:1] if rank == 0 else torch.tensor([[1.0], [1.0], [2.0]])
    total = torch.tensor(float(len(x)))
    dist.all_reduce(total)
    losses = model(x)
    divisor = {"own mean": len(x), "no factor": total, "right": total / dist.get_world_size()}[scale]
    (losses.sum() / divisor).backward()
    return model.module.w.grad.item()


def test_i01_one_divisor_over_all_processes_and_not_a_mean_of_means():
    assert launch(averaged_gradient, 2, "right") == [2.0, 2.0]
    assert launch(averaged_gradient, 2, "own mean")[0] == pytest.approx(2.666667, abs=1e-6)
    assert launch(averaged_gradient, 2, "no factor") == [1.0, 1.0]


def unequal_step(rank):
    """One update in which process 0 has 5 targets and process 1 has 23, through the real step."""
    torch.manual_seed(0)
    model = GPT(PRESETS["nano"])
    ids = torch.randint(0, 256, (2, 25), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:].clone()}
    batch["labels"][0, 5:], batch["labels"][1, 23:] = IGNORE_INDEX, IGNORE_INDEX
    if dist.is_initialized():
        wrapped, batch = replicate(model), {name: value[rank : rank + 1] for name, value in batch.items()}
    else:
        wrapped = model
    report = train_step(wrapped, [batch], build_adamw(model, lr=1e-3), lr=1e-3, max_grad_norm=1e9)
    return report.loss, report.tokens, torch.cat([p.grad.flatten() for p in model.parameters()])


def test_i01_the_training_step_over_two_processes_is_the_one_of_one():
    loss, tokens, wanted = unequal_step(0)
    for found_loss, found_tokens, found in launch(unequal_step, 2):
        assert found_tokens == tokens == 28
        assert found_loss == pytest.approx(loss, rel=1e-6)
        assert (found - wanted).norm() / wanted.norm() < 1e-6


def gradients_on_the_way(rank, where):
    """The gradient after a first micro-batch that should stay here, and after the second, which is exchanged."""
    model = replicate(Priced())
    x = torch.tensor([[1.0 + 2 * rank]])
    ours = lambda: synchronising(model, now=False)  # noqa: E731
    with ours() if where == "both inside" else nullcontext():
        loss = model(x).sum()
        with ours() if where == "backward only" else nullcontext():
            loss.backward()
    first = model.module.w.grad.item()
    with synchronising(model, now=True):
        model(x).sum().backward()
    return first, model.module.w.grad.item()


def test_i03_forward_must_be_inside_as_well():
    assert launch(gradients_on_the_way, 2, "both inside") == [(1.0, 4.0), (3.0, 4.0)]
    assert [first for first, _ in launch(gradients_on_the_way, 2, "backward only")] == [2.0, 2.0]


def exchanges_in_a_step(rank):
    """How often gradients are exchanged in a step of four micro-batches."""
    torch.manual_seed(0)
    model = GPT(PRESETS["nano"])
    wrapped, sent = replicate(model), []
    average = wrapped.exchange.average
    wrapped.exchange.average = lambda *a: sent.append(1) or average(*a)
    bare = DistributedDataParallel(model)
    bare.register_comm_hook(None, lambda state, bucket: sent.append(1) or average(state, bucket))
    rows = TokenRows(torch.randint(0, 256, (200,), generator=torch.Generator().manual_seed(0)), 16, 256)
    batches = [rows.stack([number]) for number in range(4)]
    train_step(bare, batches, build_adamw(model, lr=1e-3), lr=1e-3)
    return len(sent)


def test_i03_gradients_are_exchanged_once_for_each_update():
    assert launch(exchanges_in_a_step, 2) == [1, 1]


def more_batches_in_process_1(rank):
    model = replicate(Priced())
    for _ in range(2 + rank):
        model(torch.ones(1, 1)).sum().backward()
    if rank == 0:
        time.sleep(30)


def test_i05_one_batch_more_in_one_process_ends_in_an_error_and_not_in_waiting():
    start = time.monotonic()
    with pytest.raises(LaunchError, match=r"process 1 of 2 failed: RuntimeError.*[Tt]imed out"):
        launch(more_batches_in_process_1, 2, timeout_s=1)
    assert time.monotonic() - start < 20  # process 0 sleeps for 30 s


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
def test_i05_every_process_has_equally_many_micro_batches_and_each_row_is_done_once(processes):
    for rows in range(1, 12):
        for size in (1, 2, 5):
            shares = [
                share_rows(range(rows), rank=rank, processes=processes, micro_batch_size=size)
                for rank in range(processes)
            ]
            assert len({len(share) for share in shares}) == 1
            assert sorted(row for share in shares for part in share for row in part) == list(range(rows))
            assert all(len(part) <= size for share in shares for part in share)


def evaluate_five_rows(rank):
    torch.manual_seed(0)
    model = GPT(PRESETS["nano"])
    rows = TokenRows(torch.randint(0, 256, (81,), generator=torch.Generator().manual_seed(0)), 16, 256)
    assert len(rows) == 5
    data = RowBatches(rows=rows, batch_size=5, micro_batch_size=1, shuffle=False)
    if dist.is_initialized():
        return evaluate(replicate(model), data.share(0, rank=rank, processes=2))
    return evaluate(model, data[0])


def test_i05_no_row_counts_twice_in_an_evaluation():
    wanted = evaluate_five_rows(0)
    for found in launch(evaluate_five_rows, 2):
        assert found.tokens == wanted.tokens == 80
        assert found.loss == pytest.approx(wanted.loss, rel=1e-6)


def test_i06_each_epoch_has_an_order_of_its_own_which_all_processes_share():
    rows = TokenRows(torch.randint(0, 256, (161,), generator=torch.Generator().manual_seed(0)), 16, 256)
    data = RowBatches(rows=rows, batch_size=4)
    seen = []
    for epoch in range(2):
        numbers = range(epoch * data.batches_per_epoch, (epoch + 1) * data.batches_per_epoch)
        seen.append([row for n in numbers for row in data.rows_of(n)])
        shares = [
            share_rows(data.rows_of(n), rank=rank, processes=2, micro_batch_size=4) for n in numbers for rank in (0, 1)
        ]
        assert sorted(row for share in shares for part in share for row in part) == list(range(len(rows)))
    assert seen[0] != seen[1]
    assert seen[1] == row_order(len(rows), seed=0, epoch=1).tolist()


class WithAnIdlePart(GPT):
    def __init__(self, config):
        super().__init__(config)
        self.idle = nn.Linear(2, 2)


def idle_part(rank, find, used_by):
    torch.manual_seed(0)
    model = WithAnIdlePart(PRESETS["nano"])
    if rank in used_by:
        model.norm.register_forward_hook(lambda _m, _i, out: out + model.idle(torch.ones(2)).sum())
    wrapped, optimizer = replicate(model, find_unused_parameters=find), build_adamw(model, lr=1e-3)
    rows = TokenRows(torch.randint(0, 256, (200,), generator=torch.Generator().manual_seed(0)), 16, 256)
    for number in range(2):
        train_step(wrapped, [rows.stack([number])], optimizer, lr=1e-3)
    return None if model.idle.bias.grad is None else model.idle.bias.grad


def test_i07_a_part_that_is_never_used_is_named_at_the_first_step():
    with pytest.raises(LaunchError, match=r"took no part in this step: idle\.weight, idle\.bias\. .*Freeze them"):
        launch(idle_part, 2, False, ())


def test_i07_where_unused_parts_are_looked_for_they_stay_without_a_gradient_or_get_the_same_one():
    assert launch(idle_part, 2, True, ()) == [None, None]
    first, second = launch(idle_part, 2, True, (1,))
    assert torch.equal(first, second) and first.abs().sum() > 0


def test_i09_a_function_defined_in_a_cell_is_refused_at_once_and_one_from_a_module_runs(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # a kernel that sees it does not listen to its children
    cells = [
        "from tinytrain.distributed import launch\ndef work(rank):\n    return rank",
        "try:\n    launch(work, 2)\nexcept ValueError as error:\n    print(error)",
        "%%writefile my_worker.py\ndef work(rank):\n    print('from process', rank, flush=True)\n    return rank",
        "from my_worker import work\nlaunch(work, 2)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    refused = "".join(output["text"] for output in notebook.cells[1].outputs)
    assert refused.startswith("work is defined in this notebook") and "%%writefile my_worker.py" in refused
    outputs = notebook.cells[3].outputs
    assert [output["data"]["text/plain"] for output in outputs if "data" in output] == ["[0, 1]"]
    printed = "".join(output["text"] for output in outputs if "text" in output)
    assert "from process 0" in printed and "from process 1" in printed


def add_ranks(rank):
    values = torch.tensor([float(rank)])
    dist.all_reduce(values)
    return values.item()


def test_i11_an_occupied_port_and_an_earlier_launch_are_in_nobodys_way():
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", 29500))
        except OSError:
            pass  # taken by somebody else, which is as good
        else:
            taken.listen()
        assert launch(add_ranks, 2) == [1.0, 1.0]
        assert launch(add_ranks, 2) == [1.0, 1.0]


TRAINING = """
import sys
from test_I_processes import train_for_long
from tinytrain.distributed import launch
if __name__ == "__main__":
    print([report.stopped_by for report in launch(train_for_long, 2, sys.argv[1])])
"""


def train_for_long(rank, folder):
    from tinytrain.train import TrainConfig, Trainer

    rows = TokenRows(torch.randint(0, 256, (2000,), generator=torch.Generator().manual_seed(0)), 16, 256)
    torch.manual_seed(0)
    config = TrainConfig(total_steps=100_000, max_lr=1e-3, out=folder, checkpoint_every=10)
    return Trainer(GPT(PRESETS["nano"]), RowBatches(rows=rows, batch_size=4), config).fit()


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_i14_an_interrupt_ends_all_processes_and_the_last_checkpoint_loads(tmp_path):
    script, out = tmp_path / "script.py", tmp_path / "run"
    script.write_text(TRAINING)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    caller = subprocess.Popen(
        [sys.executable, str(script), str(out)], env=environment, stdout=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 60
    while not list(out.glob("checkpoints/step_00000020")):
        assert time.monotonic() < end and caller.poll() is None
        time.sleep(0.05)
    children = psutil.Process(caller.pid).children(recursive=True)
    caller.send_signal(signal.SIGINT)
    start = time.monotonic()
    said, _ = caller.communicate(timeout=20)
    assert time.monotonic() - start < 15
    assert said == "['interrupt', 'interrupt']\n"
    _, left = psutil.wait_procs(children, timeout=5)
    assert left == []
    checkpoint, state = Checkpointer(out / "checkpoints").load()
    assert checkpoint.step >= 20 and state["counters"]["step"] == checkpoint.step
