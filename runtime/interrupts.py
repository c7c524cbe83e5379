"""Interrupts that arrive between two bytecodes, and are raised where it is safe.

Python raises KeyboardInterrupt anywhere in the main thread: between taking a lock and entering
the block that gives it back, too. Inside `deferred()` a first Ctrl-C (or SIGTERM, where it is
handled) is only noted; `check()` raises it. A second one is raised at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Whether somebody asked to stop, and whether that has been raised already."""

    def __init__(self) -> None:
        self.asked = self._raised = False

    def check(self) -> None:
        """Raises KeyboardInterrupt, once, if it was asked for."""
        if self.asked and not self._raised:
            self._raised = True
            raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[Interrupt]:
    """Signals reach the main thread only; elsewhere nothing is changed. What nobody has checked
    for is raised at the end."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    handlers = {n: h for n in SIGNALS if callable(h := signal.getsignal(n))}

    def note(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            handlers[signal.Signals(number)](number, frame)
        interrupt.asked = True

    for number in handlers:
        signal.signal(number, note)
    try:
        yield interrupt
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    interrupt.check()
