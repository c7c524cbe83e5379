"""One failure ends a run everywhere: the abort flag, and every wait that has to see it.

The first error wins; later ones become its notes. Whoever waits does it through a condition that
is registered here, so that a failure wakes it; C code reads the flag between launches.
"""

from __future__ import annotations

import threading

import numpy as np

from anabranch.runtime.errors import Aborted, RunError

MAX_NOTES = 8


class Failure:
    """The abort flag of a session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flag = np.zeros(1, np.int32)
        self._error: BaseException | None = None
        self._waits: list[threading.Condition] = []
        self.flag_address = int(self._flag.ctypes.data)

    @property
    def aborted(self) -> bool:
        return self._error is not None

    def wakes(self, condition: threading.Condition) -> threading.Condition:
        """Registers a condition that someone may wait on, and returns it."""
        with self._lock:
            self._waits.append(condition)
        return condition

    def abort(self, error: BaseException) -> None:
        """Must not be called with one of the registered conditions held."""
        with self._lock:
            first = self._error is None
            if self._error is None:
                self._error = error
            elif len(getattr(self._error, "__notes__", ())) < MAX_NOTES:
                self._error.add_note(f"then: {error}")
            self._flag[0] = 1
            waits = list(self._waits) if first else []
        for condition in waits:
            with condition:
                condition.notify_all()

    def __str__(self) -> str:
        return str(self._error or "nothing failed")

    def check(self) -> None:
        """Called inside every wait."""
        if self._error is not None:
            raise Aborted

    def raise_error(self) -> None:
        """The one error of the run, for the user."""
        if self._error is not None:
            raise (
                self._error if isinstance(self._error, RunError) else RunError(str(self._error))
            ) from self._error
