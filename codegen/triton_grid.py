"""How the grid of a kernel becomes programs of Triton, and how large their blocks are.

A program computes a block of one or two dimensions. Grid axes are of three sorts: those of which
a program has one point, and those whose points (flattened, the last axis fastest) are cut into
blocks along the first or the second dimension.

- In general the axis of lanes is one dimension (LANES: of the grid, or walked block by block in
  loops) and the other axes are another (ROWS). An axis that bounds a serial loop is one point.
- A product of two factors with axes of their own is done by blocks of matrices: M for the axes of
  the left factor, N for those of the right, K along the loop; axes of both are one point.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.codegen.kernel import (
    Dot,
    Kernel,
    Loop,
    Sort,
    Statement,
    defines,
    expressions,
    names,
    statements,
)

POINTS = 1024  # elements of a block of pointwise work, or of rows
WHOLE = 4096  # lanes of loops that a block may have: rows up to this are loaded once
COLUMNS = 128  # elements of a block with serial loops inside: one for each thread
SIDE = 64  # of a block of a matrix product
DEPTH = 32  # and its step along the reduced axis
LEAST = 16  # the smallest side that matrix units take


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension of the block: the name of its size, and the grid axes it cuts."""

    name: str
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """`dimensions` are those of the block, in order; LANES without axes is of loops alone."""

    points: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    product: Dot | None = None
    swapped: bool = False  # the left factor of the product is its second

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of the block sizes, in order."""
        found = tuple(d.name for d in self.dimensions)
        return (*found, "K") if self.product else found


def grid_of(kernel: Kernel) -> Grid:
    """The programs of a kernel."""
    return _product_grid(kernel) or _plain_grid(kernel)


def _plain_grid(kernel: Kernel) -> Grid:
    needs = dependences(kernel.body)
    loops = [s for s in statements(kernel.body) if isinstance(s, Loop)]
    bounds = {n for loop in loops if not loop.lanes for e in (loop.start, loop.stop)
              for n in _closed(names(e), needs)}
    bounds |= {n for s in statements(kernel.body) if isinstance(s, Sort)
               for n in names(*expressions(s))}  # a program sorts one row
    lanes = tuple(a.name for a in kernel.grid if a.lanes)
    points = tuple(a.name for a in kernel.grid if a.name in bounds)
    rows = tuple(a.name for a in kernel.grid if a.name not in (*points, *lanes))
    dimensions: tuple[Dimension, ...] = (Dimension("ROWS", rows),) if rows else ()
    if lanes or any(loop.lanes for loop in loops):
        dimensions += (Dimension("LANES", lanes),)
    return Grid(points, dimensions)


def _product_grid(kernel: Kernel) -> Grid | None:
    """The blocks of a matrix product; None where the kernel is something else besides."""
    dots = [s for s in statements(kernel.body) if isinstance(s, Dot)]
    if len(dots) != 1:
        return None
    needs = dependences(kernel.body)
    axes = [a.name for a in kernel.grid]
    left, right = (_closed(names(e), needs) & set(axes) for e in (dots[0].left, dots[0].right))
    if not left - right or not right - left:
        return None
    swapped = axes[-1] in left - right
    if swapped:
        left, right = right, left
    sides = [Dimension(name, tuple(a for a in axes if a in own))
             for name, own in (("M", left - right), ("N", right - left))]
    points = tuple(a for a in axes if not any(a in d.axes for d in sides))
    return Grid(points, tuple(sides), dots[0], swapped)


def dependences(body: Iterable[Statement]) -> dict[str, set[str]]:
    """The names that each name is made of, directly."""
    return {name: names(*expressions(s)) for s in statements(tuple(body))
            if (name := defines(s))}


def _closed(found: set[str], needs: Mapping[str, set[str]]) -> set[str]:
    waiting, closed = list(found), set(found)
    while waiting:
        more = needs.get(waiting.pop(), set()) - closed
        closed |= more
        waiting += more
    return closed


def block_sizes(kernel: Kernel, grid: Grid, extents: Mapping[str, int],
                most: int = 0) -> tuple[int, ...]:
    """Powers of two, in the order of `grid.sizes`: a function of the shapes, the loops included.
    With `most`, blocks grow until there are no more programs than that, as far as they can."""
    if grid.product:
        sides = [max(LEAST, min(SIDE, _power(_length(d, extents)))) for d in grid.dimensions]
        return (*sides, max(LEAST, min(DEPTH, _power(_reach(kernel, extents)))))
    serial = any(isinstance(s, Loop) and not s.lanes for s in statements(kernel.body))
    room, found = (COLUMNS if serial else POINTS), list[int]()
    for d in reversed(grid.dimensions):
        length = _length(d, extents) if d.axes else _reach(kernel, extents)
        found.append(min(_power(length), room if d.axes else WHOLE))
        room = max(1, room // found[-1])
    found.reverse()
    return _grown(grid, found, extents, most) if most else tuple(found)


def walks_once(kernel: Kernel, grid: Grid, sizes: Iterable[int],
               extents: Mapping[str, int]) -> bool:
    """Whether the lanes are those of loops, and one block of them is enough."""
    last = grid.dimensions[-1] if grid.dimensions else None
    if grid.product or last is None or last.axes:
        return False
    return tuple(sizes)[-1] >= _reach(kernel, extents)


def _grown(grid: Grid, found: list[int], extents: Mapping[str, int], most: int) -> tuple[int, ...]:
    for i, d in enumerate(grid.dimensions):
        while d.axes and programs(grid, found, extents) > most and found[i] < _length(d, extents):
            found[i] *= 2
    return tuple(found)


def programs(grid: Grid, sizes: Iterable[int], extents: Mapping[str, int]) -> int:
    """How many programs run; 0 where there is nothing to do."""
    count = math.prod(extents[a] for a in grid.points)
    for d, size in zip(grid.dimensions, sizes, strict=False):
        count *= -(-_length(d, extents) // size)
    return count


def _length(d: Dimension, extents: Mapping[str, int]) -> int:
    return math.prod(extents[a] for a in d.axes)


def _reach(kernel: Kernel, extents: Mapping[str, int]) -> int:
    """The longest of the loops that are walked in blocks."""
    loops = [s for s in statements(kernel.body) if isinstance(s, Loop)]
    product = any(isinstance(s, Dot) for s in statements(kernel.body))
    walked = [s for s in loops if s.lanes or (product and not _nests(s))]
    return max((extents.get(s.axis, 1) for s in walked), default=1)


def _nests(loop: Loop) -> bool:
    return any(isinstance(s, Loop) for s in loop.body)


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()
