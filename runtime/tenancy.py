"""What sessions change in their process: short turns of the interpreter, one thread a BLAS call.

It holds while any session is open, and is as before when the last one has closed, in whatever
order they do.
"""

from __future__ import annotations

import contextlib
import sys
import threading

from anabranch.runtime.blas import find_blas

SWITCH_INTERVAL = 1e-4
"""Seconds a Python thread may keep the others waiting; the default of 5 ms would dominate."""


class Tenancy:
    """Counts the sessions of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions = 0
        self._undo = contextlib.ExitStack()

    def enter(self) -> None:
        with self._lock:
            if self._sessions == 0:
                self._change()
            self._sessions += 1

    def leave(self) -> None:
        with self._lock:
            self._sessions -= 1
            if self._sessions == 0:
                self._undo.close()

    def _change(self) -> None:
        self._undo.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_INTERVAL)
        blas = find_blas()
        threads = blas.threads() if blas else None
        if blas and threads is not None:
            self._undo.callback(blas.use_threads, threads)
            blas.use_threads(1)


TENANCY = Tenancy()
