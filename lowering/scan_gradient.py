"""The gradient of a scan: another scan, from the other end.

Seen as statements over whole tensors, a scan is a circle of equations, and so are the gradients of
its values: each is the sum of what the statements that read it hand back, `contributions` as for
any statement. What a statement hands back to an earlier place is read from a later one, so that
the circle is a recurrence in the other direction. Its statements become the region of a scan; what
does not depend on it, or only leads out of it, stands before and behind: the gradient of a weight
is one product over all places.

Values of the region that a gradient reads become results of the scan.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.ir.core import Block, Op, Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.expr import Expr, Read, Var, add, reads, substitute, transform
from anabranch.ir.index import affine
from anabranch.ir.ops import Compute, Return, Scan
from anabranch.ir.recurrence import axes, closed, discard, result_of, statements
from anabranch.ir.types import is_float
from anabranch.lowering.adjoints import receives
from anabranch.lowering.contributions import context_of, contributions, named
from anabranch.lowering.sums import Frame, Writer, zero


def scan_contributions(
    scan: Scan, received: Sequence[Value | None], wanted: Sequence[int], writer: Writer
) -> list[tuple[int, Value]]:
    """What the operands numbered `wanted` receive, where `received` is what each result does."""
    flow = _flow(scan, received, wanted)
    if not flow:
        return []
    equations = _Equations(scan, writer, flow)
    parts = equations.write()
    equations.define(received)
    _Circle(scan, equations).place(writer)
    return parts


def _source(scan: Scan) -> dict[Value, Value]:
    """The value of the region that each history is, as far as it is known."""
    return dict(zip(scan.histories, scan.news, strict=True))


def _flow(
    scan: Scan, received: Sequence[Value | None], wanted: Sequence[int]
) -> dict[Value, list[int]]:
    """The values of the region that a gradient flows through, and to which operands of the
    statement that makes each."""
    source = _source(scan)
    active = {scan.inputs[n] for n in wanted}
    grown = -1
    while grown < len(active):
        grown = len(active)
        active |= {h for h, new in source.items() if new in active}
        active |= {op.result for op in statements(scan) if _receivers(op, active)}
    flow: dict[Value, list[int]] = {}
    waiting = [v for v, given in zip(scan.news, received, strict=True) if given is not None]
    while waiting:
        value = waiting.pop()
        if value in active and value not in flow and isinstance(value.op, Compute):
            flow[value] = _receivers(value.op, active)
            operands = [value.op.operands[n] for n in flow[value]]
            waiting += [source.get(v, v) for v in operands if v not in scan.inputs]
    return {op.result: flow[op.result] for op in statements(scan) if op.result in flow}


def _receivers(op: Compute, active: set[Value]) -> list[int]:
    """The operands that a gradient of the statement reaches, of those that lead to what is wanted:
    what is only read where it is stopped has none to hand on."""
    if not is_float(op.result.type.dtype):
        return []
    return [n for n, v in enumerate(op.operands)
            if v in active and receives(op.body, context_of(op, [n]))]


@dataclass(slots=True)
class _Equations:
    """The gradients of the values in `flow` as equations over whole tensors, in a block of their
    own. `adjoints` stands for each gradient until `definitions` has it."""

    scan: Scan
    writer: Writer
    flow: dict[Value, list[int]]
    block: Block = field(default_factory=Block)
    adjoints: dict[Value, Value] = field(default_factory=dict)
    given: dict[Value, list[Value]] = field(default_factory=dict)
    definitions: dict[Value, Value] = field(default_factory=dict)

    def write(self) -> list[tuple[int, Value]]:
        """What each statement hands back; the parts for operands of the scan are returned."""
        scan, source = self.scan, _source(self.scan)
        end = self.block.append(Return(()))
        self.adjoints = {v: self.block.add_arg(named(v), v.type) for v in self.flow}
        twins = {op.result: op.clone(op.operands) for op in statements(scan)}
        outer = dict(zip(scan.inputs, scan.operands, strict=True))
        outer |= {value: twin.result for value, twin in twins.items()}
        for twin in twins.values():
            twin.set_operands([outer[source.get(v, v)] for v in twin.operands])
        parts: list[tuple[int, Value]] = []
        for value, numbers in self.flow.items():
            op, twin = value.op, twins[value]
            assert isinstance(op, Compute)
            assert isinstance(twin, Compute)
            writer = Writer(end, op.loc, op.stage)
            for number, part in contributions(
                    twin, self.adjoints[value], numbers, writer, scan.variable):
                operand = op.operands[number]
                if operand in scan.inputs:
                    parts.append((scan.inputs.index(operand), part))
                else:
                    self.given.setdefault(source.get(operand, operand), []).append(part)
        self._let_out(twins)
        return parts

    def _let_out(self, twins: Mapping[Value, Op]) -> None:
        """What is read of the forward scan becomes a result of it."""
        for twin in twins.values():
            twin.set_operands(())
        for value, twin in twins.items():
            if twin.result.uses:
                twin.result.replace_by(result_of(self.scan, value))

    def define(self, received: Sequence[Value | None]) -> None:
        """The gradient of each value: what its readers and the results that it is have received."""
        for value in self.flow:
            outside = [g for new, g in zip(self.scan.news, received, strict=False)
                       if new is value and g is not None]
            self.definitions[value] = self._sum(value, [*outside, *self.given.get(value, [])])

    def _sum(self, value: Value, parts: list[Value]) -> Value:
        if len(parts) == 1 and parts[0].op is not None and parts[0].op.block is self.block:
            return parts[0]
        assert self.block.last is not None
        assert value.op is not None
        names = [f"i{d}" for d in range(value.type.rank)]
        frame = Frame(Writer(self.block.last, value.op.loc, value.op.stage), [])
        each: list[Expr] = [frame.read(part, [Var(n) for n in names]) for part in parts]
        if not each:  # the derivatives of all that reads it are 0
            each = [zero(value.type.dtype)]
        return frame.emit(functools.reduce(add, each), [(n,) for n in names],
                          dict(zip(names, value.type.shape, strict=True)), name=named(value))


@dataclass(slots=True)
class _Circle:
    """Which equations need each other, and the scan that these become."""

    scan: Scan
    equations: _Equations
    computes: list[Compute] = field(default_factory=list)
    known: dict[Value, Value] = field(default_factory=dict)  # of each adjoint, its definition

    def place(self, writer: Writer) -> None:
        """Move all equations in front of the writer's anchor, the circle as a scan."""
        equations = self.equations
        self.computes = [op for op in equations.block if isinstance(op, Compute)]
        self.known = {adjoint: equations.definitions[value]
                      for value, adjoint in equations.adjoints.items()}
        before, circle, behind = self._parts()
        for op in before:
            self._move(op, writer)
        if circle:
            made = self._scanned(circle, {v for op in behind for v in self._read(op)}, writer)
            for op in behind:
                op.set_operands([made.get(v, v) for v in self._read(op)])
        for op in behind:
            self._move(op, writer)
        discard(equations.block)

    def _move(self, op: Compute, writer: Writer) -> None:
        op.set_operands(self._read(op))
        assert op.block is not None
        op.block.unlink(op)
        assert writer.anchor.block is not None
        writer.anchor.block.insert_before(op, writer.anchor)

    def _read(self, op: Compute) -> list[Value]:
        """The operands, adjoints by their definitions."""
        return [self.known.get(v, v) for v in op.operands]

    def _parts(self) -> tuple[list[Compute], list[Compute], list[Compute]]:
        """What comes before the circle, what leads from the circle to the circle, and the rest,
        each in the order of what it reads."""
        needs = {op: self._reached(op) for op in self.computes}
        turning = {op for op in self.computes if op in needs[op]}
        scanned = {op for op in self.computes if needs[op] & turning
                   and (op in turning or any(op in needs[each] for each in turning))}
        after = {op for op in self.computes if needs[op] & scanned} - scanned
        before = [op for op in self.computes if op not in scanned and op not in after]
        return (self._sorted(before, needs), [op for op in self.computes if op in scanned],
                self._sorted([op for op in self.computes if op in after], needs))

    def _reached(self, start: Compute) -> set[Op]:
        found: set[Op] = set()
        waiting = self._read(start)
        while waiting:
            op = waiting.pop().op
            if isinstance(op, Compute) and op.block is self.equations.block and op not in found:
                found.add(op)
                waiting += self._read(op)
        return found

    def _sorted(self, ops: list[Compute], needs: dict[Compute, set[Op]]) -> list[Compute]:
        return sorted(ops, key=lambda op: sum(other in needs[op] for other in ops))

    def _scanned(self, circle: list[Compute], outside: set[Value], writer: Writer
                 ) -> dict[Value, Value]:
        """The scan of the circle; its results by the values of the equations."""
        form = _form(self.scan, self.equations, circle, self.known)
        inside = {op.result for op in circle}
        shifted = {read.value for op in circle for read in form.reads(op) if read.shift}
        kept = [v for v in dict.fromkeys(op.result for op in circle)
                if v in shifted or v in outside]
        region = Block()
        histories = {v: region.add_arg(v.name, v.type) for v in kept}
        new: dict[Value, Value] = {}
        for op in form.ordered(circle):
            new[op.result] = region.append(form.rewritten(op, inside, new, histories)).result
        made = closed(region, list(histories.values()), [new[v] for v in kept],
                      self.scan.variable, self.scan.extent, reverse=not self.scan.reverse,
                      loc=self.scan.loc, stage=self.scan.stage, recompute=0)
        assert writer.anchor.block is not None
        writer.anchor.block.insert_before(made, writer.anchor)
        return dict(zip(kept, made.results, strict=True))


