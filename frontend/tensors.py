"""Operations on whole tensors, each written as the index notation it stands for.

Elementwise operations and views (transpose, expand, None) stay element expressions until something
needs the values; everything else emits statements. Work is never multiplied: an operand that is
broadcast or read several times is computed first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from anabranch.frontend import elements
from anabranch.frontend.builder import Builder, letters
from anabranch.frontend.mistakes import NOTHING_RETURNED
from anabranch.frontend.values import (
    FULL,
    SCALAR,
    Element,
    Tensor,
    axes,
    axis,
    describe,
    weak,
)
from anabranch.ir.diagnostics import Span, fail
from anabranch.ir.expr import Const, Expr, Var, integer
from anabranch.ir.index import expression, mixed_radix
from anabranch.ir.types import is_float, itemsize

Shape = tuple[int, ...]
EXTREMES = ("max", "min", "argmax", "argmin")


def as_tensor(value: object, span: Span) -> Tensor:
    """A number becomes a 0-d tensor whose dtype gives way."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool | int | float):
        return Tensor((), weak(value, span))
    raise fail(f"a tensor is needed here, not {describe(value)}", span,
               help=NOTHING_RETURNED if value is None else "")


def broadcast(tensors: Sequence[Tensor], span: Span) -> Shape:
    """The common shape, by NumPy's rule."""
    rank = max((t.rank for t in tensors), default=0)
    shape = []
    for d in range(rank):
        sizes = [t.shape[d - rank + t.rank] for t in tensors if d - rank + t.rank >= 0]
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            types = " and ".join(str(t.type) for t in tensors)
            raise fail(f"the shapes of {types} cannot be broadcast", span,
                       help=f"axis {d - rank} has sizes {' and '.join(map(str, sizes))}; "
                       "only an axis of size 1 is repeated")
        shape.append(wide.pop() if wide else 1)
    return tuple(shape)


def stretched(x: Tensor, shape: Shape, builder: Builder) -> Element:
    """The element of `x` over the axes of a shape that it is broadcast to."""
    if x.shape == shape:
        return x.element
    held = x if isinstance(x.element.expr, Const) else builder.held(x)
    return Element(_at_zero(held, shape), held.dtype, held.element.level)


def _at_zero(x: Tensor, shape: Shape) -> Expr:
    """Axes of size 1 that become larger are read at 0; the others keep their variables."""
    fixed: dict[str, Expr] = {}
    for back in range(1, x.rank + 1):
        if x.shape[-back] == 1 and shape[-back] != 1:
            fixed[axis(back).name] = integer(0)
    return elements.substituted(x.element.expr, fixed) if fixed else x.element.expr


def elementwise(
    operands: Sequence[object], build: Callable[[list[Element]], Element], builder: Builder,
    span: Span,
) -> Tensor:
    """A scalar function of tensors and numbers, broadcast."""
    tensors = [_small(as_tensor(x, span), builder) for x in operands]
    shape = broadcast(tensors, span)
    return over(shape, build([stretched(x, shape, builder) for x in tensors]))


def _small(x: Tensor, builder: Builder) -> Tensor:
    """What is done with an expression is done for each of its parts: a large one is computed."""
    return builder.held(x) if elements.is_large(x.element) else x


def over(shape: Shape, element: Element) -> Tensor:
    """A tensor of a shape from an element over its axes."""
    if shape:
        element = Element(element.expr, element.dtype, FULL)
    return Tensor(shape, element)


def read(x: Tensor, subscripts: Sequence[Expr], builder: Builder) -> Element:
    """One element of a tensor; `x` is computed first unless it is a view."""
    x = builder.held(x)
    places = {axis(x.rank - d).name: i for d, i in enumerate(subscripts)}
    level = FULL if x.shape else SCALAR
    return Element(elements.substituted(x.element.expr, places), x.dtype, level)


# ---- Axes


