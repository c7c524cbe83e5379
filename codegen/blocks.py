"""How a grid is cut into tiles: a function of shapes and of what the kernel reads, nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence

from anabranch.codegen.kernel import Load, Ref, Store, names, statements
from anabranch.codegen.scope import Piece
from anabranch.ir.expr import Call, Expr

TILE_WORK = 1 << 15  # operations and accesses that are worth a tile of their own
LEAST_WORK = 1 << 12
SQUARE = 32  # side of a tile that crosses strides
TILES = 16  # so many tiles suffice


def blocks(piece: Piece) -> tuple[int, ...]:
    """The size of a tile along each axis of the grid: enough work, enough tiles, few misses."""
    sizes = [piece.extents[a.name] for a in piece.kernel.grid]
    if not sizes:
        return ()
    points = math.prod(sizes)
    most, least = (max(1, w // max(1, piece.work)) for w in (TILE_WORK, LEAST_WORK))
    wanted = min(most, max(least, points // TILES, 1))
    lanes = piece.kernel.grid[-1].lanes
    crossing = _crossing_axis(piece) if lanes else None
    found = [1] * len(sizes)
    if crossing is not None:
        found[crossing] = min(SQUARE, max(1, sizes[crossing]))
    limit = SQUARE if crossing is not None else 1 << 62
    for k in reversed(range(len(sizes))):
        if k == crossing:
            continue
        room = max(1, wanted // math.prod(found))
        is_lane = lanes and k == len(sizes) - 1
        room = min(max(room, 64) if is_lane else room, limit if is_lane else 1 << 62)
        room = -(-room // 16) * 16 if is_lane else room
        found[k] = max(1, min(sizes[k], room))
    return tuple(found)


def _crossing_axis(piece: Piece) -> int | None:
    """An axis of the grid along which some access is dense while it is strided by lane."""
    grid = [a.name for a in piece.kernel.grid]
    for s in statements(piece.kernel.body):
        if isinstance(s, (Load, Store)):
            dense = {t.name for t in _terms(s.index) if isinstance(t, Ref)}
            if grid[-1] in names(s.index) and grid[-1] not in dense:
                for k, name in enumerate(grid[:-1]):
                    if name in dense and piece.extents[name] > 1:
                        return k
    return None


def _terms(expr: Expr) -> list[Expr]:
    if isinstance(expr, Call) and expr.fn == "add":
        return [t for a in expr.args for t in _terms(a)]
    return [expr]


def tile_count(piece: Piece, sizes: Sequence[int]) -> int:
    """How many tiles the grid has; 0 where there is nothing to do."""
    extents = [piece.extents[a.name] for a in piece.kernel.grid]
    return math.prod(-(-n // b) for n, b in zip(extents, sizes, strict=True))
