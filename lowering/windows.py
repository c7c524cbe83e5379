"""Sums of products whose factors the library's matrix product cannot walk: those get copies it can.

A convolution reads its input at sums of a result variable and a reduced one, with padding or a
guard; its weight gradient sums over axes that lie apart in memory. Where a factor is read many
times for each of its elements, writing it once in an order of its own and multiplying matrices is
many times as fast as loops over the sum:

    y[n, o, h, v] = sum[c, i, j](x[n, c, h + i - 1, v + j - 1, pad=0] * w[o, c, i, j])

    p[n, c, i, j, h, v] = x[n, c, h + i - 1, v + j - 1, pad=0]
    y[n, o, h, v]       = sum[c, i, j](p[n, c, i, j, h, v] * w[o, c, i, j])

Nothing is decided by what an op is called: the structure of the sum and the strides of its factors
say all. It runs on local modules, before fusion. The copy is as large as all windows together, so
a sum keeps its loops if that is more than `LARGEST`. What a guard leaves out is 0 in a copy: the
difference shows only where the other factor is infinite or nan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce as fold

from anabranch.ir.contraction import factors, is_contraction, matrix_product
from anabranch.ir.core import Module, Value
from anabranch.ir.expr import Call, Const, Expr, Read, Var, reads, transform, variables
from anabranch.ir.index import conjuncts
from anabranch.ir.ops import Compute
from anabranch.ir.space import Clause, clause
from anabranch.ir.types import tensor

LARGEST = 1 << 30  # bytes of the copies
FEWEST = 1 << 15  # products, below which they are not worth their while
REUSE = 8  # products for each element of the copies

Order = tuple[str, ...]


def copy_windows(module: Module) -> Module:
    """The module, changed in place."""
    for function in module.functions.values():
        for op in list(function.body):
            if isinstance(op, Compute) and (copied := _copied(op)) is not None:
                for each in copied:
                    function.body.insert_before(each, op)
                op.result.replace_by(copied[-1].result)
                op.erase()
    return module


@dataclass(frozen=True, slots=True)
class _Factor:
    """A read, and the conditions under which it counts."""

    read: Read
    guards: tuple[Expr, ...]

    @property
    def axes(self) -> frozenset[str]:
        return frozenset().union(*map(variables, (*self.read.subscripts, *self.guards)))


def _copied(op: Compute) -> list[Compute] | None:
    """Copies of factors and the product of them, where that is worth its while."""
    points = math.prod(n for _, n in op.ranges)
    if points < FEWEST or op.reduce != "sum" or matrix_product(clause(op)) is not None:
        return None
    found = _factors(op)
    if found is None:
        return None
    pair, scale = found
    for orders in _choices(op, pair):
        size = sum(math.prod(op.extents[v] for v in order) for order in orders if order)
        if size * REUSE <= points and size * op.result.type.nbytes <= (
                LARGEST * op.result.type.elements):
            made = _with_copies(op, pair, scale, orders)
            if made is not None:
                return made
    return None


def _factors(op: Compute) -> tuple[tuple[_Factor, _Factor], float] | None:
    """The two factors of a contraction, with their pads and the guards that speak of each."""
    bare = replace(clause(op), guard=None, body=transform(op.body, _without_pad))
    found = factors(bare)
    if found is None or not is_contraction(bare) or len(reads(op.body)) != 2:
        return None
    first, second = (_Factor(read, ()) for read in reads(op.body))
    for guard in conjuncts(op.guard):
        if reads(guard):
            return None
        if variables(guard) <= first.axes:
            first = replace(first, guards=(*first.guards, guard))
        elif variables(guard) <= second.axes:
            second = replace(second, guards=(*second.guards, guard))
        else:
            return None
    return (first, second), found[2]


def _without_pad(expr: Expr) -> Expr | None:
    match expr:
        case Read(operand, subscripts, pad) if pad is not None:
            return Read(operand, subscripts)
    return None


def _choices(
    op: Compute, pair: tuple[_Factor, _Factor]
) -> Iterator[tuple[Order, Order]]:
    """Orders of the copies of both factors, empty where one is read as it is: one copy first."""
    left, right = (list(_orders(op, one, other)) for one, other in (pair, pair[::-1]))
    if not pair[1].guards and pair[1].read.pad is None:
        yield from ((order, ()) for order in left)
    if not pair[0].guards and pair[0].read.pad is None:
        yield from (((), order) for order in right)
    yield from ((a, b) for a in left for b in right)


def _orders(op: Compute, one: _Factor, other: _Factor) -> Iterator[Order]:
    """The axes of a copy: those of the batch, then the sum and what lies together in the result.

    The last axis is best a long one that the factor is read along.
    """
    shared = [v for v in op.result_vars if v in one.axes & other.axes]
    own = [v for v in op.result_vars if v in one.axes - other.axes]
    inner = _last_run(op.result_vars, own)
    lead = (*shared, *own[:len(own) - len(inner)])
    summed = _as_stored(op.reduced, other.read)
    along = variables(one.read.subscripts[-1]) if one.read.subscripts else frozenset()

    def together(order: Order) -> int:
        return op.extents[order[-1]] if order and order[-1] in along else 0

    yield from sorted([(*lead, *summed, *inner), (*lead, *inner, *summed)],
                      key=together, reverse=True)


def _last_run(axes: Sequence[str], chosen: Sequence[str]) -> Order:
    """The last of the chosen axes, and those before it without others between."""
    end = max(axes.index(v) for v in chosen) + 1
    start = end
    while start and axes[start - 1] in chosen:
        start -= 1
    return tuple(axes[start:end])


def _as_stored(reduced: Sequence[str], read: Read) -> Order:
    """The axes of the sum as they follow each other in what is read."""
    last = {v: d for d, s in enumerate(read.subscripts) for v in variables(s)}
    return tuple(sorted(reduced, key=lambda v: last.get(v, -1)))


def _with_copies(
    op: Compute, pair: tuple[_Factor, _Factor], scale: float, orders: tuple[Order, Order]
) -> list[Compute] | None:
    """The statements, if the last of them is a matrix product."""
    dtype = op.result.type.dtype
    values = [Value(tensor(dtype, tuple(op.extents[v] for v in order))) if order
              else op.operands[factor.read.operand]
              for factor, order in zip(pair, orders, strict=True)]
    body = _body(pair, scale, orders, dtype)
    product = Clause(op.result, tuple(values), op.ranges, op.dims, body, "sum", op.reduced)
    if matrix_product(product) is None:
        return None
    copies = [_copy(op, factor, order) if order else None
              for factor, order in zip(pair, orders, strict=True)]
    operands = [value if made is None else made.result
                for value, made in zip(values, copies, strict=True)]
    made = Compute(operands, dtype, op.ranges, op.dims, body, reduce="sum",
                   reduced=op.reduced, name=op.result.name, loc=op.loc, stage=op.stage,
                   recompute=op.recompute)
    return [*(each for each in copies if each is not None), made]


def _body(
    pair: tuple[_Factor, _Factor], scale: float, orders: tuple[Order, Order], dtype: str
) -> Expr:
    left, right = (Read(n, tuple(map(Var, order)) if order else factor.read.subscripts)
                   for n, (factor, order) in enumerate(zip(pair, orders, strict=True)))
    product = Call("mul", (left, right))
    return product if scale == 1 else Call("mul", (Const(scale, dtype), product))


def _copy(op: Compute, factor: _Factor, order: Order) -> Compute:
    """A factor in an order of its own, 0 where it does not count."""
    source = op.operands[factor.read.operand]
    body: Expr = Read(0, factor.read.subscripts, factor.read.pad)
    if factor.guards:
        holds = fold(lambda a, b: Call("and", (a, b)), factor.guards)
        body = Call("where", (holds, body, Const(0.0, source.type.dtype)))
    return Compute([source], source.type.dtype, [(v, op.extents[v]) for v in order],
                   [(v,) for v in order], body, name=f"{source.name}_windows", loc=op.loc,
                   stage=op.stage, recompute=op.recompute)
