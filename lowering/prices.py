"""What every change of layout of a value costs: all shortest paths at once.

The steps and their prices are the router's (`boxing.neighbours`, `cost.step_prices`), so that the
planner counts on exactly what `lower_boxes` will do. One table serves all values of a type.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anabranch.ir.mesh import MICRO, Mesh
from anabranch.ir.sbp import B, Layout, P, S, Sbp, layout_on
from anabranch.ir.types import TensorType
from anabranch.lowering.boxing import Seconds, neighbours

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Copy = tuple[Layout, bool]  # a layout that is wanted, and whether on another stage


def conversions(
    type: TensorType, sources: Sequence[Layout], wanted: Sequence[Copy], mesh: Mesh,
    seconds: Seconds,
) -> Matrix:
    """Seconds from each source layout to each wanted copy; infinite where there is no way.
    `mesh` is that of a stage, `type` is without layout."""
    layouts = (*sources, *(layout for layout, _ in wanted))
    steps = _steps(type, _partials(layouts), _times(layouts), _thin(type, layouts, mesh), mesh,
                   seconds)
    rows = [steps.index[layout] for layout in sources]
    found = np.zeros((len(rows), len(wanted)))
    for column, (layout, moves) in enumerate(wanted):
        ways = steps.ways(tuple(e.op for e in layout.sbps()))
        found[:, column] = (ways.moved if moves else ways.direct)[rows, steps.index[layout]]
    return found


def _partials(layouts: Sequence[Layout]) -> tuple[str, ...]:
    return tuple(sorted({layout.partial for layout in layouts} - {""}))


def _times(layouts: Sequence[Layout]) -> tuple[Sbp, ...]:
    """The entries on the axis of time, which lead the layouts."""
    return tuple(sorted({layout[MICRO] for layout in layouts} | {B}, key=str))


def _thin(type: TensorType, layouts: Sequence[Layout], mesh: Mesh) -> frozenset[int]:
    """Dimensions that are split though they are shorter than an axis: seen only where pinned."""
    return frozenset(
        sbp.dim for layout in layouts for axis, sbp in layout.entries
        if sbp.kind == "S" and type.shape[sbp.dim] < mesh.size(axis))


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
    type: TensorType, partials: tuple[str, ...], times: tuple[Sbp, ...], thin: frozenset[int],
    mesh: Mesh, seconds: Seconds,
) -> _Steps:
    layouts = layouts_of(type, mesh, partials, times, thin)
    index = {layout: i for i, layout in enumerate(layouts)}
    others = np.full((len(layouts), len(layouts)), np.inf)
    np.fill_diagonal(others, 0.0)
    fills = []
    for i, layout in enumerate(layouts):
        for op in (layout.partial,) if layout.partial else partials or ("",):
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


def layouts_of(
    type: TensorType, mesh: Mesh, partials: Sequence[str] = (), times: Sequence[Sbp] = (B,),
    thin: frozenset[int] = frozenset(),
) -> tuple[Layout, ...]:
    """Every layout of a type that a plan may use, with these kinds of P, these entries on the axis
    of time, and S only of dimensions as long as the axis, or `thin` ones."""
    per_axis = [
        times or (B,) if axis == MICRO else
        (B, *(S(d) for d, n in enumerate(type.shape) if n >= size or d in thin), *map(P, partials))
        for axis, size in mesh.axes
    ]
    every = itertools.product(*per_axis)
    return tuple(layout_on(mesh, entries) for entries in every
                 if len({e.op for e in entries if e.kind == "P"}) <= 1)
