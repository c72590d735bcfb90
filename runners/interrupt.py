"""Handle Ctrl-C, SIGTERM and SIGHUP between two actions instead of inside one."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a command to stop."""


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Yield a check that hands a signal that has come to its handler, which raises.

    A second signal of the same kind acts at once. Outside the main thread, and for signals that
    are ignored or have no handler of Python's, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    found = {number: signal.getsignal(number) for number in STOPS}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        signal.signal(number, handlers[signal.Signals(number)])

    def check() -> None:
        if arrived:
            number = arrived.pop()
            handlers[signal.Signals(number)](number, None)

    for number in handlers:
        signal.signal(number, note)
    try:
        yield check
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