@dataclass(frozen=True, slots=True)
class _Seen:
    """A read of a value of the circle, so many places away."""

    value: Value
    shift: int


@dataclass(slots=True)
class _Form:
    """The statements of a circle as those of a scan: each has the scan's variable."""

    scan: Scan
    known: dict[Value, Value]
    axis: dict[Value, int]
    variable: dict[Compute, str]

    def reads(self, op: Compute) -> Iterator[_Seen]:
        for read in _reads(op):
            value = self._value(op, read)
            if value in self.axis:
                yield _Seen(value, self.shift(read.subscripts[self.axis[value]], op))

    def _value(self, op: Compute, read: Read) -> Value:
        value = op.operands[read.operand]
        return self.known.get(value, value)

    def shift(self, place: Expr, op: Compute) -> int:
        form = affine(place)
        if form is None or form.terms != ((self.variable[op], 1),):
            raise CompilerBug("a gradient of a scan reads at no fixed distance", op.loc)
        return form.constant

    def ordered(self, circle: list[Compute]) -> list[Compute]:
        """In the order of what they read at the same place."""
        done: dict[Value, Compute] = {}
        waiting = list(circle)
        while waiting:
            ready = [op for op in waiting
                     if all(read.shift or read.value in done for read in self.reads(op))]
            if not ready:
                raise CompilerBug("a gradient of a scan needs itself at one place", self.scan.loc)
            done |= {op.result: op for op in ready}
            waiting = [op for op in waiting if op not in ready]
        return list(done.values())

    def rewritten(self, op: Compute, inside: set[Value], new: dict[Value, Value],
                  histories: dict[Value, Value]) -> Compute:
        """The statement over the scan's variable, reading histories for other places."""
        operands: list[Value] = []

        def numbered(value: Value) -> int:
            if value not in operands:
                operands.append(value)
            return operands.index(value)

        def rule(node: Expr) -> Expr | None:
            if not isinstance(node, Read):
                return None
            value = self._value(op, node)
            if value not in inside:
                return Read(numbered(value), node.subscripts, node.pad)
            if not self.shift(node.subscripts[self.axis[value]], op):
                return Read(numbered(new[value]), node.subscripts, node.pad)
            pad = zero(value.type.dtype) if node.pad is None else node.pad
            return Read(numbered(histories[value]), node.subscripts, pad)

        names = self._names(op)
        change = {old: Var(name) for old, name in names.items()}
        guard = None if op.guard is None else substitute(transform(op.guard, rule), change)
        body = substitute(transform(op.body, rule), change)
        return Compute(
            operands, op.result.type.dtype, [(names[v], n) for v, n in op.ranges],
            [tuple(names[v] for v in dim) for dim in op.dims], body, reduce=op.reduce,
            reduced=[names[v] for v in op.reduced], guard=guard, name=op.result.name, loc=op.loc,
            stage=op.stage, recompute=op.recompute)

    def _names(self, op: Compute) -> dict[str, str]:
        """The variables of a statement, of which one becomes that of the scan."""
        mine, wanted = self.variable[op], self.scan.variable
        names = {v: v for v, _ in op.ranges} | {mine: wanted}
        if mine != wanted and wanted in dict(op.ranges):
            taken = {*dict(op.ranges), wanted}
            names[wanted] = next(n for n in map(f"{wanted}{{}}".format, range(len(taken) + 1))
                                 if n not in taken)
        return names


