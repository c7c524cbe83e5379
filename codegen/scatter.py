"""Guarded reductions that name their place: `sum[n if ids[n] == v](x[n, d])`.

The work is proportional to what is read: one kernel fills the result with the identity, the next
walks the reduced axes in order and combines each element into its place. Its grid is the axes of
the result that no guard names, so that no two points of it touch one element and the order of a
sum is that of the reduced axes, whatever the number of threads. Sums of narrow floats are held in
scratch as f32 and converted by a third kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from anabranch.codegen.build import OF_BOOLS, Builder
from anabranch.codegen.kernel import Combine, dtype_of, identity
from anabranch.codegen.names import both
from anabranch.codegen.scope import Piece, Scheme
from anabranch.ir.core import Value
from anabranch.ir.expr import Cast, Expr, Read, Var, integer, substitute
from anabranch.ir.index import scatter_places
from anabranch.ir.linear import Linear, linear, strides
from anabranch.ir.space import Clause, Space, unify
from anabranch.ir.types import accumulator, tensor

COMBINING = ("sum", "prod", "max", "min", "any", "all")


def is_scatter(c: Clause) -> bool:
    return c.reduce in COMBINING and bool(scatter_places(c)[0])


def scatter(c: Clause, note: Sequence[str]) -> tuple[tuple[Piece, ...], tuple[Value, ...]]:
    """The kernels, and the scratch values among what they point to."""
    dtype = c.result.type.dtype
    held = c.result
    if accumulator(dtype) != dtype:
        held = Value(tensor(accumulator(dtype), c.result.type.shape), f"{c.result.name}_wide")
    scratch = () if held is c.result else (held,)
    pieces = [_fill(c, held, scratch), _combine(c, held, scratch, note)]
    if scratch:
        pieces.append(_narrow(c, held, scratch))
    return tuple(pieces), scratch


def _pointwise(c: Clause, outputs: Sequence[Value], scratch: Sequence[Value], name: str,
               note: str) -> Piece:
    space = unify([c])
    assert space is not None, "one clause has a space"
    builder = Builder(space, outputs, Scheme(space.parallel, (), "grid" if space.parallel else ""),
                      scratch)
    return builder.finish(name, builder.run(), [note])


def _fill(c: Clause, held: Value, scratch: Sequence[Value]) -> Piece:
    flat = [("i", held.type.elements)]
    start = identity(c.reduce, held.type.dtype)
    clause = Clause(held, (), tuple(flat), (("i",),), start)
    return _pointwise(clause, [held], scratch, f"{c.result.name}_fill", f"fill with {start.value}")


def _narrow(c: Clause, held: Value, scratch: Sequence[Value]) -> Piece:
    names = tuple(f"i{d}" for d in range(held.type.rank))
    body = Cast(c.result.type.dtype, Read(0, tuple(map(Var, names))))
    ranges = tuple(zip(names, held.type.shape, strict=True))
    source = Clause(c.result, (held,), ranges, tuple((name,) for name in names), body)
    return _pointwise(source, [c.result], scratch, f"{c.result.name}_narrow", "round")


def _combine(c: Clause, held: Value, scratch: Sequence[Value], note: Sequence[str]) -> Piece:
    places, rest = scatter_places(c)
    free = tuple(v for v in c.result_vars if v not in places)
    ranges = tuple((v, n) for v, n in c.ranges if v not in places)
    moved = replace(c, ranges=ranges, dims=tuple((v,) for v in free), guard=None,
                    body=substitute(c.body, places))
    extents = dict(ranges)
    space = Space(extents, (moved,), free, c.reduced, free[-1] if free else None, (0,))
    form = _target(c, places)
    also = [form, *(Linear({}, ((1, e),)) for e in (*places.values(), *rest))]
    builder = Builder(space, [], Scheme(free, c.reduced, "grid" if free else ""), scratch,
                      also=also)
    inner = builder.open_loops({})
    mask: Expr | None = None
    for term in rest:
        mask = both(mask, builder.lower(substitute(term, places), 0, mask))
    for v, place in places.items():
        mask = both(mask, builder.within(place, c.extents[v], 0, mask))
    index = builder.index(form, 0, mask)
    value = builder.lower(moved.body, 0, mask)
    if dtype_of(value) != held.type.dtype:
        value = Cast(held.type.dtype, value)
    reduce = OF_BOOLS.get(c.reduce, c.reduce) if held.type.dtype == "bool" else c.reduce
    inner.append(Combine(builder.target(held), index, reduce, value, mask))
    builder.close_loops(integer(0), builder.extent[builder.loops[-1].name])
    return builder.finish(f"{c.result.name}_scatter", tuple(builder.row), note)


def _target(c: Clause, places: Mapping[str, Expr]) -> Linear:
    """Where in the result an element goes."""
    form = Linear({})
    steps = strides([c.extents[v] for v in c.result_vars])
    for v, step in zip(c.result_vars, steps, strict=True):
        form += linear(places.get(v, Var(v))) * step
    return form
