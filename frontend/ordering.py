"""What orders the elements of a tensor along an axis: `sort`, `argsort`, `topk`.

The places come from an op of their own, which index notation cannot say; the values are read at
those places, so that their gradient is derived like that of any indirect read.
"""

from __future__ import annotations

from anabranch.frontend.builder import Builder, letters
from anabranch.frontend.tensors import axis_number, over, read
from anabranch.frontend.values import FULL, Element, Tensor
from anabranch.ir.diagnostics import Span, fail
from anabranch.ir.expr import Expr, Var, integer


def argsort(x: Tensor, axis: object, descending: bool, builder: Builder, span: Span) -> Tensor:
    """The places of all elements, in order."""
    at = _axis(x, axis, span)
    if not x.rank:
        return over((), Element(integer(0), "i64", FULL))
    return builder.order(x, at, x.shape[at], descending)


def sort(
    x: Tensor, axis: object, descending: bool, builder: Builder, span: Span
) -> tuple[Tensor, Tensor]:
    """All elements in order, and their places."""
    x = builder.held(x)
    places = argsort(x, axis, descending, builder, span)
    return _values(x, places, _axis(x, axis, span), builder), places


def topk(
    x: Tensor, count: int, axis: object, largest: bool, builder: Builder, span: Span
) -> tuple[Tensor, Tensor]:
    """The `count` largest (or smallest) elements, best first, and their places."""
    x, at = builder.held(x), _axis(x, axis, span)
    length = x.shape[at] if x.rank else 1
    if not 0 <= count <= length:
        raise fail(f"the first {count} of {length} elements", span)
    if not x.rank and count:
        return x, argsort(x, axis, largest, builder, span)
    if not x.rank:
        raise fail("the first 0 elements of a tensor without axes", span)
    places = builder.order(x, at, count, largest)
    return _values(x, places, at, builder), places


def _axis(x: Tensor, axis: object, span: Span) -> int:
    """A tensor without axes is ordered as if it had one."""
    return axis_number(axis, max(1, x.rank), span)


def _values(x: Tensor, places: Tensor, at: int, builder: Builder) -> Tensor:
    """The elements at places along an axis."""
    if not x.rank:
        return x
    names = letters(x.rank)
    subscripts: list[Expr] = [Var(name) for name in names]
    subscripts[at] = read(places, subscripts, builder).expr
    ranges = tuple(zip(names, places.shape, strict=True))
    return builder.emit(read(x, subscripts, builder), ranges, tuple((n,) for n in names))
