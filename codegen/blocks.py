"""How a grid is cut into tiles: a function of shapes and of what the kernel reads, nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence

from anabranch.codegen.kernel import Load, Loop, Ref, Store, names, statements
from anabranch.codegen.scope import Piece
from anabranch.ir.expr import Call, Expr

TILE_WORK = 1 << 17  # operations and accesses that are worth a tile of their own
LEAST_WORK = 1 << 12
TILES = 16  # so many tiles suffice
LEAST_LANES = 64
LINE = 16  # lanes that share a cache line
TURNS = 8  # points that take each step of an ordered loop together, and share what it loads
ACROSS = 8  # rows of a tile that crosses strides: few, since large strides share cache sets


def blocks(piece: Piece) -> tuple[int, ...]:
    """The size of a tile along each axis of the grid: enough work, enough tiles, few misses."""
    sizes = [max(1, piece.extents[a.name]) for a in piece.kernel.grid]
    lanes = bool(sizes) and piece.kernel.grid[-1].lanes
    crossing = _crossing_axis(piece) if lanes else None
    if crossing is not None:
        wanted = {crossing: ACROSS, len(sizes) - 1: LINE}
        return tuple(min(size, wanted.get(k, 1)) for k, size in enumerate(sizes))
    most, least = (max(1, work // max(1, piece.work)) for work in (TILE_WORK, LEAST_WORK))
    room = min(most, max(least, math.prod(sizes) // TILES))
    if any(isinstance(s, Loop) and s.ordered for s in piece.kernel.body):
        room = max(room, min(TURNS, math.prod(sizes) // 2))
    found: list[int] = []
    for k in reversed(range(len(sizes))):
        wide = lanes and not found
        block = -(-max(room, LEAST_LANES) // LINE) * LINE if wide else max(1, room)
        found.append(min(sizes[k], block))
        room //= found[-1]
    return tuple(reversed(found))


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
