"""Sizes against declared dimensions: what a call binds, and what does not fit it.

In the type of a parameter a name in scope is that integer; an unknown capitalised name standing
alone binds a dimension or must equal its earlier binding; a pack `*I` binds the sizes of any number
of dimensions. Everything else is an expression, checked once all names are bound. Whatever is
proposed to one who gave another shape has been tried: it fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from anabranch.frontend import syntax as s
from anabranch.frontend.evaluate import Frame, evaluate
from anabranch.frontend.unparse import format_expression
from anabranch.frontend.values import MISSING, Instance, Scope, Tensor, describe
from anabranch.ir.diagnostics import Note, Span, UserError, fail, nearest
from anabranch.ir.types import category

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor on its way to the parameter `what`, whose type declares `items`."""

    items: Sequence[s.Expr]
    x: Tensor
    what: str
    span: Span
    type_span: Span


@dataclass(slots=True)
class Binding:
    """What a call has bound so far: the parameters and dimensions by name, and generic dtypes.

    `frame` is where types and defaults are evaluated: the scope of the definition, with the
    parameters in it. `owner` is the name of the definition in messages, `model` the one it is a
    function of. `first` says what bound a dimension, `agreed` which ones another tensor has too;
    `later` has what is compared at the end: an item, an axis, and of which tensor.
    """

    owner: str
    frame: Frame
    names: dict[str, object]
    model: Instance | None = None
    dtypes: dict[str, str] = field(default_factory=dict)
    first: dict[str, Note] = field(default_factory=dict)
    agreed: set[str] = field(default_factory=set)
    later: list[tuple[s.Expr, int, Given]] = field(default_factory=list)

    @property
    def outer(self) -> Scope:
        """The scope of the definition, without what this call binds: heads of types stand there,
        so that a dimension may be called T."""
        outer = self.frame.scope.outer
        assert outer is not None, "a frame of a call is inside the scope of the definition"
        return outer


def bind_shape(given: Given, binding: Binding) -> None:
    """Bind what the type of a parameter names, and compare what is known by now."""
    for item, start, sizes in _aligned(given, binding):
        match item:
            case s.Star(s.Name(name)):
                _bind_pack(name, item, sizes, given, binding)
            case s.Star():
                pass  # a spread list, whose length was checked; compared below
            case s.Name(name) if _is_free(name, binding):
                _bind_name(name, start, given, binding)
            case _:
                binding.later.append((item, start, given))


def _aligned(given: Given, binding: Binding) -> list[tuple[s.Expr, int, Shape]]:
    """Each item of a type with the axis where it begins and the sizes it stands for."""
    lengths = [_pack_length(item, binding) for item in given.items]
    unknown, rank = lengths.count(None), given.x.rank
    if unknown > 1:
        raise fail("two packs in one type: their lengths cannot be told apart", given.type_span)
    count = sum(n for n in lengths if n is not None)
    if rank < count or (not unknown and rank > count):
        raise fail(f"{given.what} has {'at least ' if unknown else ''}{count} "
                   f"dimension{'' if count == 1 else 's'}, and this is {describe(given.x)}",
                   given.span, Note("its type is declared here", given.type_span),
                   *_bound(given, binding), help=_proposal(given, binding))
    return _groups(given.items, lengths, given.x.shape)


def _bound(given: Given, binding: Binding) -> list[Note]:
    """What the packs of a type are because of other tensors."""
    packs = [item.value.id for item in given.items
             if isinstance(item, s.Star) and isinstance(item.value, s.Name)]
    return [binding.first[name] for name in packs if name in binding.first]


def _groups(
    items: Sequence[s.Expr], lengths: Sequence[int | None], shape: Shape
) -> list[tuple[s.Expr, int, Shape]]:
    """One pack may be of any length."""
    rest = len(shape) - sum(n for n in lengths if n is not None)
    groups, start = [], 0
    for item, length in zip(items, lengths, strict=True):
        stop = start + (rest if length is None else length)
        groups.append((item, start, shape[start:stop]))
        start = stop
    return groups


def _pack_length(item: s.Expr, binding: Binding) -> int | None:
    if not isinstance(item, s.Star):
        return 1
    if isinstance(item.value, s.Name):
        bound = binding.names.get(item.value.id, binding.frame.scope.find(item.value.id))
        return len(bound) if isinstance(bound, list | tuple) else None
    value = evaluate(item.value, binding.frame)
    return len(value) if isinstance(value, list | tuple) else 1


def _is_free(name: str, binding: Binding) -> bool:
    """Whether a name standing alone is a dimension of this call and no integer in scope."""
    known = name not in binding.first and isinstance(binding.frame.scope.find(name), int)
    return name[0].isupper() and not known


def _bind_name(name: str, axis: int, given: Given, binding: Binding) -> None:
    size = given.x.shape[axis]
    bound = binding.names.setdefault(name, size)
    if bound != size:
        raise fail(f"{name} is {bound} in this call, and {size} in {given.what}: dimension {axis} "
                   f"of {describe(given.x)}", given.span, binding.first[name],
                   help=_proposal(given, binding))
    _agree(name, f"{name} is {size} because of {given.what}", given, binding)


def _agree(name: str, why: str, given: Given, binding: Binding) -> None:
    first = binding.first.setdefault(name, Note(why, given.span))
    if first.span != given.span:
        binding.agreed.add(name)


