"""The kernel of an `Order`: every row is sorted by itself, so that rows are the grid."""

from __future__ import annotations

import math

from anabranch.codegen.kernel import SORTING, Axis, Kernel, Ref, Sort, Tensor
from anabranch.codegen.names import Names, Numbers
from anabranch.codegen.scope import Piece
from anabranch.ir.expr import Expr, add, mul
from anabranch.ir.ops import Order
from anabranch.ir.types import itemsize


def order_piece(op: Order, *, scratch: bool) -> Piece:
    """Rows run along the axis; `outer` of them follow one another, `inner` of them interleave."""
    source, result = op.operands[0], op.result
    shape, at = source.type.shape, op.axis
    outer, length, inner = math.prod(shape[:at]), shape[at], math.prod(shape[at + 1 :])
    numbers = Numbers(Names())
    sizes = {"row": outer} | ({"column": inner} if inner != 1 else {})
    grid = tuple(Axis(name, numbers.extent(name, size)) for name, size in sizes.items())

    def first(count: int) -> Expr:
        """Where a row of so many elements begins."""
        begin = mul(Ref("row"), numbers.number(count * inner))
        return add(begin, Ref("column")) if inner != 1 else begin

    names = (f"{source.name or 'x'}_ptr", f"{result.name or 'places'}_ptr")
    tensors = [Tensor(numbers.names.fresh(name), v.type.dtype, role)
               for name, v, role in zip(names, (source, result), ("in", "out"), strict=True)]
    nbytes = (SORTING * max(1, length) + 63) // 64 * 64
    if scratch:
        elements = numbers.number(nbytes // itemsize("i64"))
        tensors.append(Tensor(numbers.names.fresh("sorting"), "i64", "local", elements))
    sort = Sort(
        tensors[0].name, first(length), numbers.number(inner), numbers.number(length),
        tensors[1].name, first(op.count), numbers.number(inner), numbers.number(op.count),
        op.descending, tensors[2].name if scratch else "")
    about = f"{result.name or '_'} = order along axis {at} of {source.name or '_'}"
    kernel = Kernel("order", tuple(tensors), tuple(numbers.args), grid, (sort,), (about,))
    work = max(1, length) * (1 + length.bit_length())
    return Piece(kernel, (source, result), tuple(numbers.args.values()), sizes, work,
                 nbytes if scratch else 0)
