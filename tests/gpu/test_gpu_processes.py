"""Processes that compute on GPUs and talk over NCCL. Without a GPU, each test is skipped and says so."""

import pytest
import torch
import torch.distributed as dist

from tinytrain.data import RowBatches, TokenRows
from tinytrain.device import best_device
from tinytrain.distributed import launch, shard
from tinytrain.model import GPT, PRESETS
from tinytrain.train import TrainConfig, Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two CUDA devices")


def train(rank, sharded=False, precision="fp32", folder=None, resume=False, stop_at=None):
    """The losses of a short run, and over what the processes talk."""
    torch.manual_seed(0)
    model = GPT(PRESETS["nano"]).to(best_device())
    if sharded:
        shard(model, precision=precision)
    rows = TokenRows(torch.randint(0, 256, (2000,), generator=torch.Generator().manual_seed(0)), 16, vocab_size=256)
    data = RowBatches(rows=rows, batch_size=8, micro_batch_size=3)
    config = TrainConfig(
        total_steps=12, max_lr=1e-3, precision=precision, out=folder, checkpoint_every=5 if folder else None
    )
    losses = []

    def look(record):
        losses.append(record["loss"])
        return record["batch"] != stop_at

    trainer = Trainer(model, data, config, [look])
    if resume:
        trainer.resume()
    trainer.fit()
    return losses, dist.get_backend() if dist.is_initialized() else None


def test_a_group_of_one_gpu_trains_as_no_group_does():
    (losses, backend), (wanted, _) = launch(train, 1)[0], train(0)
    assert backend == "nccl"
    assert losses == pytest.approx(wanted, rel=1e-5)


@TWO_GPUS
@pytest.mark.parametrize("sharded", [False, True])
def test_two_gpus_train_as_one_does(sharded):
    losses, _ = launch(train, 2, sharded)[0]
    assert losses == pytest.approx(train(0)[0], rel=1e-4)


@TWO_GPUS
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_two_gpus_train_in_half_precision(precision):
    losses, _ = launch(train, 2, True, precision)[0]
    assert losses[-1] < losses[0]


@TWO_GPUS
def test_a_run_of_two_gpus_goes_on_on_one(tmp_path):
    launch(train, 2, True, "fp32", str(tmp_path), False, 7)
    rest, _ = train(0, folder=str(tmp_path), resume=True)
    assert rest == pytest.approx(train(0)[0][7:], rel=1e-4)
