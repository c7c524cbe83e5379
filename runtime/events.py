"""The firings of one step as a graph with step distances.

An edge says: firing (actor, k) of step s must end before firing (actor', k') of step s + distance
begins. There are four sources of edges, the rules of runtime/README.md read backwards:

    data      a token is written before it is read
    slot      a token is read before its slot is written again
    sequence  a stream fires in its order; an actor fires one firing after another
    edge      what the plan adds: shared bytes, control

The parts of a transfer fire together, so the k-th firings of all its members are one node. A plan
whose edges of distance 0 have no cycle runs to its end whatever the timing; one with a cycle
cannot end at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from anabranch.ir.plan import Actor, Plan, Program, Register, Use

Event = tuple[int, int]
"""(actor, k)"""


@dataclass(frozen=True, slots=True)
class Before:
    """`source` of step s ends before `target` of step s + distance begins.

    `why` is data | slot (`subject` is the register), edge (its number), order or sequence.
    """

    source: Event
    target: Event
    distance: int
    why: str
    subject: int = -1


def edges(plan: Plan, program: Program) -> Iterator[Before]:
    for register in program.registers:
        if register.producer >= 0:
            yield from _register_edges(program, register)
    for actor in program.actors:
        yield from _cycle([(actor.id, k) for k in range(actor.fires)], "order")
    for stream in program.streams:
        yield from _cycle(list(stream.sequence), "sequence")
    for i, e in enumerate(program.edges):
        yield Before((e.src, e.i), (e.dst, e.j), e.dist, "edge", i)


def _cycle(sequence: list[Event], why: str) -> Iterator[Before]:
    """An order that begins again with every step."""
    for source, target in pairwise(sequence):
        yield Before(source, target, 0, why)
    if sequence:
        yield Before(sequence[-1], sequence[0], 1, why)


def tokens_per_step(program: Program, register: Register) -> int:
    return program.actors[register.producer].fires // register.hold


def _register_edges(program: Program, register: Register) -> Iterator[Before]:
    tokens = tokens_per_step(program, register)
    for use in register.uses:
        for token in range(tokens):
            yield from _data(register, use, token, tokens)
            if not use.donate:
                yield _slot(register, use, token, tokens)


def _data(register: Register, use: Use, token: int, tokens: int) -> Iterator[Before]:
    """The token made as number `token` of a step is read as number token + initial."""
    last = (register.producer, (token + 1) * register.hold - 1)
    distance, read = divmod(token + register.initial, tokens)
    for i in range(use.hold):
        target = (use.actor, read * use.hold + i)
        yield Before(last, target, distance, "data", register.id)


def _slot(register: Register, use: Use, token: int, tokens: int) -> Before:
    """Reading token frees the slot for the token `slots` later."""
    read = (use.actor, (token + 1) * use.hold - 1)
    distance, written = divmod(token + register.slots - register.initial, tokens)
    return Before(read, (register.producer, written * register.hold), distance, "slot", register.id)


def transfer_nodes(program: Program) -> dict[Event, Event]:
    """Each event of a comm actor to the event of the member that stands for all of them."""
    first: dict[int, int] = {}
    node: dict[Event, Event] = {}
    for actor in program.actors:
        if actor.transfer:
            leader = first.setdefault(actor.transfer.match, actor.id)
            node |= {(actor.id, k): (leader, k) for k in range(actor.fires)}
    return node


def find_cycle(program: Program, before: list[Before]) -> list[Before]:
    """A cycle of distance-0 edges, or []. Linear in the edges."""
    node = transfer_nodes(program)
    outgoing: dict[Event, list[Before]] = defaultdict(list)
    waiting: dict[Event, int] = defaultdict(int)
    events = [(a.id, k) for a in program.actors for k in range(a.fires)]
    for edge in before:
        source, target = node.get(edge.source, edge.source), node.get(edge.target, edge.target)
        if edge.distance <= 0:
            outgoing[source].append(edge)
            waiting[target] += 1
    free = [event for event in {node.get(e, e) for e in events} if not waiting[event]]
    while free:
        for edge in outgoing.pop(free.pop(), []):
            target = node.get(edge.target, edge.target)
            waiting[target] -= 1
            if not waiting[target]:
                free.append(target)
    return _walk_back(node, outgoing) if outgoing else []


def _walk_back(node: dict[Event, Event], outgoing: dict[Event, list[Before]]) -> list[Before]:
    """Every node that Kahn's algorithm leaves waits for another: followed backwards, one comes
    again. The cycle reads: the target of each edge waits for its source, the next one's target."""
    incoming = {node.get(e.target, e.target): e for left in outgoing.values() for e in left}
    at = next(iter(incoming))
    path: list[Before] = []
    seen: dict[Event, int] = {}
    while at not in seen:
        seen[at] = len(path)
        path.append(incoming[at])
        at = node.get(incoming[at].source, incoming[at].source)
    return path[seen[at] :]


def show(plan: Plan, program: Program, edge: Before) -> str:
    """An edge as a line of an explanation: who waits for what."""
    target, source = (event_name(plan, program, e) for e in (edge.target, edge.source))
    if edge.why == "edge":
        return f"{target} waits for {source} ({program.edges[edge.subject].why})"
    if edge.why == "order":
        return f"{target} waits for {source}: an actor fires in order"
    if edge.why == "sequence":
        return f"{target} waits for {source}, which is before it in the sequence of their stream"
    register = program.registers[edge.subject]
    name = plan.values[register.value].name
    if edge.why == "data":
        return f"{target} waits for %{name} from {source}"
    slots = f"{register.slots} slot" + ("s" if register.slots > 1 else "")
    return f"{target} waits for {source} to have read %{name}, which has {slots}"


def event_name(plan: Plan, program: Program, event: Event) -> str:
    actor: Actor = program.actors[event[0]]
    loc = str(plan.locs[actor.loc])
    firing = f"[{event[1]}]" if actor.fires > 1 else ""
    return f"{actor.name}{firing} on rank {actor.rank}" + (f" ({loc})" if loc else "")


def show_cycle(plan: Plan, program: Program, cycle: list[Before]) -> str:
    """One line per wait; where a cycle passes through a transfer, the members that meet."""
    lines = []
    for edge, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        lines.append(show(plan, program, edge))
        if edge.source != following.target:
            here, there = (event_name(plan, program, e) for e in (edge.source, following.target))
            lines.append(f"{here} is one transfer with {there}")
    return "\n  ".join(lines)
