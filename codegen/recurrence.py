"""What a kernel must know of a scan: which of its axes are independent, and what lives where.

An axis is independent if every statement has a variable of its own along it and reads of values of
the scan keep to their place there; so its points can run from the first step to the last without
each other, and are the grid of the kernel. `Plan.cells` gives the statements at one step as clauses
over memory: a history and what becomes of it are the result, and any other value of the region has
room for one step only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from anabranch.ir.core import Value
from anabranch.ir.expr import (
    Call,
    Const,
    Expr,
    Read,
    Var,
    integer,
    sub,
    substitute,
    transform,
    walk,
)
from anabranch.ir.index import expression, mixed_radix
from anabranch.ir.linear import Linear, place
from anabranch.ir.ops import Scan
from anabranch.ir.recurrence import axes, distance, scan_axis, statements
from anabranch.ir.space import Clause, clause, matched
from anabranch.ir.types import tensor

Node = tuple[int, str]  # a variable of a statement

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True, slots=True)
class Cell:
    """A statement at one step. `own` are the variables of its result beside those of the grid;
    its element goes to `places` of each of the `targets`."""

    clause: Clause
    own: tuple[str, ...]
    places: tuple[Expr, ...]
    targets: tuple[Value, ...]

    @property
    def reads(self) -> Iterator[Linear]:
        """The places of what it reads."""
        for read in self.clause.reads:
            yield place(read.subscripts, self.clause.operands[read.operand].type.shape)

    def decides(self, name: str) -> bool:
        """Whether a variable is compared with a number, which says what is to be computed."""
        return any(isinstance(e, Call) and e.fn in COMPARISONS
                   and {type(a) for a in e.args} == {Const, Var} and Var(name) in e.args
                   for e in walk(self.clause.body))

    def replaced(self, name: str, expr: Expr) -> Cell:
        """With an expression in place of a variable."""
        places = tuple(substitute(p, {name: expr}) for p in self.places)
        return replace(self, clause=self.clause.replaced({name: expr}), places=places,
                       own=tuple(v for v in self.own if v != name))


@dataclass(frozen=True, slots=True)
class Plan:
    """`grid` are the independent axes with their extents; `axis_of` maps a variable of a statement
    to its axis. With `alone` no statement has variables of its own: then values of the region need
    no memory. `reach` is how many steps back the farthest read of a history goes."""

    scan: Scan
    grid: dict[str, int]
    axis_of: Mapping[Node, str]
    alone: bool
    reach: int
    memory: Mapping[Value, Value]

    @property
    def scratch(self) -> tuple[Value, ...]:
        results = set(self.scan.results)
        return tuple(dict.fromkeys(v for v in self.memory.values() if v not in results))

    def time(self, step: Expr) -> Expr:
        """The value of the scan's variable at a step."""
        last = integer(self.scan.extent - 1)
        return sub(last, step) if self.scan.reverse else step

    def cells(self, step: Expr, fresh: Iterator[int]) -> Iterator[Cell]:
        """The statements at a step; `fresh` numbers make names of variables unique."""
        for i, op in enumerate(statements(self.scan)):
            names = {v: self.axis_of.get((i, v)) or f"{v}#{next(fresh)}" for v, _ in op.ranges}
            values: dict[str, Expr] = {v: Var(name) for v, name in names.items()}
            values[self.scan.variable] = self.time(step)
            known = clause(op)
            held = self._in_memory(known).replaced(values)
            apart = [v for v in op.result_vars if v != self.scan.variable]
            moved = replace(
                held, reduced=tuple(names[v] for v in op.reduced), dims=(),
                ranges=tuple((names[v], n) for v, n in op.ranges if v != self.scan.variable))
            places = tuple(substitute(expression(mixed_radix(dim, op.extents)), values)
                           for dim in op.dims if op.result in self.scan.news
                           or dim != (self.scan.variable,))
            yield Cell(moved, tuple(names[v] for v in apart if (i, v) not in self.axis_of), places,
                       self._targets(op.result))

    def _targets(self, value: Value) -> tuple[Value, ...]:
        found = tuple(r for r, new in zip(self.scan.results, self.scan.news, strict=True)
                      if new is value)
        return found or ((self.memory[value],) if value in self.memory else ())

    def _in_memory(self, c: Clause) -> Clause:
        """Reads of values of the scan as reads of where they are held."""
        where = axes(self.scan)
        results = set(self.scan.results)

        def rule(e: Expr) -> Expr | None:
            if not isinstance(e, Read):
                return None
            source = c.operands[e.operand]
            held = self.memory.get(source)
            if held is None or held in results:
                return None
            at = where[source]
            return Read(e.operand, e.subscripts[:at] + e.subscripts[at + 1 :], e.pad)

        guard = None if c.guard is None else transform(c.guard, rule)
        operands = tuple(self.memory.get(v, v) for v in c.operands)
        return replace(c, operands=operands, body=transform(c.body, rule), guard=guard)