def axis_number(value: object, rank: int, span: Span, extra: int = 0) -> int:
    """An axis counted from the first."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise fail(f"an axis is an integer, not {describe(value)}", span)
    if not -rank - extra <= value < rank + extra:
        raise fail(f"axis {value} of a tensor of rank {rank}", span, help=f"its axes are 0 to "
                   f"{rank + extra - 1}, or {-rank - extra} to -1 from the end" if rank else "")
    return value % (rank + extra)


def axis_numbers(value: object, rank: int, span: Span) -> tuple[int, ...]:
    """Axes from an integer, a list of them, or None for all."""
    if value is None:
        return tuple(range(rank))
    given = value if isinstance(value, list | tuple) else [value]
    found = [axis_number(v, rank, span) for v in given]
    if len(set(found)) < len(found):
        raise fail("an axis is named twice", span)
    return tuple(sorted(found))


def transpose_last(x: Tensor, span: Span) -> Tensor:
    if x.rank < 2:
        raise fail(f"'.T' swaps the last two axes, and {x.type} has {x.rank}", span)
    return permuted(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


def permuted(x: Tensor, order: Sequence[int]) -> Tensor:
    """The view whose axis `d` is axis `order[d]` of `x`."""
    rank = x.rank
    moved: dict[str, Expr] = {axis(rank - old).name: axis(rank - new)
                              for new, old in enumerate(order)}
    shape = tuple(x.shape[old] for old in order)
    expr = elements.substituted(x.element.expr, moved)
    value = x.value if list(order) == list(range(rank)) else None
    return Tensor(shape, Element(expr, x.dtype, x.element.level), value)


# ---- Contractions and reductions


def _turned(a: Tensor, b: Tensor, inner: int) -> str:
    """Which factor fits when it is transposed, if one does."""
    if b.rank > 1 and b.shape[-1] == a.shape[-1]:
        return "transpose with .T if the weight is stored as [outputs, inputs]"
    if a.rank > 1 and a.shape[-2] == inner:
        return "with the last two axes of the left one swapped it fits: .T"
    return "the last axis of the left one meets the last but one of the right"


def matmul(a: Tensor, b: Tensor, builder: Builder, span: Span) -> Tensor:
    """`a @ b` as in NumPy: leading axes are broadcast, a vector has no second axis."""
    if a.rank == 0 or b.rank == 0:
        raise fail("'@' multiplies tensors with at least one axis", span)
    inner = b.shape[-2] if b.rank > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise fail(f"'@' of {a.type} and {b.type}: the inner sizes are {a.shape[-1]} and {inner}",
                   span, help=_turned(a, b, inner))
    lead = broadcast([_leading(a), _leading(b)], span)
    shape = (*lead, *a.shape[-2:-1], *(b.shape[-1:] if b.rank > 1 else ()))
    names = letters(len(shape) + 1)
    batch, k = [Var(n) for n in names[: len(lead)]], Var(names[-1])
    rows = [Var(names[len(lead)])] if a.rank > 1 else []
    columns = [Var(names[len(shape) - 1])] if b.rank > 1 else []
    factors = [
        read(a, [*_fitted(batch, a.shape[:-2], lead), *rows, k], builder),
        read(b, [*_fitted(batch, b.shape[:-2], lead), k, *columns], builder),
    ]
    ranges = tuple(zip(names, (*shape, inner), strict=True))
    product = elements.apply("mul", factors, span)
    return builder.emit(summable("sum", product, widened=False), ranges, [(n,) for n in names[:-1]],
                        reduce="sum", reduced=(names[-1],))


def _leading(x: Tensor) -> Tensor:
    return Tensor(x.shape[:-2], x.element)


def _fitted(batch: Sequence[Var], own: Shape, lead: Shape) -> list[Expr]:
    """The batch variables that subscript an operand's own leading axes."""
    used = batch[len(batch) - len(own):]
    sizes = lead[len(lead) - len(own):]
    return [integer(0) if size == 1 != wide else variable
            for variable, size, wide in zip(used, own, sizes, strict=True)]


