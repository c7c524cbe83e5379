"""Subscripts as places in dense memory: sums of strides times axes, and what is left over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.ir.expr import Call, Const, Expr, Var


@dataclass(frozen=True, slots=True)
class Linear:
    """`constant + sum(terms[axis] * axis) + sum(factor * atom)`; atoms are not affine."""

    terms: Mapping[str, int]
    atoms: tuple[tuple[int, Expr], ...] = ()
    constant: int = 0

    def __add__(self, other: Linear) -> Linear:
        terms = dict(self.terms)
        for axis, factor in other.terms.items():
            terms[axis] = terms.get(axis, 0) + factor
        return Linear({a: f for a, f in terms.items() if f}, self.atoms + other.atoms,
                      self.constant + other.constant)

    def __mul__(self, factor: int) -> Linear:
        if not factor:
            return Linear({})
        return Linear({a: f * factor for a, f in self.terms.items()},
                      tuple((f * factor, atom) for f, atom in self.atoms), self.constant * factor)


def linear(expr: Expr) -> Linear:
    """The linear form of an integer expression; what is not a sum of multiples is an atom."""
    match expr:
        case Const(value):
            return Linear({}, (), int(value))
        case Var(name):
            return Linear({name: 1})
        case Call("neg", (arg,)):
            return linear(arg) * -1
        case Call("add", (a, b)):
            return linear(a) + linear(b)
        case Call("sub", (a, b)):
            return linear(a) + linear(b) * -1
        case Call("mul", (a, Const(value))) | Call("mul", (Const(value), a)):
            return linear(a) * int(value)
    return Linear({}, ((1, expr),))


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements; as if nothing were empty, so that no subscript vanishes."""
    steps, step = [], 1
    for n in reversed(shape):
        steps.append(step)
        step *= max(n, 1)
    return tuple(reversed(steps))


def place(subscripts: Sequence[Expr], shape: Sequence[int]) -> Linear:
    """Where an element of a dense tensor lies."""
    total = Linear({})
    for subscript, step in zip(subscripts, strides(shape), strict=True):
        total += linear(subscript) * step
    return total
