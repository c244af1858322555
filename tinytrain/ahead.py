"""The next batch is made while this one is trained on."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tinytrain.batches import Batch
from tinytrain.device import best_device


class Ahead:
    """``data`` with one batch made in advance, by a thread of its own.

    ``data[n]``, or ``data(n)``, must depend on ``n`` alone and draw from no global generator, as ``RowBatches`` do:
    then the batches are the same with and without it, in any order and after a resume. After batch n, batch n + 1 is
    begun at once; another one that is asked for is made when it is asked for. An error in a batch made in advance is
    raised when that batch is asked for.

    With ``pin`` (the default where there is a CUDA device) the tensors lie in pinned memory, from which the copy to
    the device does not wait. What else ``data`` has, such as ``place``, is passed on. ``close`` ends the thread.

    >>> batches = Ahead([["first"], ["second"]], pin=False)
    >>> batches[0], batches[1]
    (['first'], ['second'])
    """

    def __init__(self, data: Any, *, pin: bool | None = None) -> None:
        self.data = data
        self.pin = best_device().type == "cuda" if pin is None else pin
        if hasattr(data, "share"):
            self.share = self._share
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tinytrain-ahead")
        self._next: tuple[tuple[Any, ...], Future[Any]] | None = None
        self._closed = False

    def __getitem__(self, number: int) -> Sequence[Batch]:
        make = self.data if callable(self.data) else self.data.__getitem__
        return self._take(make, number)

    def _share(self, number: int, *, rank: int, processes: int) -> Sequence[Batch]:
        return self._take(self.data.share, number, rank=rank, processes=processes)

    def __getattr__(self, name: str) -> Any:
        if name == "data":  # not there yet, while this is unpickled
            raise AttributeError(name)
        return getattr(self.data, name)

    def _take(self, make: Callable[..., Any], number: int, **how: int) -> Any:
        if self._closed:
            raise ValueError(
                f"batch {number} is asked of an Ahead that is closed: make a new one, around the same data"
            )
        kind = tuple(how.items())
        waiting, self._next = self._next, None
        if waiting is not None and waiting[0] == (number, kind):
            made = waiting[1].result()
        else:
            made = self._made(make, number, how)
        self._next = (number + 1, kind), self._thread.submit(self._made, make, number + 1, how)
        return made

    def _made(self, make: Callable[..., Any], number: int, how: dict[str, int]) -> Any:
        batch = make(number, **how)
        if not self.pin:
            return batch
        return [{name: value.pin_memory() for name, value in part.items()} for part in batch]

    def close(self) -> None:
        """End the thread; a batch that is being made is let go."""
        self._next, self._closed = None, True
        self._thread.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
