"""Axes of a mesh that are decided before the others: time, and the larger ones of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from anabranch.ir.core import Op, Value
from anabranch.ir.mesh import Mesh
from anabranch.ir.sbp import Layout, Sbp

Entries = tuple[tuple[Sbp, ...], tuple[Sbp, ...]]
"""On one axis: of what an op reads, of what it makes."""


@dataclass(slots=True)
class AxisPlan:
    """Entries on one axis: of every value, and of every op's operands and results; the op that
    returns has no choice and may be left out."""

    values: dict[Value, Sbp] = field(default_factory=dict)
    ops: dict[Op, Entries] = field(default_factory=dict)


class SettledAxes(dict[str, AxisPlan]):
    """The axes that are decided, by name."""

    def of_op(self, op: Op, mesh: Mesh) -> tuple[Entries | None, ...]:
        """What is decided of an op, for each axis of a mesh."""
        return tuple(self[axis].ops.get(op) if axis in self else None for axis in mesh.names)

    def allows(self, value: Value, layout: Layout) -> bool:
        """Whether a layout of a value agrees with what is decided."""
        return all(layout[axis] == plan.values[value] for axis, plan in self.items())

    def are(
        self, member: Op | Value, operands: Sequence[Layout], results: Sequence[Layout]
    ) -> bool:
        """Whether layouts of an op, or of an argument, are what is decided."""
        if isinstance(member, Value):
            return self.allows(member, results[0])
        return all(tuple(tuple(layout[axis] for layout in side) for side in (operands, results))
                   == plan.ops[member] for axis, plan in self.items() if member in plan.ops)
