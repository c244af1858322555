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
    their storage count once. A storage that is emptied and filled again, as ``fully_shard`` does with the weights that
    it gathers, counts with the size that it has at each operation. What an operation needs inside itself and gives
    back is not seen, nor is what an allocator keeps in reserve; on a GPU ``torch.cuda.max_memory_allocated`` sees the
    first of the two.

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
        self._seen: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        for tensor in held:
            self._count(tensor)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._measure_again()
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self._count(value)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return

        def gone(_reference: object) -> None:
            self.now -= self._seen.pop(key)[1]

        self._seen[key] = weakref.ref(storage, gone), storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _measure_again(self) -> None:
        """Storages may have been resized since the last operation, which is no operation itself."""
        for key, (reference, before) in list(self._seen.items()):
            storage = reference()
            if storage is not None and (size := storage.nbytes()) != before:
                self._seen[key] = reference, size
                self.now += size - before
        self.peak = max(self.peak, self.now)
