"""Turns the subscripts of a read around: which elements of the iteration space read element `t`?

`x[s_0, s_1]` read over variables V becomes: variables `t` of x, an expression over `t` for every
variable of V that they determine, conditions, and the variables that stay free and are summed.

    x[b, d]            b, d are b, d
    x[(g, c)]          the dimension is written (g, c)
    x[i + 3]           i is t - 3, if that is in its range
    x[2*h + k - 1]     h is (t - k + 1) // 2, if that divides; summed over k, the shorter of the two
    x[i // 2]          i is 2*t + r, summed over r
    x[(d + 4) % 8]     d is (t - 4) % 8
    x[ids[n]]          n stays, where ids[n] == t: a scatter
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.ir.expr import (
    Call,
    Const,
    Expr,
    Read,
    Var,
    integer,
    reads,
    sub,
    substitute,
    transform,
    variables,
)
from anabranch.ir.expr import add as plus
from anabranch.ir.expr import mul as times
from anabranch.ir.index import Affine, affine, digits, expression
from anabranch.lowering.adjoints import within


@dataclass(slots=True)
class Inverse:
    """`dims` of the gradient, `ranges` of its variables and of those that stay `free`, `values` of
    the forward variables that are determined, all under `conditions`."""

    dims: list[tuple[str, ...]]
    ranges: dict[str, int]
    values: dict[str, Expr] = field(default_factory=dict)
    conditions: list[Expr] = field(default_factory=list)
    free: dict[str, int] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    @property
    def targets(self) -> set[str]:
        return {name for dim in self.dims for name in dim}

    def fresh(self, hint: str) -> str:
        number = next(n for n in range(len(self.taken) + 1) if f"{hint}{n}" not in self.taken)
        self.taken.add(f"{hint}{number}")
        return f"{hint}{number}"

    def determine(self, name: str, value: Expr) -> None:
        """`name` is `value`, and that must lie in its range."""
        form = affine(value)
        value = value if form is None else expression(form)
        found = {name: value}
        if value != Var(name):  # what was solved before may use it
            self.values = {v: substitute(known, found) for v, known in self.values.items()}
            self.conditions = [substitute(condition, found) for condition in self.conditions]
        self.values |= found
        self.conditions += within(value, self.free.pop(name))


def invert(
    subscripts: Sequence[Expr], shape: Sequence[int], extents: Mapping[str, int]
) -> Inverse:
    """The inverse of a read over the box `extents`; no extent is 0."""
    state = Inverse([()] * len(shape), {}, free=dict(extents), taken=set(extents))
    for d in sorted(range(len(shape)), key=lambda d: _difficulty(subscripts[d])):
        place = resolved(subscripts[d], state.values)
        _invert_dim(state, d, place, shape[d])
    state.ranges.update(state.free)
    return state


def resolved(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """The expression over what its variables are, without checks: those are made once, in the
    forward statement."""

    def rule(e: Expr) -> Expr | None:
        if isinstance(e, Var):
            return values.get(e.name)
        return e.args[0] if isinstance(e, Call) and e.fn == "check" else None

    return transform(expr, rule)


def _difficulty(place: Expr) -> int:
    if isinstance(place, Var):
        return 0
    form = affine(place)
    return (1 if len(form.terms) < 2 else 2) if form else 4 if reads(place) else 3


def _invert_dim(state: Inverse, d: int, place: Expr, size: int) -> None:
    unknown = [v for v in state.free if v in variables(place)]
    form = affine(place)
    if isinstance(place, Var) and unknown:
        _plain(state, d, place.name, size)
    elif form is not None and unknown and _merged(state, d, form, size):
        return
    else:
        hint = unknown[0] if unknown else "t"
        name = state.fresh(hint)
        state.dims[d], state.ranges[name] = (name,), size
        if not unknown or not _solve(state, place, Var(name), size):
            state.conditions.append(Call("eq", (place, Var(name))))


def _plain(state: Inverse, d: int, name: str, size: int) -> None:
    """The variable of the gradient keeps the name of the one that subscripts it."""
    state.dims[d], state.ranges[name] = (name,), size
    state.determine(name, Var(name))


def _merged(state: Inverse, d: int, form: Affine, size: int) -> bool:
    """A merged index, all of the dimension or a part: the dimension is written as its digits."""
    names = digits(form, state.free) if set(form.coefficients) <= set(state.free) else None
    if names is None or len(names) < 2:
        return False
    inner, weight = _whole_digits(names, form.constant, size, state.free)
    leading = names[: len(names) - len(inner)]
    start, outer = form.constant // weight, size // weight
    for name in inner:
        state.ranges[name] = state.free[name]
        state.determine(name, Var(name))
    if len(leading) == 1 and not start:
        state.dims[d], state.ranges[leading[0]] = (leading[0], *inner), outer
        state.determine(leading[0], Var(leading[0]))
        return True
    target = state.fresh(leading[0])
    state.dims[d], state.ranges[target] = (target, *inner), outer
    rest: Expr = sub(Var(target), integer(start)) if start else Var(target)
    for name in reversed(leading[1:]):
        extent = integer(state.free[name])
        state.determine(name, Call("mod", (rest, extent)))
        rest = Call("floordiv", (rest, extent))
    state.determine(leading[0], rest)
    return True


def _whole_digits(
    names: tuple[str, ...], start: int, size: int, extents: Mapping[str, int]
) -> tuple[tuple[str, ...], int]:
    """The inner digits that divide both the start and the size, and the product of their sizes."""
    inner: tuple[str, ...] = ()
    weight = 1
    for name in reversed(names[1:]):
        if start % (weight * extents[name]) or size % (weight * extents[name]):
            break
        inner, weight = (name, *inner), weight * extents[name]
    return inner, weight


def _solve(state: Inverse, place: Expr, target: Expr, size: int) -> bool:
    """Solve `place == target` for a free variable; False if it has no such form."""
    match place:
        case Call("floordiv", (inner, Const(int(k), _))) if k > 0:
            form = affine(inner)
            if form is None or not any(v in state.free for v in form.coefficients):
                return False
            rest = state.fresh("r")
            state.free[rest] = k
            return _solve(state, inner, plus(times(target, integer(k)), Var(rest)), size)
        case Call("mod", (inner, Const(int(k), _))) if k > 0:
            return _solve_cycle(state, affine(inner), target, k, size)
    form = affine(place)
    unknown = [v for v in (form.coefficients if form else ()) if v in state.free]
    if form is None or not unknown:
        return False
    name = max(unknown, key=lambda v: (state.free[v], -abs(form.coefficients[v])))
    step = form.coefficients[name]
    others = Affine(tuple(t for t in form.terms if t[0] != name), form.constant)
    value = sub(target, expression(others)) if step > 0 else sub(expression(others), target)
    if abs(step) > 1:
        state.conditions.append(
            Call("eq", (Call("mod", (value, integer(abs(step)))), integer(0))))
        value = Call("floordiv", (value, integer(abs(step))))
    state.determine(name, value)
    return True


def _solve_cycle(state: Inverse, form: Affine | None, target: Expr, k: int, size: int) -> bool:
    """`(v + c) % k` over all of `v < k` is a rotation."""
    if form is None or len(form.terms) != 1 or form.terms[0][1] != 1:
        return False
    name = form.terms[0][0]
    if state.free.get(name) != k:
        return False
    if size > k:
        state.conditions.append(Call("lt", (target, integer(k))))
    state.determine(name, Call("mod", (sub(target, integer(form.constant)), integer(k))))
    return True


def indirect(read: Read) -> bool:
    return any(reads(place) for place in read.subscripts)
