"""One step of boxing on one rank: ordinary computes and, where data moves, one `Transfer`.

A transfer takes and gives flat buffers, and a dense row-major tensor is one: parts along the first
dimension need no packing. Along another one the elements are packed by the member they go to, and
unpacked by the member they came from (`packing.py`). All members take part, also those that give or
get nothing.

Maxima and minima of floats must keep nan, which libraries lose: the terms are exchanged whole, and
a compute reduces them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.ir.core import Block, Value
from anabranch.ir.expr import Call, Cast, Const, Expr, Origin, Read, add, integer, sub, where
from anabranch.ir.mesh import MICRO, Mesh
from anabranch.ir.ops import Box, Compute, Transfer, identity
from anabranch.ir.sbp import Layout, balanced
from anabranch.ir.types import TensorType, is_float, tensor
from anabranch.lowering.local_compute import Place, cut_of, local_type, origin
from anabranch.lowering.packing import Form, elementwise, pack, plain, stacked, unpack


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a step is being lowered: the mesh of the stage and the position on it, the ranks of the
    group along the step's axis, and the number of their joint transition."""

    mesh: Mesh
    place: Place
    members: tuple[int, ...]
    match: int


def lower_step(box: Box, value: Value, spot: Spot, block: Block) -> Value:
    """Append what a step within a stage is on one rank; the local value after it."""
    return _Lowering(box, spot, block).step(value)


