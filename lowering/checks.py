"""Which tensors hold the indices that a kernel checks, for who is told of one that is wrong.

A name is one that the program has: of the tensor with the indices, as far back as it takes until
something has a name, and of the table, if that is an argument or a state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from anabranch.ir.core import Op, Value
from anabranch.ir.diagnostics import Loc
from anabranch.ir.expr import Call, Const, Read, walk
from anabranch.ir.ops import Compute, Fused, Return, Scan, Transfer
from anabranch.ir.recurrence import statements
from anabranch.ir.types import category

Outer = Mapping[Value, Value]
"""What the arguments of a region stand for."""


@dataclass(frozen=True, slots=True)
class Checked:
    """An index that has to be in [0, size): the tensor that holds it, the table and its axis."""

    size: int
    index: str
    table: str
    axis: int
    loc: Loc


def checks_of(op: Op) -> list[Checked]:
    """The indices that the kernels of an op check, each once."""
    match op:
        case Compute():
            found = _of_statement(op, {})
        case Fused():
            outer = dict(zip(op.region.args, op.operands, strict=True))
            found = (check for each in op.region if isinstance(each, Compute)
                     for check in _of_statement(each, outer))
        case Scan():
            outer = dict(zip(op.inputs, op.operands, strict=True))
            found = (check for each in statements(op) for check in _of_statement(each, outer))
        case _:
            return []
    return list(dict.fromkeys(found))


def _of_statement(op: Compute, outer: Outer) -> Iterator[Checked]:
    roots = [root for root in (op.body, op.guard) if root is not None]
    checks = [node for root in roots for node in walk(root)
              if isinstance(node, Call) and node.fn == "check"]
    if not checks:
        return
    reads = {inner: (op.operands[node.operand], axis)
             for root in roots for node in walk(root) if isinstance(node, Read)
             for axis, subscript in enumerate(node.subscripts) for inner in walk(subscript)}
    for check in checks:
        place, size = check.args
        assert isinstance(size, Const), "the parts of a rank have known sizes"
        table, axis = reads.get(check, (None, 0))
        held = (_named(op.operands[each.operand], outer)
                for each in walk(place) if isinstance(each, Read))
        yield Checked(int(size.value), next(filter(None, held), ""),
                      "" if table is None else _argument(table, outer), axis, op.loc)


def _named(value: Value, outer: Outer) -> str:
    """The name of a tensor of indices, or of what it is made from."""
    value = outer.get(value, value)
    if value.name or value.op is None:
        return value.name
    op = value.op
    if isinstance(op, Fused):
        last = op.region.last
        assert isinstance(last, Return)
        inner = dict(zip(op.region.args, op.operands, strict=True))
        return _named(last.values[op.results.index(value)], inner)
    names = (_named(each, outer) for each in op.operands if category(each.type.dtype) == "int")
    return next(filter(None, names), "")


def _argument(value: Value, outer: Outer) -> str:
    """The name of an argument or state, or of its parts that were brought together."""
    value = outer.get(value, value)
    while isinstance(value.op, Transfer) and value.op.operands:
        value = value.op.operands[0]
    return value.name if value.op is None else ""