def _bind_pack(
    name: str, item: s.Star, sizes: Shape, given: Given, binding: Binding
) -> None:
    bound = binding.names.get(name, binding.frame.scope.find(name))
    if bound is MISSING:
        bound = binding.names[name] = list(sizes)
    if not isinstance(bound, list | tuple):
        raise fail(f"'{name}' is {describe(bound)}, not a list of sizes", item.span)
    if list(bound) != list(sizes):
        notes = [binding.first[name]] if name in binding.first else []
        raise fail(f"*{name} is {list(bound)} in this call, and {list(sizes)} in {given.what}",
                   given.span, *notes, help=_proposal(given, binding))
    _agree(name, f"*{name} is {list(sizes)} because of {given.what}", given, binding)


def check_later(binding: Binding) -> None:
    """Compare the dimensions that are expressions."""
    for item, axis, given in binding.later:
        value = dimension(item, binding)
        if value != given.x.shape[axis]:
            text = format_expression(item)
            shown = text if text == str(value) else f"{text} = {value}"
            raise fail(f"dimension {axis} of {given.what} is {shown}, and this is "
                       f"{describe(given.x)}", given.span, Note("it is declared here", item.span),
                       *_made(item, binding), help=_proposal(given, binding))
    binding.later.clear()


def _made(item: s.Expr, binding: Binding) -> list[Note]:
    """Where a model got the sizes in a dimension, if it is of its arguments."""
    model = binding.model
    named = {each.id for each in s.walk(item) if isinstance(each, s.Name)}
    if model is None or named.isdisjoint(model.arguments):
        return []
    return [Note(f"this {model.name} is made here", model.span)]


def dimension(item: s.Expr, binding: Binding) -> int:
    """The value of a dimension in a type."""
    for each in s.walk(item):
        if isinstance(each, s.Name) and binding.frame.scope.find(each.id) is MISSING:
            bound = [n for n in binding.names if n not in ("T", "U")]
            raise fail(f"the dimension '{each.id}' is not bound", each.span,
                       help=nearest(each.id, bound)
                       or "a capitalised name standing alone in the type of a parameter binds one")
    value = evaluate(item, binding.frame)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise fail(f"a dimension is an integer of at least 0, not {describe(value)}", item.span)
    return value


# ---- What would fit


def _proposal(given: Given, binding: Binding) -> str:
    """How the tensor can be brought to the shape that is declared, if its axes in another order, or
    some of them merged, have it. Axes in a pack of any length stay where they are: they are not
    what is wrong with the others."""
    shape, rank = given.x.shape, given.x.rank
    for order in _orders(_movable(given, binding)):
        full = [*range(rank)][:rank - len(order)] + order
        if _fits(given, [shape[axis] for axis in full], binding):
            return "with its last two axes swapped it fits: .T" if _is_swap(full) else (
                f"with its axes in another order it fits: .permute({full})")
    if 1 in shape and _fits(given, [size for size in shape if size != 1], binding):
        return "without its axes of size 1 it fits: .squeeze()"
    for axis in range(rank, -1, -1):
        if _fits(given, [*shape[:axis], 1, *shape[axis:]], binding):
            return f"with one more axis, of size 1, it fits: .unsqueeze({axis})"
    for first in range(rank - 2, -1, -1):
        if _fits(given, [*shape[:first], math.prod(shape[first:])], binding):
            return f"with its axes from {first} on merged it fits: .flatten({first})"
    if category(given.x.dtype) == "int" and _fits(given, shape[:-1], binding):
        return "if its last axis is one-hot, the numbers of its ones fit: argmax(..., axis=-1)"
    return ""


def _movable(given: Given, binding: Binding) -> list[int]:
    """The axes behind the last that is in a pack of any length."""
    first = given.x.rank
    for item in reversed(given.items):
        length = _length(item, given, binding)
        if length is None:
            break
        first -= length
    return [*range(given.x.rank)][max(0, first):]


def _orders(axes: Sequence[int]) -> Iterator[list[int]]:
    """The orders in which one of these axes stands elsewhere; first the last two swapped."""
    places = range(len(axes) - 1, -1, -1)
    for start in places:
        rest = [axis for axis in axes if axis != axes[start]]
        yield from ([*rest[:stop], axes[start], *rest[stop:]] for stop in places if stop != start)


def _is_swap(order: Sequence[int]) -> bool:
    rank = len(order)
    return order == [*range(rank - 2), rank - 1, rank - 2]


def _fits(given: Given, shape: Sequence[int], binding: Binding) -> bool:
    """Whether a tensor of this shape would be taken, as far as its dimensions are known. One of
    which none is known is taken whatever it is, which says nothing."""
    lengths = [_length(item, given, binding) for item in given.items]
    count = sum(n for n in lengths if n is not None)
    if len(shape) < count or (None not in lengths and len(shape) > count):
        return False
    compared = [(known, sizes) for item, _, sizes in _groups(given.items, lengths, tuple(shape))
                if (known := _known(item, given, binding)) is not None]
    return bool(compared) and all(known == sizes for known, sizes in compared)


def _length(item: s.Expr, given: Given, binding: Binding) -> int | None:
    """That of a pack which no other tensor has bound is open."""
    return None if isinstance(item, s.Star) and _is_own(item, given, binding) else _pack_length(
        item, binding)


def _known(item: s.Expr, given: Given, binding: Binding) -> Shape | None:
    """The sizes that an item of a type stands for, if they are known by now without this tensor."""
    if _is_own(item, given, binding):
        return None
    try:
        if not isinstance(item, s.Star):
            return (dimension(item, binding),)
        value = evaluate(item.value, binding.frame)
    except UserError:
        return None
    return tuple(value) if isinstance(value, list | tuple) else None


def _is_own(item: s.Expr, given: Given, binding: Binding) -> bool:
    """Whether an item speaks of what this tensor alone has bound."""
    named = {each.id for each in s.walk(item) if isinstance(each, s.Name)} - binding.agreed
    return any(name in binding.first and binding.first[name].span == given.span for name in named)
