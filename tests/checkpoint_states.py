"""States to store in checkpoints, folders filled with them, and what to look for."""

import torch

from tinytrain.checkpoint import Checkpointer


def state_of(step):
    return {
        "model": {"weight": torch.full((3, 4), float(step)), "empty": torch.empty(0)},
        "counters": {"step": step, "nothing": None, "name": "a", "pair": (1, 2.5), "list": [True, b"x"]},
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def filled(folder, steps, **options):
    store = Checkpointer(folder, **options)
    for step in steps:
        store.save(state_of(step), step=step)
    store.close()
    return store


def names(folder):
    return sorted(path.name for path in folder.iterdir())
