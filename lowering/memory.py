"""Places for values that live and die inside one chain of launches.

Guarantee: two values whose lifetimes meet never share a byte. Greedy by size (largest first, lowest
free place), which is within a few per cent of the largest live set on training steps; quadratic in
the number of values of one chain, with the inner loop in NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Bytes needed from launch `first` to launch `last` of a chain, both included."""

    nbytes: int
    first: int
    last: int


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def place(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """An offset for each lifetime, and the bytes that hold them all."""
    count = len(lifetimes)
    first = np.array([x.first for x in lifetimes], dtype=np.int64)
    last = np.array([x.last for x in lifetimes], dtype=np.int64)
    size = np.array([aligned(x.nbytes) for x in lifetimes], dtype=np.int64)
    start = np.zeros(count, dtype=np.int64)
    placed = np.zeros(count, dtype=bool)
    for i in sorted(range(count), key=lambda k: (-size[k], first[k], k)):
        meets = placed & (first <= last[i]) & (last >= first[i])
        start[i] = _lowest_gap(start[meets], size[meets], int(size[i]))
        placed[i] = True
    return start.tolist(), int((start + size).max(initial=0))


def _lowest_gap(starts: np.ndarray, sizes: np.ndarray, wanted: int) -> int:
    """The lowest offset at which `wanted` bytes are free of all the given ranges."""
    order = np.argsort(starts, kind="stable")
    ends = np.maximum.accumulate((starts + sizes)[order])
    gap_begin = np.concatenate([[0], ends])  # in front of each range, and behind the last
    gap_end = np.append(starts[order], np.iinfo(np.int64).max)
    fits = gap_end - gap_begin >= wanted
    return int(gap_begin[int(np.argmax(fits))])
