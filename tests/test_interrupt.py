import os
import signal
import threading

import pytest

from tinytrain.interrupt import deferred_interrupt


def send_interrupt():
    os.kill(os.getpid(), signal.SIGINT) if os.name != "nt" else signal.raise_signal(signal.SIGINT)


def test_the_first_interrupt_leaves_a_mark_and_the_second_one_raises():
    with deferred_interrupt() as interrupt:
        assert not interrupt.requested
        send_interrupt()
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            send_interrupt()


def test_afterwards_an_interrupt_raises_as_usual():
    with deferred_interrupt():
        pass
    with pytest.raises(KeyboardInterrupt):
        send_interrupt()


def test_the_usual_handler_is_put_back_after_an_error():
    with pytest.raises(RuntimeError), deferred_interrupt():
        raise RuntimeError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_program_that_handles_interrupts_itself_keeps_doing_so():
    def own(_signum, _frame):
        pass

    previous = signal.signal(signal.SIGINT, own)
    try:
        with deferred_interrupt():
            assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, previous)


def test_in_another_thread_nothing_is_changed():
    seen = []

    def body():
        with deferred_interrupt() as interrupt:
            seen.append((signal.getsignal(signal.SIGINT), interrupt.requested))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [(signal.default_int_handler, False)]
