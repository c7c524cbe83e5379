"""Index expressions in the form that transformations need: affine, and bounded.

`affine` gives `constant + sum(coefficient * variable)` or None; `interval` gives safe bounds of an
index expression over the box of its variables, or None where it cannot tell (indirect reads, or
numbers that no i64 has). Integers wrap: a form is its expression modulo 2^64, and equal to it as
far as its bounds are numbers of i64. `scatter_places` recognises the guarded reductions that are
scatters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from anabranch.ir.expr import (
    Call,
    Cast,
    Const,
    Expr,
    Origin,
    Var,
    add,
    integer,
    mul,
    sub,
    variables,
)
from anabranch.ir.types import integers

LEAST, MOST = integers("i64")[0], integers("i64")[-1]


@dataclass(frozen=True, slots=True)
class Affine:
    """`constant + sum(coefficient * variable)`; coefficients are not zero, order is of writing."""

    terms: tuple[tuple[str, int], ...]
    constant: int

    @property
    def coefficients(self) -> dict[str, int]:
        return dict(self.terms)

    def bounds(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """The least and greatest value over a box that is not empty."""
        low = high = self.constant
        for name, coefficient in self.terms:
            reach = coefficient * (extents[name] - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high


def combine(a: Affine, b: Affine, factor: int) -> Affine:
    """`a + factor * b`."""
    terms = dict(a.terms)
    for name, coefficient in b.terms:
        terms[name] = wrapped(terms.get(name, 0) + factor * coefficient)
    kept = tuple((name, c) for name, c in terms.items() if c)
    return Affine(kept, wrapped(a.constant + factor * b.constant))


def wrapped(value: int) -> int:
    """The i64 that equals a number modulo 2^64."""
    return (value - LEAST) % (1 << 64) + LEAST


def affine(expr: Expr, micro: int | None = None) -> Affine | None:
    """The affine form. Origins count as constants only if the micro-batch is given."""
    match expr:
        case Const(value, "i64"):
            return Affine((), int(value))
        case Var(name):
            return Affine(((name, 1),), 0)
        case Origin(base, step) if micro is not None:
            return Affine((), base + step * micro)
        case Cast("i64", arg):
            return affine(arg, micro)
        case Call("neg", (arg,)):
            inner = affine(arg, micro)
            return inner and combine(Affine((), 0), inner, -1)
        case Call("add" | "sub" | "mul" as fn, (left, right)):
            a, b = affine(left, micro), affine(right, micro)
            return None if a is None or b is None else _join(fn, a, b)
    return None


def _join(fn: str, a: Affine, b: Affine) -> Affine | None:
    zero = Affine((), 0)
    if fn == "mul":
        if not a.terms:
            return combine(zero, b, a.constant)
        return None if b.terms else combine(zero, a, b.constant)
    return combine(a, b, 1 if fn == "add" else -1)


def expression(form: Affine) -> Expr:
    """The affine form as an expression without noise such as `1*i` or `+ 0`: large strides first,
    what is subtracted last."""
    ordered = sorted(form.terms, key=lambda term: (term[1] < 0, -abs(term[1])))
    first = form.constant > 0 and bool(ordered) and ordered[0][1] < 0  # `8 - i`
    total: Expr | None = integer(form.constant) if first else None
    for name, coefficient in ordered:
        positive, size = _sign_and_size(coefficient)
        term: Expr = Var(name) if size == 1 else mul(Var(name), integer(size))
        total = _plus(total, term, positive)
    if total is None:
        return integer(form.constant)
    if first or not form.constant:
        return total
    positive, size = _sign_and_size(form.constant)
    return _plus(total, integer(size), positive)


def _sign_and_size(value: int) -> tuple[bool, int]:
    """Whether to add a number or to subtract it without its sign, which the least cannot lose."""
    return value > 0 or value == LEAST, value if value == LEAST else abs(value)


def _plus(total: Expr | None, term: Expr, positive: bool) -> Expr:
    if total is None:
        return term if positive else Call("neg", (term,))
    return add(total, term) if positive else sub(total, term)


def mixed_radix(names: Iterable[str], extents: Mapping[str, int]) -> Affine:
    """The place that a merged index `(g, c)` names: `g*size(c) + c`."""
    terms, weight = [], 1
    for name in reversed(tuple(names)):
        terms.append((name, weight))
        weight *= extents[name]
    return Affine(tuple(reversed(terms)), 0)


def digits(form: Affine, extents: Mapping[str, int]) -> tuple[str, ...] | None:
    """The variables of `g*size(c) + c + constant`, outermost first; None for another form."""
    names = tuple(name for name, _ in sorted(form.terms, key=lambda t: (-t[1], -extents[t[0]])))
    weights = mixed_radix(names, extents).coefficients
    return names if names and weights == form.coefficients else None


def interval(expr: Expr, extents: Mapping[str, int]) -> tuple[int, int] | None:
    """Inclusive bounds of an integer expression, or None where nothing is known."""
    form = affine(expr)
    if form is not None:
        known = all(extents.get(name, 0) > 0 for name, _ in form.terms)
        return exact(form.bounds(extents)) if known else None
    if not isinstance(expr, Call):
        return None
    parts = expr.args[1:] if expr.fn == "where" else expr.args
    sides = [interval(part, extents) for part in parts]
    known_sides = [side for side in sides if side is not None]
    if len(known_sides) < len(sides):
        return None
    bounds = _bounds(expr.fn, known_sides)
    return None if bounds is None else exact(bounds)


def exact(bounds: tuple[int, int]) -> tuple[int, int] | None:
    """The bounds, if nothing between them wraps."""
    return bounds if bounds[0] >= LEAST and bounds[1] <= MOST else None


def _bounds(fn: str, sides: list[tuple[int, int]]) -> tuple[int, int] | None:
    if len(sides) != 2:
        return None
    (a, b), (c, d) = sides
    match fn:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "mul":
            corners = (a * c, a * d, b * c, b * d)
            return min(corners), max(corners)
        case "floordiv" if c == d > 0:
            return a // c, b // c
        case "mod" if c == d > 0:
            return (a % c, b % c) if a // c == b // c else (0, c - 1)
        case "min":
            return min(a, c), min(b, d)
        case "max":
            return max(a, c), max(b, d)
        case "where":  # whatever the condition is
            return min(a, c), max(b, d)
    return None


def decide(condition: Expr, extents: Mapping[str, int]) -> bool | None:
    """Whether a condition on index variables always or never holds, or None if it depends."""
    match condition:
        case Const(value, _):
            return bool(value)
        case Call("not", (inner,)):
            known = decide(inner, extents)
            return None if known is None else not known
        case Call("and" | "or" as fn, sides):
            return _decide_both(fn, [decide(side, extents) for side in sides])
        case Call("lt" | "le" | "gt" | "ge" | "eq" | "ne" as fn, (a, b)):
            gap = interval(sub(a, b), extents)
            known = None if gap is None else _decide_gap(fn, *gap)
            wraps = known is not None and (_may_wrap(a, extents) or _may_wrap(b, extents))
            return None if wraps else known
    return None


def _may_wrap(expr: Expr, extents: Mapping[str, int]) -> bool:
    """Whether a form reaches beyond i64, so that a difference does not tell which is less."""
    if isinstance(expr, Var | Const):
        return False
    form = affine(expr)
    known = form is not None and all(extents.get(name, 0) > 0 for name, _ in form.terms)
    return form is not None and known and exact(form.bounds(extents)) is None


def _decide_both(fn: str, sides: list[bool | None]) -> bool | None:
    absorbing = fn == "or"
    if absorbing in sides:
        return absorbing
    return None if None in sides else not absorbing


def _decide_gap(fn: str, low: int, high: int) -> bool | None:
    """`fn` on the difference of its sides, which lies in [low, high]."""
    certain, impossible = {
        "lt": (high < 0, low >= 0), "le": (high <= 0, low > 0),
        "gt": (low > 0, high <= 0), "ge": (low >= 0, high < 0),
        "eq": (low == high == 0, low > 0 or high < 0),
        "ne": (low > 0 or high < 0, low == high == 0),
    }[fn]
    return certain if certain or impossible else None


def conjuncts(guard: Expr | None) -> list[Expr]:
    """The terms of a conjunction, flattened; none for no guard."""
    match guard:
        case None:
            return []
        case Call("and", (a, b)):
            return [*conjuncts(a), *conjuncts(b)]
    return [guard]


class Guarded(Protocol):
    """A compute, or a clause of one."""

    @property
    def guard(self) -> Expr | None: ...

    @property
    def result_vars(self) -> tuple[str, ...]: ...


def scatter_places(op: Guarded) -> tuple[dict[str, Expr], list[Expr]]:
    """The result variables that the guard fixes, with their places, and the rest of the guard.

    A term `eq(e, v)` fixes the result variable `v` if `e` has no fixed variable: the elements go
    to the place `e`, with work proportional to what is read.
    """
    places: dict[str, Expr] = {}
    rest: list[Expr] = []
    used: set[str] = set()  # variables in the places
    for term in conjuncts(op.guard):
        name, place = _fixed(term, [v for v in op.result_vars if v not in {*places, *used}])
        if place is None or variables(place) & {name, *places}:
            rest.append(term)
        else:
            places[name] = place
            used |= variables(place)
    return places, rest


def _fixed(term: Expr, candidates: list[str]) -> tuple[str, Expr | None]:
    match term:
        case Call("eq", (place, Var(name))) if name in candidates:
            return name, place
        case Call("eq", (Var(name), place)) if name in candidates:
            return name, place
    return "", None
