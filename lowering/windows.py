"""Sums of products whose factors the library's matrix product cannot walk: those get copies it can.

A convolution reads its input at sums of a result variable and a reduced one, with padding; its
weight gradient sums over axes that lie apart in memory. Where a factor is read many times for each
of its elements, writing it once in an order of its own and multiplying matrices is many times as
fast as loops over the sum:

    y[n, o, h, v] = sum[c, i, j](x[n, c, h + i - 1, v + j - 1, pad=0] * w[o, c, i, j])

    p[n, c, i, j, h, v] = x[n, c, h + i - 1, v + j - 1, pad=0]
    y[n, o, h, v]       = sum[c, i, j](p[n, c, i, j, h, v] * w[o, c, i, j])

Under guards, what no guard speaks of is multiplied first (`products`). Where that does not help,
copies of both factors are 0 where the guards do not hold: 0 times 0 is 0, whatever the factors
are. Results are those of the sum as it was, but for the order of additions.

Nothing is decided by what an op is called: the structure of the sum and the strides of its factors
say all. It runs on local modules, before fusion. A copy is as large as all windows together, so
a sum keeps its loops if that is more than `LARGEST`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from anabranch.ir.contraction import matrix_product
from anabranch.ir.core import Module, Value
from anabranch.ir.expr import Cast, Const, Expr, Read, Var, transform, variables, where
from anabranch.ir.index import scatter_places
from anabranch.ir.ops import Compute
from anabranch.ir.space import Clause, clause
from anabranch.ir.types import accumulator, is_float, itemsize, tensor
from anabranch.lowering.products import Axes, Sum, before_guards, statement, sum_of
from anabranch.lowering.simplify import key_of

LARGEST = 1 << 30  # bytes of the copies
FEWEST = 1 << 15  # products, below which they are not worth their while
REUSE = 3  # products for each element of the copies


def copy_windows(module: Module) -> Module:
    """The module, changed in place."""
    for function in module.functions.values():
        writer = _Writer()
        for op in list(function.body):
            if isinstance(op, Compute) and (made := _remade(clause(op))) is not None:
                writer.write(made, op)
    return module


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes clauses into a function; sums that want the same copy share it."""

    numbers: dict[Value, int] = field(default_factory=dict)
    known: dict[Any, Value] = field(default_factory=dict)

    def write(self, made: Sequence[Clause], op: Compute) -> None:
        """The clauses as statements in place of `op`; the last of them gives its result."""
        assert op.block is not None
        results: dict[Value, Value] = {}
        for c in made:
            operands = [results.get(v, v) for v in c.operands]
            each = op.block.insert_before(Compute(
                operands, c.result.type.dtype, c.ranges, c.dims, c.body, reduce=c.reduce,
                reduced=c.reduced, guard=c.guard, name=c.result.name, loc=op.loc, stage=op.stage,
                recompute=op.recompute), op)
            results[c.result] = self.known.setdefault(key_of(each, self.numbers), each.result)
            if results[c.result] is not each.result:
                each.erase()
        op.result.replace_by(results[op.result])
        op.erase()


def _remade(c: Clause) -> list[Clause] | None:
    """Copies, a matrix product and what follows it, where that is worth its while: of all ways
    the one that writes least."""
    if c.reduce != "sum" or not is_float(c.result.type.dtype):
        return None
    if accumulator(c.result.type.dtype) != c.result.type.dtype:
        return _widened(c)
    s = sum_of(c)
    if s is None or s.points < FEWEST or matrix_product(c) is not None:
        return None
    best = min(_ways(s), key=_written, default=None)
    return best if best is not None and _pays(s, _written(best)) else None


def _widened(c: Clause) -> list[Clause] | None:
    """A sum of narrow floats is held in wide ones: as a product of wide copies, if it is one."""
    narrow, wide, s = c.result.type.dtype, accumulator(c.result.type.dtype), sum_of(c)
    if s is None or s.points < FEWEST or any(v.type.dtype != narrow for v in c.operands):
        return None
    copies = [_cast(v, wide, Value(tensor(wide, v.type.shape), v.name)) for v in c.operands]
    body = transform(c.body, partial(_as_wide, narrow, wide))
    total = replace(c, result=Value(tensor(wide, c.result.type.shape), c.result.name),
                    operands=tuple(copy.result for copy in copies), body=body)
    made = [total] if matrix_product(total) is not None else _remade(total)
    if made is None or not _pays(s, _written([*copies, *made])):
        return None
    return [*copies, *made, _cast(made[-1].result, narrow, c.result)]


def _as_wide(narrow: str, wide: str, e: Expr) -> Expr | None:
    """Numbers of a narrow dtype in a wide one, and what pads the reads of wide copies."""
    match e:
        case Const(value, dtype) if dtype == narrow:
            return Const(value, wide)
        case Read(operand, subscripts, pad) if pad is not None and not isinstance(pad, Const):
            return Read(operand, subscripts, Cast(wide, pad))
    return None


