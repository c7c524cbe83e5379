"""What a compute or a box costs: operations, bytes and seconds, from index structure alone.

A compute does, for each point of its index space, the operations of its expression and one more
for a reduction; a scatter (a guarded reduction whose guard fixes result variables) visits only the
points it reads. Bytes are the footprints of its reads plus its result. Seconds are
`max(operations / rate, bytes / bandwidth) + launch`.

The same arithmetic runs on numbers, for the planner, and on sympy symbols, for people and for
tests (`symbolic`): sympy is imported only there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.ir.expr import Call, Cast, Expr, Read, reads, variables
from anabranch.ir.index import affine, conjuncts, scatter_places
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Box, Compute
from anabranch.ir.sbp import Layout, balanced, local_box
from anabranch.ir.scalar import flops
from anabranch.ir.types import TensorType, itemsize
from anabranch.lowering.machine import Link, Machine
from anabranch.lowering.signatures import Structure, legal_structure, structure


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes moved; numbers, or sympy expressions in the extents."""

    flops: Any
    bytes: Any


def work(op: Compute) -> Work:
    """The whole compute on one rank."""
    return _work(op, op.extents)


def symbolic(op: Compute) -> Work:
    """Work as sympy expressions; the symbols are the index variables' extents by name."""
    import sympy

    extents = {name: sympy.Symbol(name, positive=True, integer=True) for name, _ in op.ranges}
    return _work(op, extents)


def _work(op: Compute, extents: Mapping[str, Any]) -> Work:
    points = _product(extents[name] for name in _visited(op))
    each = flops(op.body) + sum(flops(term) for term in _tests(op)) + bool(op.reduce)
    moved = _product(extents[v] for v in op.result_vars) * itemsize(op.result.type.dtype)
    for read in _distinct_reads(op):
        moved += _footprint(op, read, extents) * itemsize(op.operands[read.operand].type.dtype)
    return Work(points * each, moved)


def _visited(op: Compute) -> list[str]:
    """The variables of the loop nest: a scatter does not run over the places it writes."""
    fixed, _ = scatter_places(op) if op.reduce else ({}, [])
    return [name for name, _ in op.ranges if name not in fixed]


def _tests(op: Compute) -> list[Expr]:
    _, rest = scatter_places(op) if op.reduce else ({}, conjuncts(op.guard))
    return rest


def _distinct_reads(op: Compute) -> list[Read]:
    expressions = (op.body,) if op.guard is None else (op.body, op.guard)
    return list(dict.fromkeys(read for e in expressions for read in reads(e)))


def _footprint(op: Compute, read: Read, extents: Mapping[str, Any]) -> Any:
    """Elements that a read touches: along an affine subscript what its variables span, along
    another one as many as there are combinations of its variables."""
    touched: Any = 1
    for subscript in read.subscripts:
        form = affine(subscript, 0)
        if form is None:
            touched *= _product(extents[v] for v in sorted(variables(subscript)))
        else:
            touched *= 1 + sum(abs(c) * (extents[v] - 1) for v, c in form.terms)
    whole = op.operands[read.operand].type.elements
    numbers = isinstance(touched, int)
    return min(touched, whole) if numbers else touched


def _product(factors: Any) -> Any:
    return math.prod(factors)


def is_contraction(op: Compute) -> bool:
    """Whether the compute is a sum of products of two tensors, which libraries do at full rate:
    each factor is read through its own variables and something is reduced that both have."""
    if op.reduce != "sum" or op.guard is not None:
        return False
    body = op.body.arg if isinstance(op.body, Cast) else op.body
    match body:
        case Call("mul", (Read(_, a, None), Read(_, b, None))):
            left = {v for s in a for v in variables(s)}
            right = {v for s in b for v in variables(s)}
            return bool(left & right & set(op.reduced)) and left != right
    return False


# ---- on a mesh ----------------------------------------------------------------------------------


def seconds(op: Compute, operands: Sequence[Layout], result: Layout, mesh: Mesh,
            machine: Machine) -> float:
    """Predicted seconds of one firing on the busiest rank; `machine` has the rates of one rank."""
    return _seconds(structure(op), op_key(op), tuple(operands), result, mesh, machine)


@dataclass(frozen=True, slots=True, eq=False)
class _Key:
    """A compute to count, compared by its structure."""

    structure: Structure
    op: Compute

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.structure is other.structure

    def __hash__(self) -> int:
        return hash(self.structure)


def op_key(op: Compute) -> _Key:
    return _Key(structure(op), op)


@functools.cache
def _seconds(of: Structure, key: _Key, operands: tuple[Layout, ...], result: Layout, mesh: Mesh,
             machine: Machine) -> float:
    extents = local_extents(of, operands, result, mesh)
    done = _work(key.op, extents)
    return machine.work_seconds(done.flops, done.bytes, contraction=is_contraction(key.op))


def local_extents(
    of: Structure, operands: tuple[Layout, ...], result: Layout, mesh: Mesh
) -> dict[str, int]:
    """The extents that rank 0, which never has less than another, loops over."""
    chosen = legal_structure(of, operands, result, mesh)
    assert chosen is not None, "only legal layouts are priced"
    extents = of.extents
    for signature, (_, parts) in zip(chosen, mesh.axes, strict=True):
        if signature.split:
            extents[signature.split], _ = balanced(extents[signature.split], parts, 0)
    return extents


def box_seconds(type: TensorType, source: Layout, target: Layout, mesh: Mesh,
                machine: Machine, step: str, axis: str) -> float:
    """Seconds of one primitive step along an axis (`type` without regard to its layout)."""
    shape_in, _ = local_box(type.shape, source, mesh, (0,) * len(mesh.axes))
    shape_out, _ = local_box(type.shape, target, mesh, (0,) * len(mesh.axes))
    size = itemsize(type.dtype)
    give, take = math.prod(shape_in) * size, math.prod(shape_out) * size
    local = machine.work_seconds(0, give + take, contraction=False)
    if step in ("slice", "fill", "accumulate"):
        return local
    return local + collective_seconds(step, give, take, mesh.size(axis), machine.link(mesh, axis))


def collective_seconds(step: str, give: int, take: int, members: int, link: Link) -> float:
    """Ring forms: latency a hop, and the bytes that pass one rank. `give` and `take` are the
    bytes of the local input and output."""
    hops = members - 1
    share = hops / members
    if step == "all_reduce":
        return 2 * (hops * link.latency + share * give / link.bandwidth)
    if step == "all_gather":
        return hops * link.latency + share * take / link.bandwidth
    if step == "move":
        return link.latency + give / link.bandwidth
    return hops * link.latency + share * give / link.bandwidth  # reduce_scatter, all_to_all


def op_seconds(op: Compute | Box, mesh: Mesh, machine: Machine) -> float:
    """Predicted seconds of an op of phase `boxed`, by the layouts of its values."""
    if isinstance(op, Box):
        return box_seconds(op.result.type, op.source, op.target, mesh, machine, op.step, op.axis)
    layouts = [v.type.layout or Layout() for v in op.operands]
    return seconds(op, layouts, op.result.type.layout or Layout(), mesh, machine)
