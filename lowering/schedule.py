"""Fused local modules of all ranks -> the Plan: actors, registers, addresses, orders.

Guarantee: what comes out satisfies the checks of the runtime, or this pass raises `CompilerBug`.
Per program and rank the ops are grouped into chains (`chains.py`); a value that crosses a border
between actors gets a register, one that stays inside a chain a place in scratch (`memory.py`);
a state is overwritten in place by the op that makes its next value, where each element depends on
the same element only, and by a copy at the end of the step otherwise. The token game
(`simulate.py`) turns slots and predicted times into the sequence of each stream.

Layout of an arena: states | registers of a program, all slots | scratch of its streams. The
regions behind the states overlap between programs, which never run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from anabranch.ir import plan as p
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.launch import LaunchSpec
from anabranch.lowering.memory import aligned
from anabranch.lowering.program import ProgramBuilder
from anabranch.lowering.simulate import Stuck, simulate, step_seconds
from anabranch.lowering.tables import (
    Prices,
    ProgramIR,
    Tables,
    nbytes_of,
    shard_of,
    without_micro,
)


def schedule(
    programs: Sequence[ProgramIR],
    emit: Callable[..., tuple[LaunchSpec, ...]],
    prices: Prices,
    *,
    prelude: str = "",
    slots: int = 2,
    seed: int = 0,
    profile: str = "",
    source_digest: str = "",
    kinds: dict[str, str] | None = None,
    hints: tuple[str, ...] = (),
) -> p.Plan:
    """The Plan of programs over shared states. The first program fixes where states lie.

    `slots` is the number of activations a register holds between micro-batches; `kinds` says of
    each state whether it is a parameter, a moment or a buffer; `hints` are for the user.
    """
    first = programs[0]
    ranks = first.mesh.ranks
    tables = Tables(state_bytes=[0] * ranks)
    for program in programs:
        _place_states(program, tables, kinds or {})
    built = [_build(program, tables, emit, prices, slots) for program in programs]
    arenas = tuple(
        p.Arena(rank, rank, "cpu", max(q.peak[rank] for q in built), tables.state_bytes[rank])
        for rank in range(ranks)
    )
    return p.Plan(
        mesh=first.mesh.space.axes, ranks=ranks, values=tuple(tables.values),
        states=tuple(tables.states.values()), kernels=tuple(tables.kernels.values()),
        sources=tuple(tables.sources),
        comms=tuple(p.Comm(i, members, kind) for (members, kind), i in tables.comms.items()),
        arenas=arenas, programs=tuple(built), locs=tuple(tables.locs), stages=first.mesh.stages,
        seed=seed, profile=profile, source_digest=source_digest, prelude=prelude,
        hints=hints,
    )


def _place_states(program: ProgramIR, tables: Tables, kinds: dict[str, str]) -> None:
    for argument in program.boxed.states():
        value, name = argument.value, argument.value.name
        if name in tables.states:
            continue
        shards = []
        for rank in program.mesh.stage_ranks(argument.stage):
            local, origin = shard_of(value.type, program.mesh, rank)
            nbytes = nbytes_of(value.type, local)
            shards.append(p.Shard(rank, rank, tables.state_bytes[rank], nbytes, local, origin))
            tables.state_bytes[rank] += aligned(nbytes)
        spatial = without_micro(value.type)
        tables.states[name] = p.State(
            name, tables.value(name, spatial, argument.stage), "init", tuple(shards),
            kinds.get(name, "parameter"))


def _build(
    program: ProgramIR, tables: Tables, emit: Callable[..., tuple[LaunchSpec, ...]],
    prices: Prices, slots: int,
) -> p.Program:
    builder = ProgramBuilder(program, tables, emit, prices, slots)
    loose = builder.build()
    try:
        order = simulate(loose)
    except Stuck as stuck:
        names = ", ".join(a.name for a in stuck.waiting[:8])
        raise CompilerBug(f"the program {program.name} cannot finish a step: {names}") from stuck
    sequences: dict[int, list[tuple[int, int]]] = {s.id: [] for s in loose.streams}
    for firing in order:
        sequences[loose.actors[firing.actor].stream].append((firing.actor, firing.number))
    streams = tuple(replace(s, sequence=tuple(sequences[s.id])) for s in loose.streams)
    fixed = replace(loose, streams=streams)
    return replace(fixed, seconds=step_seconds(fixed))
