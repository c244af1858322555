"""Looking does not touch: run a model to look at it, and leave the training run as it was."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def observing(model: nn.Module) -> Iterator[nn.Module]:
    """Put ``model`` in eval mode without gradients, and give everything back at the end.

    Given back, also after an exception: the train or eval mode of every submodule on its own (a submodule that was
    frozen in eval mode stays so), and the states of Python's, NumPy's and torch's generators on all devices in use.

    ``torch.no_grad`` is used and not ``inference_mode``: a tensor that a model caches in its first forward pass must
    still be usable in training.

    >>> layer = nn.Dropout(0.5)
    >>> with observing(layer):
    ...     print(layer.training)
    False
    >>> layer.training
    True
    """
    modes = [(module, module.training) for module in model.modules()]
    with keep_generators():
        try:
            model.eval()
            with torch.no_grad():
                yield model
        finally:
            for module, training in modes:
                module.training = training


@contextmanager
def keep_generators() -> Iterator[None]:
    """Whatever is drawn inside, the next draw outside is the one it would have been (Python, NumPy, torch)."""
    python_state, numpy_state, cpu_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    mps_state = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(cpu_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)
        if mps_state is not None:
            torch.mps.set_rng_state(mps_state)
