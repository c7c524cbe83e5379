"""Statements made for one micro-batch, extended to all: an index in front says which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anabranch.frontend.builder import Builder, letters
from anabranch.frontend.evaluate import unsupported
from anabranch.ir.core import Op, Value
from anabranch.ir.diagnostics import Span
from anabranch.ir.expr import (
    Call,
    Const,
    Expr,
    Rand,
    Read,
    Var,
    add,
    integer,
    mul,
    reads,
    transform,
)
from anabranch.ir.expr import walk as subexpressions
from anabranch.ir.index import affine
from anabranch.ir.ops import Compute, Gradient, Order, Pin
from anabranch.ir.sbp import Layout, S

PART = "part"  # the index of a micro-batch


def batch_axes(op: Op, axes: Mapping[Value, int]) -> dict[Value, int]:
    """The results of an op that have an axis of rows, given its operands that have one."""
    match op:
        case Compute():
            rows = {name for each in (op.body, op.guard) if each is not None
                    for read in reads(each) for name in _row_variables(op, read, axes)}
            found = [d for d, dim in enumerate(op.dims) if dim and dim[0] in rows]
            return {op.result: found[0]} if found else {}
        case Gradient():
            pairs = zip(op.results, op.operands[1:], strict=True)
            return {made: axes[by] for made, by in pairs if by in axes}
        case Pin() | Order() if op.operands[0] in axes:
            axis = axes[op.operands[0]]
            return {} if isinstance(op, Order) and op.axis == axis else {op.result: axis}
    return {}


def _row_variables(op: Compute, read: Read, axes: Mapping[Value, int]) -> list[str]:
    """The variables that go along the rows of an operand: alone, or as the first of a merged
    index."""
    value = op.operands[read.operand]
    form = affine(read.subscripts[axes[value]]) if value in axes else None
    if form is None or form.constant:
        return []
    size = value.type.shape[axes[value]]
    return [name for name, factor in form.terms if factor * op.extents[name] == size]


@dataclass(slots=True)
class Extension:
    """Which values have been extended, and to what. `starts` are the rows of the first micro-batch
    and the whole values that they are of; `axes` the axis of rows of values."""

    builder: Builder
    axes: dict[Value, int]
    starts: Mapping[Value, Value]
    new: dict[Value, Value] = field(default_factory=dict)
    one: dict[tuple[Value, int], Value] = field(default_factory=dict)

    def extend(self, op: Op, span: Span) -> None:
        """Make an op for all micro-batches, if it depends on the micro-batch."""
        draws = isinstance(op, Compute) and any(
            isinstance(e, Rand) for e in subexpressions(op.body))
        if op.results[:1] and op.results[0] in self.starts:
            made: Op = self._start(op)
        elif any(v in self.new for v in op.operands) or draws:
            made = self._extended(op, span)
        else:
            return
        self.axes |= batch_axes(op, self.axes)
        self.new.update(zip(op.results, made.results, strict=True))

    def _append(self, op: Op) -> Op:
        return self.builder.function.body.append(op)

    def _start(self, op: Op) -> Op:
        """The rows of every micro-batch, instead of those of the first."""
        assert isinstance(op, Compute)
        whole = self.starts[op.result]
        axis, rows = self.axes[whole], op.result.type.shape[self.axes[whole]]
        assert isinstance(op.body, Read)
        subscripts = list(op.body.subscripts)
        subscripts[axis] = add(mul(Var(PART), integer(rows)), subscripts[axis])
        return self._append(self._with_part(op, [whole], Read(0, tuple(subscripts)), None))

    def _with_part(
        self, op: Compute, operands: list[Value], body: Expr, guard: Expr | None
    ) -> Compute:
        return Compute(
            operands, op.result.type.dtype, [(PART, self.builder.micro), *op.ranges],
            [(PART,), *op.dims], body, reduce=op.reduce, reduced=op.reduced, guard=guard,
            name=op.result.name, loc=op.loc, stage=op.stage, recompute=op.recompute)

    def _extended(self, op: Op, span: Span) -> Op:
        operands = [self.new.get(v, v) for v in op.operands]
        match op:
            case Compute():
                guard = None if op.guard is None else self._inner(op, op.guard)
                return self._append(
                    self._with_part(op, operands, self._inner(op, op.body), guard))
            case Pin():
                return self._append(Pin(operands[0], _behind_parts(op.layout), op.result.name,
                                        loc=op.loc, stage=op.stage, recompute=op.recompute))
            case Order():
                return self._append(Order(
                    operands[0], op.axis + 1, op.count, descending=op.descending,
                    name=op.result.name, loc=op.loc, stage=op.stage, recompute=op.recompute))
            case Gradient() if all(v in self.new for v in op.operands):
                total = self.total(op.operands[0])
                return self._append(Gradient(total, operands[1:], loc=op.loc))
        raise unsupported(f"a {op.kind} of each micro-batch on its own is not supported yet", span)

    def _inner(self, op: Compute, expr: Expr) -> Expr:
        """Reads of what is extended at this micro-batch; draws of the rows that it has."""

        def rule(node: Expr) -> Expr | None:
            if isinstance(node, Read) and op.operands[node.operand] in self.new:
                return Read(node.operand, (Var(PART), *node.subscripts), node.pad)
            if isinstance(node, Rand):
                form = affine(node.counter)
                assert form is not None, "elements are counted in row-major order"
                count = mul(Var(PART), integer(form.bounds(op.extents)[1] + 1))
                return Rand(node.kind, node.stream, node.seed, node.step, add(count, node.counter))
            return None

        return transform(expr, rule)

    def total(self, value: Value) -> Value:
        """The sum of a value over micro-batches."""
        return self.over_parts(value, None)

    def mean(self, value: Value) -> Value:
        total = self.total(value)
        share = Call("div", (Read(0, ()), Const(float(self.builder.micro), value.type.dtype)))
        return self._append(Compute([total], value.type.dtype, (), (), share,
                                    name=value.name)).results[0]

    def over_parts(self, value: Value, guard: Expr | None) -> Value:
        names = letters(value.type.rank)
        ranges = [*zip(names, value.type.shape, strict=True), (PART, self.builder.micro)]
        read = Read(0, (Var(PART), *map(Var, names)))
        reduce = "any" if value.type.dtype == "bool" else "sum"
        loc, stage = (value.op.loc, value.op.stage) if value.op is not None else (
            self.builder.loc, self.builder.stage)
        return self._append(Compute(
            [self.new[value]], value.type.dtype, ranges, [(n,) for n in names], read,
            reduce=reduce, reduced=[PART], guard=guard, name=value.name, loc=loc,
            stage=stage)).results[0]


def picked(value: Value, part: int, extension: Extension) -> Value:
    """A value as one micro-batch has it. It is written as a sum, which can be accumulated in
    time."""
    if value not in extension.new:
        return value
    if (value, part) not in extension.one:
        guard = Call("eq", (Var(PART), integer(part)))
        extension.one[value, part] = extension.over_parts(value, guard)
    return extension.one[value, part]


def together(value: Value, extension: Extension) -> Value:
    """The rows of all micro-batches, one behind the other."""
    axis, names = extension.axes[value], letters(value.type.rank)
    ranges = [(PART, extension.builder.micro), *zip(names, value.type.shape, strict=True)]
    dims = [(PART, n) if d == axis else (n,) for d, n in enumerate(names)]
    order = [r for dim in dims for r in ranges if r[0] in dim]
    read = Read(0, (Var(PART), *map(Var, names)))
    stage = value.op.stage if value.op is not None else 0
    return extension.builder.function.body.append(Compute(
        [extension.new[value]], value.type.dtype, order, dims, read, name=value.name,
        loc=extension.builder.loc, stage=stage)).result


def _behind_parts(layout: Layout) -> Layout:
    """A layout one dimension further."""
    return Layout(tuple((axis, S(sbp.dim + 1) if sbp.kind == "S" else sbp)
                        for axis, sbp in layout.entries))
