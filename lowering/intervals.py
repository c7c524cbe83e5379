"""Where index expressions land when their variables run over parts of their ranges.

Cuts are balanced and nested (`ir.sbp`): the axes that split one thing do so in mesh order, each
within the interval that the ones before have left. Everything here errs to the safe side: `covers`
and `produces` are true only where the cut that the mesh makes in a dimension agrees with the cut of
the variables that run over it, tested on the actual intervals at every position, never on sizes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping

from anabranch.ir.expr import Expr, Var, add, integer, substitute, variables
from anabranch.ir.index import affine, interval
from anabranch.ir.sbp import balanced

Interval = tuple[int, int]  # (start, size)
Cut = tuple[int, ...]  # numbers of the mesh axes that split something, in mesh order


@functools.cache
def nested(extent: int, pieces: tuple[tuple[int, int], ...]) -> Interval:
    """The interval left of `extent` after cuts ((parts, index), ...), each within the last."""
    start, size = 0, extent
    for parts, index in pieces:
        size, offset = balanced(size, parts, index)
        start += offset
    return start, size


def at(extent: int, cut: Cut, sizes: tuple[int, ...], position: tuple[int, ...]) -> Interval:
    """The part of something of `extent`, split by the axes `cut`, at a position of the mesh."""
    return nested(extent, tuple((sizes[axis], position[axis]) for axis in cut))


def places(axes: Iterable[int], sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The positions of the mesh along `axes`; 0 along the others."""
    moving = set(axes)
    return itertools.product(*(range(n) if a in moving else (0,) for a, n in enumerate(sizes)))


def bounds(expr: Expr, parts: Mapping[str, Interval]) -> tuple[int, int] | None:
    """Inclusive bounds of an integer expression over intervals that are not empty."""
    form = affine(expr)
    if form is not None:
        low = high = form.constant
        for name, coefficient in form.terms:
            start, size = parts[name]
            ends = (coefficient * start, coefficient * (start + size - 1))
            low, high = low + min(ends), high + max(ends)
        return low, high
    shifted = {name: add(Var(name), integer(start)) for name, (start, _) in parts.items()}
    return interval(substitute(expr, shifted), {name: size for name, (_, size) in parts.items()})


def covers(
    subscript: Expr,
    length: int,
    cut: Cut,
    extents: Mapping[str, int],
    cuts: Mapping[str, Cut],
    sizes: tuple[int, ...],
) -> bool:
    """Whether every rank holds what it asks for, of a dimension of `length` that is split by `cut`
    and read at `subscript` by variables split by `cuts`. Places outside the logical dimension need
    no holder: such a read is padded or not chosen, globally and locally alike."""
    if isinstance(subscript, Var):
        name = subscript.name
        if extents[name] == length and cuts.get(name, ()) == cut:
            return True
    names = variables(subscript)
    moving = {*cut, *(axis for name in names for axis in cuts.get(name, ()))}
    return all(
        _holds(at(length, cut, sizes, place), length, subscript,
               {name: at(extents[name], cuts.get(name, ()), sizes, place) for name in names})
        for place in places(moving, sizes)
    )


def _holds(
    shard: Interval, length: int, subscript: Expr, parts: Mapping[str, Interval]
) -> bool:
    if any(size == 0 for _, size in parts.values()):
        return True
    reach = bounds(subscript, parts)
    if reach is None:
        return False
    least, greatest = max(reach[0], 0), min(reach[1], length - 1)
    return least > greatest or (shard[0] <= least and greatest < sum(shard))


def produces(
    names: tuple[str, ...],
    extents: Mapping[str, int],
    cuts: Mapping[str, Cut],
    sizes: tuple[int, ...],
) -> bool:
    """Whether the variables of a merged result index, split by `cuts`, run on every rank over
    exactly the interval that the same axes cut from the whole dimension."""
    cut = tuple(sorted(axis for name in names for axis in cuts.get(name, ())))
    if len(names) <= 1 or not cut:
        return True
    whole = [extents[name] for name in names]
    return all(
        _is_interval([at(extents[name], cuts.get(name, ()), sizes, place) for name in names],
                     whole, at(math.prod(whole), cut, sizes, place))
        for place in places(cut, sizes)
    )


def _is_interval(parts: list[Interval], whole: list[int], shard: Interval) -> bool:
    """Whether the mixed-radix numbers with digits in `parts` are exactly those of `shard`: as many
    as lie between their least and their greatest, from the same start."""
    count = math.prod(size for _, size in parts)
    if count == 0:
        return shard[1] == 0
    least = greatest = 0
    for (start, size), extent in zip(parts, whole, strict=True):
        least = least * extent + start
        greatest = greatest * extent + start + size - 1
    return (least, count) == shard and greatest - least + 1 == count
