"""The states of all random generators that training may draw from: Python's, NumPy's, and torch's on each device."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinytrain.seeds import generator_for


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


def all_states() -> dict[str, Any]:
    """The states of all generators as tensors and plain values, for a checkpoint."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    torchs = torch_states()
    return {
        "python": random.getstate(),
        "numpy": (str(name), torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, float(gauss)),
        "torch": {"cpu": torchs.cpu, "cuda": torchs.cuda, "mps": torchs.mps},
    }


def restore_all(states: dict[str, Any]) -> None:
    """Make the next draw of every generator the one that would have followed ``all_states``.

    GPUs that are not here are left out: their generators belong to another machine.
    """
    name, keys, position, has_gauss, gauss = states["numpy"]
    random.setstate(states["python"])
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    saved = states["torch"]
    cuda = saved["cuda"] if torch.cuda.is_available() and torch.cuda.device_count() == len(saved["cuda"]) else []
    TorchStates(saved["cpu"], cuda, saved["mps"] if torch.backends.mps.is_available() else None).restore()


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


def part_from_process(rank: int) -> None:
    """Give torch's generators in process ``rank`` draws of their own; those of process 0 stay as they are.

    Called where all processes have the same states, so what comes next depends on that state and on ``rank`` alone.
    Python's and NumPy's generators stay alike: data that draws from them must come out the same in every process.
    """
    if rank > 0:
        state = hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=7).digest()
        seed = generator_for("process", rank=rank, state=int.from_bytes(state, "little")).initial_seed()
        torch.manual_seed(seed)
