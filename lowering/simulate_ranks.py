"""All ranks of a mesh in one process: the oracle for everything that distributes.

`scatter` lays a logical array out as a layout says, `gather` puts it together again and insists
that copies agree; both work by the definition of SBP and know nothing of the compiler. `simulate`
runs the local modules of all ranks with the reference evaluator. Transfers are joint: each runs
when all its members have arrived at it, so mismatched counts, orders and members are found here.

A value is a list with an array for every micro-batch. `accumulate` sums over that list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anabranch.ir.mesh import Mesh
from anabranch.ir.reference import COMBINE, NUMPY, identity
from anabranch.ir.sbp import Layout, balanced
from anabranch.ir.types import TensorType
from anabranch.lowering.local_compute import held

Array = np.ndarray[Any, Any]
Parts = dict[tuple[int, ...], Array]  # by position on the mesh of a stage, micro included


def scatter(
    array: Array, type: TensorType, mesh: Mesh, random: np.random.Generator | None = None
) -> Parts:
    """What every position holds. Terms of a partial value are the value and identities, or
    arbitrary terms if there is a source of random numbers."""
    layout = type.layout or Layout()
    parts: Parts = {(): np.asarray(array, NUMPY[held(type.dtype, layout)])}
    for name, size in mesh.axes:
        entry = layout[name]
        # Copies are one object, and their terms are the same on all ranks that hold a copy.
        pieces = {
            id(part): _split(part, entry.dim, size) if entry.kind == "S"
            else _terms(part, entry.op, type.dtype, size, random) if entry.kind == "P"
            else [part] * size
            for part in {id(part): part for part in parts.values()}.values()
        }
        parts = {
            (*position, i): piece
            for position, part in parts.items() for i, piece in enumerate(pieces[id(part)])
        }
    return parts


def _split(array: Array, dim: int, parts: int) -> list[Array]:
    sizes = [balanced(array.shape[dim], parts, i) for i in range(parts)]
    return [array.take(range(start, start + size), axis=dim) for size, start in sizes]


def _terms(
    array: Array, op: str, dtype: str, parts: int, random: np.random.Generator | None
) -> list[Array]:
    nothing = np.full_like(array, identity(op, dtype))
    if random is None:
        return [array, *[nothing] * (parts - 1)]
    if op == "sum":
        noise = random.integers(0, 9, (parts - 1, *array.shape)).astype(array.dtype)
        return [(array - noise.sum(0, dtype=array.dtype)).astype(array.dtype), *noise]
    owner = random.integers(0, parts, array.shape)
    if op == "prod":
        return [np.where(owner == i, array, nothing) for i in range(parts)]
    also = random.integers(0, 2, (parts, *array.shape))  # several may hold the extremum
    return [np.where((owner == i) | (also[i] == 1), array, nothing) for i in range(parts)]


def gather(parts: Mapping[tuple[int, ...], Array], type: TensorType, mesh: Mesh) -> Array:
    """The logical array of which these are the parts."""
    layout, found = type.layout or Layout(), dict(parts)
    for name, size in reversed(mesh.axes):
        entry = layout[name]
        groups = {position[:-1] for position in found}
        members = {group: [found[(*group, i)] for i in range(size)] for group in groups}
        if entry.kind == "S":
            found = {g: np.concatenate(m, axis=entry.dim) for g, m in members.items()}
        elif entry.kind == "P":
            found = {g: _reduce(entry.op, m) for g, m in members.items()}
        else:
            found = {g: _agreed(m) for g, m in members.items()}
    return found[()]


def _reduce(op: str, members: Sequence[Array]) -> Array:
    total = members[0]
    for member in members[1:]:
        total = np.asarray(COMBINE[op](total, member), total.dtype)
    return total


def _agreed(members: Sequence[Array]) -> Array:
    for member in members:
        np.testing.assert_array_equal(member, members[0], "copies of one value differ")
    return members[0]
