"""torch.compile, block by block: fewer and larger kernels for the training step, and nothing else changed."""

import copy
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from tinytrain.device import device_of
from tinytrain.recompute import blocks_of

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""where a module keeps its hooks"""


class CompilerMissingError(ValueError):
    """torch.compile cannot work here; the message says what is missing."""


def compile_blocks(model: nn.Module) -> None:
    """Compile the forward and backward pass of each repeated block of ``model``, in place.

    The names of parameters stay as they are, so checkpoints and exports know nothing of it: a run may go on with or
    without. The blocks are alike, so the code is made once, in the first update; the whole model at once would take
    as many times longer as there are blocks, and its gradients would be exchanged between processes only at the end.

    Only training runs compiled. Without gradients (evaluation, samples) a block runs as it was written, for rows of
    every length would need code of their own; so it does while someone looks at the modules inside (``NanHunt``).

    Call it before ``recompute_activations``, ``replicate`` and ``shard``, which go around it. Raises ``ValueError`` if
    the model has no blocks, or blocks that are recomputed already, and ``CompilerMissingError`` as
    ``require_compiler`` does.
    """
    blocks = blocks_of(model)
    if any("forward" in vars(block) for block in blocks):
        raise ValueError(
            f"the blocks of {type(model).__name__} have a forward of their own already: call compile_blocks once, and "
            f"before recompute_activations"
        )
    require_compiler(device_of(model))
    for block in blocks:
        block.forward = _CompiledForward(block)


class _CompiledForward:
    """A block's forward: compiled in training, plain for whoever looks."""

    def __init__(self, block: nn.Module) -> None:
        self.block, self.plain, self.compiled = block, block.forward, torch.compile(block.forward)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        run = self.compiled if torch.is_grad_enabled() and not self._is_watched() else self.plain
        return run(*arguments, **named)

    def _is_watched(self) -> bool:
        """Whether a module inside has hooks; those of the block itself run around this forward, compiled or not."""
        return any(vars(m)[kind] for m in self.block.modules() if m is not self.block for kind in HOOKS)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_CompiledForward":
        return _CompiledForward(copy.deepcopy(self.block, memo))  # what is compiled is bound to its block


def require_compiler(device: torch.device) -> None:
    """Compile a sum of two numbers on ``device``: whatever is missing is missed here, and not in the first update.

    Takes some seconds. Raises ``CompilerMissingError`` that names what is missing and the cure.
    """
    try:
        compiled = torch.compile(_sum, dynamic=False)
        compiled(torch.ones(2, device=device), torch.ones(2, device=device))
    except Exception as error:
        raise CompilerMissingError(
            f"torch.compile does not work on {device.type} here: {_missing(device)}. Or train without --compile. "
            f"Torch says: {_first_line(error)}"
        ) from error


def _sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


def _missing(device: torch.device) -> str:
    if device.type == "cuda" and find_spec("triton") is None:
        return "Triton is not installed, which torch's CUDA wheels for Linux bring; install torch from such a wheel"
    if device.type == "cuda":
        return (
            "it needs a GPU of compute capability 7.0 or more, a C compiler and Python's header files; on Debian and "
            "Ubuntu: apt install gcc python3-dev"
        )
    return "it needs a C++ compiler; on Debian and Ubuntu: apt install g++; elsewhere name yours in the variable CXX"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
