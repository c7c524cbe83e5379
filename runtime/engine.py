"""One program of a plan, bound to memory and threads, ready to be granted steps.

The engine of a program is made when it first runs and lives as long as the session. Between runs
every register holds its initial tokens, so the engines of a session take turns on the same states.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass

import numpy as np

from anabranch.ir.plan import Plan, Program, Transfer
from anabranch.runtime.actor import ActorState, actor_states
from anabranch.runtime.arrays import Array, Bytes, typed
from anabranch.runtime.bus import Bus
from anabranch.runtime.chain import Binding, Chain
from anabranch.runtime.failure import Failure
from anabranch.runtime.kernels import Loaded
from anabranch.runtime.ports import Feeds, Fetches
from anabranch.runtime.registers import Memory
from anabranch.runtime.stream import Record, StreamState, connect
from anabranch.runtime.trace import Trace
from anabranch.runtime.transport import Transport, source_count, target_count

NOTHING = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Resources:
    """What all engines of a session share."""

    plan: Plan
    ranks: tuple[int, ...]
    memory: Memory
    kernels: list[Loaded]
    transport: Transport
    failure: Failure
    progress: threading.Condition
    seed: int
    trace: Trace | None


class Engine:
    """The actors of this process in one program."""

    def __init__(self, resources: Resources, program: Program) -> None:
        self.program, self._of = program, resources
        plan, ranks = resources.plan, resources.ranks
        states = actor_states(plan, program, ranks)
        self.states = list(states.values())
        feeders = sum(state.actor.kind == "feed" for state in self.states)
        self.feeds = Feeds(plan, program, feeders)
        self.fetches = Fetches(plan, program, ranks)
        self._buffers = {
            r.id: resources.memory.slots(program, r, plan.values[r.value].name)
            for r in program.registers
            if r.rank in ranks
        }
        self._chains = {s.actor.id: self._chain(s) for s in self.states if s.actor.kind == "chain"}
        self._buses = {
            rank: Bus(program, rank, states, resources.failure, self._notify) for rank in ranks
        }
        self.streams = [
            StreamState(stream, states, self._buses[stream.rank], self._fire, self._recorder())
            for stream in program.streams
            if stream.rank in ranks
        ]
        connect(states, self.streams)
        for own in self.streams:
            own.thread.start()

    def start_at(self, step: int) -> None:
        for bus in self._buses.values():
            bus.start_at(step)

    def grant(self, steps: int) -> None:
        for bus in self._buses.values():
            bus.grant(steps)

    def finished(self) -> bool:
        return all(bus.unfinished == 0 for bus in self._buses.values())

    def firings(self) -> int:
        return sum(state.done for state in self.states)

    def blocked(self) -> list[str]:
        return [reason for stream in self.streams for reason in stream.blocked()]

    def close(self) -> None:
        for bus in self._buses.values():
            bus.close()

    def _notify(self) -> None:
        with self._of.progress:
            self._of.progress.notify_all()

    def _recorder(self) -> Record | None:
        trace = self._of.trace
        return functools.partial(trace.record, self.program) if trace else None

    def _chain(self, state: ActorState) -> Chain:
        stream = self.program.streams[state.actor.stream]
        scratch = self._of.memory.scratch(self.program, stream)
        binding = Binding(
            self._of.kernels, self._buffers, scratch, self._of.seed, self._of.plan.locs
        )
        return Chain(state.actor, binding)

    def _fire(self, state: ActorState, n: int, step: int) -> None:
        kind = state.actor.kind
        if kind == "chain":
            chain = self._chains[state.actor.id]
            chain.run(n % state.fires, step, state.slots(n), self._of.failure.flag_address)
        elif kind == "comm":
            self._transfer(state, n, step)
        elif kind == "feed":
            self._feed(state, n, step)
        else:
            self._fetch(state, n, step)

    def _transfer(self, state: ActorState, n: int, step: int) -> None:
        transfer = state.actor.transfer
        assert transfer is not None
        slots = dict(state.slots(n))
        source = self._flat(transfer, transfer.source, slots, source_count(transfer))
        target = self._flat(transfer, transfer.target, slots, target_count(transfer))
        self._of.transport.run(transfer, step * state.fires + n % state.fires, source, target)

    def _flat(self, transfer: Transfer, register: int, slots: dict[int, int], count: int) -> Array:
        buffer = self._buffers[register][slots[register]] if register >= 0 else NOTHING
        return typed(buffer, transfer.dtype, (count,))

    def _feed(self, state: ActorState, n: int, step: int) -> None:
        for write in state.writes:
            register = write.register
            if n % register.hold == 0 and register.kind != "control":
                target = self._slot(state, n, register.id)
                k = n % state.fires // register.hold
                self.feeds.copy(step, register, k, target, self._dtype(register.value))
        if n % state.fires == state.fires - 1:
            self.feeds.done_with(step)

    def _fetch(self, state: ActorState, n: int, step: int) -> None:
        for read in state.reads:
            register = read.register
            if (n + 1) % read.hold == 0 and register.kind != "control":
                source = self._slot(state, n, register.id)
                index = n % state.fires // read.hold
                with self._of.progress:
                    self.fetches.add(step, register, index, source, self._dtype(register.value))
                    self._of.progress.notify_all()

    def _slot(self, state: ActorState, n: int, register: int) -> Bytes:
        return self._buffers[register][dict(state.slots(n))[register]]

    def _dtype(self, value: int) -> str:
        return self._of.plan.values[value].dtype
