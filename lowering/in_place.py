"""Which op overwrites each state that a step changes.

A state has one buffer, so what makes its next value writes over the old one, after every other op
that reads the old one has run. That is an order between ops which is no data: two updates that
read each other's state cannot both have it. Guarantee: data and these orders together have no
cycle. Where an op cannot overwrite, its result is copied over the state instead, last of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anabranch.ir.core import Argument, Function, Op, Value
from anabranch.ir.expr import Expr, Read, Var, call, reads
from anabranch.ir.ops import Compute, Fused, Return

InPlace = dict[Op, dict[Value, Value]]
"""Op -> {its result: the state that it overwrites}."""


def choose_in_place(function: Function, arguments: Mapping[Value, Argument]) -> InPlace:
    """For each state that changes, the op that writes it in place; copies are added where the
    op that makes the next value cannot (`%w.new` copied over `%w` when all readers are done)."""
    last = function.body.last
    assert isinstance(last, Return)
    states = {v.name: v for v, a in arguments.items() if a.role == "state"}
    values = list(last.operands)
    first = len(last.values)
    changed = {i: states[name] for i, name in enumerate(last.states, first)
               if values[i] is not states[name]}
    orders = _Orders({op: place for place, op in enumerate(function.body)})
    able = [i for i, state in changed.items() if _can_overwrite(values[i], state, last, values)]
    for i in sorted(able, key=lambda i: orders.turns_back(values[i], changed[i])):
        orders.accept(values[i], changed[i])
    chosen = orders.chosen
    settled = {new for states_of in chosen.values() for new in states_of}
    for i, state in changed.items():
        if values[i] not in settled:
            made = values[i] if values[i].op else _copied(values[i], last)
            values[i] = _copied(made, last)
            chosen[_maker(values[i])] = {values[i]: state}
    for i, value in enumerate(values[:first]):
        if value.op is None or value in values[:i]:
            values[i] = _copied(value, last)
            values[i].name = value.name
    last.set_operands(values)
    return chosen


def readers_before_writers(chosen: InPlace) -> dict[Op, set[Op]]:
    """What must have run before each op that overwrites."""
    return {op: set(_readers(op, states.values())) for op, states in chosen.items()}


def elementwise(values: list[Value], how: str) -> Compute:
    """A detached compute: the copy of one value, or the combination of two of one type."""
    type = values[0].type
    dims = tuple(f"i{d}" for d in range(type.rank))
    place = tuple(Var(d) for d in dims)
    parts: list[Expr] = [Read(k, place) for k in range(len(values))]
    names = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
    body = parts[0] if len(parts) == 1 else call(names[how], *parts)
    return Compute(values, type.dtype, list(zip(dims, type.shape, strict=True)),
                   [(d,) for d in dims], body, name=values[0].name)


def _copied(value: Value, last: Return) -> Value:
    assert last.block is not None
    return last.block.insert_before(elementwise([value], "copy"), last).result


def _maker(value: Value) -> Op:
    assert value.op is not None
    return value.op


def _readers(op: Op, states: Iterable[Value]) -> Iterable[Op]:
    """The other ops that read the states that an op overwrites."""
    return [reader for state in states for reader in state.uses
            if reader is not op and not isinstance(reader, Return)]


@dataclass(slots=True)
class _Orders:
    """What was accepted so far. Data flows from lower places of the program to higher ones; as
    long as all orders do as well, there is no cycle to look for."""

    place: dict[Op, int]
    chosen: InPlace = field(default_factory=dict)
    straight: bool = True

    def turns_back(self, new: Value, state: Value) -> bool:
        """Whether a reader of the state stands behind what would overwrite it."""
        op = _maker(new)
        return any(self.place[reader] > self.place[op] for reader in _readers(op, [state]))

    def accept(self, new: Value, state: Value) -> None:
        """Let `new` overwrite `state`, unless that closes a cycle."""
        op, back = _maker(new), self.turns_back(new, state)
        if (back or not self.straight) and self._awaited(_readers(op, [state]), op):
            return
        self.chosen.setdefault(op, {})[new] = state
        self.straight = self.straight and not back

    def _awaited(self, ops: Iterable[Op], awaited: Op) -> bool:
        """Whether any of the ops must wait for another one."""
        seen: set[Op] = set()
        stack = list(ops)
        while stack:
            op = stack.pop()
            if op is awaited:
                return True
            if op not in seen:
                seen.add(op)
                stack += [v.op for v in op.operands if v.op is not None]
                stack += _readers(op, self.chosen.get(op, {}).values())
        return False


def _can_overwrite(new: Value, state: Value, last: Return, values: list[Value]) -> bool:
    """Whether the maker of `new` may overwrite `state` while it reads it: no reduction, every read
    of the state at the place that is written, and nobody else wants the new value."""
    op = new.op
    if set(new.uses) != {last} or values.count(new) != 1:
        return False
    if isinstance(op, Compute):
        return not op.reduce and _reads_in_place(op, state)
    if not isinstance(op, Fused):
        return False
    inner = [op.region.args[k] for k, v in enumerate(op.operands) if v is state]
    return all(
        isinstance(o, Return) or (isinstance(o, Compute) and not o.reduce and all(
            _reads_in_place(o, v) for v in inner))
        for o in op.region
    )


def _reads_in_place(op: Compute, state: Value) -> bool:
    plain = tuple(Var(dim[0]) if len(dim) == 1 else None for dim in op.dims)
    return all(
        read.subscripts == plain and read.pad is None
        for expr in (op.body, op.guard) if expr is not None
        for read in reads(expr) if op.operands[read.operand] is state
    )
