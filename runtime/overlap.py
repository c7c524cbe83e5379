"""May the ranges of an arena that share bytes do so?

Ranges of one arena are the shards of states, the slots of registers and the scratch of streams.
States and scratch share with nothing. Two registers may share if for every pair of tokens that can
lie there, one is read for the last time before the other is first written, now and in the next
step; this must follow from the graph of events on their own rank, not from luck.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from anabranch.ir.plan import Arena, Plan, Program, Register
from anabranch.runtime.events import Before, Event, edges, tokens_per_step

MAX_PADDING = 256


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes [begin, end) of an arena; `register` -1 for a state or scratch."""

    begin: int
    end: int
    owner: str
    register: int = -1
    slot: int = 0


def overlap_problems(plan: Plan, program: Program) -> Iterator[str]:
    orders: dict[int, Precedence] = {}
    for arena in plan.arenas:
        ranges = _ranges(plan, program, arena)
        yield from _size_problems(plan, program, arena, ranges)
        for a, b in _overlapping(ranges):
            if arena.rank not in orders:
                orders[arena.rank] = Precedence(plan, program, arena.rank)
            if not _ordered(program, a, b, orders[arena.rank]):
                yield f"{a.owner} and {b.owner} share bytes {b.begin}.. without an order"


def _size_problems(
    plan: Plan, program: Program, arena: Arena, ranges: list[Range]
) -> Iterator[str]:
    """What is allocated is what is used, but for the padding of the last range."""
    end = max((r.end for r in ranges), default=0)
    if end > arena.nbytes:
        yield f"arena {arena.id} has {arena.nbytes} bytes; {program.name} uses {end}"
    if program.peak and not end <= program.peak[arena.id] <= end + MAX_PADDING:
        yield f"{program.name} uses {end} bytes of arena {arena.id}, not {program.peak[arena.id]}"
    peaks = [p.peak[arena.id] for p in plan.programs if p.peak]
    if len(peaks) == len(plan.programs) and max(peaks) != arena.nbytes:
        yield f"arena {arena.id} has {arena.nbytes} bytes but no program needs more than {peaks}"


def _ranges(plan: Plan, program: Program, arena: Arena) -> list[Range]:
    found = [
        Range(s.offset, s.offset + s.nbytes, f"state {state.name}")
        for state in plan.states
        for s in state.shards
        if s.arena == arena.id
    ]
    for r in program.registers:
        if r.arena == arena.id and r.kind == "data":
            name = f"%{plan.values[r.value].name} (register {r.id})"
            found += [
                Range(at, at + r.nbytes, name, r.id, slot) for slot, at in enumerate(r.offsets)
            ]
    found += [
        Range(s.offset, s.offset + s.nbytes, f"scratch of stream {s.id}")
        for s in program.streams
        if s.arena == arena.id and s.rank == arena.rank
    ]
    return [r for r in found if r.end > r.begin]


def _overlapping(ranges: list[Range]) -> Iterator[tuple[Range, Range]]:
    """Every pair that shares a byte, the one that begins first, first."""
    open_ranges: list[Range] = []
    for new in sorted(ranges, key=lambda r: r.begin):
        open_ranges = [old for old in open_ranges if old.end > new.begin]
        yield from ((old, new) for old in open_ranges)
        open_ranges.append(new)


def _ordered(program: Program, a: Range, b: Range, order: Precedence) -> bool:
    if a.register < 0 or b.register < 0 or a.register == b.register:
        return False
    first, second = program.registers[a.register], program.registers[b.register]
    return all(
        order.apart(_Life(program, first, i), _Life(program, second, j))
        for i in _tokens_in(program, first, a.slot)
        for j in _tokens_in(program, second, b.slot)
    )


def _tokens_in(program: Program, register: Register, slot: int) -> list[int]:
    """The tokens of a step that can lie in a slot; any, if the slots turn from step to step."""
    tokens = tokens_per_step(program, register)
    turning = tokens % register.slots
    return [t for t in range(tokens) if turning or t % register.slots == slot]


class _Life:
    """From the first write of a token to its last reads."""

    __slots__ = ("begin", "ends")

    def __init__(self, program: Program, register: Register, token: int) -> None:
        self.begin: Event = (register.producer, token * register.hold)
        self.ends: list[Event] = [(register.producer, (token + 1) * register.hold - 1)]
        self.ends += [(use.actor, (token + 1) * use.hold - 1) for use in register.uses]


class Precedence:
    """Which firings of a rank come after which, within a step and in the next one.

    For every firing of step 0 a set of bits, made once: the firings of steps 0 and 1 that must
    wait for it.
    """

    def __init__(self, plan: Plan, program: Program, rank: int) -> None:
        local = [(a.id, k) for a in program.actors if a.rank == rank for k in range(a.fires)]
        self._index = {event: i for i, event in enumerate(local)}
        outgoing: dict[Event, list[Before]] = defaultdict(list)
        for edge in edges(plan, program):
            if edge.source in self._index and edge.target in self._index and edge.distance < 2:
                outgoing[edge.source].append(edge)
        order = _topological(local, outgoing)
        later = self._closure(order, outgoing, {}, len(local))
        self._after = self._closure(order, outgoing, later, 0)

    def _closure(
        self, order: list[Event], outgoing: dict[Event, list[Before]],
        next_step: dict[Event, int], shift: int,
    ) -> dict[Event, int]:  # fmt: skip
        after: dict[Event, int] = {}
        count = len(self._index)
        for event in reversed(order):
            bits = 0
            for edge in outgoing[event]:
                i = self._index[edge.target]
                if edge.distance == 0:
                    bits |= after[edge.target] | 1 << (i + shift)
                elif next_step:
                    bits |= next_step[edge.target] | 1 << (i + count)
            after[event] = bits
        return after

    def _before(self, life: _Life, begin: Event, step: int) -> bool:
        bit = 1 << (self._index[begin] + step * len(self._index))
        return all(self._after[end] & bit for end in life.ends)

    def apart(self, a: _Life, b: _Life) -> bool:
        """One is over before the other begins, in this step and across to the next."""
        now = self._before(a, b.begin, 0) or self._before(b, a.begin, 0)
        return now and self._before(a, b.begin, 1) and self._before(b, a.begin, 1)


def _topological(events: list[Event], outgoing: dict[Event, list[Before]]) -> list[Event]:
    waiting: dict[Event, int] = defaultdict(int)
    for own in outgoing.values():
        for edge in own:
            waiting[edge.target] += edge.distance == 0
    order = [event for event in events if not waiting[event]]
    for event in order:
        for edge in outgoing[event]:
            if edge.distance == 0:
                waiting[edge.target] -= 1
                if not waiting[edge.target]:
                    order.append(edge.target)
    return order
