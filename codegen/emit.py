"""The launches of an op: a library call where it is a matrix product, else kernels of our own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from anabranch.codegen.blocks import blocks, tile_count
from anabranch.codegen.c import kernel_text
from anabranch.codegen.kernel import Ref, serialised
from anabranch.codegen.library import library_launch
from anabranch.codegen.scope import Piece
from anabranch.codegen.target import Printed, Target
from anabranch.codegen.tile import Options, Tiled, clauses_of, inputs_of, tile
from anabranch.codegen.triton import print_piece, wishes
from anabranch.codegen.verify import verify
from anabranch.ir.core import Op, Value
from anabranch.ir.expr import Const, literals
from anabranch.ir.launch import IntArg, LaunchSpec, Pointer
from anabranch.ir.ops import Order, Scan
from anabranch.ir.scalar import flops
from anabranch.ir.space import Clause


def print_c(piece: Piece) -> Printed:
    """A piece in C, in tiles for the threads of a processor."""
    sizes = blocks(piece)
    text = replace(kernel_text(piece.kernel), body=serialised(piece.kernel))
    return Printed(text, sizes, tile_count(piece, sizes), piece.local_bytes)


TARGETS = {
    "c": Target(print_c, lambda clauses: Options(), library=True),
    "triton": Target(print_piece, wishes, library=False),
}
"""What kernels can be printed for."""

_emitted: dict[object, tuple[LaunchSpec, ...]] = {}  # by everything that a kernel is made of


@dataclass(frozen=True, slots=True)
class Launches:
    """The launches of the ops of one program: ops of equal structure share one answer, whatever
    their names, so that layers share kernels. What else this process has compiled has no part in
    it: processes that are given one program make one plan of it."""

    target: str = "c"
    known: dict[object, tuple[LaunchSpec, ...]] = field(default_factory=dict)

    def __call__(self, op: Op) -> tuple[LaunchSpec, ...]:
        key, _ = _stated(op)
        if key not in self.known:
            self.known[key] = launches(op, self.target)
        return self.known[key]


def launches(op: Op, target: str = "c") -> tuple[LaunchSpec, ...]:
    """The kernel calls that run an op, in order."""
    key = target, *_stated(op)
    if key not in _emitted:
        _emitted[key] = emit(op, TARGETS[target])
    return _emitted[key]


def _stated(op: Op) -> tuple[object, tuple[str, ...]]:
    """What an op says, and the names in it."""
    clauses, outputs = clauses_of(op)
    inputs = inputs_of(op)
    if isinstance(op, Scan):
        inputs, outputs = op.region.args, op.news
    values = (*inputs, *(c.result for c in clauses), *outputs)
    return (stated(op), structure(clauses, inputs, outputs)), tuple(v.name for v in values)


def stated(op: Op) -> tuple[object, ...]:
    """What of an op its clauses do not say."""
    match op:
        case Order():
            return op.axis, op.count, op.descending
        case Scan():
            return op.variable, op.reverse
    return ()


def structure(
    clauses: Sequence[Clause], inputs: Sequence[Value], outputs: Sequence[Value]
) -> object:
    """Equal for ops that differ in names only. Literals count as text too: Python takes -0.0 for
    0.0."""
    number = {v: i for i, v in enumerate(inputs)}
    for value in (*(c.result for c in clauses), *outputs):
        number.setdefault(value, len(number) + len(inputs))
    lines = tuple(
        (tuple(number[v] for v in c.operands), c.result.type.dtype, c.ranges, c.dims, c.body,
         c.reduce, c.reduced, c.guard, literals(c.body, c.guard))
        for c in clauses)
    return tuple(v.type.text for v in inputs), lines, tuple(number[v] for v in outputs)


def emit(op: Op, target: Target) -> tuple[LaunchSpec, ...]:
    """The kernel calls of an op, made anew."""
    clauses, outputs = clauses_of(op)
    if len(clauses) == 1 and target.library and not isinstance(op, Scan):
        call = library_launch(clauses[0])
        if call is not None:
            return (call,)
    tiled = tile(op, target.options(clauses))
    places, total = _scratch_places(tiled)
    pointers = {v: Pointer("operand", i) for i, v in reversed(list(enumerate(inputs_of(op))))}
    pointers |= {v: Pointer("result", i) for i, v in enumerate(outputs)} | places
    work = sum(flops(c.body) * math.prod(n for _, n in c.ranges) for c in clauses)
    if isinstance(op, Order):
        work = sum(piece.work * math.prod(piece.extents.values()) for piece in tiled.pieces)
    nbytes = sum(v.type.nbytes for v in {*inputs_of(op), *outputs})
    specs = []
    for k, piece in enumerate(tiled.pieces):
        verify(piece.kernel, piece.numbers(), elements_of(piece))
        printed = target.print(piece)
        status = (Pointer("status", 0),) if printed.status else ()
        first = k == 0
        specs.append(LaunchSpec(
            printed.text, (*(pointers[v] for v in piece.pointers), *status),
            (*piece.ints, *map(IntArg, printed.sizes)), (), printed.tiles,
            scratch=total, flops=work if first else 0, bytes=nbytes if first else 0,
            tile_scratch=printed.tile_scratch))
    return tuple(specs)


def elements_of(piece: Piece) -> dict[str, int]:
    """The number of elements of each tensor of a kernel."""
    numbers = piece.numbers()
    given = zip(piece.kernel.pointers, piece.pointers, strict=True)
    found = {tensor.name: value.type.elements for tensor, value in given}
    for tensor in piece.kernel.tensors:
        if isinstance(tensor.elements, Ref):
            found[tensor.name] = numbers[tensor.elements.name]
        elif isinstance(tensor.elements, Const):
            found[tensor.name] = int(tensor.elements.value)
    return found


def _scratch_places(tiled: Tiled) -> tuple[dict[Value, Pointer], int]:
    places, offset = {}, 0
    for value in tiled.scratch:
        places[value] = Pointer("scratch", offset)
        offset += (value.type.nbytes + 63) // 64 * 64
    return places, offset
