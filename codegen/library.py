"""Contractions as calls of the library's matrix product."""

from __future__ import annotations

from anabranch.ir.contraction import Product, factors, matrix_product, multiplications
from anabranch.ir.launch import IntArg, KernelText, LaunchSpec, Pointer
from anabranch.ir.space import Clause
from anabranch.ir.types import itemsize

BATCH_DIMENSIONS = 4


def library_launch(c: Clause) -> LaunchSpec | None:
    """The launch of a contraction whose strides allow it; pointers are A, B, C.

    Integers: m n k, leading dimensions of A B C, transposes of A B, four batch extents, and the
    strides of A, B and C along them. Doubles: alpha, beta. The library cuts the work itself.
    """
    product, found = matrix_product(c), factors(c)
    if product is None or found is None:
        return None
    first, second = (read.operand for read in found[:2])
    if product.swapped:
        first, second = second, first
    size = itemsize(c.result.type.dtype)
    symbol = f"ab_gemm_{c.result.type.dtype}"
    text = KernelText("library", symbol, "", symbol)
    pointers = (Pointer("operand", first, product.offset_a * size),
                Pointer("operand", second, product.offset_b * size), Pointer("result", 0))
    nbytes = sum(v.type.nbytes for v in {*c.operands, c.result})
    return LaunchSpec(text, pointers, _integers(product), (product.scale, 0.0), -1,
                      flops=2 * multiplications(c), bytes=nbytes)


def _integers(p: Product) -> tuple[IntArg, ...]:
    padding = BATCH_DIMENSIONS - len(p.batch)
    extents, *steps = zip(*p.batch, *[(1, 0, 0, 0)] * padding, strict=True)
    sizes = (p.m, p.n, p.k, p.lda, p.ldb, p.ldc, int(p.transpose_a), int(p.transpose_b))
    return tuple(map(IntArg, (*sizes, *extents, *(s for step in steps for s in step))))


