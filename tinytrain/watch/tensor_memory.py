"""How many bytes the tensors of a piece of code hold at most, counted on any device, also on a CPU."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class TensorMemory(TorchDispatchMode):
    """Counts the bytes of every tensor that is made inside, until it is gone.

    ``with TensorMemory(held=model.parameters()) as memory: ...`` and then ``memory.peak``, the most bytes that were
    held at one time, and ``memory.now``. ``held`` are tensors from before that count as well. Tensors that share
    their storage count once. What an operation needs inside itself and gives back is not seen, nor is what an
    allocator keeps in reserve; on a GPU ``torch.cuda.max_memory_allocated`` sees the first of the two.

    >>> with TensorMemory() as memory:
    ...     x = torch.zeros(1000)
    ...     y = x.view(10, 100) + 1
    ...     del x
    >>> memory.peak, memory.now
    (8000, 4000)
    """

    def __init__(self, held: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in held:
            self._count(tensor)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._count(value)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return

        def gone(_reference: object) -> None:
            self.now -= size
            del self._seen[key]

        self._seen[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)
