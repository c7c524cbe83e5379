"""Statements of a function as functions of their own, in which a gradient can be tried.

A statement may read values that are made of one another, as the two sums in
`stop(sum[k](e) ** 2, grad=2 * stop(sum[k](e)) * sum[k](e))`, which are computed first. What it says
of its derivative then need not hold for any values of theirs, but for those that they can have
together. So it is a function of what it reads, and also of values that are independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anabranch.ir.core import Argument, Block, Function, Op, Value, upstream
from anabranch.ir.expr import Call, Expr, variables, walk
from anabranch.ir.ops import Compute, Gradient, Return
from anabranch.ir.scalar import dtype_of
from anabranch.ir.types import is_float


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A function that gives what an op gives, and the values that its arguments stand for."""

    function: Function
    sources: tuple[Value, ...]


def excerpt(op: Op, before: Sequence[Op] = ()) -> Excerpt:
    """An op after some others, as a function of what these and it read and none of them makes."""
    made = {v for each in before for v in each.results}
    sources = tuple(dict.fromkeys(
        v for each in (*before, op) for v in each.operands if v not in made))
    block = Block([(f"{v.name or 'value'}{n}" if _is_taken(sources, n) else v.name, v.type)
                   for n, v in enumerate(sources)])
    copies = dict(zip(sources, block.args, strict=True))
    for each in (*before, op):
        copy = block.append(each.clone([copies[v] for v in each.operands]))
        copies.update(zip(each.results, copy.results, strict=True))
    block.append(Return([copies[v] for v in op.results]))
    return Excerpt(Function("excerpt", block, [Argument(v, "input") for v in block.args]), sources)


def _is_taken(sources: Sequence[Value], place: int) -> bool:
    """Whether a value has no name, or the name of one before it."""
    name = sources[place].name
    return not name or name in {v.name for v in sources[:place]}


def related(op: Op) -> list[Op]:
    """The ops before this one that make what it reads of independent values: none is made of
    another, nor two of the same, nor any of what has no gradient."""
    reads, found = {*op.operands}, set[Op]()
    while makers := [v.op for v in reads if v.op is not None and not isinstance(v.op, Gradient)
                     and (_is_fixed(v) or any(_are_related(v, other) for other in reads))]:
        last = max(makers, key=_place)
        found.add(last)
        reads = {v for v in reads if v.op is not last} | {*last.operands}
    return sorted(found, key=_place)


def _are_related(a: Value, b: Value) -> bool:
    return a is not b and not ({a} | upstream(a)).isdisjoint({b} | upstream(b))


def _is_fixed(value: Value) -> bool:
    """Whether it is made of integers and random draws alone."""
    return not any(v.op is None and is_float(v.type.dtype) for v in upstream(value))


def _place(op: Op) -> int:
    assert op.block is not None
    return [*op.block].index(op)


# ---- what statements say of gradients


def states_gradient(op: Op) -> bool:
    """Whether a statement has a `stop(e, grad=g)`."""
    return isinstance(op, Compute) and any(
        isinstance(e, Call) and e.fn == "stop_grad" for e in walk(op.body))


def claims(op: Compute) -> Iterator[Compute]:
    """A statement for each `stop(e, grad=g)` in this one, of that alone."""
    for node in walk(op.body):
        if isinstance(node, Call) and node.fn == "stop_grad":
            extents, used = op.extents, used_by(op, node)
            dtype = dtype_of(node, tuple(v.type.dtype for v in op.operands))
            yield Compute(op.operands, dtype, [(name, extents[name]) for name in used],
                          [(name,) for name in used], node, loc=op.loc)


def used_by(op: Compute, inside: Expr) -> list[str]:
    """The index variables of a statement that a part of it uses."""
    found = variables(inside)
    return [name for name, _ in op.ranges if name in found]
