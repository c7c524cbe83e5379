"""Device meshes: named axes over ranks 0..n-1 in row-major order.

Two axis names are reserved. `stage` splits the program, never a value: no layout mentions it, and
`Mesh.inner` is the mesh of one stage. `micro` is the split of a batch in time: it behaves as a
mesh axis in every layout but adds no ranks, and it always comes first (`Mesh.with_micro`), so that
equal time slices are cut before space is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

STAGE = "stage"
MICRO = "micro"


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ordered named axes with their sizes; the mesh without axes is one rank."""

    axes: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(**sizes: int) -> Mesh:
        """`Mesh.of(data=2, model=2)`."""
        return Mesh(tuple(sizes.items()))

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes) or "1"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.axes)

    def size(self, axis: str) -> int:
        """Extent of a named axis; an axis that the mesh lacks has size 1."""
        return dict(self.axes).get(axis, 1)

    @property
    def stages(self) -> int:
        return self.size(STAGE)

    @property
    def micro(self) -> int:
        return self.size(MICRO)

    @property
    def inner(self) -> Mesh:
        """The mesh of one pipeline stage: all axes but `stage`. Layouts speak of these."""
        return Mesh(tuple(axis for axis in self.axes if axis[0] != STAGE))

    @property
    def space(self) -> Mesh:
        """The axes that hold ranks: all but `micro`."""
        return Mesh(tuple(axis for axis in self.axes if axis[0] != MICRO))

    def with_micro(self, micro: int) -> Mesh:
        """This mesh with the time axis in front, or unchanged for one micro-batch."""
        return Mesh(((MICRO, micro), *self.space.axes)) if micro > 1 else self.space

    @property
    def ranks(self) -> int:
        return math.prod(self.space.sizes)

    def positions(self) -> Iterator[tuple[int, ...]]:
        """All coordinates along all axes (time included), row-major."""
        return itertools.product(*(range(size) for size in self.sizes))

    def position(self, rank: int, micro: int = 0) -> tuple[int, ...]:
        """Coordinates of a rank at a micro-batch, one per axis in mesh order."""
        place = dict(zip(self.space.names, _unravel(rank, self.space.sizes), strict=True))
        return tuple(micro if name == MICRO else place[name] for name in self.names)

    def rank_of(self, position: tuple[int, ...]) -> int:
        """The rank at full coordinates (the coordinate along `micro` does not matter)."""
        rank = 0
        for (name, size), i in zip(self.axes, position, strict=True):
            if name != MICRO:
                rank = rank * size + i
        return rank

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        """Ranks of one pipeline stage, in row-major order of the inner mesh."""
        if STAGE not in self.names:
            return tuple(range(self.ranks))
        where = self.space.names.index(STAGE)
        return tuple(r for r in range(self.ranks)
                     if _unravel(r, self.space.sizes)[where] == stage)

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """Ranks that differ only along `axis`, one tuple per group, in order along the axis."""
        where = self.space.names.index(axis)
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.ranks):
            place = _unravel(rank, self.space.sizes)
            found.setdefault(place[:where] + place[where + 1 :], []).append(rank)
        return tuple(tuple(group) for group in found.values())


def _unravel(rank: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    place: list[int] = []
    for size in reversed(sizes):
        rank, i = divmod(rank, size)
        place.append(i)
    return tuple(reversed(place))
