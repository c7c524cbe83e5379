"""Every derived signature is right: scatter, run the local computes, gather equals the whole.

Sizes are such that neither 2 nor 3 divides them, so that uneven and empty shards are everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute
from anabranch.ir.reference import evaluate_op
from anabranch.ir.sbp import Layout, layout_on
from anabranch.ir.types import is_float
from anabranch.lowering.local_compute import held
from anabranch.lowering.signatures import legal, options, signatures
from anabranch.lowering.simulate_ranks import in_parts
from tests.lowering.cases import CASES, compute, data
from tests.lowering.random_computes import computes

ODD = np.array([0.0, 0.0, 1.0, -2.0, np.inf, -np.inf])
MESHES = [
    Mesh.of(data=2, model=2), Mesh.of(data=3, model=2), Mesh.of(micro=2, data=3),
    Mesh.of(micro=5, model=2), Mesh.of(data=1, model=2),
]


def tolerance(op: Compute) -> float:
    low = any(held(v.type.dtype, None) in ("bf16", "f16") for v in (*op.operands, op.result))
    return 2e-2 if low else 1e-4


def agrees(
    op: Compute, layouts: Sequence[Layout], result: Layout, mesh: Mesh,
    random: np.random.Generator, *, double: bool = False,
) -> bool:
    given = [data(v.name, v.type, random) for v in op.operands]
    (expected,) = evaluate_op(op, given, double=double)
    actual = in_parts(op, given, layouts, result, mesh, random, double=double)
    assert actual.shape == expected.shape
    close = tolerance(op)
    return np.allclose(actual, expected, rtol=close, atol=close, equal_nan=True)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("parts", [2, 3])
def test_every_signature_of_one_axis_is_right(case: str, parts: int) -> None:
    op, mesh, random = compute(case), Mesh.of(data=parts), np.random.default_rng(0)
    for signature in signatures(op, parts):
        layouts = [layout_on(mesh, [entry]) for entry in signature.operands]
        result = layout_on(mesh, [signature.result])
        assert agrees(op, layouts, result, mesh, random), str(signature)
        assert legal(op, layouts, result, mesh) is not None, str(signature)


@pytest.mark.parametrize("case", CASES)
def test_a_number_is_the_same_in_parts_where_others_are_infinite_or_zero(case: str) -> None:
    """What is carried in terms of a sum may be nan instead of infinite."""
    op, mesh, random = compute(case), Mesh.of(data=2), np.random.default_rng(4)
    given = [np.where(random.random(x.shape) < 0.5, random.choice(ODD, x.shape), x).astype(x.dtype)
             if is_float(v.type.dtype) else x
             for v in op.operands for x in [data(v.name, v.type, random)]]
    (expected,) = evaluate_op(op, given, double=True)
    numbers = ~np.isnan(np.asarray(expected, "f8"))
    finite = np.isfinite(np.asarray(expected, "f8"))
    for signature in signatures(op, 2):
        in_terms = any(entry.op == "sum" for entry in signature.operands)
        judged = finite if in_terms else numbers
        layouts = [layout_on(mesh, [entry]) for entry in signature.operands]
        result = layout_on(mesh, [signature.result])
        with np.errstate(all="ignore"):
            actual = in_parts(op, given, layouts, result, mesh, None, double=True)
        np.testing.assert_allclose(actual[judged], expected[judged], err_msg=str(signature))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_signatures_of_several_axes_are_right_together(case: str, mesh: Mesh) -> None:
    op, random = compute(case), np.random.default_rng(1)
    every = options(op, mesh, small=True)
    some = [every[i] for i in random.permutation(len(every))[:12]]
    for layouts, result in some:
        assert agrees(op, layouts, result, mesh, random), f"{[*map(str, layouts)]} -> {result}"
        assert legal(op, layouts, result, mesh) is not None


@given(computes(), st.integers(0, 2**32 - 1))
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
def test_signatures_of_random_computes_are_right(op: Compute, seed: int) -> None:
    random = np.random.default_rng(seed)
    for parts in (2, 3):
        mesh = Mesh.of(data=parts)
        for signature in signatures(op, parts):
            layouts = [layout_on(mesh, [entry]) for entry in signature.operands]
            result = layout_on(mesh, [signature.result])
            assert agrees(op, layouts, result, mesh, random, double=True), str(signature)


@given(computes(), st.sampled_from(MESHES), st.integers(0, 2**32 - 1))
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_options_of_random_computes_are_right(op: Compute, mesh: Mesh, seed: int) -> None:
    random = np.random.default_rng(seed)
    every = options(op, mesh, small=True)
    for i in random.permutation(len(every))[:6]:
        layouts, result = every[i]
        text = f"{[*map(str, layouts)]} -> {result}"
        assert agrees(op, layouts, result, mesh, random, double=True), text
