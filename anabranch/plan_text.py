"""A Plan for people to read: what runs, on which stream, in what order, and where its bytes are.

Tables are of one rank; what differs between ranks at a glance (memory) is shown for all of them.
`anabranch dump --stage plan --json` has everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from anabranch.ir import plan as p
from anabranch.tabular import count, duration, table

LONGEST_SEQUENCE = 16  # firings of a stream that are shown
DIGEST = re.compile(r"_[0-9a-f]{10}$")  # of a kernel's text, at the end of its symbol


def show(plan: p.Plan, rank: int = 0) -> str:
    """The whole plan as seen from one rank."""
    blocks = [_head(plan), _memory(plan), _states(plan, rank)]
    for program in plan.programs:
        blocks += [_program(plan, program), _actors(plan, program, rank),
                   _registers(plan, program, rank), _streams(program, rank),
                   _orders(program, rank)]
    return "\n\n".join(filter(None, blocks)) + "\n"


# ---- the plan as a whole


def _head(plan: p.Plan) -> str:
    mesh = ",".join(f"{name}={size}" for name, size in plan.mesh) or "1"
    launched = sum(len(a.launches) for program in plan.programs for a in program.actors)
    return (f"plan for mesh {mesh}, {_many(plan.ranks, 'rank')}, by the profile "
            f"{plan.profile or '(none)'}: {_many(len(plan.kernels), 'kernel')} for "
            f"{_many(launched, 'launch', 'launches')}")


def _many(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


def _memory(plan: p.Plan) -> str:
    heads = ["rank", "device", "arena", "states", *(f"peak of {q.name}" for q in plan.programs)]
    rows = [[a.rank, a.device, count(a.nbytes), count(a.state_bytes),
             *(count(q.peak[a.id]) for q in plan.programs)] for a in plan.arenas]
    return table("memory", heads, rows)


def _states(plan: p.Plan, rank: int) -> str:
    rows = [
        [state.name, _logical(plan.values[state.value]), _sbp(plan.values[state.value]),
         _shape(shard.local), count(shard.nbytes), shard.offset]
        for state in plan.states for shard in state.shards if shard.rank == rank]
    return table(f"states on rank {rank}", ["name", "type", "sbp", "local", "bytes", "at"], rows)


def _logical(value: p.Value) -> str:
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"


def _sbp(value: p.Value) -> str:
    return " ".join(value.sbp) or "-"


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


# ---- one program


def _program(plan: p.Plan, program: p.Program) -> str:
    ports = [("takes", program.feeds), ("gives", program.fetches)]
    words = "; ".join(f"{verb} {', '.join(port.name for port in these)}"
                      for verb, these in ports if these)
    text = (f"program {program.name}: predicted {duration(program.seconds)} a step"
            f"{f' of {program.micro} micro-batches' if program.micro > 1 else ''}")
    return f"{text}{f'; {words}' if words else ''}"


def _actors(plan: p.Plan, program: p.Program, rank: int) -> str:
    rows = [
        [a.id, a.kind, a.stream, a.fires, len(a.launches), duration(a.seconds), a.name or "-",
         str(plan.locs[a.loc]), _does(plan, a)]
        for a in program.actors if a.rank == rank]
    heads = ["id", "kind", "stream", "fires", "launches", "predicted", "makes", "from", "by"]
    return table(f"actors of {program.name} on rank {rank}", heads, rows)


def _does(plan: p.Plan, actor: p.Actor) -> str:
    """Its kernels, or its transfer and with whom."""
    if actor.transfer is not None:
        t = actor.transfer
        members = ",".join(map(str, plan.comms[t.comm].ranks))
        reduce = f" {t.reduce}" if t.reduce else ""
        return f"{t.op}{reduce} among {members}"
    symbols = dict.fromkeys(
        DIGEST.sub("", plan.kernels[launch.kernel].symbol) for launch in actor.launches)
    shown = list(symbols)[:2]
    more = len(symbols) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _registers(plan: p.Plan, program: p.Program, rank: int) -> str:
    rows = [
        [r.id, r.kind, _name(plan, r), _typed(plan, r),
         _shape(r.local), r.slots, count(r.nbytes), " ".join(map(str, r.offsets)) or "-",
         "-" if r.producer < 0 else str(r.producer), _readers(r)]
        for r in program.registers if r.rank == rank]
    heads = ["id", "kind", "value", "type", "local", "slots", "bytes", "at", "made by", "read by"]
    return table(f"registers of {program.name} on rank {rank}", heads, rows)


def _name(plan: p.Plan, register: p.Register) -> str:
    return plan.values[register.value].name or "-" if register.value >= 0 else "-"


def _typed(plan: p.Plan, register: p.Register) -> str:
    if register.value < 0:
        return "-"
    value = plan.values[register.value]
    return f"{_logical(value)} {_sbp(value)}" if value.sbp else _logical(value)


def _readers(register: p.Register) -> str:
    """`7!` writes the state that it reads; `9/4` reads one token for 4 of its firings."""
    return " ".join(
        f"{u.actor}{'!' if u.donate else ''}{f'/{u.hold}' if u.hold > 1 else ''}"
        for u in register.uses) or "-"


def _streams(program: p.Program, rank: int) -> str:
    busy = {a.stream for a in program.actors}
    rows = [[s.id, s.kind, s.device, count(s.nbytes), _sequence(s)]
            for s in program.streams if s.rank == rank and s.id in busy]
    heads = ["id", "kind", "device", "scratch", "sequence"]
    return table(f"streams of {program.name} on rank {rank}", heads, rows)


def _sequence(stream: p.Stream) -> str:
    """Actors in order; `5.1` is the second firing of actor 5."""
    several = any(k for _, k in stream.sequence)
    names = [f"{actor}.{k}" if several else str(actor) for actor, k in stream.sequence]
    left = len(names) - LONGEST_SEQUENCE
    shown = " ".join(names[:LONGEST_SEQUENCE])
    return f"{shown} and {left} more" if left > 0 else shown or "as they become ready"


def _orders(program: p.Program, rank: int) -> str:
    here = {a.id for a in program.actors if a.rank == rank}
    found: Iterator[p.Edge] = (e for e in program.edges if e.src in here)
    rows = [[e.src, e.dst, e.dist, e.why] for e in found]
    return table(f"order of {program.name} on rank {rank}",
                 ["before", "after", "steps later", "because"], rows)
