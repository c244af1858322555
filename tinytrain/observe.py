"""Looking does not touch: run a model to look at it, and leave the training run as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from tinytrain.generators import keep_generators


@contextmanager
def observing(model: nn.Module) -> Iterator[nn.Module]:
    """Put ``model`` in eval mode without gradients, and give everything back at the end.

    Given back, also after an exception: the train or eval mode of every submodule on its own (a submodule that was
    frozen in eval mode stays so), every buffer, also one that the model replaces by a new tensor, and the states of
    Python's, NumPy's and torch's generators on all devices in use.

    ``torch.no_grad`` is used and not ``inference_mode``: a tensor that a model caches in its first forward pass must
    still be usable in training.

    >>> layer = nn.Dropout(0.5)
    >>> with observing(layer):
    ...     print(layer.training)
    False
    >>> layer.training
    True
    """
    with keep_generators(), keep_modes_and_buffers(model):
        model.eval()
        with torch.no_grad():
            yield model


@contextmanager
def keep_modes_and_buffers(model: nn.Module) -> Iterator[None]:
    """Give back each submodule's mode and buffers: the same tensors in the same places, with the same values."""
    modes = [(module, module.training) for module in model.modules()]
    slots = [
        (module, name, buffer, None if buffer is None else buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for module, name, buffer, value in slots:
                if buffer is not None and value is not None:
                    buffer.copy_(value)
                module._buffers[name] = buffer
