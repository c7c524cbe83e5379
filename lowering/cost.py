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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.ir.expr import Call, Cast, Expr, Read, reads, variables
from anabranch.ir.index import affine, conjuncts, scatter_places
from anabranch.ir.mesh import MICRO, STAGE, Mesh
from anabranch.ir.ops import Compute, Order, Scan
from anabranch.ir.recurrence import statements
from anabranch.ir.sbp import Layout, balanced, local_box
from anabranch.ir.scalar import flops
from anabranch.ir.types import TensorType, itemsize
from anabranch.lowering.boxing import LOCAL, Seconds
from anabranch.lowering.machine import Link, Machine
from anabranch.lowering.scan_signatures import Laid
from anabranch.lowering.signatures import Structure, legal_structure, structure

TURN = 5e-8  # seconds from a statement of a scan to the next one, at one place


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes moved; numbers, or sympy expressions in the extents."""

    flops: Any
    bytes: Any


def work(op: Compute | Order) -> Work:
    """The whole compute on one rank."""
    return _work(op, op.extents)


def symbolic(op: Compute | Order) -> Work:
    """Work as sympy expressions; the symbols are the index variables' extents by name."""
    import sympy

    extents = {name: sympy.Symbol(name, positive=True, integer=True) for name, _ in op.ranges}
    return _work(op, extents)


def _work(op: Compute | Order, extents: Mapping[str, Any]) -> Work:
    if isinstance(op, Order):
        return _ordering(op, extents)
    points = _product(extents[name] for name in _visited(op))
    each = flops(op.body) + sum(flops(term) for term in _tests(op)) + bool(op.reduce)
    moved = _product(extents[v] for v in op.result_vars) * itemsize(op.result.type.dtype)
    for read in _distinct_reads(op):
        moved += _footprint(op, read, extents) * itemsize(op.operands[read.operand].type.dtype)
    return Work(points * each, moved)


def _ordering(op: Order, extents: Mapping[str, Any]) -> Work:
    """As stated: n log2(n) comparisons a row; what is read and the places that are written."""
    rows = _product(extents[v] for dim in op.dims for v in dim)
    length = extents[op.reduced[0]]
    levels = length.bit_length() if isinstance(length, int) else _logarithm(length)
    moved = length * itemsize(op.operands[0].type.dtype) + op.count * itemsize("i64")
    return Work(rows * length * levels, rows * moved)


def _logarithm(length: Any) -> Any:
    import sympy

    return sympy.log(length, 2)


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
    forms = [affine(subscript, 0) for subscript in read.subscripts]
    loose = {v for subscript, form in zip(read.subscripts, forms, strict=True) if form is None
             for v in variables(subscript)}
    touched: Any = _product(extents[v] for v in sorted(loose))
    for form in forms:
        if form is not None:
            touched *= 1 + sum(abs(c) * (extents[v] - 1) for v, c in form.terms if v not in loose)
    whole = op.operands[read.operand].type.elements
    numbers = isinstance(touched, int)
    return min(touched, whole) if numbers else touched


def _product(factors: Any) -> Any:
    return math.prod(factors)


def is_contraction(op: Compute | Order) -> bool:
    """Whether the compute is a sum of products of two tensors, which libraries do at full rate:
    each factor is read through its own variables and something is reduced that both have."""
    if isinstance(op, Order) or op.reduce != "sum" or op.guard is not None:
        return False
    body = op.body.arg if isinstance(op.body, Cast) else op.body
    match body:
        case Call("mul", (Read(_, a, None), Read(_, b, None))):
            left = {v for s in a for v in variables(s)}
            right = {v for s in b for v in variables(s)}
            return bool(left & right & set(op.reduced)) and left != right
    return False


# ---- on a mesh ----------------------------------------------------------------------------------


def fires(layouts: Iterable[Layout], mesh: Mesh) -> int:
    """How often a step runs that has values of these layouts before and after it: once a step of
    training, or once a micro-batch where one of them comes in parts."""
    return mesh.micro if any(layout[MICRO].kind != "B" for layout in layouts) else 1


def seconds(op: Compute | Order, operands: Sequence[Layout], result: Layout, mesh: Mesh,
            machine: Machine) -> float:
    """Predicted seconds of one firing on the busiest rank; `machine` has the rates of one rank."""
    chosen = legal_structure(structure(op), tuple(operands), result, mesh)
    assert chosen is not None, "only legal layouts are priced"
    return part_seconds(op, tuple(signature.split for signature in chosen), mesh, machine)


