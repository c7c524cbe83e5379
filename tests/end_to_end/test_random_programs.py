"""Random programs with random pins on random meshes are equal to the same without, by definition.

The definition is the reference evaluator's, in f64, of the program without pins.
"""

from __future__ import annotations

import os

import numpy as np
from hypothesis import HealthCheck, given, note, settings

from anabranch.driver import Options, compile_function
from anabranch.frontend.program import loads
from anabranch.ir.core import Function, Module
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Return
from anabranch.ir.reference import evaluate
from anabranch.lowering.differentiate import differentiate
from anabranch.runtime.session import Session
from benchmarks.oracles.programs import with_gradients
from tests.random_programs import Program, programs

EXAMPLES = int(os.environ.get("RANDOM_PROGRAMS", "30"))


def module(program: Program, *, pinned: bool) -> Module:
    """The program with its results and their gradients by all arguments."""
    made = loads(program.text(pinned=pinned)).function("f").functions["f"]
    return Module({"f": with_gradients(made, program.floats())})


def by_definition(program: Program, weights: dict[str, np.ndarray]) -> list[np.ndarray]:
    function = differentiate(module(program, pinned=False)).functions["f"]
    arrays = program.arrays | weights
    given = [np.asarray(arrays.get(a.value.name, 0)) for a in function.arguments]
    return evaluate(function, given, double=True)


def upstream(function: Function, program: Program) -> dict[str, np.ndarray]:
    """Weights of the results, which the sum that is differentiated takes as arguments."""
    random = np.random.default_rng(1)
    return {a.value.name: random.normal(size=a.value.type.shape).astype(np.float32)
            for a in function.arguments if a.role == "input" and a.value.name not in program.arrays}


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_a_program_on_a_mesh_is_the_program(program: Program) -> None:
    note(program.text(pinned=True))
    note(f"mesh {program.mesh}")
    made = module(program, pinned=True)
    weights = upstream(made.functions["f"], program)
    want = by_definition(program, weights)
    plan = compile_function(made, Options(Mesh.of(**program.mesh))).plan
    with Session(plan, canaries=True) as session:
        got = list(session.step("f", program.arrays | weights).values())
    last = made.functions["f"].body.last
    assert isinstance(last, Return)
    for one, other in zip(got, want, strict=True):
        assert np.shape(one) == np.shape(other)
        scale = max(1.0, float(np.abs(other).max(initial=0)))
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5 * scale)
