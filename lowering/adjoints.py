"""Reverse mode through one expression: what each read of it receives.

The adjoint of an expression is an expression too, of the dtype of what it belongs to. Laziness is
kept: what a `where` or a `pad` chooses becomes a condition of the term, outside all arithmetic, so
that an element that is not chosen contributes 0 and never `0 * nan`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from anabranch.ir.expr import (
    Call,
    Cast,
    Const,
    Expr,
    Read,
    children,
    integer,
    mul,
    where,
)
from anabranch.ir.scalar import PRIMITIVES, dtype_of
from anabranch.ir.types import is_float


@dataclass(frozen=True, slots=True)
class Term:
    """`read` receives `weight` where all conditions hold."""

    read: Read
    weight: Expr
    conditions: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """Operands by number: their dtypes and shapes, and those whose gradient is wanted."""

    dtypes: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    wanted: Collection[int]


def terms(expr: Expr, adjoint: Expr, result: Expr, context: Context) -> Iterator[Term]:
    """What the reads in `expr` receive. `result` is another name for the value of `expr`, which
    saves computing it again."""
    yield from _terms(expr, adjoint, result, (), context)


def _terms(expr: Expr, adjoint: Expr, result: Expr, conditions: tuple[Expr, ...],
           context: Context) -> Iterator[Term]:
    if not receives(expr, context):
        return
    match expr:
        case Read(operand, subscripts, pad):
            if operand in context.wanted:
                yield Term(Read(operand, subscripts), adjoint, conditions)
            if pad is not None:
                outside = negation(inside(expr, context.shapes[operand]))
                yield from _terms(pad, adjoint, pad, (*conditions, outside), context)
        case Cast(_, arg):
            back = Cast(dtype_of(arg, tuple(context.dtypes)), adjoint)
            yield from _terms(arg, back, arg, conditions, context)
        case Call("where", (condition, yes, no)):
            yield from _terms(yes, adjoint, result, (*conditions, condition), context)
            yield from _terms(no, adjoint, result, (*conditions, negation(condition)), context)
        case Call(fn, args):
            yield from _call_terms(fn, args, adjoint, result, conditions, context)


def _call_terms(fn: str, args: tuple[Expr, ...], adjoint: Expr, result: Expr,
                conditions: tuple[Expr, ...], context: Context) -> Iterator[Term]:
    derivative = PRIMITIVES[fn].derivative
    if derivative is None:
        return
    dtype = dtype_of(args[0], tuple(context.dtypes))
    zero = Const(0.0, dtype)
    for arg, partial in zip(args, derivative(args, result, dtype), strict=True):
        if partial is None or not receives(arg, context):
            continue
        scaled = mul(adjoint, partial) if fn == "mul" else scale(adjoint, partial, zero)
        if scaled != zero:
            yield from _terms(arg, scaled, arg, conditions, context)


def receives(expr: Expr, context: Context) -> bool:
    """Whether some gradient that is wanted flows through this expression."""
    match expr:
        case Read(operand, _, pad):
            return operand in context.wanted or (pad is not None and receives(pad, context))
        case Call("where", (_, yes, no)):
            return receives(yes, context) or receives(no, context)
        case Call("stop", _):
            return False
        case Call() | Cast():
            return (any(receives(child, context) for child in children(expr))
                    and is_float(dtype_of(expr, tuple(context.dtypes))))
    return False


def scale(adjoint: Expr, partial: Expr, zero: Expr) -> Expr:
    """`adjoint * partial` for one partial derivative. Its choices stay outside the product, so that
    a branch that is 0 stays 0."""
    match partial:
        case Const(value, _) if value in (0, 1, -1):
            return {0: zero, 1: adjoint, -1: Call("neg", (adjoint,))}[int(value)]
        case Call("neg", (inner,)):
            return Call("neg", (scale(adjoint, inner, zero),))
        case Call("div", (above, below)):
            return Call("div", (scale(adjoint, above, zero), below))
        case Call("where", (condition, yes, no)):
            return where(condition, scale(adjoint, yes, zero), scale(adjoint, no, zero))
    return mul(adjoint, partial)


def inside(read: Read, shape: tuple[int, ...]) -> Expr:
    """The condition that a read lies in its tensor."""
    tests = [test for place, size in zip(read.subscripts, shape, strict=True)
             for test in within(place, size)]
    return conjunction(tests)


def within(place: Expr, size: int) -> tuple[Expr, Expr]:
    return Call("ge", (place, integer(0))), Call("lt", (place, integer(size)))


def conjunction(tests: Sequence[Expr]) -> Expr:
    total: Expr = tests[0] if tests else Const(True, "bool")
    for test in tests[1:]:
        total = Call("and", (total, test))
    return total


def negation(condition: Expr) -> Expr:
    match condition:
        case Call("not", (inner,)):
            return inner
    return Call("not", (condition,))
