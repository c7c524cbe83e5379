"""Equations between expressions, and the rules that need to know ranges, shapes or dtypes.

`EQUATIONS` is read from left to right. Single letters stand for any expression, a number for a
literal of the dtype at hand; both orders of a commutative operation are tried. A third entry names
an expression that must be defined everywhere, since it loses its guard. Every equation holds
for floats with infinities and NaN (up to the sign of a zero), so `x * 0` and `x - x` are not here:
of literals and of integers that only index variables go into, everything is computed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.ir.expr import (
    FALSE,
    TRUE,
    Call,
    Cast,
    Const,
    Expr,
    Read,
    Var,
    integer,
    reads,
    transform,
)
from anabranch.ir.index import Affine, affine, decide, expression, interval
from anabranch.ir.reference import held
from anabranch.ir.scalar import PRIMITIVES, dtype_of
from anabranch.ir.types import category, includes, integers, is_float, itemsize

EQUATIONS = (
    ("x + 0", "x"),
    ("x - 0", "x"),
    ("0 - x", "-x"),
    ("x * 1", "x"),
    ("x * -1", "-x"),
    ("x / 1", "x"),
    ("x / -1", "-x"),
    ("x ** 1", "x"),
    ("x ** 2", "x * x"),
    ("x + x", "x * 2"),
    # signs go out
    ("-(-x)", "x"),
    ("x + (-y)", "x - y"),
    ("x - (-y)", "x + y"),
    ("(-x) * y", "-(x * y)"),
    ("(-x) / y", "-(x / y)"),
    ("x / (-y)", "-(x / y)"),
    ("abs(abs(x))", "abs(x)"),
    # quotients
    ("1 / sqrt(x)", "rsqrt(x)"),
    ("x * (1 / y)", "x / y"),
    # logic
    ("not not c", "c"),
    ("c and True", "c"),
    ("c and False", "False"),
    ("c or False", "c"),
    ("c or True", "True"),
    ("c and c", "c"),
    ("c or c", "c"),
    # choices
    ("where(True, x, y)", "x"),
    ("where(False, x, y)", "y"),
    ("where(c, x, x)", "x"),
    ("where(not c, x, y)", "where(c, y, x)"),
    ("where(c, where(c, x, y), z)", "where(c, x, z)"),
    ("where(c, x, where(c, y, z))", "where(c, x, z)"),
    ("where(c, where(d, x, z), z)", "where(c and d, x, z)", "d"),
    ("max(x, x)", "x"),
    ("min(x, x)", "x"),
)

COMMUTATIVE = {"add", "mul", "and", "or", "max", "min", "eq", "ne"}

OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow",
    ast.And: "and", ast.Or: "or", ast.USub: "neg", ast.Not: "not",
}


@dataclass(frozen=True, slots=True)
class Scope:
    """What the variables and reads of an expression range over."""

    extents: Mapping[str, int]
    dtypes: tuple[str, ...]
    shapes: Sequence[tuple[int, ...]]


# --- the table -------------------------------------------------------------------------------


def pattern(text: str) -> Expr:
    """A side of an equation: a `Var` stands for anything, literals have no dtype."""
    return _pattern(ast.parse(text, mode="eval").body)


def _pattern(node: ast.expr) -> Expr:
    match node:
        case ast.Name(name):
            return Var(name)
        case ast.Constant(value):
            assert isinstance(value, bool | int)
            return Const(value, "bool" if isinstance(value, bool) else "")
        case ast.UnaryOp(ast.USub(), ast.Constant(value)):
            assert isinstance(value, int)
            return Const(-value, "")
        case ast.UnaryOp(op, arg):
            return Call(OPERATORS[type(op)], (_pattern(arg),))
        case ast.BinOp(left, op, right):
            return Call(OPERATORS[type(op)], (_pattern(left), _pattern(right)))
        case ast.BoolOp(op, [left, right]):
            return Call(OPERATORS[type(op)], (_pattern(left), _pattern(right)))
        case ast.Call(ast.Name(fn), args):
            return Call(fn, tuple(map(_pattern, args)))
    raise ValueError(ast.unparse(node))


def _by_head() -> dict[str, list[tuple[Call, Expr, list[str]]]]:
    table: dict[str, list[tuple[Call, Expr, list[str]]]] = {}
    for left, right, *exposed in EQUATIONS:
        head = pattern(left)
        assert isinstance(head, Call)
        table.setdefault(head.fn, []).append((head, pattern(right), exposed))
    return table


TABLE = _by_head()

Bindings = dict[str, Expr]


def match(form: Expr, expr: Expr, bound: Bindings) -> Iterator[Bindings]:
    """The ways in which a pattern fits."""
    match form:
        case Var(name):
            if name not in bound:
                yield {**bound, name: expr}
            elif bound[name] == expr:
                yield bound
        case Const(value, dtype):
            if isinstance(expr, Const) and expr.value == value and (
                    (expr.dtype == "bool") == (dtype == "bool")):
                yield bound
        case Call(fn, forms):
            if isinstance(expr, Call) and expr.fn == fn:
                yield from _match_all(forms, expr.args, bound)
                if fn in COMMUTATIVE:
                    yield from _match_all(forms, expr.args[::-1], bound)


def _match_all(forms: Sequence[Expr], args: Sequence[Expr], bound: Bindings) -> Iterator[Bindings]:
    if not forms:
        yield bound
        return
    for more in match(forms[0], args[0], bound):
        yield from _match_all(forms[1:], args[1:], more)


def filled(form: Expr, bound: Bindings, dtype: str) -> Expr:
    """The right side of an equation of the given dtype."""
    match form:
        case Var(name):
            return bound[name]
        case Const(value, "bool"):
            return TRUE if value else FALSE
        case Const(value, _):
            return Const(float(value) if is_float(dtype) else value, dtype)
        case Call(fn, forms):
            return Call(fn, tuple(filled(f, bound, dtype) for f in forms))
    return form


# --- all rules -------------------------------------------------------------------------------


def simplified(expr: Expr, scope: Scope) -> Expr:
    """The expression after all rules, from the leaves up, until none applies."""
    while True:
        new = transform(expr, lambda node: _step(node, scope))
        if new is expr:
            return expr
        expr = new


def _step(node: Expr, scope: Scope) -> Expr | None:
    match node:
        case Call():
            return _call(node, scope)
        case Cast():
            return _cast(node, scope)
        case Read(operand, subscripts, pad) if pad is not None:
            if lies_inside(subscripts, scope.shapes[operand], scope.extents):
                return Read(operand, subscripts)
    return None


def lies_inside(
    places: Sequence[Expr], shape: Sequence[int], extents: Mapping[str, int]
) -> bool:
    """Whether a read is provably inside of its tensor."""
    bounds = [interval(place, extents) for place in places]
    return all(b is not None and b[0] >= 0 and b[1] < n for b, n in zip(bounds, shape, strict=True))


def _call(node: Call, scope: Scope) -> Expr | None:
    if node.fn in ("stop", "stop_grad"):
        return None
    if node.fn not in ("check", "where") and all(isinstance(a, Const) for a in node.args):
        return _folded(node, scope)
    if (new := _integer(node, scope)) is not None:
        return new
    if affine(node) is not None:
        return None
    for left, right, exposed in TABLE.get(node.fn, ()):
        for bound in match(left, node, {}):
            if all(is_defined(bound[name], scope) for name in exposed):
                return filled(right, bound, dtype_of(node, scope.dtypes))
    return None


def is_defined(expr: Expr, scope: Scope) -> bool:
    """Whether an expression has a value wherever its variables are in range."""
    return all(
        read.pad is not None
        or lies_inside(read.subscripts, scope.shapes[read.operand], scope.extents)
        for read in reads(expr))


def _folded(node: Call, scope: Scope) -> Expr:
    """A call on literals, which are numbers of their dtypes: 1e-5 in f32 is not that in f64. Floats
    are computed in f64 and rounded once."""
    dtype = dtype_of(node, scope.dtypes)
    values = [literal(a.value, a.dtype).value for a in node.args if isinstance(a, Const)]
    source = dtype_of(node.args[0], scope.dtypes)
    kind = np.float64 if is_float(source) else held(source)
    with np.errstate(all="ignore"):
        result = PRIMITIVES[node.fn].evaluate(*(np.asarray(v, kind) for v in values))
        return literal(result, dtype)


def literal(value: object, dtype: str) -> Const:
    """A literal of a dtype; floats of 16 bits are carried in f32, as in a statement."""
    match category(dtype):
        case "bool":
            return Const(bool(value), dtype)
        case "int":
            return Const(int(np.asarray(value).astype(held(dtype))), dtype)
    return Const(float(np.asarray(value).astype("f8" if dtype == "f64" else "f4")), dtype)


def _integer(node: Call, scope: Scope) -> Expr | None:
    """Rules of index arithmetic: one form for what is affine, and what the ranges decide."""
    match node:
        case Call("add" | "sub" | "mul" | "neg"):
            form = affine(node)
            new = None if form is None else expression(form)
            return None if new == node else new
        case Call("floordiv" | "mod" as fn, (place, Const(int(size), "i64"))) if size > 0:
            halves = split(place, size, scope.extents)
            return None if halves is None else halves[fn == "mod"]
        case Call("check", (place, Const(int(size), "i64"))):
            return place if lies_inside([place], [size], scope.extents) else None
        case Call("lt" | "le" | "gt" | "ge" | "eq" | "ne"):
            known = decide(node, scope.extents)
            return _moved(node, scope) if known is None else TRUE if known else FALSE
    return None


def _moved(node: Call, scope: Scope) -> Expr | None:
    """A bound on `i - 3`, or on `i // 3`, as one on `i`, where nothing wraps."""
    match node:
        case Call("lt" | "ge", (Call("floordiv", (place, Const(int(size), "i64"))),
                                Const(int(bound), "i64"))) if size > 0:
            return _bounded(node.fn, place, bound * size)
        case Call("lt" | "le" | "gt" | "ge", (place, Const(int(bound), "i64"))):
            form = affine(place)
            if form is not None and form.constant and any(c > 0 for _, c in form.terms):
                free = expression(Affine(form.terms, 0))
                exact = None not in (interval(place, scope.extents), interval(free, scope.extents))
                return _bounded(node.fn, free, bound - form.constant) if exact else None
    return None


def _bounded(fn: str, place: Expr, bound: int) -> Expr | None:
    return Call(fn, (place, integer(bound))) if bound in integers("i64") else None


def split(place: Expr, size: int, extents: Mapping[str, int]) -> tuple[Expr, Expr] | None:
    """`(place // size, place % size)` without division, where the ranges allow it."""
    form = affine(place)
    if form is None or interval(place, extents) is None:
        return None
    whole = Affine(tuple((v, c // size) for v, c in form.terms if c % size == 0),
                   form.constant // size)
    rest = Affine(tuple(t for t in form.terms if t[1] % size), form.constant % size)
    low, high = rest.bounds(extents)
    return (expression(whole), expression(rest)) if low >= 0 and high < size else None


def _cast(node: Cast, scope: Scope) -> Expr | None:
    source = dtype_of(node.arg, scope.dtypes)
    if source == node.dtype:
        return node.arg
    match node.arg:
        case Const(value, _):
            return _literal_cast(value, source, node.dtype)
        case Cast(_, inner) if lossless(dtype_of(inner, scope.dtypes), source):
            return Cast(node.dtype, inner)
    return None


def _literal_cast(value: float | int | bool, source: str, dtype: str) -> Expr | None:
    if dtype == "bool":
        return TRUE if value != 0 else FALSE
    small = float(value).is_integer() and abs(value) < 128
    if not small and (is_float(source) > is_float(dtype) or dtype in ("f16", "bf16")):
        return None
    return literal(literal(value, source).value, dtype)


MANTISSA = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}


def lossless(source: str, target: str) -> bool:
    """Whether every number of `source` is one of `target`."""
    if source == target or source == "bool":
        return True
    if is_float(source):
        return is_float(target) and itemsize(target) > itemsize(source)
    if is_float(target):
        return integers(source)[-1] <= 1 << MANTISSA[target]
    return target != "bool" and includes(target, source)