def _cast(value: Value, dtype: str, result: Value) -> Clause:
    axes = [(f"i{d}", n) for d, n in enumerate(value.type.shape)]
    read = Read(0, tuple(Var(v) for v, _ in axes))
    return Clause(result, (value,), tuple(axes), tuple((v,) for v, _ in axes), Cast(dtype, read))


def _ways(s: Sum) -> Iterator[list[Clause]]:
    for products, chosen in before_guards(s) if s.guards else ():
        made = [products] if matrix_product(products) is not None else _remade(products)
        if made is not None:
            yield [*made, chosen]
    if not scatter_places(s.clause)[0]:
        for orders in _choices(s):
            copied = _with_copies(s, orders)
            if copied is not None:
                yield copied


def _written(made: Sequence[Clause]) -> int:
    """The elements of everything but the result."""
    return sum(c.result.type.elements for c in made[:-1])


def _pays(s: Sum, elements: int) -> bool:
    """Whether writing so many elements, and reading them, is worth its while."""
    size = itemsize(accumulator(s.clause.result.type.dtype))
    return elements * REUSE <= s.points and elements * size <= LARGEST


def _choices(s: Sum) -> Iterator[tuple[Axes, Axes]]:
    """Orders of the copies of both factors, empty where one is read as it is: one copy first."""
    first, second = s.pair
    if not s.guards and second.pad is None:
        yield from ((order, ()) for order in _orders(s, first, second, second))
    if not s.guards and first.pad is None:
        yield from (((), order) for order in _orders(s, second, first, first))
    for stored in s.pair:
        for order in _orders(s, first, second, stored):
            yield from ((order, other) for other in _orders(s, second, first, stored))


def _orders(s: Sum, one: Read, other: Read, stored: Read) -> Iterator[Axes]:
    """The axes of a copy: those of the batch, then the sum and what lies together in the result.

    The last axis is best a long one that the factor is read along. Summed axes follow each other
    as they do where they are `stored`.
    """
    c, ours, theirs = s.clause, s.axes(one), s.axes(other)
    shared = [v for v in c.result_vars if v in ours & theirs]
    own = [v for v in c.result_vars if v in ours - theirs]
    inner = _last_run(c.result_vars, own)
    lead = (*shared, *own[:len(own) - len(inner)])
    summed = _as_stored(c.reduced, stored)
    along = variables(one.subscripts[-1]) if one.subscripts else frozenset()

    def together(order: Axes) -> int:
        return c.extents[order[-1]] if order and order[-1] in along else 0

    yield from sorted([(*lead, *summed, *inner), (*lead, *inner, *summed)],
                      key=together, reverse=True)


def _last_run(axes: Sequence[str], chosen: Sequence[str]) -> Axes:
    """The last of the chosen axes, and those before it without others between."""
    end = max((axes.index(v) + 1 for v in chosen), default=0)
    start = end
    while start and axes[start - 1] in chosen:
        start -= 1
    return tuple(axes[start:end])


def _as_stored(reduced: Sequence[str], read: Read) -> Axes:
    """The axes of the sum as they follow each other in what is read."""
    last = {v: d for d, s in enumerate(read.subscripts) for v in variables(s)}
    return tuple(sorted(reduced, key=lambda v: last.get(v, -1)))


def _with_copies(s: Sum, orders: tuple[Axes, Axes]) -> list[Clause] | None:
    """The clauses, if one of them is a matrix product: the last, or the last but one, which the
    last brings into the order of the result."""
    c = s.clause
    copies = [_copy(s, read, order) if order else None
              for read, order in zip(s.pair, orders, strict=True)]
    values = [c.operands[read.operand] if made is None else made.result
              for read, made in zip(s.pair, copies, strict=True)]
    left, right = (Read(n, tuple(map(Var, order)) if order else read.subscripts)
                   for n, (read, order) in enumerate(zip(s.pair, orders, strict=True)))
    before = [made for made in copies if made is not None]
    body = s.product(left, right)
    product = Clause(c.result, tuple(values), c.ranges, c.dims, body, "sum", c.reduced)
    if matrix_product(product) is not None:
        return [*before, product]
    apart = _product_order(s)
    product = statement(c.result.name, values, c.result.type.dtype, c.extents,
                        tuple((v,) for v in apart), body, c.reduced)
    if matrix_product(product) is None:
        return None
    last = Clause(c.result, (product.result,), c.ranges[:len(apart)], c.dims,
                  Read(0, tuple(map(Var, apart))))
    return [*before, product, last]


def _product_order(s: Sum) -> Axes:
    """The axes of the result: those of both factors, then of the first, then of the second."""
    first, second = (s.axes(read) for read in s.pair)
    return tuple(sorted(s.clause.result_vars,
                        key=lambda v: (v not in first & second, v in second - first)))


def _copy(s: Sum, read: Read, order: Axes) -> Clause:
    """A factor in an order of its own, 0 where the guard does not hold."""
    c = s.clause
    source = c.operands[read.operand]
    body: Expr = Read(0, read.subscripts, read.pad)
    if c.guard is not None:
        body = where(c.guard, body, Const(0.0, source.type.dtype))
    return statement(f"{source.name}_windows", [source], source.type.dtype, c.extents,
                     tuple((v,) for v in order), body)
