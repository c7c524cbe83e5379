"""Sums of products under guards: what can be multiplied before the guards choose.

What a guard leaves out has no part in a sum, so that it must not be multiplied with 0: 0 times
infinity is not 0. Where guards speak of some reduced variables only, the sum over the others is
made of all there is, and then those of its elements are summed for which the guards hold:

    x[n, c, h]    = sum[o, i if 0 <= h - i < H](d[n, o, h - i] * w[o, c, i])

    p[n, c, i, t] = sum[o](d[n, o, t] * w[o, c, i])
    x[n, c, h]    = sum[i if 0 <= h - i < H](p[n, c, i, h - i])

The first is a matrix product, or can be made one. Either the guarded subscripts become axes of the
products, as above, or they stay what they are, and products that no guard chooses are anything:

    p[n, c, i, h] = sum[o](d[n, o, h - i, pad=0] * w[o, c, i])
    x[n, c, h]    = sum[i if 0 <= h - i < H](p[n, c, i, h])
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from anabranch.ir.contraction import factors
from anabranch.ir.core import Value
from anabranch.ir.expr import Call, Const, Expr, Read, Var, reads, transform, variables, where
from anabranch.ir.index import conjuncts, scatter_places
from anabranch.ir.space import Clause
from anabranch.ir.types import tensor
from anabranch.lowering.equations import lies_inside

MORE = 2  # times as many products may be made as there are, where guards leave some out

Axes = tuple[str, ...]
Dims = tuple[Axes, ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of products of two reads, `scale` times; `guards` say which of them count."""

    clause: Clause
    pair: tuple[Read, Read]
    scale: float
    guards: tuple[Expr, ...]

    @property
    def points(self) -> int:
        """How many products there are; a scatter has no more than one for each of its elements."""
        fixed, _ = scatter_places(self.clause)
        return math.prod(n for v, n in self.clause.ranges if v not in fixed)

    def axes(self, read: Read) -> frozenset[str]:
        """What a factor depends on, once the guards are a part of it."""
        return frozenset().union(*map(variables, (*read.subscripts, *self.guards)))

    def product(self, left: Read, right: Read) -> Expr:
        made = Call("mul", (left, right))
        scale = Const(self.scale, self.clause.result.type.dtype)
        return made if self.scale == 1 else Call("mul", (scale, made))


def sum_of(c: Clause) -> Sum | None:
    """The clause as a sum of products of two reads, whatever their guards; pads are numbers, or
    made of indices, but no reads."""
    found = factors(replace(c, guard=None, body=transform(c.body, _without_pad)))
    guards = tuple(conjuncts(c.guard))
    pair = reads(c.body)
    if found is None or len(pair) != 2 or any(map(reads, guards)):
        return None
    return Sum(c, (pair[0], pair[1]), found[2], guards)


def _without_pad(expr: Expr) -> Expr | None:
    match expr:
        case Read(operand, subscripts, pad) if pad is not None:
            return Read(operand, subscripts)
    return None


def statement(
    name: str, operands: Sequence[Value], dtype: str, extents: dict[str, int], dims: Dims,
    body: Expr, reduced: Sequence[str] = (), guard: Expr | None = None,
) -> Clause:
    """A clause with a result of its own; a sum if anything is reduced."""
    ranges = tuple((v, extents[v]) for v in (*(v for dim in dims for v in dim), *reduced))
    shape = tuple(math.prod(extents[v] for v in dim) for dim in dims)
    return Clause(Value(tensor(dtype, shape), name), tuple(operands), ranges, dims, body,
                  "sum" if reduced else "", tuple(reduced), guard)


def before_guards(s: Sum) -> Iterator[tuple[Clause, Clause]]:
    """(products, what the guards choose of them), the cheaper pair first."""
    places = _guarded_places(s)
    if places and all(read.pad is None for read in s.pair):
        yield from _products(s, places)
    yield from _products(s, [])


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a guarded subscript reads, as an axis of the products."""

    name: str
    subscript: Expr
    size: int


def _guarded_places(s: Sum) -> list[_Place]:
    """The subscripts that guards may be about, but for plain variables; equal ones once."""
    guarded = frozenset().union(*map(variables, s.guards))
    found: dict[tuple[Expr, int], _Place] = {}
    for read in s.pair:
        shape = s.clause.operands[read.operand].type.shape
        for key in zip(read.subscripts, shape, strict=True):
            if not isinstance(key[0], Var) and variables(key[0]) & guarded:
                found.setdefault(key, _Place(f"place{len(found)}", *key))
    return list(found.values())


def _products(s: Sum, places: Sequence[_Place]) -> Iterator[tuple[Clause, Clause]]:
    c = s.clause
    chosen = frozenset().union(*map(variables, (*s.guards, *(p.subscript for p in places))))
    inner = tuple(v for v in c.reduced if v not in chosen)
    extents = c.extents | {p.name: p.size for p in places}
    left, right = (_somewhere(read, c, places, extents) for read in s.pair)
    order = _order(c, places, (left, right), chosen)
    if not inner or math.prod(extents[v] for v in (*order, *inner)) > MORE * s.points:
        return
    dtype, name = c.result.type.dtype, c.result.name
    products = statement(f"{name}_products", c.operands, dtype, extents,
                         tuple((v,) for v in order), s.product(left, right), inner)
    at = {p.name: p.subscript for p in places}
    yield products, _chosen(c, products.result, [at.get(v, Var(v)) for v in order], inner)


def _somewhere(
    read: Read, c: Clause, places: Sequence[_Place], extents: dict[str, int]
) -> Read:
    """A factor wherever the axes of the products are, whether guards hold there or not."""
    names = {(p.subscript, p.size): Var(p.name) for p in places}
    source = c.operands[read.operand].type
    subscripts = tuple(names.get(key, key[0])
                       for key in zip(read.subscripts, source.shape, strict=True))
    whole = read.pad is not None or lies_inside(subscripts, source.shape, extents)
    return Read(read.operand, subscripts, read.pad if whole else Const(0.0, source.dtype))


def _order(
    c: Clause, places: Sequence[_Place], pair: tuple[Read, Read], chosen: frozenset[str]
) -> Axes:
    """The axes of products, places where the result has what they depend on. What is summed later
    stands before all that guards are about; of that first what is of one factor with the axis
    before it."""
    axes = frozenset().union(*map(variables, pair))
    found: list[str] = []
    for v in c.result_vars:
        found += [v] if v in axes else []
        found += [p.name for p in places if p.name not in found and v in variables(p.subscript)]
    found += [p.name for p in places if p.name not in found]
    late = chosen.union(p.name for p in places)
    first = next((n for n, v in enumerate(found) if v in late), len(found))
    near = [names for read in pair if {*found[first - 1:first]} & (names := variables(read))]
    summed = sorted((v for v in c.reduced if v in axes & chosen),
                    key=lambda v: not near or v not in near[0])
    return (*found[:first], *summed, *found[first:])


def _chosen(
    c: Clause, products: Value, subscripts: Sequence[Expr], inner: Sequence[str]
) -> Clause:
    """The sum of the products for which the guard holds, or what one product gives."""
    assert c.guard is not None
    reduced = tuple(v for v in c.reduced if v not in inner)
    ranges = tuple(r for r in c.ranges if r[0] not in inner)
    body: Expr = Read(0, tuple(subscripts))
    if reduced:
        return Clause(c.result, (products,), ranges, c.dims, body, "sum", reduced, c.guard)
    nothing = Const(0.0, c.result.type.dtype)
    return Clause(c.result, (products,), ranges, c.dims, where(c.guard, body, nothing))
