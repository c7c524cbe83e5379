"""One program of a Plan: actors, registers and addresses on every rank (see `schedule.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from anabranch.ir import plan as p
from anabranch.ir.core import Argument, Function, Op, Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.launch import IntArg, KernelText, LaunchSpec, Pointer
from anabranch.ir.ops import Return, Transfer
from anabranch.lowering.chains import Chain, Grouping, accumulates, group
from anabranch.lowering.checks import checks_of
from anabranch.lowering.in_place import (
    InPlace,
    choose_in_place,
    elementwise,
    readers_before_writers,
)
from anabranch.lowering.memory import Lifetime, aligned, place
from anabranch.lowering.tables import Prices, ProgramIR, Tables, nbytes_of, origin_of

FEED_PRIORITY = -(1 << 30)
EARLY_PRIORITY = -(1 << 20)
COMPUTE, COMM, IO = 0, 1, 2  # the streams of a rank

STORE_CELL = """\
/* A scalar that changes by step, where kernels can read it. */
void ab_store_i64(const int64_t *ints, const double *floats, char *const *ptrs,
                  int64_t tile_begin, int64_t tile_end, struct ab_ctx *ctx)
{
    (void)floats; (void)tile_begin; (void)tile_end; (void)ctx;
    *(int64_t *)ptrs[0] = ints[0];
}
"""
STORE_CELL_BODY = (  # the same in the language of kernels, as JSON
    '["Kernel","",[["Tensor","cell","i64","out",null]],["value"],[],'
    '[["Store","cell",["Const",0,"i64"],["Ref","value","i64"],null]],[]]'
)


@dataclass(slots=True)
class _Register:
    """A register under construction."""

    id: int
    rank: int
    value: Value
    table_value: int
    local: tuple[int, ...]
    origin: tuple[int, ...]
    advance: tuple[int, ...]
    nbytes: int
    producer: int = -1
    hold: int = 1
    slots: int = 1
    initial: int = 0
    kind: str = "data"
    uses: dict[int, p.Use] = field(default_factory=dict)
    offset: int = -1  # of a state: fixed by the Plan
    rate: int = 1


@dataclass(slots=True)
class _Rank:
    """What is known of one rank while its actors are made."""

    rank: int
    function: Function
    grouping: Grouping
    in_place: InPlace
    registers: dict[Value, _Register] = field(default_factory=dict)
    arguments: dict[Value, Argument] = field(default_factory=dict)
    scratch: list[int] = field(default_factory=lambda: [0, 0, 0])


class ProgramBuilder:
    """Builds the `Program` of one `ProgramIR` without sequences; shared tables are extended."""

    def __init__(self, program: ProgramIR, tables: Tables,
                 emit: Callable[..., tuple[LaunchSpec, ...]], prices: Prices, slots: int) -> None:
        self.program, self.tables, self.emit = program, tables, emit
        self.prices, self.slots = prices, slots
        self.micro = program.mesh.micro
        self.actors: list[p.Actor] = []
        self.registers: list[_Register] = []
        self.feeds: dict[str, list[_Register]] = {}
        self.fetches: dict[int, list[_Register]] = {}
        self.has_early = False

    def build(self) -> p.Program:
        functions = self.program.locals
        boxed = {(a.role, a.value.name): a for a in self.program.boxed.arguments}
        if len(boxed) < len(self.program.boxed.arguments):
            raise CompilerBug("two arguments that are given by name have one name")
        arguments = [{a.value: boxed[a.role, a.value.name] for a in f.arguments}
                     for f in functions]
        in_place = [choose_in_place(f, a) for f, a in zip(functions, arguments, strict=True)]
        later: dict[Op, set[Op]] = {}
        for chosen in in_place:
            later.update(readers_before_writers(chosen))
        streamed = {v for by_value in arguments for v, a in by_value.items()
                    if a.role == "input" and self._comes_in_parts(a.value)}
        grouping = group(functions, self.micro, streamed, later)
        self.has_early = bool(grouping.early)
        ranks = [_Rank(r, functions[r], grouping, in_place[r], arguments=arguments[r])
                 for r in range(len(functions))]
        for rank in ranks:
            self._rank(rank)
        return self._assemble(ranks)

    # ---- one rank ------------------------------------------------------------------------------

    def _comes_in_parts(self, value: Value) -> bool:
        layout = value.type.layout
        return self.micro > 1 and layout is not None and layout["micro"].kind == "S"

    def _rank(self, rank: _Rank) -> None:
        for value, argument in rank.arguments.items():
            if argument.role == "state":
                self._state(rank, value, argument)
            elif argument.role == "input":
                self._feed(rank, value, argument)
        unit_of = {op: i for i, unit in enumerate(rank.grouping.units[rank.rank])
                   for op in (unit.ops if isinstance(unit, Chain) else [unit])}
        crossing = _crossing(rank.function, unit_of)
        for unit in rank.grouping.units[rank.rank]:
            if isinstance(unit, Chain):
                self._chain(rank, unit, crossing)
            else:
                self._transfer(rank, unit)
        self._fetch(rank)

    def _state(self, rank: _Rank, value: Value, argument: Argument) -> None:
        register = self._register(rank, value, argument.value, argument.stage)
        register.table_value = self.tables.states[value.name].value
        register.advance = ()
        shards = self.tables.states[value.name].shards
        register.offset = next(s.offset for s in shards if s.rank == rank.rank)
        register.kind, register.initial = "state", 1

    def _feed(self, rank: _Rank, value: Value, argument: Argument) -> None:
        register = self._register(rank, value, argument.value, argument.stage)
        fires = self.micro if self._comes_in_parts(argument.value) else 1
        actor = self._actor(rank, f"feed {value.name}", IO, "feed", fires, FEED_PRIORITY)
        register.producer, register.rate = actor, fires
        if fires > 1:
            register.slots = self.micro if self.has_early else min(self.micro, self.slots + 1)
        self.feeds.setdefault(value.name, []).append(register)

    def _register(self, rank: _Rank, value: Value, logical: Value | None, stage: int) -> _Register:
        """A new register; `logical` is the value before localising, where it is known."""
        type = value.type if logical is None else logical.type
        mesh = self.program.mesh
        origin, advance = ((0,) * value.type.rank, ()) if logical is None else origin_of(
            logical, mesh, rank.rank)
        register = _Register(
            len(self.registers), rank.rank, value, self.tables.value(value.name, type, stage),
            value.type.shape, origin, advance, nbytes_of(value.type, value.type.shape))
        self.registers.append(register)
        rank.registers[value] = register
        return register

    def _produced(self, rank: _Rank, value: Value, actor: int, stage: int, fires: int,
                  hold: int = 1) -> _Register:
        register = self._register(rank, value, None, stage)
        register.producer, register.hold, register.rate = actor, hold, fires // hold
        early = value.op in rank.grouping.early
        if register.rate > 1:
            register.slots = self.micro if early else min(self.slots, self.micro)
        return register

    def _actor(self, rank: _Rank, name: str, stream: int, kind: str, fires: int, priority: int,
               loc: int = 0) -> int:
        actor = p.Actor(len(self.actors), name, rank.rank, 3 * rank.rank + stream, kind, fires,
                        priority, loc=loc)
        self.actors.append(actor)
        return actor.id

    def _use(self, register: _Register, actor: int, fires: int, donate: bool = False) -> None:
        """`actor` reads the register: once per token, or the same token in all its firings."""
        hold = fires if register.rate == 1 else 1
        donate = donate or (actor in register.uses and register.uses[actor].donate)
        register.uses[actor] = p.Use(actor, hold, donate)

    def _priority(self, rank: _Rank, op: Op) -> int:
        return EARLY_PRIORITY if op in rank.grouping.early else -rank.grouping.levels[op]

    # ---- chains --------------------------------------------------------------------------------

    def _chain(self, rank: _Rank, chain: Chain, crossing: set[Value]) -> None:
        first = chain.ops[0]
        actor = self._actor(rank, _chain_name(chain), COMPUTE, "chain", chain.fires,
                            self._priority(rank, first), self.tables.loc(first.loc))
        steps = _Launches(self, rank, actor, chain)
        for op in chain.ops:
            for result in op.results:
                state = rank.in_place.get(op, {}).get(result)
                if state is not None:
                    self._take_over(rank, result, state, actor, chain.fires)
                elif result in crossing:
                    hold = chain.fires if accumulates(op) else 1
                    self._produced(rank, result, actor, op.stage, chain.fires, hold)
            steps.add(op)
        self.actors[actor] = steps.finish()

    def _take_over(self, rank: _Rank, result: Value, state: Value, actor: int, fires: int) -> None:
        register = rank.registers[state]
        rank.registers[result] = register
        register.producer = actor
        self._use(register, actor, fires, donate=True)

    # ---- transfers and the border to the host ---------------------------------------------------

    def _transfer(self, rank: _Rank, op: Transfer) -> None:
        fires = max((rank.grouping.rates[v] for v in (*op.results, *op.operands)), default=1)
        actor = self._actor(rank, f"{op.step} {_name(op)}", COMM, "comm", fires,
                            self._priority(rank, op), self.tables.loc(op.loc))
        source = target = -1
        for operand in op.operands:
            register = rank.registers[operand]
            self._use(register, actor, fires)
            source = register.id
        for result in op.results:
            target = self._produced(rank, result, actor, op.stage, fires).id
        pair = op.step in ("send", "recv")
        moved = (op.results or op.operands)[0].type
        record = p.Transfer(
            op.match, op.step, self.tables.comm(op.ranks, "channel" if pair else "group"),
            op.ranks.index(rank.rank), moved.dtype, op.counts, source, target, op.reduce,
            op.counts_back)
        nbytes = max((v.type.nbytes for v in (*op.results, *op.operands)), default=0)
        built = self.actors[actor]
        self.actors[actor] = p.Actor(
            built.id, built.name, built.rank, built.stream, built.kind, fires, built.priority,
            transfer=record, loc=built.loc,
            seconds=self.prices.transfer(nbytes, len(op.ranks)))

    def _fetch(self, rank: _Rank) -> None:
        """What the local function returns is, in order, what lives on the rank's stage."""
        last = rank.function.body.last
        assert isinstance(last, Return)
        for index, value in zip(self._results_at(rank), last.values, strict=True):
            register = rank.registers[value]
            actor = self._actor(rank, f"fetch {self.program.results[index]}", IO, "fetch", 1, 0)
            self._use(register, actor, 1)
            self.fetches.setdefault(index, []).append(register)

    def _results_at(self, rank: _Rank) -> list[int]:
        last = self.program.boxed.body.last
        assert isinstance(last, Return)
        homes = {a.value: a.stage for a in self.program.boxed.arguments}
        stages = [homes[v] if v.op is None else v.op.stage for v in last.values]
        mesh = self.program.mesh
        return [i for i, s in enumerate(stages) if rank.rank in mesh.stage_ranks(s)]

    # ---- addresses -----------------------------------------------------------------------------

    def _assemble(self, ranks: list[_Rank]) -> p.Program:
        ends = list(self.tables.state_bytes)
        registers = []
        for r in self.registers:
            offsets: tuple[int, ...] = (r.offset,)
            if r.kind != "state":
                size = aligned(r.nbytes)
                offsets = tuple(ends[r.rank] + i * size for i in range(r.slots))
                ends[r.rank] += size * r.slots
            registers.append(p.Register(
                r.id, r.rank, r.rank, r.table_value, r.local, r.origin, r.producer,
                tuple(r.uses.values()), r.hold, r.slots, r.nbytes, offsets, r.initial, r.kind,
                r.advance))
        streams = []
        for rank in ranks:
            for stream, kind in ((COMPUTE, "cpu"), (COMM, "comm"), (IO, "io")):
                nbytes = aligned(rank.scratch[stream])
                streams.append(p.Stream(3 * rank.rank + stream, rank.rank, kind, arena=rank.rank,
                                        offset=ends[rank.rank], nbytes=nbytes))
                ends[rank.rank] += nbytes
        return p.Program(
            self.program.name, self.micro, tuple(self.actors), tuple(registers), tuple(streams),
            feeds=tuple(self._port(name, rs) for name, rs in self.feeds.items()),
            fetches=tuple(self._port(self.program.results[i], self.fetches[i])
                          for i in sorted(self.fetches)),
            reader=self.program.reader, peak=tuple(ends))

    def _port(self, name: str, registers: list[_Register]) -> p.Port:
        when = "micro" if registers[0].rate > 1 else "step"
        return p.Port(name, registers[0].table_value, tuple(r.id for r in registers), when)


