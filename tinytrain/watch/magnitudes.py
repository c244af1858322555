"""How large and how small the numbers of a tensor are, and how many of them FP16 could not hold."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

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


class Tally:
    """Adds up the magnitudes of tensors where they are; ``read`` is what waits for the device."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None
        self._largest: Tensor | None = None
        self._smallest: Tensor | None = None
        self.calls = 0
        self.dtypes: dict[str, None] = {}

    def add(self, tensor: Tensor) -> None:
        self.calls += 1
        self.dtypes[str(tensor.dtype).removeprefix("torch.")] = None
        if tensor.numel() == 0:
            return
        size = tensor.detach().abs()
        finite = size.isfinite()
        zero = size == 0
        exact = torch.float32 if size.device.type == "mps" else torch.float64  # float64 reaches beyond float32
        largest = size.where(finite, 0).amax().to(exact)
        smallest = size.where(finite & ~zero, math.inf).amin().to(exact)
        counts = [zero, ~finite, finite & (size >= FP16_ROUNDS_UP), ~zero & (size <= FP16_ROUNDS_TO_0)]
        sums = torch.stack([count.sum() for count in counts] + [torch.full_like(zero.sum(), size.numel())])
        self._sums = sums if self._sums is None else self._sums + sums
        self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)
        self._smallest = smallest if self._smallest is None else torch.minimum(self._smallest, smallest)

    def read(self) -> Magnitudes:
        if self._sums is None or self._largest is None or self._smallest is None:
            return Magnitudes(calls=self.calls)
        *counts, total = self._sums.tolist()
        zeros, nonfinite, too_large, too_small = (count / total for count in counts)
        dtype = " ".join(self.dtypes)
        return Magnitudes(
            self._largest.item(), self._smallest.item(), zeros, nonfinite, too_large, too_small, self.calls, dtype
        )
