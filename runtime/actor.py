"""When an actor fires.

All that changes during a run is two counts per actor, `begun` and `done`; everything else follows.
A register with `initial` tokens whose producer has done `d` firings of `hold` each has
`initial + d // hold` tokens published; a use has acknowledged `done // hold` tokens. Token j lies
in slot j mod slots. Firing n of an actor may begin when

1. its step is granted, its stream is idle and, on a stream with a sequence, it is the next;
2. every register it reads has token n // hold published;
3. every register it begins to write has a slot whose last token all readers have acknowledged;
4. every firing that an incoming edge names is done.

Rule 1 is the stream's; the others are here, each once, as a question and as the words that tell
a user what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anabranch.ir.plan import Actor, Edge, Plan, Program, Register

if TYPE_CHECKING:
    from anabranch.runtime.stream import StreamState


@dataclass(slots=True)
class ActorState:
    """An actor and how far it is."""

    actor: Actor
    where: str
    begun: int = 0
    done: int = 0
    reads: list[Read] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    edges: list[Order] = field(default_factory=list)
    wakes: list[StreamState] = field(default_factory=list)

    @property
    def fires(self) -> int:
        return self.actor.fires

    def ready(self) -> bool:
        n = self.begun
        return (
            all(read.holds(n) for read in self.reads)
            and all(write.holds(n) for write in self.writes)
            and all(edge.holds(n) for edge in self.edges)
        )

    def missing(self) -> Iterator[str]:
        """In words, every condition that firing `begun` still waits for."""
        n = self.begun
        conditions: list[Read | Write | Order] = [*self.reads, *self.writes, *self.edges]
        for condition in conditions:
            if not condition.holds(n):
                yield condition.in_words(n)

    def slots(self, n: int) -> tuple[tuple[int, int], ...]:
        """The slot of each register that firing n touches."""
        reads = ((r.register.id, (n // r.hold) % r.register.slots) for r in self.reads)
        writes = ((w.register.id, w.token(n) % w.register.slots) for w in self.writes)
        return tuple({**dict(reads), **dict(writes)}.items())


@dataclass(frozen=True, slots=True)
class Read:
    """Rule 2. No producer means a state that is always there."""

    register: Register
    name: str
    hold: int
    producer: ActorState | None

    def holds(self, n: int) -> bool:
        if self.producer is None:
            return True
        published = self.register.initial + self.producer.done // self.register.hold
        return published > n // self.hold

    def in_words(self, n: int) -> str:
        maker = self.producer.where if self.producer else "nobody"
        return f"token {n // self.hold} of %{self.name} from {maker}"


@dataclass(frozen=True, slots=True)
class Write:
    """Rule 3. `readers` are (state, hold) of the uses that do not donate."""

    register: Register
    name: str
    readers: tuple[tuple[ActorState, int], ...]

    def token(self, n: int) -> int:
        return self.register.initial + n // self.register.hold

    def holds(self, n: int) -> bool:
        if n % self.register.hold:
            return True
        reused = self.token(n) - self.register.slots
        return all(reader.done // hold > reused for reader, hold in self.readers)

    def in_words(self, n: int) -> str:
        reused = self.token(n) - self.register.slots
        late = [r.where for r, hold in self.readers if r.done // hold <= reused]
        return f"a free slot of %{self.name}, still read by {', '.join(late)}"


@dataclass(frozen=True, slots=True)
class Order:
    """Rule 4."""

    edge: Edge
    source: ActorState
    fires: int

    def holds(self, n: int) -> bool:
        step = n // self.fires - self.edge.dist
        if n % self.fires != self.edge.j or step < 0:
            return True
        return self.source.done > step * self.source.fires + self.edge.i

    def in_words(self, n: int) -> str:
        return f"firing {self.edge.i} of {self.source.where} ({self.edge.why})"


def actor_states(plan: Plan, program: Program, ranks: tuple[int, ...]) -> dict[int, ActorState]:
    """The actors of some ranks, with their conditions, by id."""
    states = {
        actor.id: ActorState(actor, describe(plan, actor))
        for actor in program.actors
        if actor.rank in ranks
    }
    for register in program.registers:
        if register.rank in ranks:
            _connect(plan, register, states)
    for edge in program.edges:
        if edge.dst in states:
            target = states[edge.dst]
            target.edges.append(Order(edge, states[edge.src], target.fires))
    return states


def _connect(plan: Plan, register: Register, states: dict[int, ActorState]) -> None:
    name = plan.values[register.value].name
    producer = states[register.producer] if register.producer >= 0 else None
    for use in register.uses:
        states[use.actor].reads.append(Read(register, name, use.hold, producer))
    if producer:
        readers = tuple((states[u.actor], u.hold) for u in register.uses if not u.donate)
        producer.writes.append(Write(register, name, readers))


def describe(plan: Plan, actor: Actor) -> str:
    """An actor as people are told about it."""
    loc = str(plan.locs[actor.loc])
    return f"{actor.name} on rank {actor.rank}" + (f" ({loc})" if loc else "")
