"""Index notation: one statement becomes computes with one reduction each, at the root.

- A nested reduction becomes a compute of its own over the variables that it depends on, and is then
  read; so is every read whose subscript holds an element (`table[ids[i], d]`).
- `mean` is a sum and a division by the number of elements that count.
- Subscripts are judged: proven inside, refused with the place they reach, or checked at run time.
- What stands under a `where` or a guard is computed only where it is chosen: a nested reduction
  takes the condition as its guard, an indirect read looks at place 0 elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce as fold

from anabranch.frontend import elements
from anabranch.frontend import syntax as s
from anabranch.frontend.bounds import judge
from anabranch.frontend.evaluate import NOTHING, Frame, Index, evaluate, executes
from anabranch.frontend.expressions import as_element
from anabranch.frontend.extracted import extracted
from anabranch.frontend.ranges import Constraint, Environment, Inference, Size, counted
from anabranch.frontend.tensors import check_not_empty, read, row_major, summable
from anabranch.frontend.values import (
    FULL,
    WEAK,
    Builtin,
    Element,
    PackIndex,
    Tensor,
    describe,
    weak,
)
from anabranch.ir.diagnostics import Span, fail
from anabranch.ir.expr import Call, Const, Expr, Rand, Read, Var, integer, reads, variables, walk
from anabranch.ir.ops import identity
from anabranch.ir.types import category, is_float, itemsize

PRODUCT_OF_READS = ("mul", "add", "sub", "neg")


@executes(s.Equation)
def _equation(node: s.Equation, frame: Frame) -> object:
    target = node.target.id
    if frame.index is not None:
        raise fail("an index statement cannot stand in a function of elements", node.span)
    if target in frame.scope.names and isinstance(frame.scope.names[target], Tensor):
        raise fail(f"'{target}' is defined already", node.target.span,
                   help="each tensor of an index statement is defined once; take another name")
    frame.scope.names[target] = defined(node, frame)
    return NOTHING


def defined(node: s.Equation, frame: Frame) -> Tensor:
    """The tensor that a statement defines."""
    return computed(node, indexed(node, frame))


def indexed(node: s.Equation, frame: Frame, lent: Mapping[str, Size] | None = None) -> Frame:
    """The frame of a statement's right side: its variables have names and ranges. `lent` has those
    of statements that belong to it."""
    target = node.target.id
    inference = Inference(frame.scope, lambda e: evaluate(e, frame), frame.activation.equations,
                          lent or {})
    known = _inferred(inference, node, frame.activation.declared.get(target, (None, None))[1])
    order: list[str] = []
    extents: dict[str, int] = {}
    names: dict[str, object] = {}
    dims = [dim for item in node.items
            for dim in _bound(item, known, order, extents, names)]
    inner = frame.within(names)
    inner.index = Index(tuple(order), extents, tuple(dims), known, inference.bases, target)
    return inner


def computed(node: s.Equation, inner: Frame) -> Tensor:
    """The statement, emitted; `inner` is the frame of its right side."""
    index, target = inner.index, node.target.id
    assert index is not None
    element = as_element(evaluate(node.value, inner), inner, node.value.span)
    dtype, _ = inner.activation.declared.get(target, (None, None))
    if dtype is not None and elements.gives_way(element, dtype):
        element = elements.cast(dtype, element, node.value.span)
    return _emitted(element, index.dims, index.extents, target, inner)


def _inferred(
    inference: Inference, node: s.Equation, shape: tuple[int, ...] | None
) -> dict[int, Size]:
    environment: Environment = {}
    left = inference.left(node.items, environment)
    inference.walk(node.value, environment)
    declared = None
    if shape is not None:
        spans = tuple(item.span for item in node.items)
        declared = Constraint(tuple(left), spans, shape,
                              f"the declared type of '{node.target.id}'", node.span)
    return inference.solve(declared)


def _bound(
    item: s.Expr, known: dict[int, Size], order: list[str], extents: dict[str, int],
    names: dict[str, object], merged: bool = False,
) -> list[tuple[str, ...]]:
    """Give an item's variables names that are free; the dimensions they make. A factor of size 1
    of a merged index is the number 0."""
    match item:
        case s.Guard(inner, _):
            return _bound(inner, known, order, extents, names)
        case s.Tuple(parts):
            made = [d for part in parts for d in _bound(part, known, order, extents, names, True)]
            return [tuple(v for d in made for v in d)]
        case s.Name(name) | s.Star(s.Name(name)) | s.Compare((s.Name(name), _), _):
            size = known[id(item)]
            if merged and size == 1:
                names[name] = Element(integer(0), "i64", WEAK)
                return []
            sizes = (size,) if isinstance(size, int) else size
            made_names = [_free(name, n, isinstance(size, int), extents)
                          for n in range(len(sizes))]
            order += made_names
            extents.update(zip(made_names, sizes, strict=True))
            own = tuple(Element(Var(v), "i64", WEAK) for v in made_names)
            names[name] = own[0] if isinstance(size, int) else PackIndex(own)
            return [(v,) for v in made_names]
    raise fail("an index variable is needed here", item.span)


def _free(name: str, number: int, single: bool, taken: dict[str, int]) -> str:
    """A name for a variable that none in scope has."""
    wanted = name if single else f"{name}{number}"
    while wanted in taken:
        wanted += "_"
    return wanted


def _emitted(
    element: Element, dims: Sequence[tuple[str, ...]], extents: dict[str, int], name: str,
    frame: Frame,
) -> Tensor:
    """The statement `name[dims] = element`; nothing where it only renames a value."""
    shape = tuple(math.prod(extents[v] for v in dim) for dim in dims)
    places = tuple(row_major(dim, extents) for dim in dims)
    match element.expr:
        case Read(operand, subscripts, None) if subscripts == places:
            value = frame.builder.valued(operand)
            if value.type.shape == shape:
                return frame.builder.tensor(value)
    order = [v for dim in dims for v in dim]
    return frame.builder.emit(element, [(v, extents[v]) for v in order], dims, name=name)


# ---- Reductions


def is_reduction(node: s.Call, frame: Frame) -> bool:
    """Whether a call is `name[indices](expr)` of a reduction."""
    match node.function:
        case s.Index(s.Name(name)):
            value = frame.scope.find(name)
            return isinstance(value, Builtin) and value.is_reduction
    return False


def reduction(node: s.Call, frame: Frame) -> object:
    """`name[variables if guard](body)`: an element that reads the reduced tensor."""
    function = node.function
    assert isinstance(function, s.Index)
    assert isinstance(function.value, s.Name)
    kind = function.value.id
    if len(node.args) != 1 or node.keywords or isinstance(node.args[0], s.Star):
        raise fail(f"'{kind}[...]' reduces one expression", node.span)
    if not function.items:
        raise fail(f"'{kind}[]' names no index to reduce", function.span)
    if frame.index is None:
        return _reduced_whole(node, frame)
    return _reduced(kind, function, node.args[0], frame, frame.index)


def _reduced_whole(node: s.Call, frame: Frame) -> Tensor:
    """A reduction outside of an index statement leaves nothing open: a 0-d tensor."""
    inference = Inference(frame.scope, lambda e: evaluate(e, frame), frame.activation.equations)
    inference.walk(node, {})
    inner = frame.within({})
    inner.index = Index((), {}, (), inference.solve(None), inference.bases)
    element = reduction(node, inner)
    assert isinstance(element, Element)
    return Tensor((), element)


def _reduced(kind: str, function: s.Index, body: s.Expr, frame: Frame, index: Index) -> Element:
    names: dict[str, object] = {}
    reduced: list[str] = []
    extents = dict(index.extents)
    for item in function.items:
        _bound(item, index.sizes, reduced, extents, names)
    guarded = any(isinstance(item, s.Guard) for item in function.items)
    nothing = guarded and kind in ("max", "min") and 0 in [extents[v] for v in reduced]
    if not nothing:
        check_not_empty(kind, [extents[v] for v in reduced], function.span)
    inner = frame.within(names)
    leaned = [False]
    inner.index = replace(index, order=(*index.order, *reduced), extents=extents, leaned=leaned)
    guards = [_condition(item.condition, inner) for item in function.items
              if isinstance(item, s.Guard)]
    guards = [guard for guard in guards if guard != Const(True, "bool")]
    inner.index = replace(inner.index, conditions=(*index.conditions, *guards))
    element = as_element(evaluate(body, inner), inner, body.span)
    if nothing:  # no element is left, as where no guard holds
        return Element(Const(identity(kind, element.dtype), element.dtype), element.dtype, FULL)
    guards += _inherited(element, guards, index, reduced, leaned[0])
    return _reduce(kind, element, reduced, guards, inner.index, frame, body.span)


def _condition(node: s.Expr, frame: Frame) -> Expr:
    condition = as_element(evaluate(node, frame), frame, node.span)
    if condition.dtype != "bool":
        raise fail(f"a guard is a condition, and this has dtype {condition.dtype}", node.span)
    return condition.expr


def _inherited(
    element: Element, guards: Sequence[Expr], index: Index, reduced: Sequence[str], leaned: bool
) -> list[Expr]:
    """The conditions around a reduction that it must respect. Where a proof leaned on one, all;
    else those without other variables, unless the body is a product of reads, which no condition
    needs to protect."""
    if leaned:
        return list(index.conditions)
    if _multilinear(element.expr):
        return []
    free = set().union(variables(element.expr), *map(variables, guards)) - set(reduced)
    return [c for c in index.conditions if variables(c) <= free]


def _multilinear(expr: Expr) -> bool:
    match expr:
        case Read(_, _, None) | Const():
            return True
        case Call(fn, args) if fn in PRODUCT_OF_READS:
            return all(map(_multilinear, args))
    return False


def _reduce(
    kind: str, element: Element, reduced: Sequence[str], guards: Sequence[Expr], index: Index,
    frame: Frame, span: Span,
) -> Element:
    guard = fold(lambda a, b: Call("and", (a, b)), guards) if guards else None
    if kind == "mean":
        return _mean(element, reduced, guard, index, frame, span)
    if kind in ("argmax", "argmin") and len(reduced) != 1:
        raise fail(f"'{kind}' reduces one index and gives its place", span,
                   help="write the tensor flat first: f[(i, j)] = x[i, j]")
    body = summable(kind, element, widened=False)
    if not reduced:  # packs without dimensions: there is one element, or none
        return body if guard is None else _one_or_none(kind, body, guard, span)
    dtype = "i64" if kind.startswith("arg") else body.dtype
    return extracted(body, reduced, index, frame, reduce=kind, guard=guard, dtype=dtype)


def _one_or_none(kind: str, body: Element, guard: Expr, span: Span) -> Element:
    none = Element(Const(identity(kind, body.dtype), body.dtype), body.dtype, body.level)
    return elements.apply("where", [Element(guard, "bool", FULL), body, none], span)


def _mean(
    element: Element, reduced: Sequence[str], guard: Expr | None, index: Index, frame: Frame,
    span: Span,
) -> Element:
    wanted = element.dtype if is_float(element.dtype) else "f32"
    if itemsize(wanted) < itemsize("f32"):  # a sum may overflow where its mean does not
        wide = _mean(elements.cast("f32", element), reduced, guard, index, frame, span)
        return elements.cast(wanted, wide)
    element = element if element.dtype == wanted else elements.cast(wanted, element)
    total = _reduce("sum", element, reduced, [] if guard is None else [guard], index, frame, span)
    if guard is None:
        count: Element = weak(float(math.prod(index.extents[v] for v in reduced)))
    else:
        one = Element(integer(1), "i64", WEAK)
        count = _reduce("sum", one, reduced, [guard], index, frame, span)
        count = Element(elements.convert(count, total.dtype), total.dtype, total.level)
    return elements.apply("div", [total, count], span)


# ---- Reads


def element_of(
    x: Tensor, node: s.Index, frame: Frame, index: Index
) -> Element:
    """`x[subscripts, pad=...]`."""
    if x.rank == 0 and not node.items:
        return frame.builder.held(x).element
    return element_at(x, subscripts_of(node.items, frame, index), node, frame, index)


def element_at(
    x: Tensor, subscripts: tuple[list[Expr], list[Span]], node: s.Index, frame: Frame, index: Index
) -> Element:
    """`x` at places that are evaluated already."""
    places, spans = subscripts
    if len(places) != x.rank:
        raise fail(f"{counted(len(places), 'subscript')} for {describe(x)}", node.span,
                   help=f"it has {counted(x.rank, 'dimension')}")
    pad = _pad(x, node, frame)
    if any(isinstance(each, Read) for place in places for each in walk(place)):
        return _indirect(x, places, spans, pad, frame, index)
    if pad is None:
        places = [_placed(place, size, d, x, span, index) for d, (place, size, span)
                  in enumerate(zip(places, x.shape, spans, strict=True))]
        return read(x, places, frame.builder)
    return _padded(x, places, pad, frame)


def subscripts_of(
    items: Sequence[s.Expr], frame: Frame, index: Index
) -> tuple[list[Expr], list[Span]]:
    places: list[Expr] = []
    spans: list[Span] = []
    for item in items:
        for place in _subscript(item, frame, index):
            places.append(place)
            spans.append(item.span)
    return places, spans


def _subscript(item: s.Expr, frame: Frame, index: Index) -> list[Expr]:
    match item:
        case s.Slice() | s.Dots() | s.Constant(None):
            raise fail("a slice cannot stand in index notation", item.span,
                       help="subscript every dimension by an index variable or an integer")
        case s.Tuple(parts):
            factors = [place for part in parts for place in _subscript(part, frame, index)]
            names = [place.name for place in factors if isinstance(place, Var)]  # others are 0
            return [row_major(names, index.extents)]
        case s.Compare((s.Name() as name, _), ("<",)):
            return _subscript(name, frame, index)
        case s.Star(value):
            return _pack(value, frame)
    place = as_element(evaluate(item, frame), frame, item.span)
    if category(place.dtype) != "int":
        raise fail(f"a subscript is an integer, and this has dtype {place.dtype}", item.span,
                   help="cast it: i64(...)")
    return [elements.canonical(elements.convert(place, "i64"))]


def _pack(value: s.Expr, frame: Frame) -> list[Expr]:
    given = evaluate(value, frame)
    if isinstance(given, PackIndex):
        return [each.expr for each in given.elements]
    if isinstance(given, list | tuple):
        return [elements.convert(as_element(each, frame, value.span), "i64") for each in given]
    raise fail(f"only a pack of indices is spread with '*', not {describe(given)}", value.span)


def _pad(x: Tensor, node: s.Index, frame: Frame) -> Expr | None:
    for value in pads_of(node):
        pad = as_element(evaluate(value, frame), frame, value.span)
        dtype, _ = elements.promoted([Element(Const(0, x.dtype), x.dtype, FULL), pad],
                                     value.span)
        truth = x.dtype == "bool" and pad.expr in (Const(0, "i64"), Const(1, "i64"))
        if dtype != x.dtype and not truth:
            raise fail(f"the pad has dtype {pad.dtype}, and the tensor {x.dtype}",
                       value.span, help=f"cast it: {x.dtype}(...)")
        return elements.convert(pad, x.dtype, value.span)
    return None


def pads_of(node: s.Index) -> list[s.Expr]:
    """What a read says stands outside: one expression, or none."""
    for keyword in node.keywords:
        if keyword.name != "pad":
            raise fail(f"a read has no '{keyword.name}='", keyword.span, help="it has pad=")
    return [keyword.value for keyword in node.keywords]


def _placed(place: Expr, size: int, d: int, x: Tensor, span: Span, index: Index) -> Expr:
    """A subscript that is proven inside, or checked when it runs."""
    without = judge(place, size, index.extents, ())
    if without.verdict == "inside":
        return place
    verdict = judge(place, size, index.extents, index.conditions) if index.conditions else without
    if verdict.verdict == "outside":
        raise fail(f"this subscript reaches place {verdict.place} of dimension {d} of "
                   f"{describe(x)}, which has places 0 to {size - 1}", span,
                   help="say what is read outside with pad=value, or exclude it by a guard or "
                   "a where")
    index.leaned[0] = True
    if verdict.verdict == "inside":
        return place
    return Call("check", (place, integer(size)))


def _padded(x: Tensor, places: Sequence[Expr], pad: Expr, frame: Frame) -> Element:
    plain = frame.builder.tensor(frame.builder.value(x))
    inner = read(plain, places, frame.builder)
    assert isinstance(inner.expr, Read)
    return replace(inner, expr=Read(inner.expr.operand, inner.expr.subscripts, pad))


def _indirect(
    x: Tensor, places: Sequence[Expr], spans: Sequence[Span], pad: Expr | None, frame: Frame,
    index: Index,
) -> Element:
    """A read through integer elements is a compute of its own, whose body is that read. Where a
    dimension has no place for them there is no read, only the check, which fails where it runs."""
    none = [place for place, size in zip(places, x.shape, strict=True) if reads(place) and not size]
    if pad is None and none:
        check = Element(Call("check", (none[0], integer(0))), "i64", FULL)
        return elements.cast(x.dtype, check)
    if pad is None:
        places = [
            _checked(place, size, index, frame) if reads(place)
            else _placed(place, size, d, x, span, index)
            for d, (place, size, span) in enumerate(zip(places, x.shape, spans, strict=True))
        ]
        element = read(x, places, frame.builder)
    else:
        element = _padded(x, places, pad, frame)
    return extracted(element, (), index, frame)


def _checked(place: Expr, size: int, index: Index, frame: Frame) -> Expr:
    """An integer element as a subscript: 0 where a condition does not choose it, then checked."""
    inside = variables(place)
    chosen = [c for c in index.conditions if variables(c) <= inside]
    if chosen:
        both = fold(lambda a, b: Call("and", (a, b)), chosen)
        lazy = Element(Call("where", (both, place, integer(0))), "i64", FULL)
        place = extracted(lazy, (), replace(index, name=""), frame).expr
    return Call("check", (place, integer(size)))


def draw(kind: str, stream: int, seed: Element, step: Element, frame: Frame, span: Span) -> Element:
    """One random number for each element of the statement, counted in logical order."""
    if frame.index is None:
        raise fail("a random draw stands in index notation, where there is an element to draw for",
                   span, help="as in y[*i] = x[*i] + randn(key)")
    counter = row_major(frame.index.order, frame.index.extents)
    return Element(Rand(kind, stream, seed.expr, step.expr, counter), "f32", FULL)
