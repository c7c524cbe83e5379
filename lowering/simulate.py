"""Discrete-event run of one program of a Plan with predicted times: the token game.

Every actor fires as the runtime would fire it (runtime/README.md has the rule); a transfer starts
when all its parts may, and takes the longest of their predicted times. On streams without a
sequence the ready actor with least (priority, id) goes first, which is how a compile-time run
turns numbers of slots into sequences. Time is virtual: machines that do not exist run here too.
Linear in firings times the degree of an actor.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from anabranch.ir.plan import Actor, Program, Register


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


@dataclass(slots=True)
class _Game:
    program: Program
    steps: int
    launch_seconds: float
    begun: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    busy: dict[int, bool] = field(default_factory=dict)
    reads: list[list[tuple[Register, int]]] = field(default_factory=list)
    writes: list[list[Register]] = field(default_factory=list)
    parts: dict[int, list[Actor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.program.actors)
        self.begun, self.done = [0] * count, [0] * count
        self.reads = [[] for _ in range(count)]
        self.writes = [[] for _ in range(count)]
        self.busy = {s.id: False for s in self.program.streams}
        for register in self.program.registers:
            if register.producer >= 0:
                self.writes[register.producer].append(register)
            for use in register.uses:
                self.reads[use.actor].append((register, use.hold))
        for actor in self.program.actors:
            if actor.transfer is not None:
                self.parts.setdefault(actor.transfer.match, []).append(actor)

    def joint(self, actor: Actor) -> list[Actor]:
        """All parts that fire together with this actor."""
        return [actor] if actor.transfer is None else self.parts[actor.transfer.match]

    def start(self, candidates: set[int]) -> Iterator[list[Actor]]:
        """Begin every candidate that may fire, most urgent first; the parts of each."""
        actors = [self.program.actors[i] for i in candidates]
        for actor in sorted(actors, key=lambda a: (a.priority, a.id)):
            parts = self.joint(actor)
            if all(self.may_fire(part) for part in parts):
                for part in parts:
                    self.begun[part.id] += 1
                    self.busy[part.stream] = True
                yield parts

    def finish(self, ids: tuple[int, ...]) -> set[int]:
        """End the firings of these actors; who may have become able to fire."""
        for i in ids:
            self.done[i] += 1
            self.busy[self.program.actors[i].stream] = False
        return {a for i in ids for a in self.affected(self.program.actors[i])}

    def may_fire(self, actor: Actor) -> bool:
        n = self.begun[actor.id]
        if n >= self.steps * actor.fires or n != self.done[actor.id]:
            return False
        return (
            not self.busy[actor.stream]
            and self._is_next(actor, n)
            and all(self.published(r) > n // hold for r, hold in self.reads[actor.id])
            and all(self._has_slot(r, n) for r in self.writes[actor.id] if n % r.hold == 0)
            and self._edges_allow(actor, n)
        )

    def published(self, register: Register) -> int:
        if register.producer < 0:
            return 1 << 60
        return register.initial + self.done[register.producer] // register.hold

    def _has_slot(self, register: Register, n: int) -> bool:
        token = register.initial + n // register.hold
        return token < register.slots or all(
            self.done[use.actor] // use.hold > token - register.slots
            for use in register.uses if not use.donate
        )

    def _is_next(self, actor: Actor, n: int) -> bool:
        sequence = self.program.streams[actor.stream].sequence
        if not sequence:
            return True
        fired = sum(self.begun[a] for a in {a for a, _ in sequence})
        return sequence[fired % len(sequence)] == (actor.id, n % actor.fires)

    def _edges_allow(self, actor: Actor, n: int) -> bool:
        step, k = divmod(n, actor.fires)
        for edge in self.program.edges:
            if edge.dst == actor.id and edge.j == k and step >= edge.dist:
                source = self.program.actors[edge.src]
                if self.done[edge.src] <= (step - edge.dist) * source.fires + edge.i:
                    return False
        return True

    def seconds(self, actor: Actor) -> float:
        return max(p.seconds for p in self.joint(actor)) + self.launch_seconds

    def affected(self, actor: Actor) -> Iterator[int]:
        """Actors whose condition may have become true when this one ended."""
        yield actor.id
        for register in self.writes[actor.id]:
            yield from (use.actor for use in register.uses)
        yield from (r.producer for r, _ in self.reads[actor.id] if r.producer >= 0)
        yield from (e.dst for e in self.program.edges if e.src == actor.id)


def simulate(program: Program, steps: int = 1, launch_seconds: float = 1e-5) -> list[Firing]:
    """The firings of `steps` steps in order of their beginning. Raises `Stuck` on a deadlock."""
    game = _Game(program, steps, launch_seconds)
    on_stream: dict[int, list[int]] = {}
    for actor in program.actors:
        on_stream.setdefault(actor.stream, []).append(actor.id)
    firings: list[Firing] = []
    running: list[tuple[float, int, tuple[int, ...]]] = []
    now, candidates = 0.0, set(range(len(program.actors)))
    while True:
        for parts in game.start(candidates):
            end = now + game.seconds(parts[0])
            firings += [Firing(a.id, game.begun[a.id] - 1, now, end) for a in parts]
            heapq.heappush(running, (end, len(firings), tuple(a.id for a in parts)))
        if not running:
            break
        now, _, finished = heapq.heappop(running)
        candidates = game.finish(finished)
        candidates.update(a for i in finished for a in on_stream[program.actors[i].stream])
    waiting = [a for a in program.actors if game.done[a.id] < steps * a.fires]
    if waiting:
        raise Stuck(waiting)
    return firings


def step_seconds(program: Program, steps: int = 4) -> float:
    """Predicted seconds of a step in the steady state: the pipeline filled, then `steps` more."""
    firings = simulate(program, steps + 1)
    ends = [f.end for f in firings]
    first = max(
        (f.end for f in firings if f.number < program.actors[f.actor].fires), default=0.0)
    return max(ends, default=0.0) - first if steps else first
