"""Changes of layout of whole tensors: reshape, concat, slices and their kin, as index notation.

A reshape is written with the common factors of both shapes as index variables, merged on either
side, so that every derivation sees which axes were split and joined; where the shapes have no
common factors it goes through the flat tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from anabranch.frontend import elements
from anabranch.frontend.builder import Builder, letters
from anabranch.frontend.tensors import (
    Shape,
    axis_number,
    axis_numbers,
    flattened,
    over,
    read,
    row_major,
)
from anabranch.frontend.values import FULL, WEAK, Element, Tensor, axes, axis, describe
from anabranch.ir.diagnostics import Span, fail
from anabranch.ir.expr import Call, Cast, Const, Expr, Read, add, integer, sub
from anabranch.ir.sbp import balanced
from anabranch.ir.types import integers


def sizes(value: object, span: Span) -> list[int]:
    """A shape given as a list of integers, or one integer."""
    given = value if isinstance(value, list | tuple) else [value]
    for size in given:
        if isinstance(size, bool) or not isinstance(size, int):
            raise fail(f"a shape is a list of integers, not {describe(value)}", span)
    return list(given)


def reshape(x: Tensor, shape: object, builder: Builder, span: Span) -> Tensor:
    """The same elements, in row-major order, in another shape; one size may be -1."""
    wanted = _completed(x, sizes(shape, span), span)
    if wanted == x.shape:
        return x
    if 0 in wanted:
        return over(wanted, Element(_zero(x.dtype), x.dtype, FULL))
    groups = _factors(x.shape, wanted)
    if groups is None:
        return reshape(flattened(x, builder), list(wanted), builder, span)
    old, new, factor_sizes = groups
    names = letters(len(factor_sizes))
    extents = dict(zip(names, factor_sizes, strict=True))
    places = [row_major([names[f] for f in group], extents) for group in old]
    dims = [tuple(names[f] for f in group) for group in new]
    return builder.emit(read(x, places, builder), tuple(extents.items()), dims)


def _zero(dtype: str) -> Expr:
    return elements.convert(Element(integer(0), "i64", WEAK), dtype)


def _completed(x: Tensor, shape: list[int], span: Span) -> Shape:
    free = [d for d, size in enumerate(shape) if size == -1]
    rest = math.prod(size for size in shape if size != -1)
    if len(free) == 1 and rest > 0 and math.prod(x.shape) % rest == 0:
        shape[free[0]] = math.prod(x.shape) // rest
    elif free or math.prod(shape) != math.prod(x.shape) or min(shape, default=0) < 0:
        raise fail(f"{x.type} has {math.prod(x.shape)} elements and cannot take the shape {shape}",
                   span, help="sizes multiply to that number; one may be -1, for what is left")
    return tuple(shape)


def _factors(
    old: Shape, new: Shape
) -> tuple[list[list[int]], list[list[int]], list[int]] | None:
    """Common factors of two shapes: which of them make each old and each new axis, and their
    sizes; None if a boundary of one falls inside a factor of the other."""
    strides = sorted({1, *_boundaries(old), *_boundaries(new)}, reverse=True)
    for larger, smaller in pairwise(strides):
        if larger % smaller:
            return None
    found = [larger // smaller for larger, smaller in pairwise(strides)]
    return _grouped(old, strides), _grouped(new, strides), found


def _boundaries(shape: Shape) -> list[int]:
    """Elements in the last axis, the last two, and so on."""
    return [math.prod(shape[d:]) for d in range(len(shape))]


def _grouped(shape: Shape, strides: list[int]) -> list[list[int]]:
    groups = []
    for d in range(len(shape)):
        inner = math.prod(shape[d + 1:])
        outer = inner * shape[d]
        groups.append([f for f in range(len(strides) - 1) if inner <= strides[f + 1]
                       and strides[f] <= outer])
    return groups


def expand(x: Tensor, shape: object, span: Span) -> Tensor:
    """Repeat axes of size 1, and put new ones in front; -1 keeps a size."""
    wanted = sizes(shape, span)
    lead = len(wanted) - x.rank
    own = [1] * lead + list(x.shape)
    if lead < 0:
        raise fail(f"{x.type} has more axes than {wanted}", span)
    full = tuple(have if want == -1 else want for have, want in zip(own, wanted, strict=True))
    for have, want in zip(own, full, strict=True):
        if have not in (1, want):
            raise fail(f"{x.type} cannot be expanded to {wanted}: only axes of size 1 are repeated",
                       span)
    fixed: dict[str, Expr] = {
        axis(back).name: integer(0) for back in range(1, x.rank + 1)
        if x.shape[-back] == 1 != full[-back]}
    return over(full, Element(elements.substituted(x.element.expr, fixed), x.dtype, FULL))


def _joinable(one: Shape, other: Shape) -> str:
    """The axis along which two shapes can be joined, if there is one."""
    apart = [axis for axis, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
    if len(one) != len(other) or len(apart) != 1:
        return "they are joined along one axis, and all others are of one size"
    return f"along axis {apart[0]} they can be joined"


def concat(parts: Sequence[Tensor], axis_: object, builder: Builder, span: Span) -> Tensor:
    """Tensors one after the other along an axis."""
    if not parts:
        raise fail("'concat' needs at least one tensor", span)
    at = axis_number(axis_, parts[0].rank, span)
    for part in parts[1:]:
        if part.rank != parts[0].rank or any(
            a != b for d, (a, b) in enumerate(zip(part.shape, parts[0].shape, strict=True))
            if d != at
        ):
            raise fail(f"{parts[0].type} and {part.type} differ off axis {at}", span,
                       help=_joinable(parts[0].shape, part.shape))
    dtype, _ = elements.promoted([part.element for part in parts], span)
    shape = list(parts[0].shape)
    shape[at] = sum(part.shape[at] for part in parts)
    place = axes(len(shape))
    starts = [sum(p.shape[at] for p in parts[:n]) for n in range(len(parts))]
    chosen: Expr | None = None
    for part, start in reversed(list(zip(parts, starts, strict=True))):
        subscripts: list[Expr] = list(place)
        if start:
            subscripts[at] = sub(place[at], integer(start))
        value = elements.convert(read(part, subscripts, builder), dtype)
        end = Call("lt", (place[at], integer(start + part.shape[at])))
        chosen = value if chosen is None else Call("where", (end, value, chosen))
    assert chosen is not None
    return builder.materialise(over(tuple(shape), Element(chosen, dtype, FULL)))


def with_axis(x: Tensor, at: int) -> Tensor:
    """A view with a new axis of size 1."""
    shape = (*x.shape[:at], 1, *x.shape[at:])
    moved: dict[str, Expr] = {
        axis(x.rank - d).name: axis(x.rank + 1 - d) for d in range(at)}
    return over(shape, Element(elements.substituted(x.element.expr, moved), x.dtype, FULL))


def stack(parts: Sequence[Tensor], axis_: object, builder: Builder, span: Span) -> Tensor:
    if not parts:
        raise fail("'stack' needs at least one tensor", span)
    at = axis_number(axis_, parts[0].rank, span, extra=1)
    return concat([with_axis(builder.held(part), at) for part in parts], at, builder, span)


def split(
    x: Tensor, parts: object, axis_: object, builder: Builder, span: Span
) -> list[Tensor]:
    """Pieces along an axis: their sizes, or how many (the first ones may be longer by one)."""
    at = axis_number(axis_, x.rank, span)
    length = x.shape[at]
    if isinstance(parts, int):
        if parts < 1:
            raise fail("'split' into fewer than one part", span)
        lengths = [balanced(length, parts, n)[0] for n in range(parts)]
    else:
        lengths = sizes(parts, span)
    if sum(lengths) != length or min(lengths, default=0) < 0:
        raise fail(f"the parts {lengths} do not add up to axis {at} of {x.type}", span)
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    return [cut(x, at, start, size, 1, builder)
            for start, size in zip(starts, lengths, strict=True)]


def unbind(x: Tensor, axis_: object, builder: Builder, span: Span) -> list[Tensor]:
    """The slices of an axis, without it."""
    at = axis_number(axis_, x.rank, span)
    return [taken(x, at, n, builder) for n in range(x.shape[at])]


def cut(x: Tensor, at: int, start: int, length: int, step: int, builder: Builder) -> Tensor:
    """`length` elements of an axis, from `start`."""
    if (start, length, step) == (0, x.shape[at], 1):
        return x
    place: list[Expr] = list(axes(x.rank))
    place[at] = elements.canonical(
        add(Call("mul", (place[at], integer(step))), integer(start)))
    shape = (*x.shape[:at], length, *x.shape[at + 1:])
    return builder.materialise(over(shape, read(x, place, builder)))


def taken(x: Tensor, at: int, index: int, builder: Builder) -> Tensor:
    """One slice of an axis, without it."""
    kept = list(axes(x.rank - 1))
    place: list[Expr] = [*kept[:at], integer(index), *kept[at:]]
    shape = (*x.shape[:at], *x.shape[at + 1:])
    return builder.materialise(over(shape, read(x, place, builder)))


def flip(x: Tensor, axis_: object, builder: Builder, span: Span) -> Tensor:
    place: list[Expr] = list(axes(x.rank))
    for at in axis_numbers(axis_, x.rank, span):
        place[at] = elements.canonical(sub(integer(x.shape[at] - 1), place[at]))
    return builder.materialise(over(x.shape, read(x, place, builder)))


def pad(
    x: Tensor, widths: object, value: Element, builder: Builder, span: Span
) -> Tensor:
    """Elements before and after each axis: a pair for every axis."""
    pairs = widths if isinstance(widths, list | tuple) else None
    if pairs is None or len(pairs) != x.rank:
        raise fail(f"'pad' takes a pair of widths for each of the {x.rank} axes", span)
    pairs = [sizes(pair, span) for pair in pairs]
    if any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        raise fail("a pair of widths is two integers that are not negative", span)
    shape = tuple(size + before + after
                  for size, (before, after) in zip(x.shape, pairs, strict=True))
    place = [elements.canonical(sub(a, integer(before)))
             for a, (before, _) in zip(axes(x.rank), pairs, strict=True)]
    held = builder.tensor(builder.value(x))
    inner = read(held, place, builder).expr
    assert isinstance(inner, Read)
    padded = Read(inner.operand, inner.subscripts, elements.convert(value, x.dtype, span))
    return builder.materialise(over(shape, Element(padded, x.dtype, FULL)))


def arange(start: int, stop: int, step: int, span: Span) -> Tensor:
    """`start, start + step, ...` below `stop`, in i64."""
    if step == 0:
        raise fail("a step of 0 never arrives", span)
    for number in (start, stop, step):
        if number not in integers("i64"):
            raise fail(f"{number} is no number of i64", span)
    length = max(0, -((start - stop) // step))
    expr = elements.canonical(
        add(Call("mul", (axis(1), integer(step))), integer(start)))
    return over((length,), Element(expr, "i64", FULL))


def steps(start: float, stop: float, step: float, span: Span) -> Tensor:
    """`start, start + step, ...` below `stop`, worked out in f64 and rounded to f32."""
    if step == 0:
        raise fail("a step of 0 never arrives", span)
    length = max(0, math.ceil((stop - start) / step))
    place = Call("mul", (Cast("f64", axis(1)), Const(step, "f64")))
    return over((length,), Element(Cast("f32", add(place, Const(start, "f64"))), "f32", FULL))
