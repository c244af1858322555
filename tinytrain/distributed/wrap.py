"""One model in all processes: a copy in each (DistributedDataParallel), or a share of each weight (fully_shard).

Both average the gradients of the processes. The training step multiplies its loss by the number of processes, so that
the average is the sum over the target tokens of all of them.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from tinytrain.device import device_of
from tinytrain.distributed.group import check_device, world_size
from tinytrain.precision import DTYPES
from tinytrain.recompute import blocks_of, recompute_activations
from tinytrain.weights import uncompiled


def replicate(model: nn.Module, *, find_unused_parameters: bool = False) -> DistributedDataParallel:
    """A copy of ``model`` in every process, kept alike: gradients are averaged, weights start as those of process 0.

    ``find_unused_parameters=True`` is for a model in which some trainable parameters take no part in some batches; it
    costs a walk through the graph at every step.

    Raises ``RuntimeError`` outside a process group, ``ValueError`` for a model that is not where the processes talk.
    """
    if not dist.is_initialized():
        raise RuntimeError("replicate needs a process group: call it in a function that launch or torchrun started")
    check_device(device_of(model))
    on_gpu = device_of(model).type == "cuda"
    copy = DistributedDataParallel(
        model,
        device_ids=[torch.cuda.current_device()] if on_gpu else None,
        find_unused_parameters=find_unused_parameters,
        gradient_as_bucket_view=True,  # gradients lie in the memory they are sent from: one copy less
    )
    if not on_gpu:  # on a GPU the exchange runs beside the host, whose clock does not see it
        copy.exchange = Exchange()
        copy.register_comm_hook(None, copy.exchange.average)
    return copy


def shard(model: nn.Module, *, precision: str = "fp32", recompute: bool = False) -> nn.Module:
    """Share out each weight of ``model`` over the processes, block by block (``fully_shard``); returns the model.

    Weights, gradients and moments then take one part in ``world_size``; a block's weights are put together when it
    runs. ``precision`` is the width of the numbers that it computes with, ``"fp32"``, ``"bf16"`` or ``"fp16"`` (give
    ``TrainConfig.precision="fp16"`` as well, for the loss scale); the shares and the sums of gradients stay float32.
    ``recompute`` keeps only the inputs of each block for the backward pass (``recompute_activations``).

    The blocks are those of the largest ``nn.ModuleList``. Build the optimizer afterwards. Raises ``RuntimeError``
    outside a process group, ``ValueError`` for a model without blocks, or not where the processes talk.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if not dist.is_initialized():
        raise RuntimeError("shard needs a process group: call it in a function that launch or torchrun started")
    check_device(device_of(model))
    _same_weights(model)
    if recompute:
        recompute_activations(model)
    kind = DTYPES[precision]
    policy = MixedPrecisionPolicy(param_dtype=None if kind is torch.float32 else kind, reduce_dtype=torch.float32)
    for block in blocks_of(model):
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy, reshard_after_forward=True)  # between steps only shares lie in memory
    return model


def _same_weights(model: nn.Module) -> None:
    """Every process starts with the weights and buffers of process 0, as DistributedDataParallel sees to itself."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor, src=0)


class Exchange:
    """How long the last exchange of gradients went on after the last gradient was computed."""

    last_sent = seconds = 0.0

    def average(self, _state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What DistributedDataParallel does with a bucket of gradients by itself, and a look at the clock."""
        self.last_sent = time.perf_counter()
        return default_hooks.allreduce_hook(dist.group.WORLD, bucket)


def exchange_seconds(model: nn.Module) -> dict[str, float]:
    """``{"seconds_communication": …}`` of the last step, where it can be told: copies of a model on CPUs."""
    exchange = getattr(_copy_of(model), "exchange", None)
    return {"seconds_communication": exchange.seconds} if isinstance(exchange, Exchange) else {}


def is_sharded(model: nn.Module) -> bool:
    """True for a model that ``shard`` or ``fully_shard`` has shared out."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # not imported: then nothing was sharded
    return fsdp is not None and isinstance(uncompiled(model), fsdp.FSDPModule)


def _copy_of(model: nn.Module) -> DistributedDataParallel | None:
    inner = uncompiled(model)
    return inner if isinstance(inner, DistributedDataParallel) else None


def sharers(model: nn.Module) -> int:
    """How many processes train this model together: 1 if it is not wrapped, even inside a process group."""
    if (copy := _copy_of(model)) is not None:
        return dist.get_world_size(copy.process_group)
    return world_size() if is_sharded(model) else 1


@contextmanager
def synchronising(model: nn.Module, now: bool) -> Iterator[None]:
    """Forward and backward inside exchange gradients between processes only if ``now``.

    The forward pass must be inside as well: what backward does is settled there.
    """
    if (copy := _copy_of(model)) is not None and not now:
        with copy.no_sync():
            yield
        return
    if is_sharded(model):
        uncompiled(model).set_requires_gradient_sync(now)
    yield


def same_buffers(model: nn.Module) -> None:
    """Give every process the buffers of process 0, such as a running mean, which each has of its own batches."""
    with torch.no_grad():
        for buffer in uncompiled(model).buffers():
            dist.broadcast(buffer, src=0)


def after_backward(model: nn.Module) -> None:
    """Look at what the last backward pass of a copied model did.

    Raises ``RuntimeError`` that names the weights which it did not reach: their part of the gradient was never sent,
    and neither was that of the weights sent along with them.
    """
    copy = _copy_of(model)
    if copy is None:
        return
    if isinstance(exchange := getattr(copy, "exchange", None), Exchange):
        exchange.seconds = time.perf_counter() - exchange.last_sent
    if copy.find_unused_parameters:
        return
    idle = [name for name, p in copy.module.named_parameters() if p.requires_grad and p.grad is None]
    if idle:
        raise RuntimeError(
            f"{len(idle)} trainable weights took no part in this step: {', '.join(idle[:8])}"
            f"{', …' if len(idle) > 8 else ''}. Their gradients are not exchanged, and the copies would drift apart. "
            f"Freeze them (requires_grad_(False)), or say replicate(model, find_unused_parameters=True)"
        )


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that is shared out over processes as one in each; others as they are."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
