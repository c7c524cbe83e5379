"""Random draws are keyed by the logical element: no mesh, restart or split changes a bit."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.driver import Options, compile_function
from anabranch.frontend.program import loads
from anabranch.ir.mesh import Mesh
from anabranch.ir.reference import evaluate
from anabranch.runtime.session import Session

SOURCE = """
def masked(x: f32[B, D] @ {{{pin}}}) -> f32[B, D]:
    return dropout(dropout(x, 0.3), 0.5)
"""
PINS = ["data: S(0)", "data: S(1)", "data: B", "data: S(0), model: S(1)", "data: S(1), model: S(1)"]


def run(pin: str, mesh: Mesh, step: int, seed: int = 5) -> np.ndarray:
    text = SOURCE.format(pin=pin)
    module = loads(text).function("masked", {"B": 7, "D": 11}, training=True)
    plan = compile_function(module, Options(mesh=mesh)).plan
    with Session(plan, seed=seed) as session:
        (result,) = session.step("masked", {"x": np.ones((7, 11), np.float32)}, step).values()
    return result


def expected(step: int, seed: int = 5) -> np.ndarray:
    text = SOURCE.format(pin="data: B")
    function = loads(text).function("masked", {"B": 7, "D": 11}, training=True).functions["masked"]
    given = {"x": np.ones((7, 11), np.float32), "step": np.array(step), "seed": np.array(seed)}
    (result,) = evaluate(function, [given[a.value.name] for a in function.arguments])
    return np.asarray(result)


@pytest.mark.parametrize("pin", PINS)
def test_masks_are_the_same_bits_under_every_mesh(pin: str) -> None:
    mesh = Mesh.of(data=3, model=2) if "model" in pin else Mesh.of(data=3)
    np.testing.assert_array_equal(run(pin, mesh, step=4), expected(4))


def test_masks_change_with_the_step_and_the_seed() -> None:
    assert (expected(0) != expected(1)).any()
    assert (expected(0, seed=1) != expected(0, seed=2)).any()
    np.testing.assert_array_equal(run("data: B", Mesh(), 2, seed=9), expected(2, seed=9))
