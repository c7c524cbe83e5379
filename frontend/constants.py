"""Lists of numbers as tensors.

The program text has no array literals, so a list becomes a function of its place: runs that are
affine in it (for integers) or constant (for floats), found by bisection with `where`. Index lists,
which is what such lists mostly are, have few runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.frontend import elements
from anabranch.frontend.builder import Builder, letters
from anabranch.frontend.ranges import list_shape
from anabranch.frontend.tensors import row_major
from anabranch.frontend.values import FULL, WEAK, Element, Tensor
from anabranch.ir.diagnostics import Span, fail
from anabranch.ir.expr import Call, Const, Expr, add, integer, mul
from anabranch.ir.types import is_float

MOST_RUNS = 1024

Number = bool | int | float


@dataclass(frozen=True, slots=True)
class Run:
    """From `start` on the value is `first + slope * (place - start)`."""

    start: int
    first: Number
    slope: int


def constant(
    values: Sequence[object], builder: Builder, span: Span, dtype: str | None = None
) -> Tensor:
    """The tensor of a list of numbers, or of equal lists of them."""
    shape = list_shape(list(values))
    assert shape is not None, "the caller checks"
    flat = flattened(values)
    dtype = dtype or _dtype(flat)
    runs = _runs([float(v) for v in flat] if is_float(dtype) else flat)
    if len(runs) > MOST_RUNS:
        raise fail(f"a constant tensor of {len(flat)} numbers in {len(runs)} pieces", span,
                   help=f"at most {MOST_RUNS} are compiled into a program; compute it, or pass it "
                   "as an input or a buffer")
    names = letters(len(shape))
    extents = dict(zip(names, shape, strict=True))
    body = _choice(runs, row_major(names, extents), dtype) if flat else Const(0, dtype)
    ranges = tuple(extents.items())
    return builder.emit(Element(body, dtype, FULL), ranges, [(n,) for n in names])


def flattened(values: Sequence[object]) -> list[Number]:
    found: list[Number] = []
    for value in values:
        found += flattened(value) if isinstance(value, list) else [value]  # type: ignore[list-item]
    return found


def _dtype(flat: Sequence[Number]) -> str:
    if any(isinstance(v, float) for v in flat):
        return "f32"
    return "bool" if flat and all(isinstance(v, bool) for v in flat) else "i64"


def _runs(flat: Sequence[Number]) -> list[Run]:
    """Maximal runs from left to right."""
    runs: list[Run] = []
    start = 0
    while start < len(flat):
        slope = _slope(flat, start)
        stop = start + 1
        while stop < len(flat) and _same(flat[stop], flat[start] + slope * (stop - start)):
            stop += 1
        runs.append(Run(start, flat[start], slope))
        start = stop
    return runs


def _slope(flat: Sequence[Number], start: int) -> int:
    here = flat[start]
    if start + 1 == len(flat) or isinstance(here, bool | float):
        return 0
    following = flat[start + 1]
    return int(following - here) if isinstance(following, int) else 0


def _same(a: Number, b: Number) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _choice(runs: Sequence[Run], place: Expr, dtype: str) -> Expr:
    if len(runs) == 1:
        run = runs[0]
        if not run.slope:
            return elements.convert(Element(Const(run.first, dtype), dtype, WEAK), dtype)
        offset = int(run.first) - run.slope * run.start
        return elements.canonical(add(mul(place, integer(run.slope)), integer(offset)))
    middle = len(runs) // 2
    earlier = Call("lt", (place, integer(runs[middle].start)))
    return Call("where", (earlier, _choice(runs[:middle], place, dtype),
                          _choice(runs[middle:], place, dtype)))
