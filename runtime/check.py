"""The proof before every run, linear in the firings of a step.

A plan that passes is well formed, its rates balance, it cannot hang under any timing, members of
every communicator agree, and nothing overwrites what is still needed. One that fails is refused
with the actors, registers and source lines at fault. Each stage relies on those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from anabranch.ir.plan import (
    DTYPE_BYTES,
    Actor,
    Arena,
    Comm,
    Kernel,
    Launch,
    Plan,
    Program,
    Register,
    Stream,
)
from anabranch.runtime.agreement import agreement_problems
from anabranch.runtime.errors import DeadPlan
from anabranch.runtime.events import edges, event_name, find_cycle, show_cycle, tokens_per_step
from anabranch.runtime.overlap import overlap_problems

Numbered = Actor | Register | Stream | Kernel | Comm | Arena
SHOWN = 8
ACTOR_KINDS = ("chain", "comm", "feed", "fetch")
REGISTER_KINDS = ("data", "state", "control")
ARG_CLASS = {
    "reg": "ptr", "scratch": "ptr", "int": "int", "step": "int", "seed": "int", "f64": "f64",
}  # fmt: skip


def check_plan(plan: Plan) -> None:
    """Raises `DeadPlan` unless every program of the plan is safe to run."""
    _refuse("the plan", _table_problems(plan))
    for program in plan.programs:
        for stage in STAGES:
            _refuse(program.name, stage(plan, program))


def _refuse(subject: str, problems: Iterator[str]) -> None:
    found = list(dict.fromkeys(problems))
    if found:
        more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise DeadPlan(f"{subject} cannot run:\n  " + "\n  ".join([*found[:SHOWN], *more]))


def _table_problems(plan: Plan) -> Iterator[str]:
    tables: tuple[tuple[Numbered, ...], ...] = (plan.kernels, plan.comms, plan.arenas)
    for table in tables:
        yield from (f"{item} is not number {i}" for i, item in enumerate(table) if item.id != i)
    for value in plan.values:
        if value.dtype not in DTYPE_BYTES:
            yield f"%{value.name} has the unknown dtype {value.dtype}"
    names = [state.name for state in plan.states]
    if len(set(names)) < len(names):
        yield "two states have one name"
    for state in plan.states:
        ranks = [shard.rank for shard in state.shards]
        if len(set(ranks)) < len(ranks):
            yield f"state {state.name} lies twice on one rank"


def _structure_problems(plan: Plan, program: Program) -> Iterator[str]:
    tables: tuple[tuple[Numbered, ...], ...] = (
        program.actors, program.registers, program.streams
    )  # fmt: skip
    for table in tables:
        yield from (f"{item} is not number {i}" for i, item in enumerate(table) if item.id != i)
    for register in program.registers:
        yield from _register_problems(plan, program, register)
    touched = _touched(program)
    for actor in program.actors:
        yield from _actor_problems(plan, program, actor, touched[actor.id])
    for e in program.edges:
        ends = program.actors[e.src], program.actors[e.dst]
        if ends[0].rank != ends[1].rank or e.dist < 0:
            yield f"the edge {ends[0].name} to {ends[1].name} leaves its rank or goes back in time"
        if e.i >= ends[0].fires or e.j >= ends[1].fires:
            yield f"the edge {ends[0].name} to {ends[1].name} names a firing that does not exist"


def _register_problems(plan: Plan, program: Program, register: Register) -> Iterator[str]:
    name = f"%{plan.values[register.value].name} (register {register.id})"
    if register.kind not in REGISTER_KINDS:
        yield f"{name} has the unknown kind {register.kind}"
    yield from _user_problems(program, register, name)
    size = DTYPE_BYTES[plan.values[register.value].dtype] * prod(register.local)
    if register.kind == "control":
        if register.nbytes or register.offsets:
            yield f"{name} is only for order but has bytes"
    elif len(register.offsets) != register.slots or register.nbytes < size:
        yield f"{name} has {register.slots} slots of {size} bytes but memory for other ones"
    state = register.kind == "state"
    if register.initial != int(state) or (state and register.slots != 1) or register.slots < 1:
        yield f"{name} has {register.slots} slots, {register.initial} initial tokens"


def _user_problems(program: Program, register: Register, name: str) -> Iterator[str]:
    ends = [u.actor for u in register.uses] + [register.producer] * (register.producer >= 0)
    state = register.kind == "state"
    if any(program.actors[actor].rank != register.rank for actor in ends):
        yield f"{name} is used from another rank than its own"
    if len({use.actor for use in register.uses}) < len(register.uses):
        yield f"{name} is used twice by one actor"
    if register.producer < 0 and not state:
        yield f"{name} is written by nobody"
    for use in register.uses:
        if use.donate and (not state or use.actor != register.producer):
            yield f"{name} is donated by an actor that is not the one writer of a state"


def _touched(program: Program) -> dict[int, set[int]]:
    """The registers that each actor reads or writes."""
    touched: dict[int, set[int]] = {actor.id: set() for actor in program.actors}
    for register in program.registers:
        for actor in [register.producer, *(use.actor for use in register.uses)]:
            touched.setdefault(actor, set()).add(register.id)
    return touched


def _actor_problems(plan: Plan, program: Program, actor: Actor, touched: set[int]) -> Iterator[str]:
    name = event_name(plan, program, (actor.id, 0))
    stream = program.streams[actor.stream]
    if stream.rank != actor.rank or actor.kind not in ACTOR_KINDS or actor.fires < 1:
        yield f"{name} has no place: kind {actor.kind}, stream of rank {stream.rank}"
    if (actor.kind == "comm") != (stream.kind == "comm"):
        yield f"{name}, a {actor.kind}, is on the {stream.kind} stream {stream.id}"
    if (actor.kind == "comm") != (actor.transfer is not None):
        yield f"{name} is of kind {actor.kind} but for its transfer"
    if actor.scratch > stream.nbytes:
        yield f"{name} needs {actor.scratch} bytes of scratch, its stream has {stream.nbytes}"
    for launch in actor.launches:
        yield from _launch_problems(plan, program, launch, touched, stream.nbytes, name)


def _launch_problems(
    plan: Plan, program: Program, launch: Launch, touched: set[int], scratch: int, name: str
) -> Iterator[str]:
    kernel = plan.kernels[launch.kernel]
    given = tuple(ARG_CLASS.get(arg.kind, "?") for arg in launch.args)
    if "?" in given or (kernel.params and kernel.params != given):
        yield f"{name} calls {kernel.symbol}{kernel.params} with {given}"
    if launch.phase not in ("all", "first", "rest", "last"):
        yield f"{name} has the unknown phase {launch.phase}"
    for arg in launch.args:
        if arg.kind == "reg" and arg.a not in touched:
            yield f"{name} hands {kernel.symbol} register {arg.a}, which it does not use"
        elif arg.kind == "reg" and not 0 <= arg.b <= program.registers[arg.a].nbytes:
            yield f"{name} points outside register {arg.a}"
        elif arg.kind == "scratch" and not 0 <= arg.a <= scratch:
            yield f"{name} points outside its scratch"


def _rate_problems(plan: Plan, program: Program) -> Iterator[str]:
    for register in program.registers:
        name = f"%{plan.values[register.value].name} (register {register.id})"
        holds = [(use.actor, use.hold) for use in register.uses]
        if register.producer >= 0:
            holds.append((register.producer, register.hold))
        rates = {program.actors[actor].fires / hold for actor, hold in holds}
        if len(rates) > 1 or any(rate < 1 or rate % 1 for rate in rates):
            yield f"{name} is written and read at different rates: {sorted(rates)} tokens a step"
    for stream in program.streams:
        yield from _sequence_problems(plan, program, stream.id)


def _sequence_problems(plan: Plan, program: Program, stream: int) -> Iterator[str]:
    """A sequence has every firing of its actors once, in order."""
    sequence = program.streams[stream].sequence
    own = [actor for actor in program.actors if actor.stream == stream]
    if not sequence:
        if own and program.streams[stream].kind == "comm":
            yield f"comm stream {stream} has no sequence: its transfers could meet in any order"
        return
    for actor in own:
        if [k for a, k in sequence if a == actor.id] != list(range(actor.fires)):
            yield f"stream {stream} does not list {event_name(plan, program, (actor.id, 0))} once"
    if {a for a, _ in sequence} - {actor.id for actor in own}:
        yield f"stream {stream} lists actors of other streams"


def _liveness_problems(plan: Plan, program: Program) -> Iterator[str]:
    cycle = find_cycle(program, list(edges(plan, program)))
    if cycle:
        yield "it would hang, each of these waiting for the next:\n  " + show_cycle(
            plan, program, cycle
        )


def _state_problems(plan: Plan, program: Program) -> Iterator[str]:
    """Every program finds a state where the plan says it lies."""
    homes = {(state.value, shard.rank): shard for state in plan.states for shard in state.shards}
    for register in program.registers:
        shard = homes.get((register.value, register.rank))
        if register.kind != "state":
            continue
        here = (register.arena, register.offsets, register.local, register.origin)
        if not shard or here != (shard.arena, (shard.offset,), shard.local, shard.origin):
            name = plan.values[register.value].name
            yield f"%{name} is a state on rank {register.rank} but lies elsewhere than the state"


def _feed_problems(plan: Plan, program: Program) -> Iterator[str]:
    """Feed actors write exactly the registers that feeds name."""
    named = {r: port for port in program.feeds for r in port.registers}
    for register in program.registers:
        fed = register.producer >= 0 and program.actors[register.producer].kind == "feed"
        name = f"%{plan.values[register.value].name} on rank {register.rank}"
        if register.id not in named:
            if fed and register.kind != "control":
                yield f"no feed gives {name}"
        elif not fed or register.value != named[register.id].value:
            yield f"feed {named[register.id].name} names {name}, which no feed actor writes for it"


def _fetch_problems(plan: Plan, program: Program) -> Iterator[str]:
    for port in program.fetches:
        for r in port.registers:
            readers = [program.actors[use.actor].kind for use in program.registers[r].uses]
            if "fetch" not in readers:
                yield f"fetch {port.name} names register {r}, which no fetch actor reads"
        if not _covers(plan, program, port.value, port.registers):
            yield f"fetch {port.name} does not reach every part of %{plan.values[port.value].name}"


def _covers(plan: Plan, program: Program, value: int, registers: tuple[int, ...]) -> bool:
    """Whether the distinct rectangles of the registers have the volume of the value."""
    volumes = {}
    for r in registers:
        register = program.registers[r]
        moving = any(register.advance) and register.producer >= 0
        count = tokens_per_step(program, register) if moving else 1
        volumes[register.origin] = prod(register.local) * count
    return sum(volumes.values()) == prod(plan.values[value].shape)


Stage = Callable[[Plan, Program], Iterator[str]]
STAGES: tuple[Stage, ...] = (
    _structure_problems,
    _rate_problems,
    agreement_problems,
    _liveness_problems,
    _state_problems,
    _feed_problems,
    _fetch_problems,
    overlap_problems,
)
