"""The gradient of one statement: what each of its operands receives from what its result receives.

For a statement `y[L] = reduce[R if guard](body)` and a read `x[s(L, R)]` in its body,

    dx[t] = sum over (L, R) with s(L, R) = t and guard of  dy[L] * d body / d x[s]

`adjoints` gives the last factor and `invert` turns `s` around; `sums` writes the sum down so that a
matrix product has exactly two matrix products as its gradient. A maximum gives to its ties evenly;
a product multiplies the others, with no division; a scatter is read back at its places.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from anabranch.ir.core import Value
from anabranch.ir.expr import (
    Call,
    Const,
    Expr,
    Read,
    Var,
    add,
    mul,
    reads,
    substitute,
    transform,
    variables,
    walk,
    where,
)
from anabranch.ir.index import conjuncts, expression, mixed_radix, scatter_places
from anabranch.ir.ops import Compute
from anabranch.lowering.adjoints import Context, Term, conjunction, terms, within
from anabranch.lowering.invert import indirect, invert
from anabranch.lowering.sums import Frame, Writer, gradient_sum, zero


def named(value: Value) -> str:
    """The name of the gradient by a value."""
    return f"d.{value.name}" if value.name else "d"


def context_of(op: Compute, wanted: Collection[int]) -> Context:
    types = [v.type for v in op.operands]
    return Context([t.dtype for t in types], [t.shape for t in types], frozenset(wanted))


@dataclass(frozen=True, slots=True)
class View:
    """A statement as its gradient sees it: over the variables that no scatter fixes.

    `places` says where the fixed ones are; `body` and `conditions` have them replaced, and reads
    that became indirect by that stand in computes of their own.
    """

    op: Compute
    frame: Frame
    extents: dict[str, int]
    places: dict[str, Expr]
    body: Expr
    conditions: tuple[Expr, ...]

    def at(self, value: Value) -> Expr:
        """A value with the dimensions of the result, read where this element goes."""
        extents = self.op.extents
        plain = [expression(mixed_radix(dim, extents)) for dim in self.op.dims]
        read = self.frame.read(value, plain)
        return gathered(self.frame, substitute(read, self.places), self.extents)

    def reaching(self) -> list[Expr]:
        """The conditions that a scattered element goes to a place that exists. Where it gets the
        cotangent as it was read, the pad of that read says so already."""
        read_back = any(reads(place) for place in self.places.values())
        if read_back and self.op.reduce == "sum" and isinstance(self.body, Read):
            return []
        extents = self.op.extents
        return [c for name, place in self.places.items() for c in within(place, extents[name])]


def _places(op: Compute, kept: str) -> tuple[dict[str, Expr], list[Expr]]:
    """Where a scatter goes. A place that is the index of a scan, `kept`, stays a condition."""
    places, rest = scatter_places(op) if op.reduce else ({}, conjuncts(op.guard))
    at = places.pop(kept, None)
    return places, rest if at is None else [*rest, Call("eq", (at, Var(kept)))]


def look(op: Compute, frame: Frame, kept: str) -> View:
    places, rest = _places(op, kept)
    extents = {v: n for v, n in op.ranges if v not in places}

    def seen(expr: Expr) -> Expr:
        moved = substitute(expr, places)
        return gathered(frame, moved, extents) if places else moved

    return View(op, frame, extents, places, seen(op.body), tuple(map(seen, rest)))


def gathered(frame: Frame, expr: Expr, extents: dict[str, int]) -> Expr:
    """`expr` with every indirect read in a compute of its own; outside it is 0."""

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Read) or not indirect(node):
            return None
        used = [n.name for n in walk(node) if isinstance(n, Var) and n.name in extents]
        names = list(dict.fromkeys(used))
        dtype = frame.values[node.operand].type.dtype
        fetch = Read(node.operand, node.subscripts, node.pad or zero(dtype))
        value = frame.emit(fetch, [(n,) for n in names], extents)
        return frame.read(value, [Var(n) for n in names])

    return transform(expr, rule)


def contributions(
    op: Compute, cotangent: Value, wanted: Sequence[int], writer: Writer, kept: str = ""
) -> list[tuple[int, Value]]:
    """What the operands numbered `wanted` receive, by the reads of each."""
    if 0 in op.extents.values() or op.reduce in ("any", "all", "argmax", "argmin"):
        return []
    frame = Frame(writer, list(op.operands))
    view = look(op, frame, kept)
    reached = _reached(view, wanted)
    seed, chosen = seeded(view, cotangent)
    result = view.at(op.result) if not op.reduce else view.body
    context = Context([v.type.dtype for v in frame.values], [v.type.shape for v in frame.values],
                      frozenset([*wanted, *reached.values()]))
    found: dict[Read, list[Term]] = {}
    for term in terms(view.body, seed, result, context):
        found.setdefault(term.read, []).append(term)
    parts = [(read.operand, _contribution(view, read, group, chosen))
             for read, group in found.items()]
    return [given for number, part in parts if part is not None
            for given in _handed_on(view, number, part, reached)]


def _reached(view: View, wanted: Sequence[int]) -> dict[Value, int]:
    """The operands that are wanted, and what was fetched from the places of them, by number."""
    values = view.frame.values
    reached = {values[n]: n for n in wanted}
    for n in range(len(view.op.operands), len(values)):
        fetch = values[n].op
        assert isinstance(fetch, Compute)
        if not reached.keys().isdisjoint(fetch.operands):
            reached[values[n]] = n
    return reached


def _handed_on(
    view: View, number: int, part: Value, reached: Mapping[Value, int]
) -> list[tuple[int, Value]]:
    """What an operand receives: of what is given to an element that was fetched, at its place."""
    fetch = view.frame.values[number].op
    if number < len(view.op.operands) or not isinstance(fetch, Compute):
        return [(number, part)]
    numbers = [n for n, v in enumerate(fetch.operands) if v in reached]
    return [pair for n, given in contributions(fetch, part, numbers, view.frame.writer)
            for pair in _handed_on(view, reached[fetch.operands[n]], given, reached)]


def _contribution(
    view: View, read: Read, group: Sequence[Term], chosen: Sequence[Expr]
) -> Value | None:
    """The gradient by one read, or None if it is zero."""
    target = view.frame.values[read.operand]
    inverse = invert(read.subscripts, target.type.shape, view.extents)
    conditions = [*view.conditions, *chosen]
    if len(group) == 1:
        weight = group[0].weight
        conditions += group[0].conditions
    else:
        weight = _lazy_sum(group, zero(target.type.dtype))
    return gradient_sum(view.frame, weight, conditions, inverse, named(target))


def _lazy_sum(group: Sequence[Term], nothing: Expr) -> Expr:
    def chosen(term: Term) -> Expr:
        weight = term.weight
        for condition in reversed(term.conditions):  # one may guard the next
            weight = where(condition, weight, nothing)
        return weight

    return functools.reduce(add, map(chosen, group))


# --- reductions ------------------------------------------------------------------------------


def seeded(view: View, cotangent: Value) -> tuple[Expr, list[Expr]]:
    """What every element of the body receives, and the conditions under which it does."""
    reaching = view.reaching()
    match view.op.reduce:
        case "max" | "min":
            tie = Call("eq", (view.body, view.at(view.op.result)))
            return view.at(_shared_by_ties(view, cotangent, tie)), [*reaching, tie]
        case "prod":
            return mul(view.at(cotangent), _product_of_the_others(view)), reaching
    return view.at(cotangent), reaching


def _shared_by_ties(view: View, cotangent: Value, tie: Expr) -> Value:
    """The cotangent divided by the number of elements that are the extremum; 0 where none is."""
    op, frame = view.op, view.frame
    dtype = op.result.type.dtype
    one = Const(1.0, dtype)
    guard = conjunction([*_placed(view), *view.conditions, tie])
    count = frame.emit(one, op.dims, op.extents, reduce="sum", reduced=op.reduced, guard=guard,
                       name=f"{op.result.name}.ties")
    plain = [expression(mixed_radix(dim, op.extents)) for dim in op.dims]
    ties = frame.read(count, plain)
    share = Call("div", (frame.read(cotangent, plain), ties))
    body = where(Call("gt", (ties, zero(dtype))), share, zero(dtype))
    return frame.emit(body, op.dims, op.extents, name=named(op.result))


def _placed(view: View) -> list[Expr]:
    return [Call("eq", (place, Var(name))) for name, place in view.places.items()]


def _product_of_the_others(view: View) -> Expr:
    """For every element, the product of all that are reduced with it: right at zeros too."""
    op = view.op
    twin = {v: Var(f"{v}.other") for v in op.reduced}
    extents = {**view.extents, **{twin[v].name: view.extents[v] for v in op.reduced}}
    different = [Call("ne", (twin[v], Var(v))) for v in op.reduced]
    some = functools.reduce(lambda a, b: Call("or", (a, b)), different)
    together = [Call("eq", (substitute(e, twin), e)) for e in view.places.values()]
    conditions = [substitute(c, twin) for c in view.conditions]
    others = view.frame.emit(
        substitute(view.body, twin), [(v,) for v in view.extents], extents, reduce="prod",
        reduced=[v.name for v in twin.values()],
        guard=conjunction([*conditions, *together, some]), name=f"{op.result.name}.others")
    return view.frame.read(others, [Var(v) for v in view.extents])


def isolate_body(op: Compute, kept: str = "") -> None:
    """Give the body of an extremum or product a compute of its own, so that an element that is
    compared with the result is bit for bit the one that was reduced.

    A body that uses the place of its own scatter stays as it is.
    """
    places, rest = _places(op, kept)
    if isinstance(op.body, Read) or variables(op.body) & places.keys():
        return
    assert op.block is not None
    names = [v for v, _ in op.ranges if v not in places]
    dtype = op.result.type.dtype
    guards = [g for g in rest if not variables(g) & places.keys()]
    body = where(conjunction(guards), op.body, zero(dtype)) if guards else op.body
    frame = Frame(Writer(op, op.loc, op.stage, op.recompute), list(op.operands))
    value = frame.emit(body, [(v,) for v in names], op.extents, name=op.result.name)
    op.set_operands([*op.operands, value])
    op.body = Read(len(op.operands) - 1, tuple(Var(v) for v in names))
