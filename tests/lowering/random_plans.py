"""Random legal plans: what a planner may answer, without a reason."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anabranch.ir.core import Function, Module, Value
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Box, Compute, Order, Return, Scan
from anabranch.ir.sbp import B, Layout, S, broadcast_on
from anabranch.lowering.boxing import elements_moved, route
from anabranch.lowering.scan_signatures import lay_out, scan_forms
from anabranch.lowering.signatures import options


class DeadEnd(Exception):
    """The values so far come in micro-batches in a way that the next op cannot take."""


def plan_at_random(module: Module, mesh: Mesh, random: np.random.Generator) -> Module:
    """The module in phase `sbp`: every compute has one of its options, drawn at random, and every
    op a stage not before those of its operands."""
    for _ in range(200):
        planned = Module(phase="sbp", mesh=mesh)
        try:
            for function in module.functions.values():
                planned.add(_Draw(mesh, random).function(function))
        except DeadEnd:
            continue
        return planned
    raise AssertionError("200 draws have led nowhere")


class _Draw:
    def __init__(self, mesh: Mesh, random: np.random.Generator) -> None:
        self.mesh, self.inner, self.random = mesh, mesh.inner, random
        self.price = elements_moved(self.inner)
        self.values: dict[Value, Value] = {}
        self.stages: dict[Value, int] = {}
        self.stage = 0

    def function(self, logical: Function) -> Function:
        made = Function(logical.name)
        for a in logical.arguments:
            type = a.value.type.with_layout(self.argument_layout(a.value, a.role))
            stage = 0 if a.role in ("step", "seed") else int(self.random.integers(self.mesh.stages))
            self.values[a.value] = made.add_argument(a.value.name, type, a.role, stage=stage)
            self.stages[self.values[a.value]] = stage
        for op in logical.body:
            self.stage = int(self.random.integers(self.stage, self.mesh.stages))
            if isinstance(op, Compute | Order):
                self.statement(op, made)
            elif isinstance(op, Scan):
                self.scan(op, made)
            elif isinstance(op, Return):
                made.body.append(Return([self.values[v] for v in op.operands], op.states))
        return made

    def argument_layout(self, value: Value, role: str) -> Layout:
        """Inputs are split in time by the batch, and anything anyhow in space."""
        rank = value.type.rank
        if rank == 0:
            return broadcast_on(self.inner)
        entries = []
        for axis in self.inner.names:
            entry = S(int(self.random.integers(rank))) if self.random.integers(2) else B
            if axis == "micro":
                entry = S(0) if role == "input" else B
            entries.append((axis, entry))
        return Layout(tuple(entries))

    def statement(self, op: Compute | Order, made: Function) -> None:
        operands = [self.values[v] for v in op.operands]
        possible = [option for option in options(op, self.inner, small=True)
                    if self.reachable(operands, option[0])]
        if not possible:
            raise DeadEnd
        layouts, result = possible[self.random.integers(len(possible))]
        ready = [self.boxed(v, layout, made) for v, layout in zip(operands, layouts, strict=True)]
        new = op.clone(ready)
        new.result.type, new.stage = op.result.type.with_layout(result), self.stage
        self.values[op.result] = made.body.append(new).result
        self.stages[new.result] = self.stage

    def scan(self, op: Scan, made: Function) -> None:
        operands = [self.values[v] for v in op.operands]
        possible = [laid for laid in scan_forms(op, self.inner, small=True)
                    if self.reachable(operands, laid.operands)]
        if not possible:
            raise DeadEnd
        laid = possible[self.random.integers(len(possible))]
        new = op.clone([self.boxed(v, layout, made)
                        for v, layout in zip(operands, laid.operands, strict=True)])
        for old, result, layout in zip(op.results, new.results, laid.results, strict=True):
            result.type = result.type.with_layout(layout)
            self.values[old], self.stages[result] = result, self.stage
        lay_out(new, self.inner)
        for each in (new, *new.region):
            each.stage = self.stage
        made.body.append(new)

    def reachable(self, operands: list[Value], layouts: Sequence[Layout]) -> bool:
        """Whether no operand is wanted whole while it comes in micro-batches."""
        return all(
            route(v.type.with_layout(None), v.type.layout, layout, self.inner, self.price)
            is not None for v, layout in zip(operands, layouts, strict=True))

    def boxed(self, value: Value, layout: Layout, made: Function) -> Value:
        if value.type.layout == layout and self.stages[value] == self.stage:
            return value
        return made.body.append(Box(value, layout, stage=self.stage)).result