def _reads(op: Compute) -> list[Read]:
    return [*(reads(op.guard) if op.guard is not None else ()), *reads(op.body)]


def _form(scan: Scan, equations: _Equations, circle: list[Compute], known: dict[Value, Value]
          ) -> _Form:
    """Where every value of the circle has the scan's index: a gradient where its value has it, any
    other where it follows from what it reads."""
    own = axes(scan)
    form = _Form(scan, known, {}, {})
    inside = {op.result for op in circle}
    form.axis = {equations.definitions[v]: own[v] for v in equations.flow
                 if equations.definitions[v] in inside}
    waiting = list(circle)
    while waiting:
        settled = [op for op in waiting if _settle(op, form)]
        if not settled:
            raise CompilerBug("a gradient of a scan has no index of its own", scan.loc)
        waiting = [op for op in waiting if op not in settled]
    return form


def _settle(op: Compute, form: _Form) -> bool:
    """Find the scan's variable in a statement, from its result or from what it reads."""
    if op.result in form.axis:
        dim = op.dims[form.axis[op.result]]
    else:
        dim = next((_single(read.subscripts[form.axis[value]]) for read in _reads(op)
                    if (value := form._value(op, read)) in form.axis), ())
    if len(dim) != 1 or dim not in op.dims:
        return False
    form.axis[op.result], form.variable[op] = op.dims.index(dim), dim[0]
    return True


def _single(place: Expr) -> tuple[str, ...]:
    """The variable of `v + constant`."""
    form = affine(place)
    return tuple(v for v, c in form.terms if c == 1) if form is not None else ()
