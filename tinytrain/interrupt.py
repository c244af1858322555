"""Ctrl-C and the toolbar's interrupt, taken between two updates and not in the middle of one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """``requested`` turns True at the first interrupt; a second one raises ``KeyboardInterrupt`` at once."""

    def __init__(self) -> None:
        self.requested = False

    def _handle(self, _signum: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """While the context is open, SIGINT only leaves a mark, which the loop reads when it is safe to stop.

    An interrupt in the middle of ``optimizer.step()`` would leave half of the weights updated. Only the main thread
    may set signal handlers; in another thread, or where a program handles SIGINT itself, nothing is changed.
    """
    interrupt = Interrupt()
    usual = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not usual:
        yield interrupt
        return
    signal.signal(signal.SIGINT, interrupt._handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
