"""Writes a plan down: the function with a layout on every value and a box at every change of one.

A box stands in front of the first op that wants it, on the stage of that op, and serves all that
want the same. It has the loc of that op: the line that forced the change. Pins are consumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.ir.core import Function, Op, Value
from anabranch.ir.diagnostics import Loc
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Box, Pin, Return, Scan
from anabranch.ir.sbp import Layout, broadcast_on, layout_on
from anabranch.lowering.scan_signatures import lay_out

LayoutsOf = Callable[[Op | Value], tuple[Sequence[Layout], Sequence[Layout]]]
"""The layouts of what an op reads and of what it makes, on the axes that were planned."""


def distribute(function: Function, mesh: Mesh, layouts_of: LayoutsOf) -> Function:
    """A new function of phase `sbp`; `mesh` is that of a stage, all axes."""
    return _Writer(function, mesh, layouts_of).write()


class _Writer:
    def __init__(self, function: Function, mesh: Mesh, layouts_of: LayoutsOf) -> None:
        self.old, self.mesh, self.layouts_of = function, mesh, layouts_of
        self.new = Function(function.name)
        self.values: dict[Value, Value] = {}
        self.stages: dict[Value, int] = {}
        self.boxes: dict[tuple[Value, Layout, int], Value] = {}
        self.everywhere: set[Value] = set()

    def write(self) -> Function:
        for argument in self.old.arguments:
            _, (layout,) = self.layouts_of(argument.value)
            value = self.new.add_argument(
                argument.value.name, argument.value.type.with_layout(self._full(layout)),
                argument.role, None, argument.stage, argument.span)
            self._set(argument.value, value, argument.stage)
            if argument.role in ("step", "seed"):
                self.everywhere.add(value)
        for op in self.old.body:
            if isinstance(op, Return):
                self._return(op)
            elif isinstance(op, Pin):
                _, (layout,) = self.layouts_of(op)
                pinned = self._reach(op.operands[0], layout, op.stage, op.loc)
                self._set(op.result, pinned, op.stage)
            else:
                self._op(op)
        return self.new

    def _set(self, old: Value, new: Value, stage: int) -> None:
        self.values[old] = new
        self.stages[new] = stage

    def _full(self, layout: Layout) -> Layout:
        """The layout with the axes of size 1."""
        return layout_on(self.mesh, [layout[axis] for axis in self.mesh.names])

    def _op(self, op: Op) -> None:
        wanted, made = self.layouts_of(op)
        operands = [self._reach(value, target, op.stage, op.loc)
                    for value, target in zip(op.operands, wanted, strict=True)]
        new = op.clone(operands)
        for old, result, layout in zip(op.results, new.results, made, strict=True):
            result.type = old.type.with_layout(self._full(layout))
            self._set(old, result, op.stage)
        if isinstance(new, Scan):
            lay_out(new, self.mesh)
        self.new.body.append(new)

    def _return(self, op: Return) -> None:
        whole = broadcast_on(self.mesh)
        values = [self._reach(v, whole, self.stages[self.values[v]], op.loc) for v in op.values]
        homes = {a.value.name: a for a in self.new.states()}
        for name, value in op.updates.items():
            home = homes[name]
            layout = home.value.type.layout or whole
            values.append(self._reach(value, layout, home.stage, op.loc))
        self.new.body.append(Return(values, op.states, loc=op.loc, stage=op.stage))

    def _reach(self, old: Value, layout: Layout, stage: int, loc: Loc) -> Value:
        """A value in a layout on a stage."""
        value, target = self.values[old], self._full(layout)
        if value in self.everywhere:
            return value
        if value.type.layout == target and self.stages[value] == stage:
            return value
        key = (value, target, stage)
        if key not in self.boxes:
            box = self.new.body.append(Box(value, target, value.name, loc=loc, stage=stage))
            self.boxes[key] = box.result
            self.stages[box.result] = stage
        return self.boxes[key]