def part_seconds(
    op: Compute | Order, splits: tuple[str, ...], mesh: Mesh, machine: Machine
) -> float:
    """Seconds of one firing where the axes of the mesh split these variables (empty: none)."""
    return _part_seconds(_Counted(structure(op), op), splits, mesh, machine)


def scan_seconds(scan: Scan, laid: Laid, mesh: Mesh, machine: Machine) -> float:
    """Seconds of one firing of a scan on the busiest rank: the work of its statements, all in one
    launch, and the wait of each place for the one before it."""
    parts = [part_work(op, splits, mesh)
             for op, splits in zip(statements(scan), laid.splits, strict=True)]
    flops, moved = sum(part.flops for part in parts), sum(part.bytes for part in parts)
    once = machine.work_seconds(flops, moved, contraction=False)
    return once + scan.extent * len(parts) * TURN


@dataclass(frozen=True, slots=True, eq=False)
class _Counted:
    """An op to count, compared by its structure."""

    structure: Structure
    op: Compute | Order

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Counted) and self.structure is other.structure

    def __hash__(self) -> int:
        return hash(self.structure)


@functools.cache
def _part_seconds(
    counted: _Counted, splits: tuple[str, ...], mesh: Mesh, machine: Machine
) -> float:
    done = part_work(counted.op, splits, mesh)
    return machine.work_seconds(done.flops, done.bytes, contraction=is_contraction(counted.op))


def part_work(op: Compute | Order, splits: tuple[str, ...], mesh: Mesh) -> Work:
    """What the busiest rank does in one firing where the axes split these variables."""
    return _work(op, part_extents(op.extents, splits, mesh))


def part_extents(extents: Mapping[str, int], splits: Sequence[str], mesh: Mesh) -> dict[str, int]:
    """What rank 0, which never has less than another, loops over."""
    part = dict(extents)
    for name, parts in zip(splits, mesh.sizes, strict=True):
        if name:
            part[name], _ = balanced(part[name], parts, 0)
    return part


def box_seconds(type: TensorType, source: Layout, target: Layout, mesh: Mesh,
                machine: Machine, step: str, axis: str) -> float:
    """Seconds of one firing of a primitive step along an axis, or of a move between stages. `mesh`
    has all axes, the layouts have those within a stage."""
    give, take = (_local_bytes(type, layout, mesh.inner) for layout in (source, target))
    local = machine.work_seconds(0, give + take, contraction=False)
    if axis == MICRO or step in LOCAL:
        return local
    between = axis or STAGE
    link = machine.link(mesh, between)
    return local + collective_seconds(step, give, take, mesh.size(between), link)


def _local_bytes(type: TensorType, layout: Layout, mesh: Mesh) -> int:
    shape, _ = local_box(type.shape, layout, mesh, (0,) * len(mesh.axes))
    return math.prod(shape) * itemsize(type.dtype)


def collective_seconds(step: str, give: int, take: int, members: int, link: Link) -> float:
    """Seconds of a transfer whose local input and output are `give` and `take` bytes."""
    messages, nbytes = traffic(step, give, take, members)
    return messages * link.latency + nbytes / link.bandwidth


def traffic(step: str, give: int, take: int, members: int) -> tuple[int, float]:
    """What passes one rank, by ring forms: messages one after another, and bytes."""
    if step == "move":
        return 1, give
    hops = members - 1
    share = hops / members
    if step == "all_reduce":
        return 2 * hops, 2 * share * give
    return hops, share * (take if step == "all_gather" else give)


def box_bytes(type: TensorType, source: Layout, target: Layout, mesh: Mesh,
              step: str, axis: str) -> float:
    """Bytes that pass the busiest rank in one firing of a primitive step."""
    between = axis or STAGE
    if step in LOCAL or between == MICRO:
        return 0.0
    give, take = (_local_bytes(type, layout, mesh.inner) for layout in (source, target))
    return traffic(step, give, take, mesh.size(between))[1]


@functools.cache
def step_prices(mesh: Mesh, machine: Machine) -> Seconds:
    """What the router pays for a step: its seconds in all firings of a step of training."""

    def price(type: TensorType, source: Layout, target: Layout, step: str, axis: str) -> float:
        once = box_seconds(type, source, target, mesh, machine, step, axis)
        return once * fires((source, target), mesh)

    return price