def reduce(
    kind: str, x: Tensor, axis_: object, keepdims: bool, builder: Builder, span: Span
) -> Tensor:
    """A reduction over some axes, or all."""
    if kind in ("argmax", "argmin"):
        x, axis_, keepdims = _single_axis(x, axis_, keepdims, builder, span)
    gone = axis_numbers(axis_, x.rank, span)
    check_not_empty(kind, [x.shape[d] for d in gone], span)
    if kind == "mean":
        return _mean(x, gone, keepdims, builder, span)
    names = letters(x.rank)
    element = read_over(x, names)
    dims = [(n,) if d not in gone else () for d, n in enumerate(names)]
    result = builder.emit(
        summable(kind, element),
        [*((n, x.shape[d]) for d, n in enumerate(names) if d not in gone),
         *((names[d], x.shape[d]) for d in gone)],
        [dim for dim in dims if dim or keepdims],
        reduce=kind, reduced=[names[d] for d in gone],
        dtype="i64" if kind.startswith("arg") else None,
    ) if gone else Tensor(x.shape, summable(kind, x.element))
    return result


def _mean(
    x: Tensor, gone: Sequence[int], keepdims: bool, builder: Builder, span: Span
) -> Tensor:
    """In f32 at least: a sum may overflow where its mean does not."""
    wanted = x.dtype if is_float(x.dtype) else "f32"
    wide = "f32" if itemsize(wanted) < itemsize("f32") else wanted
    summed = reduce("sum", _cast(x, wide), gone, keepdims, builder, span)
    count = math.prod(x.shape[d] for d in gone)
    return _cast(_divided(summed, count, builder, span), wanted)


def check_not_empty(kind: str, sizes: Sequence[int], span: Span) -> None:
    if kind in EXTREMES and 0 in sizes:
        raise fail(f"'{kind}' over a range of size 0 has no value", span)


def read_over(x: Tensor, names: Sequence[str]) -> Element:
    """The element of `x` over variables of these names."""
    renamed: dict[str, Expr] = {
        a.name: Var(n) for a, n in zip(axes(x.rank), names, strict=True)}
    return Element(elements.substituted(x.element.expr, renamed), x.dtype, x.element.level)


def summable(kind: str, element: Element, *, widened: bool = True) -> Element:
    """The body of a reduction: sums of bools are i64 and, unless the statement says what is summed
    (`widened` is false), those of small integers too, as in PyTorch. Those of u64 are u64."""
    if kind in ("any", "all") and element.dtype != "bool":
        return elements.apply("ne", [element, weak(0)], _NOWHERE)
    small = element.dtype == "bool" or (widened and element.dtype not in ("i64", "u64"))
    if kind in ("sum", "prod") and not is_float(element.dtype) and small:
        return elements.cast("i64", element)
    return element


_NOWHERE = Span("", 0, 0, 0, 0)


def _cast(x: Tensor, dtype: str) -> Tensor:
    return x if x.dtype == dtype else over(x.shape, elements.cast(dtype, x.element))


def _divided(total: Tensor, count: int, builder: Builder, span: Span) -> Tensor:
    return elementwise([total, float(count)], lambda e: elements.apply("div", e, span), builder,
                       span)


def _single_axis(
    x: Tensor, axis_: object, keepdims: bool, builder: Builder, span: Span
) -> tuple[Tensor, object, bool]:
    """`argmax` without an axis counts through the flattened tensor."""
    if isinstance(axis_, list | tuple):
        raise fail("'argmax' and 'argmin' take one axis, or None for the flattened tensor", span)
    if axis_ is None and x.rank != 1:
        if keepdims:
            raise fail("'keepdims' needs an axis here", span)
        return flattened(x, builder), 0, False
    return x, 0 if axis_ is None else axis_, keepdims


def flattened(x: Tensor, builder: Builder) -> Tensor:
    """All elements in one axis, in row-major order."""
    if x.rank == 1:
        return x
    names = letters(x.rank)
    ranges = tuple(zip(names, x.shape, strict=True))
    return builder.emit(read_over(x, names), ranges, (names,))


def row_major(names: Sequence[str], extents: dict[str, int]) -> Expr:
    """The place of an element when variables are counted in this order."""
    return expression(mixed_radix(names, extents))


