"""Sums of products of two reads, and when they are a (batched, strided) matrix product.

`is_contraction` looks at structure only: each factor has axes of its own and shares the reduced
ones. `matrix_product` looks at strides: every group of axes must be walked by one stride in each
tensor, and each matrix must have a dense side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.ir.expr import Call, Const, Expr, Read, variables
from anabranch.ir.linear import Linear, place, strides
from anabranch.ir.space import Clause

BATCH = 4  # batch dimensions that the library kernel takes
LARGEST_SCALE = 2.0**40  # and its inverse: what scales a whole sum must make nothing 0 or infinite


@dataclass(frozen=True, slots=True)
class Product:
    """C[m, n] = scale * sum over k of A[m, k] * B[k, n], row-major, over up to four batch axes.

    `swapped`: A is the second factor. `batch` has (extent, stride in A, in B, in C) each. The
    offsets are where A and B begin, in elements.
    """

    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    transpose_a: bool
    transpose_b: bool
    batch: tuple[tuple[int, int, int, int], ...]
    scale: float
    swapped: bool
    offset_a: int
    offset_b: int


def factors(c: Clause) -> tuple[Read, Read, float] | None:
    """The two reads and the constant of `sum(scale * read * read)`, or None. Outside of the sum, a
    constant of 0 would hide what is nan, and a large or small one meet what is not finite."""
    if c.reduce != "sum" or c.guard is not None:
        return None
    reads, scale = [], 1.0
    stack: list[Expr] = [c.body]
    while stack:
        match stack.pop():
            case Call("mul", (a, b)):
                stack += [b, a]
            case Const(value, dtype) if dtype in ("f32", "f64"):
                scale *= float(value)
            case Read(_, _, None) as read:
                reads.append(read)
            case _:
                return None
    moderate = 1 / LARGEST_SCALE <= abs(scale) <= LARGEST_SCALE
    return (reads[0], reads[1], scale) if len(reads) == 2 and moderate else None


def is_contraction(c: Clause) -> bool:
    """Whether each of two factors has result axes of its own, and both have every reduced one."""
    found = factors(c)
    if found is None or c.result.type.dtype not in ("f32", "f64"):
        return False
    left, right = (_axes(read) for read in found[:2])
    result, reduced = set(c.result_vars), set(c.reduced)
    if any(c.operands[r.operand].type.dtype != c.result.type.dtype for r in found[:2]):
        return False
    own = (left - right) & result, (right - left) & result
    return all(own) and reduced <= left & right and result <= left | right


def _axes(read: Read) -> set[str]:
    return {v for s in read.subscripts for v in variables(s)}


@dataclass(frozen=True, slots=True)
class _Run:
    """Axes that are walked as one: an extent and a stride in each tensor (0: not there)."""

    extent: int
    a: int
    b: int
    c: int


def matrix_product(c: Clause) -> Product | None:
    """The clause as a call of a library, or None if strides forbid it."""
    found = factors(c)
    if found is None or not is_contraction(c):
        return None
    left, right, scale = found
    forms = [place(r.subscripts, c.operands[r.operand].type.shape) for r in (left, right)]
    if any(form.atoms for form in forms):
        return None
    home = dict(zip(c.result_vars, strides([c.extents[v] for v in c.result_vars]), strict=True))
    return _arranged(c, forms, home, scale, False) or _arranged(c, forms[::-1], home, scale, True)


def _arranged(
    c: Clause, forms: Sequence[Linear], home: dict[str, int], scale: float, swapped: bool
) -> Product | None:
    a, b = forms
    groups: dict[str, list[_Run]] = {"m": [], "n": [], "k": [], "batch": []}
    for v, extent in c.ranges:
        run = _Run(extent, a.terms.get(v, 0), b.terms.get(v, 0), home.get(v, 0))
        if v not in home:
            kind = "k"
        else:
            kind = "batch" if v in a.terms and v in b.terms else "m" if v in a.terms else "n"
        groups[kind].append(run)
    merged = {kind: _merge(runs) for kind, runs in groups.items()}
    if len(merged["k"]) > 1:
        return None
    product = _fitted(merged, scale, swapped)
    return product and replace(product, offset_a=a.constant, offset_b=b.constant)


def _merge(runs: list[_Run]) -> list[_Run]:
    """Runs that continue each other in every tensor become one; those of one step vanish."""
    kept: list[_Run] = []
    for run in sorted((r for r in runs if r.extent != 1), key=lambda r: (-r.c, -r.a, -r.b)):
        last = kept[-1] if kept else None
        if last is not None and all(
            outer == inner * run.extent
            for outer, inner in ((last.a, run.a), (last.b, run.b), (last.c, run.c))
        ):
            kept[-1] = replace(run, extent=run.extent * last.extent)
        else:
            kept.append(run)
    return kept


def _fitted(groups: dict[str, list[_Run]], scale: float, swapped: bool) -> Product | None:
    """Choose one run as rows and one as columns; others become batch axes."""
    one = _Run(1, 0, 0, 0)
    inner = groups["k"][0] if groups["k"] else one
    for row in sorted(groups["m"], key=lambda r: -r.extent) or [one]:
        for column in sorted(groups["n"], key=lambda r: -r.extent) or [one]:
            rest = [r for r in (*groups["batch"], *groups["m"], *groups["n"])
                    if r is not row and r is not column]
            sides = _sides(row, column, inner)
            if sides is not None and len(rest) <= BATCH:
                batch = tuple((r.extent, r.a, r.b, r.c) for r in rest)
                (ta, lda), (tb, ldb), ldc = sides
                return Product(row.extent, column.extent, inner.extent, lda, ldb, ldc, ta, tb,
                               batch, scale, swapped, 0, 0)
    return None


def _sides(
    row: _Run, column: _Run, inner: _Run
) -> tuple[tuple[bool, int], tuple[bool, int], int] | None:
    a = _matrix(row.extent, row.a, inner.extent, inner.a)
    b = _matrix(inner.extent, inner.b, column.extent, column.b)
    c = _matrix(row.extent, row.c, column.extent, column.c)
    if a is None or b is None or c is None or c[0]:
        return None
    return a, b, c[1]


def _matrix(rows: int, row_step: int, columns: int, step: int) -> tuple[bool, int] | None:
    """(transposed, leading dimension) of a matrix of two strides, or None if neither is 1."""
    if columns <= 1 or step == 1:
        if rows <= 1 or row_step >= columns:
            return False, max(row_step if rows > 1 else 0, columns, 1)
        if columns > 1:
            return None
    if rows <= 1 or row_step == 1:
        return (True, max(step if columns > 1 else 0, rows, 1)) if step >= rows or columns <= 1 \
            else None
    return None


def multiplications(c: Clause) -> int:
    """Points of the iteration space: a multiplication and an addition each."""
    return math.prod(n for _, n in c.ranges)
