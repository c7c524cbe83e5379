"""How actors of a rank hear of each other.

The messages of the protocol, "a token is there" and "I have read it", are the counts of the actors
themselves; what travels is only the wake-up. One lock per rank guards the counts. Nothing crosses
ranks here: that is what transfers are for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from anabranch.ir.plan import Program
from anabranch.runtime.actor import ActorState
from anabranch.runtime.failure import Failure


class Bus:
    """The counts of one rank's actors in one program, and the steps granted to them."""

    def __init__(
        self,
        program: Program,
        rank: int,
        states: dict[int, ActorState],
        failure: Failure,
        on_progress: Callable[[], None],
    ) -> None:
        self.rank, self.failure = rank, failure
        self.actors = [state for state in states.values() if state.actor.rank == rank]
        self.lock = threading.Lock()
        self.granted = 0
        self.base_step = 0
        self.closed = False
        self.unfinished = 0
        self._on_progress = on_progress
        self._conditions: list[threading.Condition] = []

    def condition(self) -> threading.Condition:
        """A condition on the lock of this rank, woken when a run fails or the bus closes."""
        condition = self.failure.wakes(threading.Condition(self.lock))
        self._conditions.append(condition)
        return condition

    def grant(self, steps: int) -> None:
        """Let every actor do `steps` more steps."""
        with self.lock:
            self.granted += steps
            self.unfinished = sum(s.done < self.granted * s.fires for s in self.actors)
            self._wake_all()

    def start_at(self, step: int) -> None:
        """The next step granted counts as `step`; only between runs, when all tokens are home."""
        with self.lock:
            self.base_step = step - self.granted

    def complete(self, state: ActorState) -> None:
        """One firing is over: publish and acknowledge, by counting, and wake who may care."""
        with self.lock:
            state.done += 1
            if state.done == self.granted * state.fires:
                self.unfinished -= 1
            for stream in state.wakes:
                stream.condition.notify()
            finished = self.unfinished == 0
        if finished:
            self._on_progress()

    def close(self) -> None:
        with self.lock:
            self.closed = True
            self._wake_all()

    def _wake_all(self) -> None:
        for condition in self._conditions:
            condition.notify_all()
