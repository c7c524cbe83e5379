"""Replaces `Gradient` ops by the statements that compute them, in index notation again.

Reverse mode over a straight line of computes. Going backward, the contributions to a value are
added up when its defining op is reached; that op then gives contributions to its operands, each by
one short chain of computes. Second derivatives are this pass run over its own output.

`contributions` has one statement; a scan is taken as a whole (`scan_gradient`).

A gradient has the loc and the stage of the statement it comes from, and a sum of contributions the
stage of the value they are for. It belongs to no recomputed region.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from anabranch.ir.core import Function, Module, Op, Value
from anabranch.ir.diagnostics import NOWHERE, CompilerBug
from anabranch.ir.expr import Const, Expr, Var, add
from anabranch.ir.ops import Compute, Gradient, Pin, Scan
from anabranch.ir.recurrence import statements
from anabranch.ir.types import is_float
from anabranch.lowering.adjoints import receives
from anabranch.lowering.contributions import context_of, contributions, isolate_body, named
from anabranch.lowering.scan_gradient import scan_contributions
from anabranch.lowering.sums import Frame, Writer


def differentiate(module: Module) -> Module:
    """Expand every gradient of every function, in place."""
    for function in module.functions.values():
        for op in function.body:
            if isinstance(op, Gradient):
                expand(function, op)
    return module


def expand(function: Function, gradient: Gradient) -> None:
    """Put the statements of one gradient in front of it and take it away."""
    of, *by = gradient.operands
    for op in _before(gradient):
        for each in statements(op) if isinstance(op, Scan) else [op]:
            if isinstance(each, Compute) and each.reduce in ("max", "min", "prod"):
                isolate_body(each, op.variable if isinstance(op, Scan) else "")
    before = _before(gradient)
    sweep = Sweep(gradient, reachable(before, by), {a.value: a.stage for a in function.arguments})
    if of in sweep.active:
        sweep.give(of, _filled(sweep.writer(gradient), of, 1.0))
    for op in reversed(before):
        sweep.step(op)
    for value, result in zip(by, gradient.results, strict=True):
        result.replace_by(sweep.total(value))
    gradient.erase()


def _before(op: Op) -> list[Op]:
    ops: list[Op] = []
    while op.prev is not None:
        op = op.prev
        ops.append(op)
    return ops[::-1]


def reachable(ops: Sequence[Op], by: Sequence[Value]) -> set[Value]:
    """The values that a derivative by `by` reaches, and those themselves."""
    active = set(by)
    for op in ops:
        wanted = [n for n, v in enumerate(op.operands) if v in active]
        if wanted and (not isinstance(op, Compute) or receives(op.body, context_of(op, wanted))):
            active.update(v for v in op.results if is_float(v.type.dtype))
    return active


@dataclass(slots=True)
class Sweep:
    """The backward sweep of one gradient: what every value has received so far."""

    gradient: Gradient
    active: set[Value]
    argument_stages: dict[Value, int]
    received: dict[Value, list[Value]] = field(default_factory=dict)
    totals: dict[Value, Value] = field(default_factory=dict)

    def writer(self, source: Op) -> Writer:
        return Writer(self.gradient, source.loc, source.stage)

    def give(self, value: Value, contribution: Value) -> None:
        self.received.setdefault(value, []).append(contribution)

    def total(self, value: Value) -> Value:
        """The sum of what a value has received, zeros if that is nothing."""
        if value not in self.totals:
            self.totals[value] = self._sum(value, self.received.get(value, []))
        return self.totals[value]

    def _sum(self, value: Value, parts: list[Value]) -> Value:
        writer = self._home(value, parts)
        if not parts:
            return _filled(writer, value, 0.0)
        if len(parts) == 1:
            return parts[0]
        names = [f"i{d}" for d in range(value.type.rank)]
        frame = Frame(writer, list(dict.fromkeys(parts)))
        each: list[Expr] = [frame.read(part, [Var(n) for n in names]) for part in parts]
        body = functools.reduce(add, each)
        extents = dict(zip(names, value.type.shape, strict=True))
        return frame.emit(body, [(n,) for n in names], extents, name=named(value))

    def _home(self, value: Value, parts: list[Value]) -> Writer:
        """Where a value lives; an argument has the loc of what uses it first."""
        if value.op is not None:
            return self.writer(value.op)
        loc = next((p.op.loc for p in parts[::-1] if p.op is not None), NOWHERE)
        return Writer(self.gradient, loc, self.argument_stages.get(value, 0))

    def step(self, op: Op) -> None:
        """Hand on what the result of `op` has received to the operands of `op`."""
        value = next((v for v in op.results if v in self.active and v in self.received), None)
        wanted = [n for n, v in enumerate(op.operands) if v in self.active]
        if value is None or not wanted:
            return
        if isinstance(op, Scan):
            received = [self.total(v) if v in self.received else None for v in op.results]
            for number, part in scan_contributions(op, received, wanted, self.writer(op)):
                self.give(op.operands[number], part)
            return
        if isinstance(op, Pin):
            self.give(op.operands[0], self.total(value))
        elif isinstance(op, Compute):
            for number, part in contributions(op, self.total(value), wanted, self.writer(op)):
                self.give(op.operands[number], part)
        else:
            raise CompilerBug(f"'{op.kind}' has no gradient", op.loc)


def _filled(writer: Writer, like: Value, value: float) -> Value:
    """A tensor of one number, shaped like another value."""
    names = [f"i{d}" for d in range(like.type.rank)]
    return Frame(writer, []).emit(
        Const(value, like.type.dtype), [(n,) for n in names],
        dict(zip(names, like.type.shape, strict=True)), name=named(like))