def plan(scan: Scan) -> Plan:
    """How the statements of a scan are walked."""
    classes = _independent(scan)
    ops = list(statements(scan))
    named: dict[str, int] = {}
    axis_of: dict[Node, str] = {}
    for members in classes:
        i, v = max(members)
        name = v if v not in named else f"{v}_{len(named)}"
        named[name] = ops[i].extents[v]
        axis_of.update(dict.fromkeys(members, name))
    alone = all((i, v) in axis_of or v == scan.variable
                for i, op in enumerate(ops) for v in op.result_vars)
    return Plan(scan, named, axis_of, alone, _reach(scan), _memory(scan, alone))


def _memory(scan: Scan, alone: bool) -> dict[Value, Value]:
    """Where values of the region are held; not at all, if they are in reach of each point."""
    held = dict(zip(scan.histories, scan.results, strict=True))
    if alone:
        return held
    for op in statements(scan):
        at, type = scan_axis(op, scan.variable), op.result.type
        shape = (*type.shape[:at], *type.shape[at + 1 :])
        held[op.result] = Value(tensor(type.dtype, shape), op.result.name)
    return held | dict(reversed(list(zip(scan.news, scan.results, strict=True))))


def _reach(scan: Scan) -> int:
    where = axes(scan)
    return max((distance(read.subscripts[where[source]], scan)
                for op in statements(scan) for read in clause(op).reads
                if (source := op.operands[read.operand]) in scan.histories), default=0)


# --- independent axes ----------------------------------------------------------------------------


def _independent(scan: Scan) -> list[list[Node]]:
    """Classes with one variable of each statement, in the order of the last one's result."""
    ops = list(statements(scan))
    parent: dict[Node, Node] = {(i, v): (i, v) for i, op in enumerate(ops) for v, _ in op.ranges}
    broken: set[Node] = {(i, v) for i, op in enumerate(ops) for v in (*op.reduced, scan.variable)}

    def root(node: Node) -> Node:
        while parent[node] != node:
            node = parent[node]
        return node

    for pair in _ties(scan):
        if isinstance(pair[1], tuple):
            parent[root(pair[0])] = root(pair[1])
        else:
            broken.add(pair[0])
    classes: dict[Node, list[Node]] = {}
    for node in parent:
        classes.setdefault(root(node), []).append(node)
    whole = [members for members in classes.values()
             if [i for i, _ in members] == list(range(len(ops))) and not broken & set(members)]
    order = ops[-1].result_vars
    return sorted(whole, key=lambda members: order.index(members[-1][1]))


def _ties(scan: Scan) -> Iterator[tuple[Node, Node | None]]:
    """Variables that a read of a value of the scan makes one axis; or one that is read elsewhere
    than at its own place, and None."""
    ops = list(statements(scan))
    homes = {op.result: j for j, op in enumerate(ops)}
    homes |= {h: homes[new] for h, new in zip(scan.histories, scan.news, strict=True)}
    for i, op in enumerate(ops):
        for read in clause(op).reads:
            j = homes.get(op.operands[read.operand])
            if j is None:
                continue
            for subscript, dim in zip(read.subscripts, ops[j].dims, strict=True):
                found = matched(subscript, dim, ops[j].extents, op.extents)
                for v, other in itertools.zip_longest(dim, found or ()):
                    yield (j, v), None if other is None else (i, other)
