"""How recurrences may be split, and that every such split gives what the whole does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from anabranch.gradient_check import weighted
from anabranch.ir.core import Function, Module
from anabranch.ir.diagnostics import UserError
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Scan
from anabranch.ir.printer import print_function
from anabranch.ir.reference import evaluate, evaluate_op
from anabranch.ir.rewrite import clone_module
from anabranch.ir.sbp import Layout, S
from anabranch.ir.verifier import verify
from anabranch.lowering.boxing import lower_boxes
from anabranch.lowering.cost import step_prices
from anabranch.lowering.fuse import fuse
from anabranch.lowering.localise import localise
from anabranch.lowering.machine import CPU2
from anabranch.lowering.planner import plan
from anabranch.lowering.scan_signatures import scan_forms
from anabranch.lowering.simplify import simplify
from anabranch.lowering.simulate_ranks import scan_in_parts, simulate
from tests.frontend.running import module_of
from tests.lowering.test_scan_gradient import CASES, PROGRAM, built, draw, gradient
from tests.strategies import arrays, recurrences

MESHES = [Mesh.of(a=2), Mesh.of(a=3), Mesh.of(a=2, b=2)]


def entries(scan: Scan) -> list[str]:
    """The entries on one axis of two, operands and results."""
    return [" ".join(str(layout["a"]) for layout in laid.operands) + " -> " + " ".join(
        str(layout["a"]) for layout in laid.results)
        for laid in scan_forms(scan, Mesh.of(a=2))]


def scan_of(name: str, sizes: dict[str, tuple[int, ...]] | None = None) -> Scan:
    arrays = {k: draw(v) if isinstance(v, tuple) else v
              for k, v in {**CASES[name], **(sizes or {})}.items()}
    function = module_of(PROGRAM, name, arrays).functions[name]
    simplify(Module({name: function}))
    return next(op for op in function.body if isinstance(op, Scan))


def test_every_index_of_an_elementwise_recurrence_is_split_but_its_own() -> None:
    assert entries(scan_of("cumulative")) == ["B -> B", "S(0) -> S(0)"]
    assert entries(scan_of("product")) == ["B -> B"]


def test_the_batch_of_a_cell_is_split_and_its_channels_are_not() -> None:
    scan = scan_of("lstm")
    assert [v.name for v in scan.operands] == ["h0", "u", "a", "c0"]
    assert entries(scan) == ["B B B B -> B B", "S(0) B S(0) S(0) -> S(0) S(0)"]


def test_the_backward_pass_of_a_cell_splits_the_batch_too() -> None:
    function = gradient(built("lstm")[0])
    simplify(Module({"lstm": function}))
    *_, backward = (op for op in function.body if isinstance(op, Scan))
    _, split = scan_forms(backward, Mesh.of(a=2))
    assert {str(layout["a"]) for layout in split.results} == {"S(0)"}
    weight = [v.name for v in backward.operands].index("u")
    assert str(split.operands[weight]["a"]) == "B"


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_each_way_to_split_a_recurrence_and_its_gradient_gives_the_whole(
    name: str, mesh: Mesh
) -> None:
    function, args = built(name)
    backward = gradient(function)
    simplify(Module({name: backward}))
    given = [*args, *(draw(a.value.type.shape) for a in backward.arguments[len(args):])]
    env: dict[Any, Any] = dict(zip(backward.body.args, given, strict=True))
    for op in backward.body:
        if op.kind == "return":
            break
        operands = [env[v] for v in op.operands]
        wholes = evaluate_op(op, operands, double=True)
        env.update(zip(op.results, wholes, strict=True))
        for laid in scan_forms(op, mesh, small=True) if isinstance(op, Scan) else ():
            found = scan_in_parts(op, operands, laid, mesh, np.random.default_rng(0), double=True)
            for a, b in zip(found, wholes, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(recurrences(), st.integers(0, 99), st.sampled_from(MESHES))
def test_each_way_to_split_a_random_recurrence_gives_the_whole(
    function: Function, seed: int, mesh: Mesh
) -> None:
    note(print_function(function))
    scan, args = function.body.first, arrays(function, seed)
    assert isinstance(scan, Scan)
    env = dict(zip(function.body.args, args, strict=True))
    operands = [env[v] for v in scan.operands]
    try:
        wholes = evaluate_op(scan, operands)
    except UserError:
        return
    for laid in scan_forms(scan, mesh, small=True):
        found = scan_in_parts(scan, operands, laid, mesh, np.random.default_rng(seed))
        for a, b in zip(found, wholes, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("split", [None, 0, 1], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_planned_recurrence_gives_on_all_ranks_what_it_gives_on_one(
    name: str, split: int | None
) -> None:
    """Also where the arguments are split along the index of the recurrence: they are gathered."""
    function, args = built(name)
    backward = gradient(function)
    simplify(Module({name: backward}))
    given = [*args, *(draw(a.value.type.shape) for a in backward.arguments[len(args):])]
    expected = evaluate(backward, given)
    for mesh in MESHES:
        module = clone_module(Module({name: backward}))
        for argument in module.functions[name].arguments:
            if split is not None and split < argument.value.type.rank:
                argument.pin = Layout((("a", S(split)),))
        planned = plan(module, mesh, CPU2)
        verify(planned)
        boxed = lower_boxes(planned, seconds=step_prices(mesh, CPU2))
        verify(boxed)
        named = {a.value.name: x for a, x in zip(backward.arguments, given, strict=True)}
        for a, b in zip(simulate(boxed, name, named), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
        for rank in range(mesh.ranks):
            local = localise(boxed, rank)
            verify(local)
            verify(fuse(local))


def test_a_batch_in_micro_batches_is_split_in_time() -> None:
    function, args = built("lstm")
    made = weighted(function, None, np.random.default_rng(0))
    assert made is not None
    scalar, weights = made
    mesh = Mesh.of(a=1).with_micro(2)
    boxed = lower_boxes(plan(Module({"lstm": scalar}), mesh, CPU2),
                        seconds=step_prices(mesh, CPU2))
    scan = next(op for op in boxed.functions["lstm"].body if isinstance(op, Scan))
    assert {v.type.layout["micro"] for v in scan.results} == {S(0)}
    given = [*args, *weights]
    named = {a.value.name: x for a, x in zip(scalar.arguments, given, strict=True)}
    np.testing.assert_allclose(simulate(boxed, "lstm", named), evaluate(scalar, given), rtol=1e-9)
