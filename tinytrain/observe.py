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
