"""What the user has fixed: the layouts that the source and earlier programs demand.

A pin names some axes of the mesh. An axis that the mesh lacks has one rank, where every entry says
the same: such entries are dropped, and noted once for each axis. Entries that cannot be are the
user's errors here, with the place of the pin. Pins on one value that contradict each other are
reported as the smallest set that does, found by leaving one out at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.ir.core import Argument, Function, Value
from anabranch.ir.diagnostics import Diagnostic, Loc, Note, Span, UserError, fail, nearest
from anabranch.ir.mesh import MICRO, STAGE, Mesh
from anabranch.ir.ops import Pin
from anabranch.ir.sbp import PARTIAL_OPS, Layout
from anabranch.ir.types import TensorType, category


@dataclass(frozen=True, slots=True)
class Demand:
    """A layout on some axes that a value must have, where that was written, and by whom."""

    name: str
    layout: Layout
    span: Span | None
    by: str = "the source"

    def allows(self, layout: Layout) -> bool:
        return all(layout[axis] == sbp for axis, sbp in self.layout.entries)

    def on(self, mesh: Mesh) -> Demand:
        kept = tuple(entry for entry in self.layout.entries if entry[0] in mesh.names)
        return replace(self, layout=Layout(kept))

    def __str__(self) -> str:
        return f"{self.by} wants '{self.name}' in {self.layout}"


@dataclass(slots=True)
class Pins:
    """All demands of a function, on axes that have several ranks, and what the user should know."""

    arguments: dict[Value, list[Demand]] = field(default_factory=dict)
    ops: dict[Pin, Demand] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def on(self, mesh: Mesh) -> Pins:
        """The same, on some of the axes."""
        arguments = {v: [d.on(mesh) for d in demands] for v, demands in self.arguments.items()}
        return Pins(arguments, {op: d.on(mesh) for op, d in self.ops.items()}, self.notes)


def span_of(loc: Loc) -> Span | None:
    """The place of an op as the start of a piece of source."""
    column = max(loc.col, 1)
    return Span(loc.file, loc.line, column, loc.line, column + 1) if loc.line else None


def collect_pins(function: Function, mesh: Mesh, states: Mapping[str, Layout]) -> Pins:
    """The demands of the source and, for `states`, of the programs that they are shared with."""
    found = Pins()
    for argument in function.arguments:
        demands = _of_argument(argument, mesh, states, found)
        if demands:
            found.arguments[argument.value] = demands
    for op in function.body:
        if isinstance(op, Pin):
            name, span = op.operands[0].name, span_of(op.loc)
            check_pin(op.layout, op.result.type, name, span, mesh)
            layout = _on_axes(op.layout, name, span, mesh, found)
            found.ops[op] = Demand(name, layout, span)
    return found


def _of_argument(
    argument: Argument, mesh: Mesh, states: Mapping[str, Layout], found: Pins
) -> list[Demand]:
    name, type = argument.value.name, argument.value.type
    demands = []
    if argument.pin is not None:
        check_pin(argument.pin, type, name, argument.span, mesh)
        if argument.pin.partial:
            raise fail(f"'{name}' is pinned to {argument.pin}, but only what a program computes "
                       "can be terms of a sum (P)", argument.span,
                       help="pin it to S(dimension) or B")
        layout = _on_axes(argument.pin, name, argument.span, mesh, found)
        demands.append(Demand(name, layout, argument.span))
    if argument.role == "state" and name in states:
        check_pin(states[name], type, name, argument.span, mesh)
        layout = _on_axes(states[name], name, argument.span, mesh, found, quietly=True)
        demands.append(Demand(name, layout, argument.span, "the program that shares the state"))
    return [demand for demand in demands if demand.layout.entries]


def check_pin(layout: Layout, type: TensorType, name: str, span: Span | None, mesh: Mesh) -> None:
    """Raise for a pin that no value of this type can meet on any mesh."""
    for axis, sbp in layout.entries:
        if axis in (STAGE, MICRO):
            raise fail(f"'{name}' is pinned on the axis '{axis}', which no layout speaks of", span,
                       help="stages are given by 'with stage(k):', micro-batches by 'micro='")
        if sbp.kind == "S" and not 0 <= sbp.dim < type.rank:
            raise fail(f"'{name}' is pinned to S({sbp.dim}) on '{axis}', but it has "
                       f"{_dimensions(type.rank)}", span, help=_legal_splits(type.rank))
        if sbp.kind == "P" and sbp.op not in PARTIAL_OPS:
            raise fail(f"'{name}' is pinned to P({sbp.op}) on '{axis}'", span,
                       help=f"P takes {', '.join(PARTIAL_OPS)}; {nearest(sbp.op, PARTIAL_OPS)}")
        if sbp.kind == "P" and category(type.dtype) == "bool" and sbp.op in ("sum", "prod"):
            raise fail(f"'{name}' is bool and is pinned to {sbp} on '{axis}'", span,
                       help="truth values have P(max), which is any, and P(min), which is all")
    kinds = sorted({sbp.op for sbp in layout.sbps() if sbp.kind == "P"})
    if len(kinds) > 1:
        raise fail(f"'{name}' is pinned to {layout}: a value has one kind of P, not "
                   f"{' and '.join(kinds)}", span)


def _dimensions(rank: int) -> str:
    return "no dimensions" if not rank else f"{rank} dimension{'s' * (rank > 1)}"


def _legal_splits(rank: int) -> str:
    return f"S(0) to S({rank - 1}), B or P" if rank > 1 else "S(0), B or P" if rank else "B or P"


def _on_axes(
    layout: Layout, name: str, span: Span | None, mesh: Mesh, found: Pins, *, quietly: bool = False
) -> Layout:
    """The entries on axes with several ranks."""
    for axis in layout.axes:
        note = f"the mesh {mesh} has no axis '{axis}': pins on it have no effect"
        if axis not in mesh.names and not quietly and note not in found.notes:
            found.notes.append(note)
    return Layout(tuple(entry for entry in layout.entries if mesh.size(entry[0]) > 1))


def conflict(
    demands: Sequence[Demand], feasible: Callable[[Sequence[Demand]], bool]
) -> UserError:
    """The error for demands that cannot be met together, reduced to those that are needed for
    that."""
    needed = list(demands)
    for demand in demands:
        others = [d for d in needed if d is not demand]
        if not feasible(others):
            needed = others
    first, *rest = needed
    return UserError(Diagnostic(
        f"no layout meets the pins: {first}", first.span,
        tuple(Note(str(d), d.span) for d in rest), "leave out one of them"))
