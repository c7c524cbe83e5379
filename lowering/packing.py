"""Elements in the order of the ranks they belong to, in index notation.

A dimension cut into balanced parts, part after part in a flat buffer: `pack` makes the buffer from
the tensor, `unpack` the tensor from the buffer. Where all parts are equal both are plain merged
indices. Otherwise the longer parts come first, so there are two runs of equal parts, each with its
own formula.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.ir.expr import Call, Expr, Read, Var, add, integer, mul, sub, where

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """The iteration space, result dimensions and body of a compute of one operand."""

    ranges: tuple[tuple[str, int], ...]
    dims: tuple[tuple[str, ...], ...]
    body: Expr


@dataclass(frozen=True, slots=True)
class _Run:
    """Parts of one size: where they start in the dimension, and the size."""

    start: int
    size: int


def names(rank: int) -> list[str]:
    return [f"i{d}" for d in range(rank)]


def plain(rank: int) -> tuple[Expr, ...]:
    """The subscripts of an element of the same place."""
    return tuple(map(Var, names(rank)))


def elementwise(shape: Shape, body: Expr) -> Form:
    """A body over the variables of `plain`."""
    variables = names(len(shape))
    return Form(tuple(zip(variables, shape, strict=True)), tuple((v,) for v in variables), body)


def ravel(places: Sequence[Expr], shape: Shape) -> Expr:
    """The row-major place of an element."""
    total: Expr = integer(0)
    for d, (place, size) in enumerate(zip(places, shape, strict=True)):
        total = place if d == 0 else add(mul(total, integer(size)), place)
    return total


def unravel(place: Expr, shape: Shape) -> list[Expr]:
    """The subscripts of the element at a row-major place."""
    subscripts: list[Expr] = []
    for size in reversed(shape):
        subscripts.append(Call("mod", (place, integer(max(size, 1)))))
        place = Call("floordiv", (place, integer(max(size, 1))))
    return subscripts[::-1]


@functools.cache
def pack(shape: Shape, dim: int, parts: int) -> Form:
    """The flat buffer of a tensor of `shape`, part by part of `dim`."""
    if shape[dim] % parts == 0:
        part = _with(shape, dim, shape[dim] // parts)
        places = list(plain(len(shape)))
        places[dim] = add(mul(Var("m"), integer(part[dim])), places[dim])
        ranges = (("m", parts), *zip(names(len(shape)), part, strict=True))
        return Form(ranges, (tuple(v for v, _ in ranges),), Read(0, tuple(places)))
    rest = math.prod(_with(shape, dim, 1))
    bodies = [_packed(shape, dim, run, rest) for run in _runs(shape[dim], parts)]
    body = _by_run(Var("p"), [run.start * rest for run in _runs(shape[dim], parts)], bodies)
    return Form((("p", math.prod(shape)),), (("p",),), body)


def _packed(shape: Shape, dim: int, run: _Run, rest: int) -> Expr:
    """What stands at place p of the buffer, in a run of parts."""
    size = integer(run.size * rest)
    inside = _minus(Var("p"), run.start * rest)
    subscripts = unravel(Call("mod", (inside, size)), _with(shape, dim, run.size))
    start = mul(Call("floordiv", (inside, size)), integer(run.size))
    subscripts[dim] = _plus(add(start, subscripts[dim]), run.start)
    return Read(0, tuple(subscripts))


@functools.cache
def unpack(shape: Shape, dim: int, parts: int) -> Form:
    """The tensor of `shape` from the flat buffer, which is the operand."""
    if shape[dim] % parts == 0:
        part = _with(shape, dim, shape[dim] // parts)
        place = add(mul(Var("m"), integer(math.prod(part))), ravel(plain(len(shape)), part))
        ranges = list(zip(names(len(shape)), part, strict=True))
        ranges.insert(dim, ("m", parts))
        dims = [(v,) for v in names(len(shape))]
        return Form(tuple(ranges), (*dims[:dim], ("m", f"i{dim}"), *dims[dim + 1 :]),
                    Read(0, (place,)))
    runs = _runs(shape[dim], parts)
    bodies = [_unpacked(shape, dim, run) for run in runs]
    return elementwise(shape, _by_run(Var(f"i{dim}"), [run.start for run in runs], bodies))


def _unpacked(shape: Shape, dim: int, run: _Run) -> Expr:
    """Where the buffer has the element i0, i1, ..., in a run of parts."""
    part, places = _with(shape, dim, run.size), list(plain(len(shape)))
    rest = math.prod(_with(shape, dim, 1))
    inside = _minus(places[dim], run.start)
    places[dim] = Call("mod", (inside, integer(run.size)))
    number = Call("floordiv", (inside, integer(run.size)))
    place = add(mul(number, integer(math.prod(part))), ravel(places, part))
    return Read(0, (_plus(place, run.start * rest),))


def stacked(shape: Shape, members: int) -> Form:
    """The elements of `members` tensors that lie one after another; `m` is left to be reduced."""
    place = add(mul(Var("m"), integer(math.prod(shape))), ravel(plain(len(shape)), shape))
    form = elementwise(shape, Read(0, (place,)))
    return Form((*form.ranges, ("m", members)), form.dims, form.body)


def _with(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _runs(length: int, parts: int) -> list[_Run]:
    """The runs of equal parts that are not empty."""
    size, longer = divmod(length, parts)
    runs = [_Run(0, size + 1), _Run(longer * (size + 1), size)]
    return [run for run in runs if run.size and run.start < length]


def _by_run(place: Expr, starts: list[int], bodies: list[Expr]) -> Expr:
    if len(bodies) == 1:
        return bodies[0]
    return where(Call("lt", (place, integer(starts[1]))), *bodies)


def _plus(expr: Expr, by: int) -> Expr:
    return add(expr, integer(by)) if by else expr


def _minus(expr: Expr, by: int) -> Expr:
    return sub(expr, integer(by)) if by else expr
