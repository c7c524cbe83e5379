"""Writes a gradient sum down as computes that stay what they are.

`dx[t] = sum of weight over what is free, if conditions` could be one statement, but pointwise work
around a matrix product would then make it a loop nest that no library knows. So factors (and
conditions) without summed variables are taken out of the sum; the others are collected into groups
over the same variables, and a group that is more than a read is computed beforehand where that
needs no more memory than the tensors it reads. A single group of little arithmetic stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.ir.core import Op, Value
from anabranch.ir.diagnostics import Loc
from anabranch.ir.expr import (
    Call,
    Const,
    Expr,
    Read,
    Var,
    mul,
    reads,
    renumber,
    variables,
    walk,
    where,
)
from anabranch.ir.index import decide, expression, interval, mixed_radix
from anabranch.ir.ops import Compute
from anabranch.ir.scalar import dtype_of, flops
from anabranch.ir.types import is_float
from anabranch.lowering.adjoints import conjunction
from anabranch.lowering.invert import Inverse, resolved

CHEAP = 8  # operations per element that are not worth a tensor: products, but no function


def zero(dtype: str) -> Const:
    return Const(0.0 if is_float(dtype) else 0 if dtype != "bool" else False, dtype)


@dataclass(frozen=True, slots=True)
class Writer:
    """Puts computes in front of an op, with the origin of the statement they come from."""

    anchor: Op
    loc: Loc
    stage: int
    recompute: int = 0


@dataclass(frozen=True, slots=True)
class Frame:
    """Numbers the values that expressions under construction read."""

    writer: Writer
    values: list[Value]

    def read(self, value: Value, subscripts: Sequence[Expr]) -> Read:
        if value not in self.values:
            self.values.append(value)
        return Read(self.values.index(value), tuple(subscripts))

    def dtype(self, expr: Expr) -> str:
        return dtype_of(expr, tuple(v.type.dtype for v in self.values))

    def emit(
        self, body: Expr, dims: Sequence[tuple[str, ...]], extents: Mapping[str, int], *,
        reduce: str = "", reduced: Sequence[str] = (), guard: Expr | None = None, name: str = "",
    ) -> Value:
        """A new compute over the values that `guard` and `body` read, in that order."""
        every = [*(reads(guard) if guard is not None else ()), *reads(body)]
        used = list(dict.fromkeys(read.operand for read in every))
        order = {old: new for new, old in enumerate(used)}
        names = [*(v for dim in dims for v in dim), *reduced]
        op = Compute(
            [self.values[n] for n in used], self.dtype(body), [(v, extents[v]) for v in names],
            dims, renumber(body, order.__getitem__), reduce=reduce, reduced=reduced,
            guard=None if guard is None else renumber(guard, order.__getitem__), name=name,
            loc=self.writer.loc, stage=self.writer.stage, recompute=self.writer.recompute)
        block = self.writer.anchor.block
        assert block is not None
        return block.insert_before(op, self.writer.anchor).result


def gradient_sum(
    frame: Frame, weight: Expr, conditions: Sequence[Expr], inverse: Inverse, name: str
) -> Value | None:
    """The sum of `weight` over the free variables of `inverse`; None if no condition can hold."""
    moved = [resolved(condition, inverse.values) for condition in conditions]
    tests = list(dict.fromkeys([*moved, *inverse.conditions]))
    known = {test: decide(test, inverse.ranges) for test in tests}
    if False in known.values():
        return None
    total = Total(frame, inverse.dims, inverse.ranges, tuple(inverse.free), name)
    open_tests = [test for test in tests if known[test] is None]
    return total.of(resolved(weight, inverse.values), open_tests)


@dataclass(slots=True)
class Product:
    """`sign * product(above) / product(below)`."""

    sign: int = 1
    above: list[Expr] = field(default_factory=list)
    below: list[Expr] = field(default_factory=list)

    def expression(self, dtype: str) -> Expr:
        result = _product(self.above) or Const(1.0, dtype)
        divisor = _product(self.below)
        if divisor is not None:
            result = Call("div", (result, divisor))
        return Call("neg", (result,)) if self.sign < 0 else result

    @property
    def trivial(self) -> bool:
        return self.sign > 0 and not self.above and not self.below


def _product(parts: Sequence[Expr]) -> Expr | None:
    result: Expr | None = None
    for part in parts:
        result = part if result is None else mul(result, part)
    return result


def _moderate(expr: Expr) -> bool:
    """Whether this is a literal that no float dtype takes for 0 or for infinity."""
    return isinstance(expr, Const) and 2.0**-14 <= abs(expr.value) <= 2.0**15


def factored(expr: Expr) -> Product:
    """An expression as a product of factors."""
    match expr:
        case Call("mul", (a, b)):
            x, y = factored(a), factored(b)
            return Product(x.sign * y.sign, x.above + y.above, x.below + y.below)
        case Call("div", (a, b)):
            x, y = factored(a), factored(b)
            return Product(x.sign * y.sign, x.above + y.below, x.below + y.above)
        case Call("neg", (a,)):
            x = factored(a)
            return Product(-x.sign, x.above, x.below)
    return Product(above=[expr])


@dataclass(frozen=True, slots=True)
class Total:
    """One sum to be written: the dimensions of its result, all extents, and what is summed."""

    frame: Frame
    dims: Sequence[tuple[str, ...]]
    extents: Mapping[str, int]
    summed: tuple[str, ...]
    name: str

    def of(self, weight: Expr, conditions: Sequence[Expr]) -> Value:
        dtype = self.frame.dtype(weight)
        for test in [c for c in reversed(conditions) if not self._safe(c)]:
            weight = where(test, weight, zero(dtype))  # it may be read where the others hold only
        conditions = [c for c in conditions if self._safe(c)]
        if not self.summed:
            return self._pointwise(self.dims, weight, conditions, dtype)
        free = [c for c in conditions if not self._is_summed(c)]
        guards = [c for c in conditions if self._is_summed(c)]
        outer, groups = self._arranged(weight, dtype, guarded=bool(guards))
        if not all(map(self._safe, groups)):
            guards = list(conditions)
        body = _product([self._settled(g, len(groups)) for g in groups]) or Const(1.0, dtype)
        return self._finish(body, guards, outer, free, dtype)

    def _arranged(self, weight: Expr, dtype: str, *, guarded: bool
                  ) -> tuple[Product, list[Expr]]:
        """What stands outside of the sum, and the groups of factors inside."""
        outer, inner = self._split(factored(weight), guarded)
        groups = [group.expression(dtype) for group in self._grouped(inner)]
        dear = len(groups) == 1 and flops(groups[0]) > CHEAP
        if dear and not any(map(variables, [*outer.above, *outer.below])):
            return Product(), [weight]  # as another gradient has it, so that it is computed once
        return outer, groups

    def _finish(self, body: Expr, guards: Sequence[Expr], outer: Product, free: Sequence[Expr],
                dtype: str) -> Value:
        """The sum itself, then what stands outside of it."""
        used = variables(body).union(*map(variables, guards))
        dims = [tuple(v for v in dim if v in used) for dim in self.dims]
        whole = dims == list(self.dims)
        kept = list(self.dims) if whole else [dim for dim in dims if dim]
        inside = self.frame.emit(
            body, kept, self.extents, reduce="sum", reduced=self.summed,
            guard=conjunction(guards) if guards else None, name=self.name)
        outside = [c for c in free if c not in guards]
        if whole and outer.trivial and not outside:
            return inside
        places = [expression(mixed_radix(dim, self.extents)) for dim in kept]
        outer.above.insert(0, self.frame.read(inside, places))
        return self._pointwise(self.dims, outer.expression(dtype), free, dtype)

    def _pointwise(self, dims: Sequence[tuple[str, ...]], body: Expr, conditions: Sequence[Expr],
                   dtype: str) -> Value:
        chosen = where(conjunction(conditions), body, zero(dtype)) if conditions else body
        return self.frame.emit(chosen, dims, self.extents, name=self.name)

    def _is_summed(self, expr: Expr) -> bool:
        return not variables(expr).isdisjoint(self.summed)

    def _split(self, product: Product, guarded: bool) -> tuple[Product, Product]:
        """The factors without summed variables, and the others. Where guards may leave out the
        whole sum, its 0 is to stay 0: what could be infinite, or divide by 0, remains inside."""

        def outside(part: Expr) -> bool:
            return not self._is_summed(part) and (not guarded or _moderate(part))

        outer, inner = Product(product.sign), Product()
        for part in product.above:
            (outer if outside(part) else inner).above.append(part)
        for part in product.below:
            (outer if outside(part) else inner).below.append(part)
        return outer, inner

    def _grouped(self, product: Product) -> list[Product]:
        """Factors over the same variables, or fewer, together."""
        groups: list[tuple[set[str], Product]] = []
        every = [(part, True) for part in product.above] + [(part, False) for part in product.below]
        for part, above in sorted(every, key=lambda item: -len(variables(item[0]))):
            names = variables(part)
            home = next((group for known, group in groups if names <= known), None)
            if home is None:
                home = Product()
                groups.append((names, home))
            (home.above if above else home.below).append(part)
        return [group for _, group in groups]

    def _settled(self, body: Expr, groups: int) -> Expr:
        """A group as a factor of the sum: computed beforehand if it is not simple and fits."""
        if isinstance(body, Read) or (groups == 1 and flops(body) <= CHEAP):
            return body
        names = list(dict.fromkeys(n.name for n in walk(body) if isinstance(n, Var)))
        room = max((self.frame.values[r.operand].type.elements for r in reads(body)), default=0)
        if math.prod(self.extents[v] for v in names) > room or not self._safe(body):
            return body
        name = f"{self.name}.part"
        value = self.frame.emit(body, [(v,) for v in names], self.extents, name=name)
        return self.frame.read(value, [Var(v) for v in names])

    def _safe(self, expr: Expr) -> bool:
        """Whether every read in it is inside, or padded, whatever the conditions say."""
        return all(self._inside(read) for read in reads(expr))

    def _inside(self, read: Read) -> bool:
        if read.pad is not None:
            return True
        bounds = [interval(place, self.extents) for place in read.subscripts]
        shape = self.frame.values[read.operand].type.shape
        return all(b is not None and b[0] >= 0 and b[1] < n
                   for b, n in zip(bounds, shape, strict=True))
