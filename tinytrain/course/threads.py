"""One thread for models that are too small for two."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch computes with one thread; afterwards with as many as before.

    Models this small are quicker so, and their sums are rounded alike on every number of cores and in every process.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
