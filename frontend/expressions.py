"""Rules for expressions: names, literals, operators, attributes.

An operator on numbers and lists is Python's; with an element it makes an element; with a tensor it
makes a tensor, broadcast as in NumPy. Calls are in `calls.py`, subscripts in `subscripts.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from anabranch.frontend import elements
from anabranch.frontend import syntax as s
from anabranch.frontend.evaluate import (
    Frame,
    certain,
    evaluate,
    evaluates,
    integer,
    looked_up,
    resolved,
    truth,
)
from anabranch.frontend.extracted import kept_small
from anabranch.frontend.mistakes import advice
from anabranch.frontend.tensors import elementwise, matmul, transpose_last
from anabranch.frontend.values import (
    MISSING,
    Dtype,
    Element,
    Function,
    Instance,
    Method,
    Tensor,
    TypeValue,
    describe,
    weak,
)
from anabranch.ir.diagnostics import Span, fail, nearest
from anabranch.ir.sbp import B, Layout, P, S, Sbp

PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}
LARGEST_LIST = 1 << 20  # elements of a list made by an operator or a range


@evaluates(s.Name)
def _name(node: s.Name, frame: Frame) -> object:
    return looked_up(node.id, node.span, frame)


@evaluates(s.Number)
def _number(node: s.Number, frame: Frame) -> object:
    return node.value


@evaluates(s.String)
def _string(node: s.String, frame: Frame) -> object:
    return node.value


@evaluates(s.Constant)
def _constant(node: s.Constant, frame: Frame) -> object:
    return node.value


@evaluates(s.Tuple)
def _tuple(node: s.Tuple, frame: Frame) -> object:
    return tuple(spread(node.items, frame))


@evaluates(s.List)
def _list(node: s.List, frame: Frame) -> object:
    return spread(node.items, frame)


def spread(items: Sequence[s.Expr], frame: Frame) -> list[object]:
    """Values of items, a `*list` unfolded; tensors are computed once, whoever reads them."""
    values: list[object] = []
    for item in items:
        if not isinstance(item, s.Star):
            values.append(settled(evaluate(item, frame), frame))
            continue
        value = evaluate(item.value, frame)
        if not isinstance(value, list | tuple):
            raise fail(f"only a list can be spread with '*', not {describe(value)}", item.span)
        values += value
    return values


def settled(value: object, frame: Frame, name: str = "") -> object:
    """A value that may be read many times: computed tensors become statements, and so do elements
    that are large."""
    if isinstance(value, Tensor):
        return kept(value, frame, name)
    if isinstance(value, Element):
        return kept_small(value, frame)
    if isinstance(value, list):
        return [settled(v, frame, name) for v in value]
    if isinstance(value, tuple):
        return tuple(settled(v, frame, name) for v in value)
    return value


def kept(x: Tensor, frame: Frame, name: str) -> Tensor:
    """A tensor computed once: a value or a view of one, and always a value where `grad` may ask for
    the gradient by it."""
    builder = frame.builder
    return builder.materialise(x, name) if frame.scope.differentiates else builder.held(x, name)


@evaluates(s.Comprehension)
def _comprehension(node: s.Comprehension, frame: Frame) -> object:
    return [settled(evaluate(node.element, inner), inner) for inner in _loops(node.clauses, frame)]


def _loops(clauses: tuple[s.Clause, ...], frame: Frame) -> Iterator[Frame]:
    if not clauses:
        yield frame
        return
    first, *rest = clauses
    for item in iterated(evaluate(first.iterable, frame), first.iterable.span):
        inner = frame.within({})
        assign(first.target, item, inner)
        if all(truth(evaluate(c, inner), c.span) for c in first.conditions):
            yield from _loops(tuple(rest), inner)


def iterated(value: object, span: Span) -> Sequence[object]:
    if isinstance(value, list | tuple | str):
        return value
    hint = "take a tensor apart with unbind(x, axis=0)" if isinstance(value, Tensor) else ""
    raise fail(f"a loop runs over a list, not {describe(value)}", span, help=hint)


def assign(target: s.Target, value: object, frame: Frame) -> None:
    """Bind the names of a target in the frame's own scope."""
    if isinstance(target, s.Name):
        if isinstance(value, Tensor | Element):
            value = settled(value, frame, target.id)
        frame.scope.names[target.id] = value
        return
    if not isinstance(value, list | tuple):
        hint = ("one name takes it; a tensor is taken apart by unbind(x, axis)"
                if isinstance(value, Tensor) else "")
        raise certain(f"{len(target.items)} names take a list, not {describe(value)}",
                      target.span, help=hint)
    if len(value) != len(target.items):
        raise fail(f"{len(target.items)} names for {len(value)} values", target.span)
    for each, item in zip(target.items, value, strict=True):
        assert isinstance(each, s.Name | s.Tuple), "the parser checks targets"
        assign(each, item, frame)


