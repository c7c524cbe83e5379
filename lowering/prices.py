"""What every change of layout of a value costs: all shortest paths at once.

The steps and their prices are the router's (`boxing.neighbours`, `cost.step_prices`), so that the
planner counts on exactly what `lower_boxes` will do. One table serves all values of a type.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anabranch.ir.mesh import Mesh
from anabranch.ir.sbp import B, Layout, P, S, Sbp, layout_on
from anabranch.ir.types import TensorType
from anabranch.lowering.boxing import Seconds, neighbours

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Copy = tuple[Layout, bool]  # a layout that is wanted, and whether on another stage


def conversions(
    type: TensorType, sources: Sequence[Layout], wanted: Sequence[Copy], mesh: Mesh,
    seconds: Seconds, settled: Collection[str] = (),
) -> Matrix:
    """Seconds from each source layout to each wanted copy; infinite where there is no way.
    `mesh` is that of a stage, `type` is without layout. On axes that are `settled`, ways have no
    entries but those of the layouts themselves and B."""
    layouts = (*sources, *(layout for layout, _ in wanted))
    entries = tuple(
        _seen(layouts, axis) if axis in settled else entries_of(type, size, _seen(layouts, axis))
        for axis, size in mesh.axes)
    steps = _steps(type, entries, mesh, seconds)
    rows = [steps.index[layout] for layout in sources]
    found = np.zeros((len(rows), len(wanted)))
    for column, (layout, moves) in enumerate(wanted):
        ways = steps.ways(tuple(e.op for e in layout.sbps()))
        found[:, column] = (ways.moved if moves else ways.direct)[rows, steps.index[layout]]
    return found


def _seen(layouts: Sequence[Layout], axis: str) -> tuple[Sbp, ...]:
    """B and the entries that layouts have on an axis."""
    return tuple(sorted({B, *(layout[axis] for layout in layouts)}, key=str))


def entries_of(type: TensorType, size: int, more: Iterable[Sbp] = ()) -> tuple[Sbp, ...]:
    """What a value may be on an axis: B, S of the dimensions that are as long as the axis, and
    `more`: terms, and the shorter dimensions where they are pinned."""
    usual = (B, *(S(d) for d, n in enumerate(type.shape) if n >= size))
    return tuple(dict.fromkeys((*usual, *sorted(more, key=str))))


def layouts_of(mesh: Mesh, entries: Sequence[Sequence[Sbp]]) -> tuple[Layout, ...]:
    """Every layout of some entries on each axis, with one kind of P."""
    return tuple(layout_on(mesh, way) for way in itertools.product(*entries)
                 if len({e.op for e in way if e.kind == "P"}) <= 1)


class _Ways:
    """Seconds from each layout to each: within a stage, and with a move to another stage on the
    way (computed when wanted)."""

    def __init__(self, direct: Matrix, move: Matrix) -> None:
        self.direct, self.move = direct, move

    @functools.cached_property
    def moved(self) -> Matrix:
        before = self.direct + self.move[None, :]
        there: Matrix = np.min(before[:, :, None] + self.direct[None, :, :], axis=1)
        return there


@dataclass(slots=True)
class _Steps:
    """The layouts of a type with their numbers, and seconds of the steps between them. Steps that
    make terms (`fills`: axis, reduction, from, to, seconds) are kept apart, since the router takes
    them only on axes where terms are wanted."""

    index: dict[Layout, int]
    others: Matrix
    fills: list[tuple[int, str, int, int, float]]
    move: Matrix
    known: dict[tuple[str, ...], _Ways] = field(default_factory=dict)

    def ways(self, terms: tuple[str, ...]) -> _Ways:
        """All shortest ways to layouts with these reductions along the axes (empty: none)."""
        if terms not in self.known:
            direct = self.others.copy()
            for axis, op, i, j, price in self.fills:
                if terms[axis] == op:
                    direct[i, j] = price
            for via in range(len(direct)):  # Floyd and Warshall, a row at a time
                np.minimum(direct, direct[:, via, None] + direct[None, via, :], out=direct)
            self.known[terms] = _Ways(direct, self.move)
        return self.known[terms]


@functools.cache
def _steps(
    type: TensorType, entries: tuple[tuple[Sbp, ...], ...], mesh: Mesh, seconds: Seconds
) -> _Steps:
    layouts = layouts_of(mesh, entries)
    terms = sorted({e.op for axis in entries for e in axis} - {""}) or [""]
    index = {layout: i for i, layout in enumerate(layouts)}
    others = np.full((len(layouts), len(layouts)), np.inf)
    np.fill_diagonal(others, 0.0)
    fills = []
    for i, layout in enumerate(layouts):
        for op in [layout.partial] if layout.partial else terms:
            target = layout_on(mesh, [P(op) if op else B] * len(mesh.axes))
            for step in neighbours(type, layout, target, mesh):
                j = index.get(step.layout)
                if j is None or (step.step != "fill" and np.isfinite(others[i, j])):
                    continue
                price = seconds(type, layout, step.layout, step.step, step.axis)
                if step.step == "fill":
                    fills.append((mesh.names.index(step.axis), op, i, j, price))
                else:
                    others[i, j] = price
    move = np.array([seconds(type, layout, layout, "move", "") for layout in layouts])
    return _Steps(index, others, fills, move)
