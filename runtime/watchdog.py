"""A run that makes no progress ends with what everyone waits for.

Looked at by whoever waits for the run, so waiting for the user's own feed is not a stall.
"""

from __future__ import annotations

import time

from anabranch.runtime.engine import Engine
from anabranch.runtime.errors import RunError

LEAST_SECONDS = 60.0
TIMES_PREDICTED = 20.0


class Watchdog:
    """Compares the number of firings over time."""

    def __init__(self, engine: Engine, limit: float | None) -> None:
        predicted = TIMES_PREDICTED * engine.program.seconds
        self.limit = limit if limit is not None else max(LEAST_SECONDS, predicted)
        self.interval = min(1.0, self.limit / 4)
        self._engine = engine
        self.restart()

    def restart(self) -> None:
        """Nobody was looking until now."""
        self._firings, self._since = -1, time.monotonic()

    def look(self, now: float) -> RunError | None:
        """The error of a run in which nothing has fired for too long."""
        firings = self._engine.firings()
        if firings != self._firings:
            self._firings, self._since = firings, now
        if now - self._since <= self.limit:
            return None
        reasons = self._engine.blocked() or ["nothing is left to fire"]
        return RunError(
            f"{self._engine.program.name} has made no progress for {self.limit:g} s:\n  "
            + "\n  ".join(reasons)
        )