# ---- Operators


@evaluates(s.Unary)
def _unary(node: s.Unary, frame: Frame) -> object:
    value = evaluate(node.operand, frame)
    if node.op == "not":
        if isinstance(value, Tensor | Element):
            return combine("not", [value], frame, node.span)
        return not truth(value, node.span)
    if isinstance(value, Tensor | Element):
        return value if node.op == "+" else combine("neg", [value], frame, node.span)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise fail(f"'{node.op}' takes a number or a tensor, not {describe(value)}", node.span)
    return value if node.op == "+" else -value


@evaluates(s.Binary)
def _binary(node: s.Binary, frame: Frame) -> object:
    left = evaluate(node.left, frame)
    if node.op in ("and", "or") and not isinstance(left, Tensor | Element):
        return left if truth(left, node.left.span) == (node.op == "or") else evaluate(
            node.right, frame)
    right = evaluate(node.right, frame)
    if node.op == "|":
        raise fail("'|' stands between types, as in int | [int]", node.span,
                   help="conditions are joined with 'or'")
    if node.op in ("and", "or"):
        return combine(node.op, [left, right], frame, node.span)
    if node.op == "@":
        return _at(left, right, node, frame)
    return operate(node.op, left, right, frame, node.span)


def _at(left: object, right: object, node: s.Binary, frame: Frame) -> object:
    if isinstance(left, TypeValue) and isinstance(right, Layout):
        return TypeValue(left.dtype, left.shape, fitting(right, len(left.shape), node.right.span))
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return matmul(left, right, frame.builder, node.span)
    if isinstance(left, Element) or isinstance(right, Element):
        raise fail("'@' multiplies whole tensors", node.span,
                   help="in index notation write the sum: sum[k](a[i, k] * b[k, j])")
    raise fail(f"'@' multiplies tensors, not {describe(left)} and {describe(right)}", node.span)


def operate(op: str, left: object, right: object, frame: Frame, span: Span) -> object:
    """An arithmetic or comparison operator."""
    if isinstance(left, Tensor | Element) or isinstance(right, Tensor | Element):
        fn = elements.ARITHMETIC.get(op) or elements.COMPARISONS[op]
        if op in ("==", "!=") and (left is None or right is None):
            return op == "!="
        return combine(fn, [left, right], frame, span)
    return compile_time(op, left, right, span)


def compile_time(op: str, left: object, right: object, span: Span) -> object:
    """Python's operator, with its errors as the user's."""
    if op not in ("==", "!=") and not _fits(op, left, right):
        raise fail(f"'{op}' is not defined for {describe(left)} and {describe(right)}", span)
    try:
        result = PYTHON[op](left, right)
    except ZeroDivisionError:
        raise fail("division by zero", span) from None
    except (OverflowError, ValueError, MemoryError) as error:
        raise fail(f"this cannot be computed: {error}", span) from None
    if isinstance(result, complex):
        raise fail("the result is a complex number", span)
    return result


def _fits(op: str, left: object, right: object) -> bool:
    if isinstance(left, int | float) and isinstance(right, int | float):
        return op != "**" or abs(right) < 4096
    if op == "+" or op in elements.COMPARISONS:
        return any(isinstance(left, kind) and isinstance(right, kind)
                   for kind in (list, tuple, str))
    if op == "*" and isinstance(left, int) and isinstance(right, list):
        left, right = right, left
    return (op == "*" and isinstance(left, list) and isinstance(right, int)
            and len(left) * max(right, 0) <= LARGEST_LIST)


def combine(fn: str, operands: list[object], frame: Frame, span: Span) -> Element | Tensor:
    """A scalar primitive on elements, or on tensors with broadcasting."""
    if frame.index is not None or any(isinstance(x, Element) for x in operands):
        given = [kept_small(as_element(x, frame, span), frame) for x in operands]
        return elements.apply(fn, given, span)
    return elementwise(operands, lambda each: elements.apply(fn, each, span), frame.builder, span)