@dataclass(frozen=True, slots=True)
class _Lowering:
    box: Box
    spot: Spot
    block: Block

    @property
    def axis(self) -> int:
        return self.spot.mesh.names.index(self.box.axis)

    @property
    def parts(self) -> int:
        return self.spot.mesh.sizes[self.axis]

    @property
    def index(self) -> int:
        return self.spot.place[self.axis]

    @property
    def target(self) -> TensorType:
        """What this rank holds after the step."""
        return local_type(self.box.result.type, self.spot.mesh, self.spot.place)

    def step(self, value: Value) -> Value:
        source, target = self.box.source[self.box.axis], self.box.target[self.box.axis]
        if self.parts == 1:
            return self.cast(value)
        match self.box.step:
            case "slice":
                return self.slice(value, target.dim)
            case "fill" if source.kind == "S":
                return self.fill_own(value, source.dim, target.op)
            case "fill":
                return self.fill_first(value, target.op)
            case "all_gather":
                return self.all_gather(value, source.dim)
            case "all_to_all":
                return self.all_to_all(value, source.dim, target.dim)
            case "all_reduce":
                return self.cast(self.all_reduce(value, source.op))
        return self.cast(self.reduce_scatter(value, target.dim, source.op))

    # Without communication

    def slice(self, value: Value, dim: int) -> Value:
        """This rank's part of what it holds."""
        places = list(plain(value.type.rank))
        places[dim] = add(places[dim], self.start(dim, self.box.target, self.box.source))
        body = Read(0, tuple(places))
        return self.compute(value, value.type.dtype, elementwise(self.target.shape, body))

    def fill_first(self, value: Value, op: str) -> Value:
        """The value on the first rank, or in the first micro-batch, and the identity elsewhere."""
        here = Origin(0, 1) if self.box.axis == MICRO else Origin(self.index)
        kept = self.converted(Read(0, plain(value.type.rank)), value)
        body = where(Call("eq", (here, integer(0))), kept, _nothing(op, self.target.dtype))
        return self.compute(value, self.target.dtype, elementwise(self.target.shape, body))

    def fill_own(self, value: Value, dim: int, op: str) -> Value:
        """This rank's part, and the identity in place of the others'."""
        places = list(plain(value.type.rank))
        places[dim] = sub(places[dim], self.start(dim, self.box.source, self.box.target))
        read = Read(0, tuple(places), _nothing(op, value.type.dtype))
        body = self.converted(read, value)
        return self.compute(value, self.target.dtype, elementwise(self.target.shape, body))

    def start(self, dim: int, inner: Layout, outer: Layout) -> Origin:
        """Where this rank's shard in one layout starts within its shard in another."""
        mesh, length = self.spot.mesh, self.box.result.type.shape[dim]
        a, b = (origin(length, cut_of(layout, dim, mesh), mesh, self.spot.place)
                for layout in (inner, outer))
        return Origin(a.base - b.base, a.step - b.step)

    def converted(self, body: Expr, value: Value) -> Expr:
        dtype = self.target.dtype
        return body if value.type.dtype == dtype else Cast(dtype, body)

    def cast(self, value: Value) -> Value:
        """In the dtype of the target: terms of short floats are held in f32 until reduced."""
        if value.type.dtype == self.target.dtype:
            return value
        body = self.converted(Read(0, plain(value.type.rank)), value)
        return self.compute(value, self.target.dtype, elementwise(value.type.shape, body))

    # With communication

    def all_gather(self, value: Value, dim: int) -> Value:
        return self.exchange("all_gather", value, self.target, dim, self.counts(self.target, dim))

    def all_to_all(self, value: Value, dim: int, new: int) -> Value:
        """Parts of dimension `new` go to the members, parts of `dim` come from them."""
        given, taken = self.counts(value.type, new), self.counts(self.target, dim)
        return self.exchange("all_to_all", self.packed(value, new), self.target, dim, given, taken)

    def all_reduce(self, value: Value, op: str) -> Value:
        count = value.type.elements
        if self.box.axis == MICRO:
            return self.transfer("accumulate", value, value.type, [count], op=op)
        if not _keeps_nan(value, op):
            return self.transfer("all_reduce", value, value.type, [count], op=op)
        flat = tensor(value.type.dtype, (self.parts * count,))
        terms = self.transfer("all_gather", value, flat, [count] * self.parts)
        return self.reduced(terms, value.type.shape, op)

    def reduce_scatter(self, value: Value, dim: int, op: str) -> Value:
        counts, packed = self.counts(value.type, dim), self.packed(value, dim)
        mine = tensor(value.type.dtype, self.target.shape)
        if not _keeps_nan(value, op):
            return self.transfer("reduce_scatter", packed, mine, counts, op=op)
        flat = tensor(mine.dtype, (self.parts * mine.elements,))
        own = [mine.elements] * self.parts
        return self.reduced(
            self.transfer("all_to_all", packed, flat, counts, own), mine.shape, op)

    def counts(self, type: TensorType, dim: int) -> list[int]:
        """The elements of each member's part of a dimension."""
        rest = math.prod((*type.shape[:dim], *type.shape[dim + 1 :]))
        return [rest * balanced(type.shape[dim], self.parts, i)[0] for i in range(self.parts)]

    def packed(self, value: Value, dim: int) -> Value:
        shape = value.type.shape
        if math.prod(shape[:dim]) == 1:
            return value
        return self.compute(value, value.type.dtype, pack(shape, dim, self.parts))

    def exchange(self, step: str, value: Value, target: TensorType, dim: int,
                 counts: Sequence[int], back: Sequence[int] = ()) -> Value:
        """A transfer that gives parts of `dim` in member order, and these in their places."""
        if math.prod(target.shape[:dim]) == 1:
            return self.transfer(step, value, target, counts, back)
        flat = tensor(target.dtype, (target.elements,))
        moved = self.transfer(step, value, flat, counts, back)
        return self.compute(moved, target.dtype, unpack(target.shape, dim, self.parts))

    def reduced(self, terms: Value, shape: tuple[int, ...], op: str) -> Value:
        """The reduction of the members' terms, which lie one after another."""
        return self.compute(terms, terms.type.dtype, stacked(shape, self.parts), op)

    # Emission

    def compute(self, operand: Value, dtype: str, form: Form, reduce: str = "") -> Value:
        box = self.box
        return self.block.append(Compute(
            [operand], dtype, form.ranges, form.dims, form.body, reduce=reduce,
            reduced=["m"] if reduce else [], name=box.result.name, loc=box.loc, stage=box.stage,
            recompute=box.recompute)).result

    def transfer(self, step: str, value: Value, type: TensorType, counts: Sequence[int],
                 back: Sequence[int] = (), *, op: str = "") -> Value:
        box = self.box
        return self.block.append(Transfer(
            [value], [type], step, self.spot.match, self.spot.members, reduce=op, counts=counts,
            counts_back=back, name=box.result.name, loc=box.loc, stage=box.stage,
            recompute=box.recompute)).result


def _keeps_nan(value: Value, op: str) -> bool:
    return op in ("max", "min") and is_float(value.type.dtype)


def _nothing(op: str, dtype: str) -> Const:
    """The identity of a reduction as a literal."""
    number = identity(op, dtype)
    return Const(float(number) if is_float(dtype) else number, dtype)
