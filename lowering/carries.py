"""Which partial values an expression carries: operand sets on which it commutes with a reduction.

A value that is P(op) on an axis is a family of terms whose `op` is the value. A compute may run on
the terms, and give terms of its result, if its element is a homomorphism of `op` in a *set* of
operands jointly, the others being whole:

    sum       homogeneous linear: x + y in {x, y}; x * w in {x} or {w}; where(c, x, 0) in {x}.
              A bare x + b in {x} is not: b would be added once per rank.
    max, min  nondecreasing in one operand, or max/min of several, and a nonincreasing map turns max
              into min. Only maps that are total: an empty shard holds the identity, -inf, whose
              logarithm would be nan. Literals only are added: exp(x - m) is 0 for x = -inf, and
              nan on the rank whose term of m is -inf.
    prod      products of P(prod) only.

A finite element is the same in terms. One that is infinite may be nan: 2 / 0 in terms is
2 / 0 + 0 / 0. No linear map makes a finite number of either.

Candidates are built from the structure, then each is judged by one recursive rule. Conditions,
guards, indices and random draws never read a partial value.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from anabranch.ir.expr import Call, Cast, Const, Expr, Read, Var, reads
from anabranch.ir.sbp import PARTIAL_OPS
from anabranch.ir.scalar import dtype_of
from anabranch.ir.types import category, includes, is_float, itemsize
from anabranch.lowering.equations import literal

MOST_SETS = 32  # per expression; a longer sum of products keeps the first ones

FREE, ZERO, BROKEN = "free", "zero", "broken"  # besides the partial ops: what a subtree carries

LATTICE = {"max": "or", "min": "and"}
OPPOSITE = {"max": "min", "min": "max"}
RISING = {"exp", "expm1", "tanh", "erf", "atan", "sinh", "floor", "ceil", "round", "trunc"}
REDUCED_BY = {"sum": {"sum"}, "prod": {"prod"}, "max": {"max", "any"}, "min": {"min", "all"}}

Sets = tuple[frozenset[int], ...]


@dataclass(frozen=True, slots=True)
class Carried:
    """Operands that may be partial by `enters`; the result is then partial by `leaves`."""

    operands: frozenset[int]
    enters: str
    leaves: str


def carried(
    body: Expr, guard: Expr | None, reduce: str, dtypes: tuple[str, ...], dtype: str
) -> tuple[Carried, ...]:
    """All ways in which a compute carries partial operands to a partial result. Equal parts of the
    body that are one object are judged once."""
    return tuple(
        Carried(chosen, op, leaves)
        for op in PARTIAL_OPS
        for chosen in _candidates(body, op, {})
        if chosen and not _reads_any(guard, chosen) and _has(op, [dtype, *_pick(dtypes, chosen)])
        for leaves in [_Rule(chosen, op, dtypes).through(body)]
        if leaves in PARTIAL_OPS and (not reduce or reduce in REDUCED_BY[leaves])
    )


def linear_in(body: Expr, operand: int, dtypes: tuple[str, ...]) -> bool:
    """Whether the expression is homogeneous linear in one operand, the others whole."""
    return _Rule(frozenset([operand]), "sum", dtypes).through(body) == "sum"


def _pick(dtypes: tuple[str, ...], chosen: frozenset[int]) -> list[str]:
    return [dtypes[i] for i in chosen]


def _has(op: str, dtypes: list[str]) -> bool:
    """Booleans have no sum and no product."""
    return op in OPPOSITE or "bool" not in map(category, dtypes)


def _reads_any(expr: Expr | None, operands: frozenset[int]) -> bool:
    if expr is None or isinstance(expr, Var | Const):  # which most subscripts are
        return False
    return any(read.operand in operands for read in reads(expr))


def _number(expr: Expr) -> float:
    """What a literal is in its dtype; nan for anything that is no finite literal."""
    value = float(literal(expr.value, expr.dtype).value) if isinstance(expr, Const) else math.nan
    return value if math.isfinite(value) else math.nan


def _known(expr: Expr) -> bool:
    return not math.isnan(_number(expr))


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0


def _candidates(expr: Expr, op: str, seen: dict[int, Sets]) -> Sets:
    """`seen` has those of the parts that were met before, by identity."""
    if id(expr) not in seen:
        seen[id(expr)] = _built(expr, op, seen)
    return seen[id(expr)]


def _built(expr: Expr, op: str, seen: dict[int, Sets]) -> Sets:
    match expr:
        case Const() if op == "sum" and _is_zero(expr):
            return (frozenset(),)
        case Read(operand, _, _):
            return (frozenset([operand]),)
        case Cast(_, arg):
            return _candidates(arg, op, seen)
        case Call(fn, args):
            branches = args[1:] if fn == "where" else args
            found = [_candidates(arg, op, seen) for arg in branches]
            if op in OPPOSITE:
                return _first(*_alternatives(found), *_unions(found))
            together = fn in ("where", "add", "sub") if op == "sum" else fn in ("where", "mul")
            return _first(*_unions(found)) if together else _alternatives(found)
    return ()


def _alternatives(found: list[Sets]) -> Sets:
    return _first(*(chosen for sets in found for chosen in sets))


def _unions(found: list[Sets]) -> Sets:
    return _first(*(frozenset().union(*several) for several in itertools.product(*found)))


def _first(*sets: frozenset[int]) -> Sets:
    return tuple(dict.fromkeys(sets))[:MOST_SETS]


@dataclass(frozen=True, slots=True)
class _Rule:
    """Judges expressions when the operands `chosen` are partial by `op` and the rest are whole."""

    chosen: frozenset[int]
    op: str
    dtypes: tuple[str, ...]
    seen: dict[int, str] = field(default_factory=dict)  # by the identity of a part

    def through(self, expr: Expr) -> str:
        """What the expression carries: a partial op, FREE of the chosen, ZERO, or BROKEN."""
        if id(expr) not in self.seen:
            self.seen[id(expr)] = self._judged(expr)
        return self.seen[id(expr)]

    def _judged(self, expr: Expr) -> str:
        if self.op == "sum" and _is_zero(expr):
            return ZERO
        match expr:
            case Read(operand, subscripts, pad):
                return self._read(operand, subscripts, pad)
            case Cast(dtype, arg):
                kind = self.through(arg)
                exact = kind == FREE or self._keeps_order(dtype_of(arg, self.dtypes), dtype)
                return kind if exact else BROKEN
            case Call(fn, args):
                return self._call(fn, args)
        return BROKEN if _reads_any(expr, self.chosen) else FREE

    def _read(self, operand: int, subscripts: tuple[Expr, ...], pad: Expr | None) -> str:
        if any(_reads_any(s, self.chosen) for s in subscripts):
            return BROKEN
        element = self.op if operand in self.chosen else FREE
        return element if pad is None else self._join(element, self.through(pad))

    def _keeps_order(self, source: str, target: str) -> bool:
        """Whether a conversion commutes with the op: no wrapping, no rounding of a float to an
        integer; sums and products of integers commute with dropping high bits as well."""
        if source == target or (is_float(source) and is_float(target)):
            return True
        if self.op not in OPPOSITE:
            both = category(source) == category(target) == "int"
            return both and itemsize(target) <= itemsize(source)
        if is_float(target) or source == "bool":
            return True
        return category(source) == category(target) == "int" and includes(target, source)

    def _join(self, a: str, b: str) -> str:
        """One of two branches is taken, the same one on every rank."""
        kinds = {a, b} - {ZERO}
        if len(kinds) <= 1:
            return kinds.pop() if kinds else ZERO
        if self.op in OPPOSITE and FREE in kinds:
            return (kinds - {FREE}).pop()  # max(k, k) = k: what is whole is its own term
        return BROKEN

    def _call(self, fn: str, args: tuple[Expr, ...]) -> str:
        kinds = [self.through(arg) for arg in args]
        if BROKEN in kinds:
            return BROKEN
        if all(kind in (FREE, ZERO) for kind in kinds):
            return ZERO if fn in ("where", "add", "mul") and set(kinds[-2:]) == {ZERO} else FREE
        if fn == "where":
            return self._join(*kinds[1:]) if kinds[0] in (FREE, ZERO) else BROKEN
        if fn == "stop":
            return kinds[0]
        if self.op == "sum":
            return self._linear(fn, kinds)
        if self.op == "prod":
            return "prod" if (fn == "mul" and FREE not in kinds) or fn == "abs" else BROKEN
        return self._monotone(fn, args, kinds)

    def _linear(self, fn: str, kinds: list[str]) -> str:
        match fn, kinds:
            case ("add" | "sub"), _ if FREE not in kinds:
                return "sum"
            case "neg", _:
                return "sum"
            case "mul", _ if kinds.count("sum") == 1:
                return "sum"
            case "div", ["sum", "free"]:
                return "sum"
        return BROKEN

    def _monotone(self, fn: str, args: tuple[Expr, ...], kinds: list[str]) -> str:
        partial = next(kind for kind in kinds if kind in PARTIAL_OPS)
        one = kinds.count(FREE) == len(kinds) - 1
        if fn in ("max", "min", "and", "or"):
            same = fn in (partial, LATTICE[partial]) and set(kinds) <= {partial, FREE}
            return partial if one or same else BROKEN
        if not all(is_float(dtype_of(arg, self.dtypes)) for arg in args):
            return BROKEN  # integers wrap: the least one, negated, is itself
        if fn in RISING:
            return partial
        if fn == "neg":
            return OPPOSITE[partial]
        if fn in ("add", "sub") and any(map(_known, args)):
            return OPPOSITE[partial] if fn == "sub" and kinds[1] == partial else partial
        return self._scaled(fn, args, partial)

    def _scaled(self, fn: str, args: tuple[Expr, ...], partial: str) -> str:
        """A product with a literal, or a quotient by one: its sign decides."""
        by = args[0] if fn == "mul" and isinstance(args[0], Const) else args[-1]
        value = _number(by) if fn in ("mul", "div") else math.nan
        return partial if value > 0 else OPPOSITE[partial] if value < 0 else BROKEN