def as_element(value: object, frame: Frame, span: Span) -> Element:
    """A value as one scalar of an element expression."""
    if isinstance(value, Element):
        return value
    if isinstance(value, bool | int | float):
        return weak(value, span)
    if isinstance(value, Tensor):
        if value.rank == 0:
            return frame.builder.held(value).element
        raise fail(f"{describe(value)} stands without subscripts in an expression on elements",
                   span, help="write its indices, as in ids[i] or x[i, j]")
    raise fail(f"a number or an element is needed here, not {describe(value)}", span)


@evaluates(s.Compare)
def _compare(node: s.Compare, frame: Frame) -> object:
    result: object = None
    left = evaluate(node.operands[0], frame)
    for op, operand in zip(node.ops, node.operands[1:], strict=True):
        right = evaluate(operand, frame)
        link = _relation(op, left, right, frame, node.span)
        result = link if result is None else _both(result, link, frame, node.span)
        if result is False:
            return False
        left = right
    return result


def _relation(op: str, left: object, right: object, frame: Frame, span: Span) -> object:
    match op:
        case "is" | "is not":
            same = left is right or (isinstance(left, Dtype) and left == right)
            return same == (op == "is")
        case "in" | "not in":
            if not isinstance(right, list | tuple | str):
                raise fail(f"'{op}' looks into a list, not {describe(right)}", span)
            found = any(item is left or (type(item) is type(left) and item == left)
                        for item in right)
            return found == (op == "in")
    return operate(op, left, right, frame, span)


def _both(left: object, right: object, frame: Frame, span: Span) -> object:
    if isinstance(left, Tensor | Element) and isinstance(right, Tensor | Element):
        return combine("and", [left, right], frame, span)
    if isinstance(left, Tensor | Element):
        return left if truth(right, span) else False
    return right


@evaluates(s.Conditional)
def _conditional(node: s.Conditional, frame: Frame) -> object:
    chosen = truth(evaluate(node.condition, frame.called()), node.condition.span)
    return evaluate(node.then if chosen else node.otherwise, frame)


# ---- Attributes


@evaluates(s.Attribute)
def _attribute(node: s.Attribute, frame: Frame) -> object:
    value = evaluate(node.value, frame.whole())
    if isinstance(value, Instance):
        return _member(value, node, frame)
    if isinstance(value, Tensor):
        match node.name:
            case "shape":
                return list(value.shape)
            case "ndim":
                return value.rank
            case "dtype":
                return Dtype(value.dtype)
            case "T":
                return transpose_last(value, node.span)
    function = frame.scope.find(node.name)
    if function is MISSING:
        known = [*frame.scope.visible(), "shape", "dtype"]
        raise certain(f"{describe(value)} has no '{node.name}', and there is no function of that "
                      "name", node.span, help=advice(node.name, known))
    return Method(function, value)


def _member(instance: Instance, node: s.Attribute, frame: Frame) -> object:
    members = {**instance.fields,
               **{k: v for k, v in instance.scope.names.items() if isinstance(v, Function)}}
    if node.name not in members:
        raise certain(f"{describe(instance)} has no field or function '{node.name}'", node.span,
                      help=nearest(node.name, members))
    return resolved(members[node.name], node.span, frame)


# ---- Layouts


@evaluates(s.Layout)
def _layout(node: s.Layout, frame: Frame) -> object:
    return Layout(tuple((entry.axis, _entry(entry, frame)) for entry in node.entries))


def _entry(entry: s.LayoutEntry, frame: Frame) -> Sbp:
    match entry.kind, entry.argument:
        case "S", argument if argument is not None:
            return S(integer(evaluate(argument, frame.whole()), argument.span, "the axis of S"))
        case "P", s.Name(operation):
            return P(operation)
        case "P", None:
            return P()
    return B


def fitting(layout: Layout, rank: int, span: Span) -> Layout:
    """The layout with its axes counted from the first, if a tensor of this rank can have it."""
    entries = []
    for name, sbp in layout.entries:
        if name in ("stage", "micro"):
            raise certain(f"the mesh axis '{name}' is reserved: no layout mentions it", span)
        if sbp.kind == "S":
            if not -rank <= sbp.dim < rank:
                axes = f"0..{rank - 1}" if rank else "none: it has a single element"
                raise certain(f"S({sbp.dim}) on a tensor of rank {rank}", span,
                              help=f"the axes that can be split are {axes}")
            sbp = S(sbp.dim % rank)
        entries.append((name, sbp))
    partial = {sbp.op for _, sbp in entries if sbp.kind == "P"}
    if len(partial) > 1:
        raise certain("a value has one kind of P", span)
    return Layout(tuple(entries))
