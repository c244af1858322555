"""The states of all random generators that training may draw from: Python's, NumPy's, and torch's on each device."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class TorchStates:
    """Torch's own generators: one for the CPU, one for each GPU in use."""

    cpu: Tensor
    cuda: list[Tensor]
    mps: Tensor | None

    def restore(self) -> None:
        """Make the next torch draws those that would have followed the capture."""
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        if self.mps is not None:
            torch.mps.set_rng_state(self.mps)


def torch_states() -> TorchStates:
    """Capture torch's generators; some microseconds, so a training loop can afford it at every step."""
    return TorchStates(
        cpu=torch.get_rng_state(),
        cuda=torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        mps=torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
    )


@contextmanager
def keep_generators() -> Iterator[None]:
    """Whatever is drawn inside, the next draw outside is the one it would have been (Python, NumPy, torch)."""
    python: Any = random.getstate()
    numpy: Any = np.random.get_state()
    torchs = torch_states()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torchs.restore()
