"""What `x[...]` means: a type, an item of a list, a slice of a tensor as in NumPy, or, in index
notation, one element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.frontend import elements
from anabranch.frontend import syntax as s
from anabranch.frontend.constants import constant, flattened
from anabranch.frontend.evaluate import Frame, evaluate, evaluates, integer, resolved
from anabranch.frontend.expressions import spread
from anabranch.frontend.indexing import element_of
from anabranch.frontend.ranges import counted, list_shape
from anabranch.frontend.reshaping import cut, taken, with_axis
from anabranch.frontend.tensors import Shape, broadcast, over, read, stretched
from anabranch.frontend.values import (
    FULL,
    Builtin,
    Dtype,
    Element,
    Generic,
    PackIndex,
    Recurrent,
    Tensor,
    TypeValue,
    axes,
    axis,
    describe,
)
from anabranch.ir.diagnostics import Span, fail
from anabranch.ir.expr import Call, Expr
from anabranch.ir.expr import integer as number
from anabranch.ir.types import category


@evaluates(s.Index)
def _index(node: s.Index, frame: Frame) -> object:
    named = frame.scope.find(node.value.id) if isinstance(node.value, s.Name) else None
    if isinstance(named, Recurrent):
        return named.read(node, frame)
    return _subscripted(_base(node.value, frame, named is None), node, frame)


def _base(node: s.Expr, frame: Frame, whole: bool) -> object:
    """What is subscripted: computed anew only where no range had to be known of it."""
    if frame.index is not None and id(node) in frame.index.bases:
        return frame.index.bases[id(node)]
    return evaluate(node, frame.whole() if whole else frame)


def _subscripted(base: object, node: s.Index, frame: Frame) -> object:
    match base:
        case Dtype():
            return _type(base, node, frame)
        case Generic():
            raise fail(f"'{base.name}' is not bound here", node.value.span,
                       help="name a dtype, such as f32")
        case Tensor():
            return _of_tensor(base, node, frame)
        case list() | tuple() | str():
            return _of_list(base, node, frame)
        case PackIndex():
            return _of_list(list(base.elements), node, frame)
        case Element():
            if all(_is_empty_pack(item, frame) for item in node.items):
                return base  # a 0-d tensor in index notation: `m[]`, or `m[*i]` of no dimensions
            raise fail("this has no dimensions to subscript", node.span)
        case Builtin() if base.is_reduction:
            raise fail(f"'{base.name}[...]' is a reduction and needs an expression", node.span,
                       help=f"as in {base.name}[k](x[i, k])")
    raise fail(f"{describe(base)} cannot be subscripted", node.span)


def _is_empty_pack(item: s.Expr, frame: Frame) -> bool:
    return isinstance(item, s.Star) and evaluate(item.value, frame) == PackIndex(())


def _type(dtype: Dtype, node: s.Index, frame: Frame) -> TypeValue:
    shape = []
    for size, item in zip(spread(node.items, frame), _spans(node, frame), strict=False):
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise fail(f"a dimension is an integer of at least 0, not {describe(size)}",
                       item)
        shape.append(size)
    return TypeValue(dtype.name, tuple(shape))


def _spans(node: s.Index, frame: Frame) -> list[Span]:
    """A place for each dimension (packs make several; their errors point at the whole)."""
    if any(isinstance(item, s.Star) for item in node.items):
        return [node.span] * 1000
    return [item.span for item in node.items]


# ---- Lists


def _of_list(base: Sequence[object], node: s.Index, frame: Frame) -> object:
    if node.keywords or not node.items:
        raise fail("a list is subscripted by one integer or a slice", node.span)
    if frame.index is not None and any(_has_index(item, frame) for item in node.items):
        return element_of(_constant(base, node, frame), node, frame, frame.index)
    values = [item if isinstance(item, s.Slice) else evaluate(item, frame) for item in node.items]
    result: object = base
    for item, value in zip(node.items, values, strict=True):
        result = _item(result, item, value, frame)
    return result


def _has_index(item: s.Expr, frame: Frame) -> bool:
    """Whether a subscript depends on an index variable."""
    return any(isinstance(each, s.Name)
               and isinstance(frame.scope.find(each.id), Element | PackIndex)
               for each in s.walk(item))


def _constant(base: Sequence[object], node: s.Index, frame: Frame) -> Tensor:
    if list_shape(base if isinstance(base, list) else list(base)) is None:
        raise fail("an index variable subscripts a tensor, or a list of numbers", node.value.span,
                   help="take items of other lists by integers known when compiling")
    return constant(list(base), frame.builder, node.value.span)


def _item(base: object, item: s.Expr, value: object, frame: Frame) -> object:
    if not isinstance(base, list | tuple | str):
        raise fail(f"{describe(base)} cannot be subscripted so", item.span)
    if isinstance(item, s.Slice):
        return base[_python_slice(item, frame)]
    place = integer(value, item.span, "the place in a list")
    if not -len(base) <= place < len(base):
        raise fail(f"place {place} of {describe(base)}", item.span)
    return resolved(base[place], item.span, frame)


def _python_slice(item: s.Slice, frame: Frame) -> slice:
    given = [(part, None if part is None else evaluate(part, frame))
             for part in (item.start, item.stop, item.step)]
    parts = [None if part is None or value is None else integer(value, part.span, "a slice")
             for part, value in given]
    if parts[2] == 0:
        raise fail("a slice with step 0", item.span)
    return slice(*parts)


# ---- Tensors


def _of_tensor(x: Tensor, node: s.Index, frame: Frame) -> object:
    if frame.index is not None:
        return element_of(x, node, frame, frame.index)
    if node.keywords:
        raise fail("'pad=' stands in index notation, where each element has subscripts",
                   node.keywords[0].span)
    return sliced(x, node.items, frame, node.span)


@dataclass(frozen=True, slots=True)
class _Gathered:
    """An axis that an integer tensor or a list of integers subscripts, or an integer beside one."""

    at: int
    ids: Tensor | int


def sliced(x: Tensor, items: Sequence[s.Expr], frame: Frame, span: Span) -> Tensor:
    """Basic and integer-tensor subscripts, as in NumPy."""
    full = _expanded(x, items, frame, span)
    gathers = any(isinstance(value, Tensor | list) for _, value in full)
    at = 0
    gathered: list[_Gathered] = []
    for item, value in full:
        if isinstance(item, s.Slice):
            x = _range(x, at, item, frame)
            at += 1
        elif value is None:
            x = with_axis(frame.builder.held(x), at)
            at += 1
        elif gathers:
            gathered.append(_Gathered(at, _places(x, at, value, item.span, frame)))
            at += 1
        else:
            x = taken(x, at, _place(x, at, value, item.span), frame.builder)
    return _gather(x, gathered, frame, span) if gathered else x


def _expanded(
    x: Tensor, items: Sequence[s.Expr], frame: Frame, span: Span
) -> list[tuple[s.Expr, object]]:
    """Items with values, `...` written out."""
    found: list[tuple[s.Expr, object]] = []
    for item in items:
        if isinstance(item, s.Slice | s.Dots):
            found.append((item, item))
        elif isinstance(item, s.Star):
            found += [(item, value) for value in spread([item], frame)]
        else:
            found.append((item, evaluate(item, frame)))
    taking = sum(value is not None and not isinstance(value, s.Dots) for _, value in found)
    if taking > x.rank:
        raise fail(f"{counted(taking, 'subscript')} for {describe(x)}", span,
                   help=f"it has {counted(x.rank, 'dimension')}")
    dots = [n for n, (_, value) in enumerate(found) if isinstance(value, s.Dots)]
    if len(dots) > 1:
        raise fail("'...' stands once", span)
    everything = s.Slice(None, None, None, span=span)
    fill: list[tuple[s.Expr, object]] = [(everything, everything)] * (x.rank - taking)
    where = dots[0] if dots else len(found)
    return [*found[:where], *fill, *found[where + 1:]]


def _range(x: Tensor, at: int, item: s.Slice, frame: Frame) -> Tensor:
    start, stop, step = _python_slice(item, frame).indices(x.shape[at])
    return cut(x, at, start, len(range(start, stop, step)), step, frame.builder)


def _place(x: Tensor, at: int, value: object, span: Span) -> int:
    place = integer(value, span, "a subscript")
    size = x.shape[at]
    if not -size <= place < size:
        raise fail(f"place {place} of dimension {at} of {describe(x)}", span,
                   help=f"its places are 0 to {size - 1}")
    return place % size


def _places(x: Tensor, at: int, value: object, span: Span, frame: Frame) -> Tensor | int:
    """What an axis is subscripted by, where some are gathered."""
    if isinstance(value, list):
        return _listed(x, at, value, span, frame)
    if not isinstance(value, Tensor):
        return _place(x, at, value, span)
    if category(value.dtype) != "int":
        hint = ("the number of elements that a mask selects is not known when compiling; "
                "use where") if value.dtype == "bool" else ""
        raise fail(f"a tensor is subscripted by integers, not {describe(value)}", span, help=hint)
    if x.shape[at] == 0 and 0 not in value.shape:
        raise fail(f"dimension {at} of {describe(x)} has no places to take", span)
    return value


def _listed(x: Tensor, at: int, value: list[object], span: Span, frame: Frame) -> Tensor:
    """A list of places, or of equal lists of them. Each is known when compiling, and may count from
    the end as an integer does."""
    if list_shape(value) is None:
        raise fail("a list of places is of integers, or of equal lists of them, "
                   f"not {describe(value)}", span)
    if any(isinstance(each, bool) for each in flattened(value)):
        raise fail("a list of truth values is no list of places", span,
                   help="list the places that hold, or use where")
    return constant(_inside(x, at, value, span), frame.builder, span)


def _inside(x: Tensor, at: int, value: list[object], span: Span) -> list[object]:
    return [_inside(x, at, each, span) if isinstance(each, list) else _place(x, at, each, span)
            for each in value]


def _gather(x: Tensor, gathered: Sequence[_Gathered], frame: Frame, span: Span) -> Tensor:
    """Integer tensors are broadcast; their axes stand where the first stood if they are side by
    side, else in front."""
    shape = broadcast([each.ids for each in gathered if isinstance(each.ids, Tensor)], span)
    places = [each.at for each in gathered]
    adjacent = places == list(range(places[0], places[0] + len(places)))
    front = places[0] if adjacent else 0
    kept = [d for d in range(x.rank) if d not in places]
    result = (*(x.shape[d] for d in kept[:front]), *shape, *(x.shape[d] for d in kept[front:]))
    own = axes(len(result))
    subscripts: list[Expr] = [number(0)] * x.rank
    for d, variable in zip(kept, [*own[:front], *own[front + len(shape):]], strict=True):
        subscripts[d] = variable
    for each in gathered:
        if isinstance(each.ids, int):
            subscripts[each.at] = number(each.ids)
        else:
            place = _id_at(each.ids, shape, len(result), front, frame)
            subscripts[each.at] = Call("check", (place, number(x.shape[each.at])))
    return frame.builder.materialise(over(result, read(x, subscripts, frame.builder)))


def _id_at(ids: Tensor, shape: Shape, rank: int, front: int, frame: Frame) -> Expr:
    """The element of an index tensor over the axes of the result."""
    held = frame.builder.held(ids)
    element = stretched(held, shape, frame.builder)
    shift = rank - front - len(shape)
    moved: dict[str, Expr] = {
        axis(back).name: axis(back + shift) for back in range(1, len(shape) + 1)}
    expr = elements.substituted(element.expr, moved)
    return elements.convert(Element(expr, held.dtype, FULL), "i64")
