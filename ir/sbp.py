"""How a logical tensor lies on a mesh: one SBP entry per mesh axis.

`S(d)` splits dimension d into balanced parts, `B` keeps it whole on every rank, `P(op)` keeps a
term of a reduction on every rank. Several axes that split one dimension do so in mesh order,
nested: each splits the interval the axes before it have left.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from anabranch.ir.mesh import Mesh

PARTIAL_OPS = ("sum", "max", "min", "prod")


@dataclass(frozen=True, slots=True)
class Sbp:
    """One entry: kind S with its dimension, B, or P with its reduction."""

    kind: Literal["S", "B", "P"]
    dim: int = -1
    op: str = ""

    def __str__(self) -> str:
        if self.kind == "S":
            return f"S({self.dim})"
        if self.kind == "P":
            return "P" if self.op == "sum" else f"P({self.op})"
        return "B"


B = Sbp("B")


@functools.cache
def S(dim: int) -> Sbp:
    return Sbp("S", dim)


@functools.cache
def P(op: str = "sum") -> Sbp:
    return Sbp("P", -1, op)


@dataclass(frozen=True, slots=True)
class Layout:
    """Entries by axis name, in mesh order. A pin may name only some of the axes of a mesh."""

    entries: tuple[tuple[str, Sbp], ...] = ()

    def __str__(self) -> str:
        return "{" + ", ".join(f"{axis}: {sbp}" for axis, sbp in self.entries) + "}"

    def __getitem__(self, axis: str) -> Sbp:
        """The entry of an axis; an axis that is not named is B."""
        return dict(self.entries).get(axis, B)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(axis for axis, _ in self.entries)

    def sbps(self) -> tuple[Sbp, ...]:
        return tuple(sbp for _, sbp in self.entries)

    def replace(self, axis: str, sbp: Sbp) -> Layout:
        """This layout with one axis changed (it must be named already)."""
        return Layout(tuple((a, sbp if a == axis else s) for a, s in self.entries))

    @property
    def partial(self) -> str:
        """The reduction of its P entries, or an empty string (a value has one kind of P)."""
        return next((sbp.op for _, sbp in self.entries if sbp.kind == "P"), "")


def layout_on(mesh: Mesh, sbps: Iterable[Sbp]) -> Layout:
    """A full layout on a mesh from one entry per axis, in mesh order."""
    return Layout(tuple(zip(mesh.names, sbps, strict=True)))


def broadcast_on(mesh: Mesh) -> Layout:
    """B on every axis."""
    return layout_on(mesh, [B] * len(mesh.axes))


def balanced(length: int, parts: int, index: int) -> tuple[int, int]:
    """(size, start) of part `index`: the first `length mod parts` parts have one element more."""
    quotient, remainder = divmod(length, parts)
    return quotient + (index < remainder), index * quotient + min(index, remainder)


def local_box(
    shape: tuple[int, ...], layout: Layout, mesh: Mesh, position: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(local shape, origin) of the shard at mesh coordinates `position`; nested, in mesh order."""
    size, start = list(shape), [0] * len(shape)
    for (name, parts), i in zip(mesh.axes, position, strict=True):
        entry = layout[name]
        if entry.kind == "S":
            size[entry.dim], offset = balanced(size[entry.dim], parts, i)
            start[entry.dim] += offset
    return tuple(size), tuple(start)
