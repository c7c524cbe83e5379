"""Proves a kernel safe for the integers it is launched with, or raises `CompilerBug`.

- Names are defined once, before they are used, and stores go to what may be written.
- *No races*: two points of the grid never store to one element. An index is a sum of strides times
  axes; in order of strides each must be larger than what all smaller terms can add up to. An axis
  of the grid that is missing from an index is a race, unless a loop that it bounds takes its place.
- *No overruns*: the interval of an unmasked index lies in its tensor. Indices that were loaded and
  not checked are not known, and are left to who asked for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anabranch.codegen.kernel import (
    Check,
    Combine,
    Kernel,
    Let,
    Load,
    Loop,
    Ref,
    Sort,
    Statement,
    Store,
    defines,
    expressions,
    names,
    show,
)
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.expr import Call, Const, Expr, add, integer, mul
from anabranch.ir.index import conjuncts
from anabranch.ir.scalar import PRIMITIVES

Interval = tuple[int, int]  # inclusive
UNBOUNDED = 1 << 62
MOST_TRIED = 1 << 20  # values of the variables of some terms


def verify(kernel: Kernel, ints: Mapping[str, int], elements: Mapping[str, int]) -> None:
    """Check a kernel for these integer arguments; `elements` are the sizes of its tensors."""
    known: dict[str, Interval | None] = {name: (value, value) for name, value in ints.items()}
    for axis in kernel.grid:
        extent = _interval(axis.extent, known)
        if extent is None:
            raise CompilerBug(f"the extent of {axis.name} in {kernel.name} is not known")
        if extent[1] < 1:
            return  # nothing runs
        known[axis.name] = (0, extent[1] - 1)
    _Verifier(kernel, dict(ints), elements).block(kernel.body, known, ())


@dataclass(slots=True)
class _Verifier:
    kernel: Kernel
    ints: dict[str, int]
    elements: Mapping[str, int]
    defined: set[str] = field(default_factory=set)

    def fail(self, message: str, statement: Statement) -> CompilerBug:
        return CompilerBug(f"kernel {self.kernel.name}: {message}: {statement}")

    def block(
        self, body: Sequence[Statement], known: dict[str, Interval | None],
        loops: tuple[Loop, ...],
    ) -> None:
        known = dict(known)
        for s in body:
            for name in names(*expressions(s)):
                if name not in known:
                    raise self.fail(f"{name} is used before it is defined", s)
            self.statement(s, known, loops)
            name_ = defines(s)
            if name_ is not None:
                if name_ in self.defined or name_ in self.ints:
                    raise self.fail(f"{name_} is defined twice", s)
                self.defined.add(name_)
                known[name_] = _value(s, known)

    def statement(
        self, s: Statement, known: dict[str, Interval | None], loops: tuple[Loop, ...]
    ) -> None:
        match s:
            case Load(_, tensor, index, mask):
                self.access(s, tensor, index, mask, known)
            case Store(tensor, index, _, mask) | Combine(tensor, index, _, _, mask):
                self.access(s, tensor, index, mask, known)
                self.written(s, tensor, index, loops, _kept(mask, known, self.ints))
            case Sort():
                for walk in s.walks:
                    self.walked(s, *walk, known)
            case Loop(axis, start, stop, body):
                low, high = _interval(start, known), _interval(stop, known)
                inner = None if low is None or high is None else (low[0], high[1] - 1)
                if inner is None or inner[0] <= inner[1]:
                    self.block(body, {**known, axis: inner}, (*loops, s))

    def walked(self, s: Sort, tensor: str, first: Expr, by: Expr, count: Expr,
               known: dict[str, Interval | None]) -> None:
        """Places in steps, as a loop over them would touch them."""
        loop = Loop("each", integer(0), count, ())
        most = _interval(count, known)
        if most is not None and most[1] < 1:
            return
        index = add(first, mul(Ref(loop.axis), by))
        within: Interval | None = None if most is None else (0, most[1] - 1)
        self.access(s, tensor, index, None, {**known, loop.axis: within})
        if tensor == s.target:
            self.written(s, tensor, index, (loop,), ())

    def access(self, s: Statement, tensor: str, index: Expr, mask: Expr | None,
               known: Mapping[str, Interval | None]) -> None:
        if tensor not in self.elements:
            raise self.fail(f"{tensor} is not a tensor of it", s)
        if mask is not None:
            return
        place = _interval(index, known)
        if place is not None and not self.holds(tensor, place):
            place = _tried(index, known, self.ints)
        if place is not None and not self.holds(tensor, place):
            raise self.fail(
                f"the index {show(index)} runs from {place[0]} to {place[1]} in {tensor}, which "
                f"has {self.elements[tensor]} elements", s)

    def holds(self, tensor: str, place: Interval) -> bool:
        return place[0] >= 0 and place[1] < self.elements[tensor]

    def written(self, s: Statement, tensor: str, index: Expr, loops: tuple[Loop, ...],
                kept: Iterable[Kept]) -> None:
        role = self.kernel.tensor(tensor).role
        if role == "in":
            raise self.fail(f"{tensor} may not be written", s)
        if role != "local":
            self.no_race(s, index, loops, kept)

    def no_race(self, s: Statement, index: Expr, loops: tuple[Loop, ...],
                kept: Iterable[Kept]) -> None:
        """Strides in order, each larger than all below it reach together: then places tell points
        of the grid apart. Loops may meet, one after another, so of loops that are neighbours in
        this order the common divisor counts; a sum of them that the mask bounds counts as one."""
        terms = _terms(index, self.ints)
        sizes = {a.name: _size(a.extent, self.ints) for a in self.kernel.grid}
        sums: dict[str, int] = {}
        for name, part, bound in kept:
            factor = _factor(terms, part)
            if factor and not part.keys() & sizes.keys():
                terms = {n: stride for n, stride in terms.items() if n not in part}
                terms[name], sums[name] = factor, bound
        bounded = {n for loop in loops if loop.axis in terms for n in self._bounds(loop)}
        for axis, size in sizes.items():
            if size > 1 and axis not in terms and axis not in bounded:
                raise self.fail(f"points of {axis} store to one place", s)
        reach, below, divisor = 0, 0, 0
        ordered = sorted(terms.items(), key=lambda term: abs(term[1]))
        for k, (name, stride) in enumerate(ordered):
            extent = (sizes.get(name) or sums.get(name) or self._loop_size(name, loops)
                      or self._reach(name, index, loops))
            if extent is None:  # a place that was loaded: as large as the next stride allows
                following = abs(ordered[k + 1][1]) if k + 1 < len(ordered) else UNBOUNDED
                extent = max(1, following // abs(stride))
            if extent <= 1:
                continue
            if name in sizes or divisor == 0:
                below = reach
            divisor = 0 if name in sizes else math.gcd(divisor, stride)
            if (divisor or abs(stride)) <= below:
                raise self.fail(f"the strides of {show(index)} let points share a place", s)
            reach += abs(stride) * (extent - 1)

    def _loop_size(self, name: str, loops: tuple[Loop, ...]) -> int | None:
        """The most steps a loop can take, where its bounds are integers; a cut one may take all."""
        for loop in loops:
            if loop.axis == name:
                stop = _interval(loop.stop, self._widest())
                return None if stop is None else max(1, stop[1])
        return None

    def _reach(self, name: str, index: Expr, loops: tuple[Loop, ...]) -> int | None:
        """How many places the term of an index that reads so, such as `n * 7 // 2`, can take."""
        known = self._widest()
        for loop in loops:
            size = self._loop_size(loop.axis, loops)
            known[loop.axis] = None if size is None else (0, size - 1)
        for _, expr in _summands(index, 1, self.ints):
            bounds = _interval(expr, known) if isinstance(expr, Call) else None
            if bounds is not None and show(expr) == name:
                return bounds[1] - bounds[0] + 1
        return None

    def _widest(self) -> dict[str, Interval | None]:
        known: dict[str, Interval | None] = {n: (v, v) for n, v in self.ints.items()}
        known |= {a.name: (0, max(0, _size(a.extent, self.ints) - 1)) for a in self.kernel.grid}
        for s in self.kernel.body:
            if isinstance(s, Let):
                known[s.name] = _interval(s.value, known)
        return known

    def _bounds(self, loop: Loop) -> set[str]:
        """The names that the bounds of a loop come from, through what was let."""
        lets = {s.name: s.value for s in self.kernel.body if isinstance(s, Let)}
        found = names(loop.start)
        for name in list(found):
            if name in lets:
                found |= names(lets[name])
        return found


def _value(s: Statement, known: Mapping[str, Interval | None]) -> Interval | None:
    match s:
        case Let(_, value):
            return _interval(value, known)
        case Check(_, _, bound):
            size = _interval(bound, known)
            return None if size is None else (0, max(0, size[1] - 1))
    return None


Kept = tuple[str, dict[str, int], int]  # a sum as text, its terms, and the bound it is below


def _kept(
    mask: Expr | None, known: Mapping[str, Interval | None], ints: Mapping[str, int]
) -> list[Kept]:
    """The sums that a mask keeps in [0, bound)."""
    parts = conjuncts(mask)
    positive = {show(e) for part in parts for e in _not_negative(part)}
    found = []
    for part in parts:
        match part:
            case Call("lt", (expr, (Ref() | Const()) as bound)):
                size, low = _interval(bound, known), _interval(expr, known)
                if size is None or size[0] != size[1]:
                    continue
                if show(expr) in positive or (low is not None and low[0] >= 0):
                    found.append((show(expr), _terms(expr, ints), size[1]))
            case Call("ge", (expr, Const(0))):
                high = _interval(expr, known)  # no test is needed where it cannot be more
                if high is not None:
                    found.append((show(expr), _terms(expr, ints), max(1, high[1] + 1)))
    return sorted(found, key=lambda kept: kept[2])  # the narrowest bound of a sum counts


def _not_negative(condition: Expr) -> list[Expr]:
    match condition:
        case Call("ge", (expr, Const(0))):
            return [expr]
    return []


def _factor(terms: Mapping[str, int], part: Mapping[str, int]) -> int | None:
    """What `part` is multiplied by where it is a part of `terms`."""
    factors = {terms.get(name, 0) / stride for name, stride in part.items()}
    factor = factors.pop() if len(factors) == 1 else 0.0
    return int(factor) if factor and factor.is_integer() else None


def _size(extent: Expr, ints: Mapping[str, int]) -> int:
    assert isinstance(extent, Ref), "the extent of an axis is an argument"
    return ints[extent.name]


def _interval(expr: Expr, known: Mapping[str, Interval | None]) -> Interval | None:
    """Bounds of an integer expression, or None where nothing is known."""
    match expr:
        case Ref(name):
            return known.get(name)
        case Const(value, "i64"):
            return int(value), int(value)
        case Call(fn, (left, right)):
            a, b = _interval(left, known), _interval(right, known)
            return None if a is None or b is None else _of_call(fn, a, b)
        case Call("neg", (arg,)):
            inner = _interval(arg, known)
            return None if inner is None else (-inner[1], -inner[0])
    return None


def _tried(
    index: Expr, known: Mapping[str, Interval | None], ints: Mapping[str, int]
) -> Interval | None:
    """Bounds of a sum in which a variable stands in several terms, as in `d + 1 - 2*(d % 2)`, which
    say something of each other: such terms take all their values, if these are not too many."""
    low = high = 0
    for used, terms in _coupled(_summands(index, 1, ints), ints).items():
        bounds = [known.get(name) for name in used]
        total: Expr = integer(0)
        for factor, expr in terms:
            total = add(total, mul(expr, integer(factor)))
        found = _interval(total, known)
        if len(terms) > 1 and None not in bounds:
            sizes = [b[1] - b[0] + 1 for b in bounds if b is not None]
            if math.prod(sizes) <= MOST_TRIED:
                places = np.indices(sizes).reshape(len(sizes), -1)
                env = {n: row + b[0] for n, row, b in zip(used, places, bounds, strict=True) if b}
                values = _evaluated(total, {**env, **ints})
                found = int(values.min()), int(values.max())
        if found is None:
            return None
        low, high = low + found[0], high + found[1]
    return low, high


def _coupled(
    summands: Sequence[tuple[int, Expr]], ints: Mapping[str, int]
) -> dict[tuple[str, ...], list[tuple[int, Expr]]]:
    """The terms of a sum, together where they have variables in common; by these variables."""
    groups: dict[tuple[str, ...], list[tuple[int, Expr]]] = {}
    for factor, expr in summands:
        used = names(expr) - ints.keys()
        met = [group for group in groups if used.intersection(group)]
        terms = [term for group in met for term in groups.pop(group)]
        every = tuple(sorted(used.union(*met)))
        groups[every] = [*groups.get(every, ()), *terms, (factor, expr)]
    return groups


def _evaluated(expr: Expr, env: Mapping[str, Any]) -> Any:
    match expr:
        case Ref(name):
            return env[name]
        case Const(value, _):
            return np.int64(value)
        case Call(fn, args):
            return PRIMITIVES[fn].evaluate(*(_evaluated(arg, env) for arg in args))
    raise CompilerBug(f"{show(expr)} is no index")


def _of_call(fn: str, a: Interval, b: Interval) -> Interval | None:
    match fn:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "mul":
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case "floordiv" if b[0] == b[1] > 0:
            return a[0] // b[0], a[1] // b[0]
        case "mod" if b[0] == b[1] > 0:
            return 0, b[0] - 1
    return None


def _terms(index: Expr, ints: Mapping[str, int]) -> dict[str, int]:
    """The strides of axes and of other values in an index."""
    found: dict[str, int] = {}
    for factor, expr in _summands(index, 1, ints):
        match expr:
            case Ref(name) if name not in ints:
                found[name] = found.get(name, 0) + factor
            case Call():
                found[show(expr)] = factor
    return found


def _summands(expr: Expr, factor: int, ints: Mapping[str, int]) -> list[tuple[int, Expr]]:
    match expr:
        case Call("add", (a, b)):
            return _summands(a, factor, ints) + _summands(b, factor, ints)
        case Call("sub", (a, b)):
            return _summands(a, factor, ints) + _summands(b, -factor, ints)
        case Call("mul", (a, Ref(name)) | (Ref(name), a)) if name in ints:
            return _summands(a, factor * ints[name], ints)
        case Call("mul", (a, Const(value)) | (Const(value), a)):
            return _summands(a, factor * int(value), ints)
    return [(factor, expr)]
