"""How large and how small the numbers of a tensor are, and how many of them FP16 could not hold."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tinytrain.tensors import NEAR_THE_END, Phase

FP16_LARGEST = 65504.0
FP16_ROUNDS_UP = 65520.0  # halfway between the largest FP16 number and the next that there would be: infinite
FP16_ROUNDS_TO_0 = 2.0**-25  # half of the smallest subnormal, 2^-24; a tie goes to the even one, which is 0


@dataclass(frozen=True)
class Magnitudes:
    """Absolute values of the numbers that one module passed on, over all its calls."""

    largest: float = 0.0
    """of the finite ones"""
    smallest: float = math.inf
    """of the finite ones that are not 0; infinite if there is none"""
    zeros: float = 0.0
    """share that is 0"""
    nonfinite: float = 0.0
    """share that is infinite or NaN"""
    too_large: float = 0.0
    """share that is finite here and would be infinite in FP16"""
    too_small: float = 0.0
    """share that is not 0 here and would be 0 in FP16"""
    calls: int = 0
    dtype: str = ""

    @property
    def headroom(self) -> float:
        """How many times the largest could double before FP16 would overflow; negative if it is beyond already, and
        minus infinity if something is not finite even here."""
        if self.nonfinite:
            return -math.inf
        return math.log2(FP16_LARGEST / self.largest) if self.largest > 0 else math.inf


@dataclass(frozen=True)
class Numbers:
    """What was counted in one tensor."""

    largest: float
    smallest: float
    total: int
    zeros: int
    nonfinite: int
    forbidden: int
    """minus infinity"""
    too_large: int
    too_small: int


class Counted:
    """One tensor, counted where it is: at once on the CPU; on another device ``numbers`` waits for it, and not this."""

    def __init__(self, tensor: Tensor) -> None:
        """``tensor``: real and dense, of any shape."""
        self.dtype = tensor.dtype
        size = tensor.detach().abs()
        self._numbers = _on_cpu(size) if size.device.type == "cpu" else None
        self._waiting = _count(tensor.detach(), size) if self._numbers is None else None

    @property
    def numbers(self) -> Numbers:
        if self._numbers is None and self._waiting is not None:
            settle([self])
        assert self._numbers is not None
        return self._numbers

    def bad(self, phase: Phase) -> bool:
        """What ``is_bad`` says of the tensor."""
        n = self.numbers
        if not n.nonfinite or phase == "backward":
            return n.nonfinite > 0
        mask = n.nonfinite == n.forbidden < n.total
        return not (mask and n.largest < NEAR_THE_END * torch.finfo(self.dtype).max)


def settle(counted: Sequence[Counted]) -> None:
    """Wait once for all of them."""
    waiting = [each for each in counted if each._waiting is not None]
    if waiting:
        rows = torch.stack([each._waiting for each in waiting if each._waiting is not None]).tolist()
        for each, (largest, smallest, *counts) in zip(waiting, rows, strict=True):
            each._numbers, each._waiting = Numbers(largest, smallest, *map(int, counts)), None


def _on_cpu(size: Tensor) -> Numbers | None:
    """The same as ``_count``, in a quarter of the time; None if something is not finite."""
    total = size.numel()
    if total == 0:
        return Numbers(0.0, math.inf, 0, 0, 0, 0, 0, 0)
    largest, smallest = size.amax().item(), size.amin().item()
    if not math.isfinite(largest):  # NaN as well
        return None
    zeros = 0
    if smallest == 0:
        zeros = int((size == 0).sum())
        smallest = F.threshold(size, 0.0, math.inf).amin().item()
    too_large = int((size >= FP16_ROUNDS_UP).sum()) if largest >= FP16_ROUNDS_UP else 0
    too_small = int((size <= FP16_ROUNDS_TO_0).sum()) - zeros if smallest <= FP16_ROUNDS_TO_0 else 0
    return Numbers(largest, smallest, total, zeros, 0, 0, too_large, too_small)


def _count(tensor: Tensor, size: Tensor) -> Tensor:
    if size.numel() == 0:
        return torch.tensor([0.0, math.inf, *[0.0] * 6], device=size.device)
    finite, zero = size.isfinite(), size == 0
    exact = torch.float32 if size.device.type == "mps" else torch.float64  # float64 reaches beyond float32
    largest = size.where(finite, 0).amax()
    smallest = size.where(finite & ~zero, math.inf).amin()
    counts = [zero, ~finite, tensor == -math.inf, finite & (size >= FP16_ROUNDS_UP), ~zero & (size <= FP16_ROUNDS_TO_0)]
    total = torch.full((), size.numel(), dtype=exact, device=size.device)
    return torch.stack([largest.to(exact), smallest.to(exact), total, *(count.sum().to(exact) for count in counts)])


def together(counted: Sequence[Counted]) -> Magnitudes:
    """The magnitudes of several tensors as if they were one."""
    if not counted:
        return Magnitudes()
    settle(counted)
    each = [one.numbers for one in counted]
    total = max(1, sum(n.total for n in each))
    counts = zip(*((n.zeros, n.nonfinite, n.too_large, n.too_small) for n in each), strict=True)
    zeros, nonfinite, too_large, too_small = (sum(count) / total for count in counts)
    largest, smallest = max(n.largest for n in each), min(n.smallest for n in each)
    dtype = " ".join(dict.fromkeys(str(one.dtype).removeprefix("torch.") for one in counted))
    return Magnitudes(largest, smallest, zeros, nonfinite, too_large, too_small, len(counted), dtype)
