"""Activation checkpointing: keep less from the forward pass, and compute it again in the backward pass."""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """The list of a model's repeated blocks: the ``nn.ModuleList`` that holds the most parameters.

    Raises ``ValueError`` if the model has none.
    """
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)]
    if not lists:
        raise ValueError(f"{type(model).__name__} has no nn.ModuleList of blocks: name the blocks yourself")
    return max(lists, key=lambda blocks: sum(p.numel() for p in blocks.parameters()))


def recompute_activations(model: nn.Module) -> None:
    """Let each block keep its inputs only, and run forward once more when its gradients are due (Chen et al. 2016).

    The gradients are the same to the last bit on a CPU, with dropout as well; a step takes about a third longer.
    """
    for block in blocks_of(model):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