class _Launches:
    """Collects the launches of one chain, then places what stays inside it."""

    def __init__(self, builder: ProgramBuilder, rank: _Rank, actor: int, chain: Chain) -> None:
        self.builder, self.rank, self.actor, self.chain = builder, rank, actor, chain
        self.pending: list[tuple[LaunchSpec, Op, dict[int, Value], dict[int, Value], str]] = []
        self.cells: dict[Value, int] = {}  # step and seed, stored in scratch by the first launches
        self.seconds = 0.0

    def add(self, op: Op) -> None:
        for value in op.operands:
            self._read(value)
        if accumulates(op):
            return self._accumulate(op)
        for spec in self.builder.emit(op):
            self._launch(spec, op, dict(enumerate(op.operands)), dict(enumerate(op.results)), "all")

    def _read(self, value: Value) -> None:
        argument = self.rank.arguments.get(value)
        if argument is not None and argument.role in ("step", "seed"):
            self.cells.setdefault(value, len(self.cells))
        elif value in self.rank.registers:
            register = self.rank.registers[value]
            if register.producer != self.actor or register.kind == "state":
                self.builder._use(register, self.actor, self.chain.fires)

    def _accumulate(self, op: Op) -> None:
        """Keep the first micro-batch, combine the others with it."""
        assert isinstance(op, Transfer)
        source, total = op.operands[0], op.result
        for phase, values in (("first", [source]), ("rest", [total, source])):
            body = elementwise(values, op.reduce or "sum")
            for spec in self.builder.emit(body):
                self._launch(spec, op, dict(enumerate(values)), {0: total}, phase)

    def _launch(self, spec: LaunchSpec, op: Op, operands: dict[int, Value],
                results: dict[int, Value], phase: str) -> None:
        self.pending.append((spec, op, operands, results, phase))
        self.seconds += self.builder.prices.launch(spec)

    def finish(self) -> p.Actor:
        inside, lifetimes = self._lifetimes()
        offsets, total = place(lifetimes)
        base = 64 * len(self.cells)
        where = {value: base + offsets[i] for value, i in inside.items()}
        private = {k: base + offsets[len(inside) + k] for k in range(len(self.pending))}
        launches = [self._cell(v, i) for v, i in self.cells.items()]
        launches += [self._record(k, where, private[k]) for k in range(len(self.pending))]
        built = self.builder.actors[self.actor]
        scratch = base + total
        self.rank.scratch[COMPUTE] = max(self.rank.scratch[COMPUTE], scratch)
        return p.Actor(built.id, built.name, built.rank, built.stream, built.kind, built.fires,
                       built.priority, tuple(launches), None, scratch, self.seconds, built.loc)

    def _lifetimes(self) -> tuple[dict[Value, int], list[Lifetime]]:
        """Values inside the chain with their spans, then the scratch of each launch."""
        spans: dict[Value, list[int]] = {}
        for k, (_, _, operands, results, _) in enumerate(self.pending):
            for value in (*operands.values(), *results.values()):
                if value not in self.rank.registers and value not in self.rank.arguments:
                    spans.setdefault(value, []).append(k)
        lifetimes = [Lifetime(nbytes_of(v.type, v.type.shape), ks[0], ks[-1])
                     for v, ks in spans.items()]
        lifetimes += [Lifetime(spec.scratch, k, k) for k, (spec, *_) in enumerate(self.pending)]
        return {v: i for i, v in enumerate(spans)}, lifetimes

    def _cell(self, value: Value, index: int) -> p.Launch:
        role = self.rank.arguments[value].role
        text = KernelText("c", "ab_store_i64", STORE_CELL, "ab_store_i64", STORE_CELL_BODY)
        pointers, ints = (Pointer("scratch", 0),), (IntArg(0),)
        kernel = self.builder.tables.kernel(LaunchSpec(text, pointers, ints, (), 1))
        return p.Launch(kernel, (p.Arg("scratch", 64 * index), p.Arg(role)))

    def _record(self, k: int, where: dict[Value, int], private: int) -> p.Launch:
        spec, op, operands, results, phase = self.pending[k]
        arguments = [
            p.Arg("scratch", private + pointer.index) if pointer.kind == "scratch"
            else self._address((operands if pointer.kind == "operand" else results)[pointer.index],
                               where, pointer.offset)
            for pointer in spec.pointers
        ]
        arguments += [p.Arg("int", i.base, i.step) for i in spec.ints]
        arguments += [p.float_arg(f) for f in spec.floats]
        tables = self.builder.tables
        return p.Launch(tables.kernel(spec), tuple(arguments), spec.tiles, phase,
                        tile_scratch=spec.tile_scratch, flops=spec.flops, bytes=spec.bytes,
                        loc=tables.loc(op.loc), checks=self._checks(spec, op))

    def _checks(self, spec: LaunchSpec, op: Op) -> tuple[p.Check, ...]:
        """The indices that a launch checks. A kernel that checks none does so for no op."""
        tables = self.builder.tables
        if spec.kernel.digest in tables.unchecked:
            return ()
        found = tuple(p.Check(c.size, c.index, c.table, c.axis, tables.loc(c.loc))
                      for c in checks_of(op))
        if not found:
            tables.unchecked.add(spec.kernel.digest)
        return found

    def _address(self, value: Value, where: dict[Value, int], offset: int) -> p.Arg:
        if value in self.cells:
            return p.Arg("scratch", 64 * self.cells[value] + offset)
        if value in self.rank.registers:
            return p.Arg("reg", self.rank.registers[value].id, offset)
        return p.Arg("scratch", where[value] + offset)


def _crossing(function: Function, unit_of: dict[Op, int]) -> set[Value]:
    """Values read outside the chain that makes them, by the host, or summed over micro-batches."""
    found: set[Value] = set()
    for op in function.body:
        for value in op.operands:
            maker = value.op
            if maker is not None and (isinstance(op, Return) or unit_of[maker] != unit_of[op]):
                found.add(value)
        if accumulates(op):
            found.update(op.results)
    return found


def _name(op: Op) -> str:
    values = op.results or op.operands
    return values[0].name if values else op.kind


def _chain_name(chain: Chain) -> str:
    first, last = _name(chain.ops[0]), _name(chain.ops[-1])
    return first if first == last else f"{first} .. {last}"
