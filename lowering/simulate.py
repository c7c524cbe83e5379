"""Discrete-event run of one program of a Plan with predicted times: the token game.

Every actor fires as the runtime would fire it (runtime/README.md has the rule); a transfer starts
when all its parts may, and takes the longest of their predicted times. On streams without a
sequence the ready actor with least (priority, id) goes first, which is how a compile-time run
turns numbers of slots into sequences. Time is virtual: machines that do not exist run here too.
Linear in firings times the degree of an actor.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from anabranch.ir.plan import Actor, Edge, Program, Register


@dataclass(frozen=True, slots=True)
class Firing:
    """Firing `number` of an actor since the run began, in virtual seconds."""

    actor: int
    number: int
    begin: float
    end: float


class Stuck(Exception):
    """No actor can fire and the steps are not done; `waiting` are the unfinished actors."""

    def __init__(self, waiting: list[Actor]) -> None:
        self.waiting = waiting
        super().__init__(f"{len(waiting)} actors wait for each other")


class _Game:
    """Tokens, and which actors may fire next. A firing is *ready* when its tokens, slots and edges
    allow it (all parts of a transfer together); once ready it stays so until it begins."""

    def __init__(self, program: Program, steps: int) -> None:
        count = len(program.actors)
        self.program, self.steps = program, steps
        self.begun, self.done = [0] * count, [0] * count
        self.fired = [0] * len(program.streams)
        self.idle = [True] * len(program.streams)
        self.reads: list[list[tuple[Register, int]]] = [[] for _ in range(count)]
        self.writes: list[list[Register]] = [[] for _ in range(count)]
        self.edges_to: list[list[Edge]] = [[] for _ in range(count)]
        self.edges_from: list[list[Edge]] = [[] for _ in range(count)]
        self.parts: dict[int, tuple[Actor, ...]] = {}
        self.waiting: list[list[tuple[int, int]]] = [[] for _ in program.streams]  # ready, sorted
        self.queued = [False] * count
        self._index()

    def _index(self) -> None:
        for register in self.program.registers:
            if register.producer >= 0:
                self.writes[register.producer].append(register)
            for use in register.uses:
                self.reads[use.actor].append((register, use.hold))
        for edge in self.program.edges:
            self.edges_to[edge.dst].append(edge)
            self.edges_from[edge.src].append(edge)
        for actor in self.program.actors:
            if actor.transfer is not None:
                match = actor.transfer.match
                self.parts[match] = (*self.parts.get(match, ()), actor)

    def joint(self, actor: Actor) -> tuple[Actor, ...]:
        """All parts that fire together with this actor."""
        return (actor,) if actor.transfer is None else self.parts[actor.transfer.match]

    # ---- readiness -----------------------------------------------------------------------------

    def enqueue(self, actors: Iterable[int]) -> set[int]:
        """Queue those that have become ready; the streams whose queues have grown."""
        grown: set[int] = set()
        for i in actors:
            parts = self.joint(self.program.actors[i])
            if self.queued[i] or not all(map(self._ready, parts)):
                continue
            for part in parts:
                self.queued[part.id] = True
                insort(self.waiting[part.stream], (part.priority, part.id))
                grown.add(part.stream)
        return grown

    def _ready(self, actor: Actor) -> bool:
        n = self.begun[actor.id]
        return (
            n < self.steps * actor.fires
            and n == self.done[actor.id]
            and all(self._published(r) > n // hold for r, hold in self.reads[actor.id])
            and all(self._has_slot(r, n) for r in self.writes[actor.id] if n % r.hold == 0)
            and all(self._allows(edge, actor, n) for edge in self.edges_to[actor.id])
        )

    def _published(self, register: Register) -> int:
        if register.producer < 0:
            return 1 << 60
        return register.initial + self.done[register.producer] // register.hold

    def _has_slot(self, register: Register, n: int) -> bool:
        token = register.initial + n // register.hold
        return token < register.slots or all(
            self.done[use.actor] // use.hold > token - register.slots
            for use in register.uses if not use.donate
        )

    def _allows(self, edge: Edge, actor: Actor, n: int) -> bool:
        step, k = divmod(n, actor.fires)
        if edge.j != k or step < edge.dist:
            return True
        fires = self.program.actors[edge.src].fires
        return self.done[edge.src] > (step - edge.dist) * fires + edge.i

    # ---- firing --------------------------------------------------------------------------------

    def start(self, streams: Iterable[int]) -> Iterator[tuple[Actor, ...]]:
        """Begin what the idle ones of these streams may begin, most urgent first."""
        for stream in sorted(streams):
            for _, i in list(self.waiting[stream]) if self.idle[stream] else ():
                parts = self.joint(self.program.actors[i])
                if all(self.idle[p.stream] and self._is_next(p) for p in parts):
                    self._begin(parts)
                    yield parts
                    break

    def _is_next(self, actor: Actor) -> bool:
        sequence = self.program.streams[actor.stream].sequence
        if not sequence:
            return True
        return sequence[self.fired[actor.stream] % len(sequence)] == (
            actor.id, self.begun[actor.id] % actor.fires)

    def _begin(self, parts: tuple[Actor, ...]) -> None:
        for part in parts:
            self.begun[part.id] += 1
            self.fired[part.stream] += 1
            self.idle[part.stream] = False
            self.queued[part.id] = False
            self.waiting[part.stream].remove((part.priority, part.id))

    def finish(self, ids: tuple[int, ...]) -> set[int]:
        """End the firings of these actors; the streams on which something may begin now."""
        actors = [self.program.actors[i] for i in ids]
        for actor in actors:
            self.done[actor.id] += 1
            self.idle[actor.stream] = True
        grown = self.enqueue(sorted({i for actor in actors for i in self._affected(actor)}))
        return grown | {actor.stream for actor in actors}

    def _affected(self, actor: Actor) -> Iterator[int]:
        """Actors whose next firing may have become ready when this one ended."""
        yield actor.id
        for register in self.writes[actor.id]:
            yield from (use.actor for use in register.uses)
        yield from (r.producer for r, _ in self.reads[actor.id] if r.producer >= 0)
        yield from (edge.dst for edge in self.edges_from[actor.id])


def simulate(program: Program, steps: int = 1, launch_seconds: float = 1e-5) -> list[Firing]:
    """The firings of `steps` steps in order of their beginning. Raises `Stuck` on a deadlock."""
    game = _Game(program, steps)
    firings: list[Firing] = []
    running: list[tuple[float, int, tuple[int, ...]]] = []
    now, streams = 0.0, game.enqueue(range(len(program.actors)))
    while True:
        for parts in game.start(streams):
            end = now + max(a.seconds for a in parts) + launch_seconds
            firings += [Firing(a.id, game.begun[a.id] - 1, now, end) for a in parts]
            heapq.heappush(running, (end, len(firings), tuple(a.id for a in parts)))
        if not running:
            break
        now, _, finished = heapq.heappop(running)
        streams = game.finish(finished)
    waiting = [a for a in program.actors if game.done[a.id] < steps * a.fires]
    if waiting:
        raise Stuck(waiting)
    return firings


def step_seconds(program: Program, steps: int = 2) -> float:
    """Predicted seconds of a step in the steady state: the first fills the pipeline, then the mean
    of `steps` more."""
    firings = simulate(program, steps + 1)
    ends = [f.end for f in firings]
    first = max(
        (f.end for f in firings if f.number < program.actors[f.actor].fires), default=0.0)
    return (max(ends, default=0.0) - first) / steps if steps else first
