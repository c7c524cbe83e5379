"""Programs in which other systems went wrong, each with the right value, run on meshes.

A case is the text of a function `f`, whose parameters are pinned to the axes of a mesh, the arrays
it is given and what must come out on every mesh named, as it does on one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import anabranch as ab

Array = np.ndarray[Any, Any]
ONE = ""


@dataclass(frozen=True, slots=True)
class Case:
    """`meshes` are texts such as "a=2" and "a=2,b=2"; one device is always tried."""

    name: str
    source: str
    expected: Any
    arrays: Mapping[str, Any] = field(default_factory=dict)
    meshes: Sequence[str] = ()
    tolerance: float = 1e-5


def counted(*shape: int, dtype: str = "f4") -> Array:
    """0, 1, 2, ... in row-major order."""
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def scattered(*shape: int, dtype: str = "f4") -> Array:
    """Numbers between -1 and 1 in an order that repeats after 101 of them."""
    return ((37 * counted(*shape, dtype="i8") + 11) % 101 / 50 - 1).astype(dtype)


def mesh_of(text: str) -> Any:
    return ab.Mesh(**{name: int(size) for name, size in
                      (axis.split("=") for axis in text.split(",") if axis)})


def run(source: str, arrays: Mapping[str, Any], mesh: str = ONE) -> tuple[Any, ...]:
    """The results of `f`."""
    plan = ab.compile(ab.loads(source).f, mesh=mesh_of(mesh))
    with ab.Session(plan) as session:
        results = session(**arrays)
    return results if isinstance(results, tuple) else (results,)


def check(case: Case, mesh: str) -> None:
    """All results, to the case's tolerance; integers and booleans exactly."""
    results = run(case.source, case.arrays, mesh)
    expected = case.expected if isinstance(case.expected, tuple) else (case.expected,)
    for got, want in zip(results, expected, strict=True):
        wanted = np.asarray(want)
        assert np.shape(got) == wanted.shape
        if np.asarray(got).dtype.kind in "biu":
            np.testing.assert_array_equal(got, wanted)
        else:
            np.testing.assert_allclose(
                got, wanted, rtol=case.tolerance, atol=case.tolerance * 0.1)


def everywhere(*cases: Case) -> pytest.MarkDecorator:
    """A test of every case on one device and on each of its meshes."""
    return pytest.mark.parametrize(("case", "mesh"), [
        pytest.param(case, mesh, id=f"{case.name} on {mesh or 'one device'}")
        for case in cases for mesh in (ONE, *case.meshes)])
