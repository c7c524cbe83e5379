"""Clauses to kernels: which axes are the grid, which are loops, and what happens in each pass.

One of five forms, chosen from the structure of the space:

- pointwise: every axis is of the grid, lanes last;
- rows: the grid is the parallel axes; a row is walked once per wave of reductions, by lanes;
- columns: lanes are a parallel axis, the reduced axes are serial loops inside of them;
- split: where rows or columns are too few to keep a machine busy and nothing runs over elements
  after the reductions, tiles of the first reduced axis each leave a partial result in scratch, and
  a second kernel combines those in order;
- scatter: a kernel that fills, and one that combines every element into its place, in order.

How many tiles, and so the order of a sum, follows from shapes only.
A comparison of the lane with something known per row cuts the loop in two instead of masking it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.codegen.analysis import comparisons
from anabranch.codegen.build import Builder
from anabranch.codegen.order import order_piece
from anabranch.codegen.scan import scan_piece
from anabranch.codegen.scatter import is_scatter, scatter
from anabranch.codegen.scope import Piece, Scheme
from anabranch.ir.core import Block, Op, Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.expr import Expr, Origin, Read, Var, transform
from anabranch.ir.ops import Compute, Fused, Order, Return, Scan
from anabranch.ir.printer import print_expr
from anabranch.ir.recurrence import statements
from anabranch.ir.space import Clause, Space, clause, unify
from anabranch.ir.types import accumulator, tensor

ROWS = 8  # so many rows, or strips of columns, are enough to keep a machine busy
STRIP = 256  # columns that are reduced together
WORTH = 65536  # elements below which a reduction is not split
PART = 16384  # elements that a part of a split reduction has at least
PARTS = 64  # and how many parts there are at most


@dataclass(frozen=True, slots=True)
class Options:
    """What a target can do: keep a row in fast memory; multiply matrices by blocks; spare loads
    that a condition on indices makes needless; reduce so many rows together."""

    keep: bool = True
    dots: bool = False
    spare: bool = False
    together: int = 8


@dataclass(frozen=True, slots=True)
class Tiled:
    """The kernels of an op, to run one after another, and the values that are scratch."""

    pieces: tuple[Piece, ...]
    scratch: tuple[Value, ...] = ()


C_OPTIONS = Options()


def tile(op: Op, options: Options = C_OPTIONS) -> Tiled:
    """The kernels of an op."""
    if isinstance(op, Order):
        return Tiled((order_piece(op, scratch=options.keep),))
    if isinstance(op, Scan):
        piece, scratch = scan_piece(op, together=options.together)
        return Tiled((piece,), scratch)
    return tile_clauses(*clauses_of(op), options)


def clauses_of(op: Op) -> tuple[list[Clause], tuple[Value, ...]]:
    """The clauses of an op, as far as it is made of some, and the values it gives."""
    if isinstance(op, Compute):
        return [clause(op)], op.results
    if isinstance(op, Scan):
        return [clause(each) for each in statements(op)], op.results
    if isinstance(op, Order):
        return [], op.results
    if not isinstance(op, Fused):
        raise CompilerBug(f"there is no kernel for '{op.kind}'", op.loc)
    return _region(op.region)


def _region(block: Block) -> tuple[list[Clause], tuple[Value, ...]]:
    found = [clause(op) for op in block if isinstance(op, Compute)]
    last = block.last
    assert isinstance(last, Return)
    return found, last.operands


def inputs_of(op: Op) -> Sequence[Value]:
    """The values that the clauses of an op read from outside, in the order of its operands."""
    if isinstance(op, Scan):
        return op.inputs
    return op.region.args if isinstance(op, Fused) else op.operands


def tile_clauses(clauses: Sequence[Clause], outputs: Sequence[Value], options: Options) -> Tiled:
    if len(clauses) == 1 and is_scatter(clauses[0]):
        pieces, extra = scatter(clauses[0], about(clauses))
        return Tiled(pieces, extra)
    space = unify(clauses)
    if space is None:
        raise CompilerBug("a fused region whose computes share no space")
    space = _by_rows_if_cut(space)
    scheme = replace(_scheme(space), keep=options.keep, dots=options.dots, spare=options.spare)
    parts, chunk = _split(space, scheme)
    if parts:
        return _two_kernels(space, outputs, replace(scheme, chunk=chunk), parts)
    builder = Builder(space, outputs, scheme)
    return Tiled((builder.finish(stem(space), builder.run(), about(space.clauses)),))


def _by_rows_if_cut(space: Space) -> Space:
    """Pointwise work that compares its lane with something per row is better done row by row."""
    lane = space.lanes
    if space.reduced or lane is None or len(space.parallel) < 2:
        return space
    limits = {limit for _, limit, _ in comparisons(space.clauses, lane, {lane})}
    if len(limits) != 1:
        return space
    rows = tuple(a for a in space.parallel if a != lane)
    return replace(space, parallel=rows, reduced=(lane,))


def _last(axes: Sequence[str], lane: str | None) -> tuple[str, ...]:
    return (*(a for a in axes if a != lane), *(a for a in axes if a == lane))


def _scheme(space: Space) -> Scheme:
    lane = space.lanes
    if lane in space.reduced:
        return Scheme(space.parallel, _last(space.reduced, lane), "loops")
    return Scheme(_last(space.parallel, lane), space.reduced, "grid" if lane else "")


def _split(space: Space, scheme: Scheme) -> tuple[int, int]:
    """Into how many parts the first loop is cut, and their length; (0, 0) if it is not."""
    followed = any(space.waves[i] and (c.reduce or space.full(i))
                   for i, c in enumerate(space.clauses))
    places = any(c.reduce in ("argmax", "argmin") for c in space.clauses)
    if not any(c.reduce for c in space.clauses) or followed or places:
        return 0, 0
    rows = math.prod(space.extents[a] for a in space.parallel)
    length = space.extents[scheme.loops[0]]
    total = math.prod(space.extents.values())
    busy = rows >= ROWS * (STRIP if scheme.lanes == "grid" else 1)
    if total < WORTH or busy:
        return 0, 0
    chunk = max(-(-length // PARTS), -(-PART * length // total))
    if len(scheme.loops) == 1 and scheme.lanes == "loops":
        chunk = -(-chunk // 16) * 16
    parts = -(-length // chunk)
    return (parts, chunk) if parts > 1 else (0, 0)


def _two_kernels(space: Space, outputs: Sequence[Value], scheme: Scheme, parts: int) -> Tiled:
    """Parts of the first loop leave partial results; then those are combined in order."""
    partials = {i: _partial(space, c, parts) for i, c in enumerate(space.clauses) if c.reduce}
    full = [c.result for i, c in enumerate(space.clauses) if space.full(i)]
    scratch = tuple(partials.values())
    needed = set(partials) | {i for i in range(len(space.clauses)) if space.full(i)}
    first = Builder(space, [v for v in outputs if v in full], scheme, scratch, parts)
    body = first.run(partials)
    note = about([c for i, c in enumerate(space.clauses) if i in needed])
    one = first.finish(f"{stem(space)}_parts", body, note)
    rest = _combining(space, partials, parts)
    scheme = replace(_scheme(rest), keep=scheme.keep, spare=scheme.spare)
    second = Builder(rest, [v for v in outputs if v not in full], scheme, scratch)
    two = second.finish(f"{stem(space)}_whole", second.run(), about(rest.clauses))
    return Tiled((one, two), scratch)


def _partial(space: Space, c: Clause, parts: int) -> Value:
    sizes = [space.extents[v] for v in c.result_vars]
    dtype = accumulator(c.result.type.dtype)
    return Value(tensor(dtype, (parts, *sizes)), f"{c.result.name or 'v'}_parts")


def _combining(space: Space, partials: dict[int, Value], parts: int) -> Space:
    """The same reductions over their partial results, and what follows once per row."""
    part = "part"
    while part in space.extents:
        part += "_"
    extents = {**{a: space.extents[a] for a in space.parallel}, part: parts}
    kept = [i for i in range(len(space.clauses)) if not space.full(i)]
    clauses = tuple(_combine(space.clauses[i], partials.get(i), part, extents) for i in kept)
    lanes = space.lanes if space.lanes in space.parallel else space.parallel[-1:]
    lane = lanes if isinstance(lanes, str) else (lanes[0] if lanes else part)
    return Space(extents, clauses, space.parallel, (part,), lane,
                 tuple(space.waves[i] for i in kept))


def _combine(c: Clause, partial: Value | None, part: str, extents: dict[str, int]) -> Clause:
    if partial is None:
        return c
    ranges = (*((v, extents[v]) for v in c.result_vars), (part, extents[part]))
    body = Read(0, (Var(part), *map(Var, c.result_vars)))
    return Clause(c.result, (partial,), ranges, c.dims, body, c.reduce, (part,))


def stem(space: Space) -> str:
    """A short name from the last results."""
    names = [re.sub(r"\W", "_", c.result.name.rsplit(".", 1)[-1]) for c in space.clauses]
    words = [name for name in names if name and not name.isdigit()]
    return "_".join(dict.fromkeys(words[-2:])) or "kernel"


def about(clauses: Sequence[Clause]) -> tuple[str, ...]:
    """The clauses as statements; what differs between ranks is left out."""
    return tuple(map(_statement, clauses))


def _statement(c: Clause) -> str:
    operands = [v.name or "_" for v in c.operands]

    def show(expr: Expr) -> str:
        plain = transform(expr, lambda e: Var("origin") if isinstance(e, Origin) else None)
        return print_expr(plain, operands)

    dims = ", ".join(f"({', '.join(dim)})" if len(dim) != 1 else dim[0] for dim in c.dims)
    guard = "" if c.guard is None else f" if {show(c.guard)}"
    reduction = f"{c.reduce}[{', '.join(c.reduced)}{guard}]" if c.reduce else ""
    body = f"({show(c.body)})" if reduction else show(c.body)
    return f"{c.result.name or '_'}[{dims}] = {reduction}{body}"
