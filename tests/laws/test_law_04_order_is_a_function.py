"""Law 4. The order of rows is a pure function of (seed, epoch, position).

No generator moves from batch to batch, so nothing has to be restored when a run is resumed: batch 1,000 can be asked
for first, in another process, on another day, and is the same. Nor does the order depend on how a batch is cut up.
"""

import subprocess
import sys

import pytest
import torch

from tinytrain.batches import bucket
from tinytrain.data import RowBatches, TokenRows, row_order

PROBE = """
import torch
from tinytrain.batches import bucket
from tinytrain.data import row_order
torch.manual_seed({seed}); torch.rand({draws})
print(row_order(50, seed=3, epoch=7).tolist(), bucket(list(range(1, 40)), 4, seed=3, epoch=7))
"""


def batches(micro_batch_size=None):
    rows = TokenRows(torch.arange(2000) % 256, 16, vocab_size=256)
    return RowBatches(rows=rows, batch_size=8, micro_batch_size=micro_batch_size, seed=3)


def test_another_process_with_another_history_gets_the_same_order():
    here = f"{row_order(50, seed=3, epoch=7).tolist()} {bucket(list(range(1, 40)), 4, seed=3, epoch=7)}"
    for seed, draws in ((1, 0), (2, 1000)):
        code = PROBE.format(seed=seed, draws=draws)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == here


def test_a_batch_in_the_middle_can_be_asked_for_first():
    in_order = [batches().rows_of(n) for n in range(40)]
    assert batches().rows_of(33) == in_order[33]
    one = batches()
    assert [one.rows_of(n) for n in reversed(range(40))] == in_order[::-1]


def test_stopping_after_any_batch_loses_and_repeats_nothing():
    data = batches()
    per_epoch = data.batches_per_epoch
    for stop in (0, 5, per_epoch - 1, per_epoch, per_epoch + 3):
        before = [row for n in range(stop) for row in data.rows_of(n)]
        after = [row for n in range(stop, 2 * per_epoch) for row in batches().rows_of(n)]
        assert sorted(before + after) == sorted(list(range(len(data.rows))) * 2)


@pytest.mark.parametrize("micro_batch_size", [1, 3, 8])
def test_how_a_batch_is_cut_does_not_change_which_rows_it_holds(micro_batch_size):
    whole = torch.cat([part["input_ids"] for part in batches()[9]])
    cut = torch.cat([part["input_ids"] for part in batches(micro_batch_size)[9]])
    assert torch.equal(whole, cut)


def test_epochs_differ_and_seeds_do_not_share_them():
    orders = {(s, e): tuple(row_order(50, seed=s, epoch=e).tolist()) for s in range(4) for e in range(4)}
    assert len(set(orders.values())) == 16


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_any_number_of_processes_does_the_same_global_batches(processes):
    data = batches(micro_batch_size=3)
    for n in range(40):
        shares = [data.share(n, rank=rank, processes=processes) for rank in range(processes)]
        assert len({len(share) for share in shares}) == 1
        together = torch.cat([part["input_ids"][(part["labels"] >= 0).any(1)] for share in shares for part in share])
        whole = torch.cat([part["input_ids"] for part in data[n]])
        assert sorted(together.tolist()) == sorted(whole.tolist())
