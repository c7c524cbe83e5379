"""Recurrences with their gradients, compiled and run on one rank and on several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anabranch.driver import Options, compile_function
from anabranch.ir.core import Module
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Scan
from anabranch.ir.reference import evaluate
from anabranch.ir.rewrite import clone_module
from anabranch.lowering.differentiate import differentiate
from anabranch.runtime.session import Session
from anabranch.trials import Trial
from tests.frontend.running import module_of
from tests.library.ops import stepped
from tests.lowering.test_scan_gradient import CASES, PROGRAM

WITHOUT_A_SLOPE = {"flat_in_between"}  # its carry passes steps only: no sweep back over places
MESHES = [Mesh(), Mesh.of(data=2), Mesh.of(data=2, model=2)]


def prepared(name: str) -> tuple[Module, Trial]:
    """The op with the gradients of its results' weighted sum."""
    draw = np.random.default_rng(1).normal
    arrays: dict[str, Any] = {
        key: 0.5 * draw(size=value) if isinstance(value, tuple) else value
        for key, value in CASES[name].items()}
    function = module_of(PROGRAM, name, arrays).functions[name]
    trial = stepped(Trial(function, tuple(arrays.values()), {}))
    trial.function.name = name
    return Module({name: trial.function}), trial


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_recurrence_and_its_gradient_are_those_of_the_reference(
    name: str, mesh: Mesh
) -> None:
    module, trial = prepared(name)
    whole = differentiate(clone_module(module)).functions[name]
    scans = sum(isinstance(op, Scan) for op in whole.body)
    assert (scans > 1) == (name not in WITHOUT_A_SLOPE)
    expected = evaluate(whole, trial.arguments)
    fed = {a.value.name: x
           for a, x in zip(trial.function.arguments, trial.arguments, strict=True)}
    with Session(compile_function(module, Options(mesh)).plan, canaries=True) as session:
        found = session.step(name, fed, 0).values()
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, 1e-5, 1e-6)
