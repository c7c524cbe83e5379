"""One thread per (rank, stream), which fires actors one at a time.

A stream with a sequence takes them in that order; one without takes the ready actor with least
(priority, id). The thread waits only for its rank's counts to change, never for a peer, unless it
is a comm stream inside a transfer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from anabranch.ir.plan import Stream
from anabranch.runtime.actor import ActorState
from anabranch.runtime.bus import Bus
from anabranch.runtime.errors import Aborted, PlacedError, RunError

Fire = Callable[[ActorState, int, int], None]
"""Do firing n of an actor, in the given step."""
Record = Callable[[ActorState, int, int, float, float], None]
"""A firing for the trace: actor, n, step, begin and end."""


class StreamState:
    """The thread of a stream and its place in the sequence."""

    def __init__(
        self, stream: Stream, states: dict[int, ActorState], bus: Bus, fire: Fire,
        record: Record | None,
    ) -> None:  # fmt: skip
        self.stream, self.bus = stream, bus
        self.condition = bus.condition()
        self.firing: ActorState | None = None
        own = [s for s in states.values() if s.actor.stream == stream.id]
        self.actors = sorted(own, key=lambda s: (s.actor.priority, s.actor.id))
        self._sequence = [states[actor] for actor, _ in stream.sequence]
        self._position = 0
        self._fire, self._record = fire, record
        name = f"rank {stream.rank} {stream.kind} {stream.id}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def candidates(self) -> list[ActorState]:
        """Who may be next by rule 1, except for the grant."""
        return [self._sequence[self._position]] if self._sequence else self.actors

    def blocked(self) -> Iterator[str]:
        """Why this stream does not move, for the message of a stall."""
        if self.firing:
            yield f"{self.firing.where} has begun and does not end"
            return
        for state in self.candidates():
            if self._granted(state):
                for reason in state.missing():
                    yield f"{state.where} waits for {reason}"

    def _granted(self, state: ActorState) -> bool:
        return state.begun < self.bus.granted * state.fires

    def _run(self) -> None:
        state: ActorState | None = None
        try:
            while state := self._next():
                n = state.begun - 1
                self._do(state, n)
                self.firing = None
                self.bus.complete(state)
        except Aborted:
            pass
        except BaseException as error:
            self.bus.failure.abort(_explain(error, state, self.bus.base_step))

    def _do(self, state: ActorState, n: int) -> None:
        step = self.bus.base_step + n // state.fires
        begin = time.perf_counter()
        self._fire(state, n, step)
        if self._record:
            self._record(state, n, step, begin, time.perf_counter())

    def _next(self) -> ActorState | None:
        """Waits for the next firing and counts it as begun; None when the bus is closed."""
        with self.condition:
            while True:
                self.bus.failure.check()
                if self.bus.closed:
                    return None
                for state in self.candidates():
                    if self._granted(state) and state.ready():
                        return self._begin(state)
                self.condition.wait()

    def _begin(self, state: ActorState) -> ActorState:
        state.begun += 1
        self.firing = state
        if self._sequence:
            self._position = (self._position + 1) % len(self._sequence)
        return state


def _explain(error: BaseException, state: ActorState | None, base_step: int) -> RunError:
    """The failure with who met it. Who wrote the program is told which rows those were instead:
    what is fused into one actor has no name in the program."""
    message = str(error) or type(error).__name__
    step, k = divmod(state.begun - 1, state.fires) if state else (0, 0)
    if isinstance(error, PlacedError) and state:
        part = f", micro-batch {k}" if state.fires > 1 else ""
        when = f"in step {base_step + step}{part}, on rank {state.actor.rank}"
        error.args = (f"{message}\nnote: {when}",)
        return error
    where = f"{state.where}, firing {k}" if state else ""
    failure = RunError(f"{message} (in {where})" if where else message)
    failure.__cause__ = error
    return failure


def connect(states: dict[int, ActorState], streams: list[StreamState]) -> None:
    """Tells every actor which other streams its completion may set going."""
    stream_of = {s.actor.id: stream for stream in streams for s in stream.actors}
    for state in states.values():
        for producer in [read.producer for read in state.reads if read.producer]:
            _link(producer, state, stream_of)
            _link(state, producer, stream_of)
        for edge in state.edges:
            _link(edge.source, state, stream_of)


def _link(cause: ActorState, effect: ActorState, stream_of: dict[int, StreamState]) -> None:
    woken = stream_of[effect.actor.id]
    if woken is not stream_of[cause.actor.id] and woken not in cause.wakes:
        cause.wakes.append(woken)
