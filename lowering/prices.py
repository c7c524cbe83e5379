"""What every change of layout of a value costs: all shortest paths at once.

The steps and their prices are the router's (`boxing.neighbours`, `cost.step_prices`), so that the
planner counts on exactly what `lower_boxes` will do. One table serves all values of a type.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
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
    table = _table(type, _partials(layouts), _times(layouts), _thin(type, layouts, mesh), mesh,
                   seconds)
    rows = [table.index[layout] for layout in sources]
    return np.stack([
        (table.moved if moves else table.direct)[rows, table.index[layout]]
        for layout, moves in wanted
    ], axis=1) if wanted else np.zeros((len(rows), 0))


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


class _Table:
    """The layouts of a type with their numbers, and seconds from each to each: within a stage, and
    with a move to another stage on the way (computed when wanted)."""

    def __init__(self, type: TensorType, layouts: Sequence[Layout], direct: Matrix,
                 move: Matrix) -> None:
        self.type, self.direct, self.move = type, direct, move
        self.index = {layout: i for i, layout in enumerate(layouts)}

    @functools.cached_property
    def moved(self) -> Matrix:
        before = self.direct + self.move[None, :]
        there: Matrix = np.min(before[:, :, None] + self.direct[None, :, :], axis=1)
        return there


@functools.cache
def _table(
    type: TensorType, partials: tuple[str, ...], times: tuple[Sbp, ...], thin: frozenset[int],
    mesh: Mesh, seconds: Seconds,
) -> _Table:
    layouts = layouts_of(type, mesh, partials, times, thin)
    index = {layout: i for i, layout in enumerate(layouts)}
    direct = np.full((len(layouts), len(layouts)), np.inf)
    np.fill_diagonal(direct, 0.0)
    for i, layout in enumerate(layouts):
        for op in partials or ("",):
            target = layout_on(mesh, [P(op) if op else B] * len(mesh.axes))
            for step in neighbours(type, layout, target, mesh):
                if (j := index.get(step.layout)) is not None and np.isinf(direct[i, j]):
                    direct[i, j] = seconds(type, layout, step.layout, step.step, step.axis)
    for via in range(len(layouts)):  # Floyd and Warshall, a row at a time
        np.minimum(direct, direct[:, via, None] + direct[None, via, :], out=direct)
    move = np.array([seconds(type, layout, layout, "move", "") for layout in layouts])
    return _Table(type, layouts, direct, move)


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
