"""Can a subscript leave its dimension?

`judge` answers for an index expression over the box of its variables, where conditions (guards and
`where`) may hold: INSIDE is proven, OUTSIDE is disproven with the place that is reached, UNKNOWN
depends on data. Affine subscripts are decided by their interval, under conditions by the interval
of the difference to one condition, and small boxes by trying every point.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from anabranch.ir.expr import (
    Call,
    Cast,
    Const,
    Expr,
    Rand,
    Read,
    Var,
    call,
    integer,
    sub,
    variables,
    walk,
)
from anabranch.ir.index import affine, conjuncts, interval
from anabranch.ir.scalar import PRIMITIVES

Verdict = Literal["inside", "outside", "unknown"]
POINTS = 1 << 20  # largest box that is tried point by point


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    place: int = 0  # one that is reached outside


def judge(
    subscript: Expr, size: int, extents: Mapping[str, int], conditions: Sequence[Expr]
) -> Judgement:
    """Whether `0 <= subscript < size` wherever all conditions hold."""
    names = frozenset().union(variables(subscript), *map(variables, conditions))
    if any(extents[name] == 0 for name in names):
        return Judgement("inside")
    known = [c for condition in conditions for c in conjuncts(condition)]
    bounds = interval(subscript, extents)
    if bounds is not None and bounds[0] >= 0 and bounds[1] < size:
        return Judgement("inside")
    if _implied(subscript, size, extents, known):
        return Judgement("inside")
    if not _is_index(subscript):
        return Judgement("unknown")
    if affine(subscript) is not None and not conditions and bounds is not None:
        return Judgement("outside", bounds[0] if bounds[0] < 0 else bounds[1])
    usable = tuple(c for c in known if _is_index(c))
    box = tuple((n, extents[n]) for n in sorted(names)
                if n in variables(subscript) or any(n in variables(c) for c in usable))
    return _try_all(subscript, size, box, usable, len(usable) == len(known))


def _implied(
    subscript: Expr, size: int, extents: Mapping[str, int], conditions: Sequence[Expr]
) -> bool:
    """Both bounds follow from the interval or from one condition each."""
    slacks = [slack for condition in conditions for slack in _slacks(condition)]
    low, high = subscript, sub(integer(size - 1), subscript)
    return all(_at_least_zero(side, slacks, extents) for side in (low, high))


def _at_least_zero(side: Expr, slacks: Sequence[Expr], extents: Mapping[str, int]) -> bool:
    for candidate in (side, *(sub(side, slack) for slack in slacks)):
        bounds = interval(candidate, extents) if affine(candidate) is not None else None
        if bounds is not None and bounds[0] >= 0:
            return True
    return False


def _slacks(condition: Expr) -> list[Expr]:
    """Expressions that are >= 0 where a comparison holds."""
    one = integer(1)
    match condition:
        case Call("le", (a, b)):
            return [sub(b, a)]
        case Call("ge", (a, b)):
            return [sub(a, b)]
        case Call("lt", (a, b)):
            return [sub(sub(b, a), one)]
        case Call("gt", (a, b)):
            return [sub(sub(a, b), one)]
        case Call("eq", (a, b)):
            return [sub(a, b), sub(b, a)]
    return []


def _is_index(expr: Expr) -> bool:
    return not any(isinstance(node, Read | Rand) for node in walk(expr))


@functools.lru_cache(maxsize=4096)
def _try_all(
    subscript: Expr, size: int, box: tuple[tuple[str, int], ...], conditions: tuple[Expr, ...],
    complete: bool,
) -> Judgement:
    """Evaluate at every point; `complete` says that no other condition could exclude one."""
    if math.prod(extent for _, extent in box) > POINTS:
        return Judgement("unknown")
    grids = np.meshgrid(*(np.arange(extent) for _, extent in box), indexing="ij", sparse=True)
    points = {name: grid for (name, _), grid in zip(box, grids, strict=True)}
    with np.errstate(all="ignore"):
        place = _evaluate(subscript, points)
        outside = (place < 0) | (place >= size)
        for condition in conditions:
            outside = outside & _evaluate(condition, points)
    if not np.any(outside):
        return Judgement("inside")
    if not complete:
        return Judgement("unknown")
    reached = np.broadcast_to(place, outside.shape)[outside]
    return Judgement("outside", int(reached.flat[0]))


def _evaluate(expr: Expr, points: Mapping[str, Any]) -> Any:
    match expr:
        case Const(value, _):
            return np.asarray(value)
        case Var(name):
            return points[name]
        case Cast(dtype, arg):
            kind = np.float64 if dtype.startswith(("f", "b")) and dtype != "bool" else np.int64
            return _evaluate(arg, points).astype(np.bool_ if dtype == "bool" else kind)
        case Call(fn, args):
            return PRIMITIVES[fn].evaluate(*(_evaluate(arg, points) for arg in args))
    raise TypeError(f"not an index expression: {expr!r}")


def negated(condition: Expr) -> Expr:
    """The condition of the other branch."""
    opposite = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
    match condition:
        case Call(fn, args) if fn in opposite:
            return Call(opposite[fn], args)
    return call("not", condition)
