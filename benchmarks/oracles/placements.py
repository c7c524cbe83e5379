"""How the arguments of a case are laid out: every placement of each, in turn.

On each axis of a mesh an argument is B, S(d) for one of its dimensions, or P, terms of a sum. The
choices of the arguments turn at different speeds, so that over a few rounds each argument has been
in each placement, beside different placements of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.ir.mesh import Mesh
from anabranch.ir.sbp import B, P, S, Sbp
from benchmarks.oracles.cases import Array
from benchmarks.oracles.contract import Operand

ONE = Mesh()
MESHES = (Mesh.of(a=2), Mesh.of(a=4), Mesh.of(a=2, b=2))
EXACT_TERMS = ("f32", "f64")  # whose terms are made here; those of others, by the system


@dataclass(frozen=True, slots=True)
class Placement:
    """A mesh, and for each argument an entry for each of its axes."""

    mesh: Mesh
    arguments: tuple[tuple[Sbp, ...], ...]

    def __str__(self) -> str:
        places = ["{" + ", ".join(f"{name}: {sbp}" for name, sbp in zip(
            self.mesh.names, entries, strict=True)) + "}" for entries in self.arguments]
        return f"mesh {self.mesh}, arguments {' '.join(places)}"


def choices(operand: Operand) -> tuple[Sbp, ...]:
    """The placements of an argument on one axis."""
    splits = tuple(S(d) for d in range(operand.ndim))
    return (*splits, P("max" if operand.dtype == "bool" else "sum"), B)


def placements(operands: Sequence[Operand], number: int, count: int) -> Iterator[Placement]:
    """`count` placements of the arguments; `number` says which of the sample."""
    for turn in range(count):
        mesh = MESHES[(turn + turn // 3 + number // 2) % len(MESHES)]  # in no step with the rest
        step = turn + number * count
        yield Placement(mesh, tuple(
            tuple(_turned(choices(operand), step, place, axis) for axis in range(len(mesh.axes)))
            for place, operand in enumerate(operands)))


def _turned(among: Sequence[Sbp], step: int, place: int, axis: int) -> Sbp:
    """The first argument goes through its choices in order, later ones start elsewhere and, after
    a round, somewhere else again."""
    around = step // len(among)
    return among[(step + place * (1 + around) + axis * (1 + around)) % len(among)]


def terms(array: Array, parts: tuple[int, ...], random: np.random.Generator) -> Array:
    """Random terms that sum to an array, exactly: new leading axes of these sizes."""
    found = np.zeros((int(np.prod(parts)), *array.shape), array.dtype)
    order = random.permuted(
        np.broadcast_to(np.arange(len(found)).reshape(-1, *[1] * array.ndim), found.shape), axis=0)
    with np.errstate(over="ignore"):
        doubled = array * 2
    kind = np.where(np.isfinite(doubled), random.integers(0, 2, array.shape), 0)
    np.put_along_axis(found, order[:1], np.where(kind == 1, doubled, array)[None], axis=0)
    if len(found) > 1:
        np.put_along_axis(found, order[1:2], np.where(kind == 1, -array, 0)[None], axis=0)
    return found.reshape(*parts, *array.shape)
