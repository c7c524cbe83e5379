"""Bodies, interpreted: the numbers that the compiled kernels give, to rounding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from anabranch.codegen import launches
from anabranch.codegen.kernel import Kernel, Ref, Store, Tensor, serialised
from anabranch.driver import Options, compile_training, lower
from anabranch.frontend.program import load as load_program
from anabranch.ir import philox, reference, scalar
from anabranch.ir.core import Function, Op
from anabranch.ir.diagnostics import UserError
from anabranch.ir.expr import Call, integer, walk
from anabranch.ir.launch import LaunchSpec
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute, Return
from anabranch.ir.plan import Plan
from anabranch.ir.types import is_float
from anabranch.lowering.fuse import fuse
from anabranch.lowering.program import STORE_CELL_BODY
from anabranch.runtime import reference_kernel
from anabranch.runtime.errors import BuildError, RunError
from anabranch.runtime.library import LIBRARY
from anabranch.runtime.reference_kernel import interpret
from anabranch.runtime.reference_math import PRIMITIVES, draw
from anabranch.runtime.session import Session
from tests.codegen.cases import CASES, PLAIN_PRODUCTS, PRODUCTS, as_one, local_module, parsed
from tests.codegen.groups import groups
from tests.codegen.harness import MEMORY, Array, compiled, from_memory, run, to_memory
from tests.codegen.triton_cases import cases
from tests.strategies import arrays, statements

GPT = Path(__file__).parents[1] / "end_to_end" / "gpt.ab"
EVERY = {**CASES, **PLAIN_PRODUCTS, **PRODUCTS}
TOLERANCE = {"f16": 2e-3, "bf16": 2e-2, "f32": 2e-5, "f64": 1e-9}
few = settings(max_examples=15, suppress_health_check=list(HealthCheck))


# --- running an op by its bodies -------------------------------------------------------------


def interpreted(
    op: Op, operands: Sequence[Array], micro: int = 0, on: dict[int, int] | None = None
) -> list[Array]:
    """The results of an op. `on` puts results on the memory of operands."""
    specs = launches(op)
    buffers = {("operand", i): np.ascontiguousarray(to_memory(a, v.type.dtype)).reshape(-1).copy()
               for i, (a, v) in enumerate(zip(operands, op.operands, strict=True))}
    for i, value in enumerate(op.results):
        memory = np.zeros(value.type.elements, MEMORY[value.type.dtype])
        buffers["result", i] = buffers["operand", on[i]] if on and i in on else memory
    scratch = np.full(max(s.scratch for s in specs), 0xA5, np.uint8)
    for spec in specs:
        call(spec, buffers, scratch, micro)
    return [
        from_memory(buffers["result", i], v.type.dtype).reshape(v.type.shape)
        for i, v in enumerate(op.results)
    ]


def call(spec: LaunchSpec, buffers: dict[tuple[str, int], Array], scratch: Array,
         micro: int) -> None:
    function = LIBRARY.get(spec.kernel.symbol) or interpret(spec.kernel.body)
    pointers = [
        scratch[p.index :] if p.kind == "scratch"
        else buffers[p.kind, p.index].view(np.uint8)[p.offset :]
        for p in spec.pointers
    ]
    if spec.tiles:
        function([i.base + i.step * micro for i in spec.ints], spec.floats, pointers)


def random_data(values: Sequence[Any], below: int) -> list[Array]:
    """Floats in [-1, 1], integers below a bound, as the dtypes can hold them."""
    random = np.random.default_rng(0)
    return [
        reference.convert(random.uniform(-1, 1, v.type.shape), v.type.dtype)
        if is_float(v.type.dtype)
        else random.integers(0, below, v.type.shape).astype(reference.held(v.type.dtype))
        for v in values
    ]


def assert_same(op: Op, got: Sequence[Array], want: Sequence[Array], slack: float = 1.0) -> None:
    for value, g, w in zip(op.results, got, want, strict=True):
        tolerance = TOLERANCE.get(value.type.dtype, 0) * slack
        np.testing.assert_allclose(
            np.asarray(g, np.float64), np.asarray(w, np.float64), rtol=tolerance, atol=tolerance)


def assert_agrees_with_c(op: Op, below: int = 60, micro: int = 0) -> None:
    operands = random_data(op.operands, below)
    assert_same(op, interpreted(op, operands, micro), run(op, operands, micro))


# --- kernels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_every_kind_of_kernel_gives_what_c_gives(name: str) -> None:
    op = as_one(parsed(EVERY[name])) if name in CASES else next(iter(parsed(EVERY[name]).body))
    for micro in (0, 2):
        assert_agrees_with_c(op, micro=micro)


@pytest.mark.parametrize("name", CASES)
def test_pieces_of_grid_and_loops_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = as_one(parsed(CASES[name]))
    operands = random_data(op.operands, 60)
    whole = interpreted(op, operands)
    monkeypatch.setattr(reference_kernel, "POINTS", 1000)
    monkeypatch.setattr(reference_kernel, "ELEMENTS", 20000)
    monkeypatch.setattr(reference_kernel, "OUTER_STEPS", 2)
    assert_same(op, interpreted(op, operands), whole)


@few
@given(statements())
def test_random_statements_of_every_dtype_agree(made: Function) -> None:
    """With the reference; an index out of range is an error here where it is one there."""
    values: dict[Any, Array] = dict(zip(made.body.args, arrays(made, 1), strict=True))
    for op in made.body:
        if isinstance(op, Return):
            return
        operands = [values[v] for v in op.operands]
        try:
            want = reference.evaluate_op(op, operands)
        except UserError:
            assert_reported(op, operands)
            return
        assert_same(op, interpreted(op, operands), want)
        values.update(zip(op.results, want, strict=True))


def assert_reported(op: Op, operands: Sequence[Array]) -> None:
    """An index out of range is an error, unless there is no element that needs it."""
    assert isinstance(op, Compute)
    gradients = any(isinstance(e, Call) and e.fn == "stop_grad" for e in walk(op.body))
    if all(n for _, n in op.ranges) and not gradients:
        with pytest.raises(IndexError, match="is outside 0"):
            interpreted(op, operands)


@few
@given(groups())
def test_random_fused_groups_agree(made: Function) -> None:
    module = local_module(made)
    module.mesh = Mesh()
    fuse(module)
    values: dict[Any, Array] = dict(
        zip(made.body.args, random_data(made.body.args, 60), strict=True))
    for op in made.body:
        if not isinstance(op, Return):
            operands = [values[v] for v in op.operands]
            results = run(op, operands)
            assert_same(op, interpreted(op, operands), results, slack=20)
            values.update(zip(op.results, results, strict=True))


def test_results_may_lie_on_operands_that_are_read_at_the_same_place() -> None:
    op = as_one(parsed(CASES["adamw"]))
    operands = random_data(op.operands, 60)
    operands[3] = np.abs(operands[3])
    assert_same(op, interpreted(op, operands, on={0: 0, 1: 2, 2: 3}), interpreted(op, operands))


def test_extrema_of_nan_are_nan_and_their_first_place() -> None:
    for name in ("softmax over columns", "argmax"):
        op = as_one(parsed(CASES[name]))
        (x,) = random_data(op.operands, 60)
        x[3, 5] = x[7, 5] = np.nan
        (got,) = interpreted(op, [x])
        np.testing.assert_array_equal(got, run(op, [x])[0])


@pytest.mark.parametrize("wrong", [-1, 70, 2**40])
def test_an_index_out_of_range_is_an_error(wrong: int) -> None:
    op = as_one(parsed(CASES["gather"]))
    x, t = random_data(op.operands, 60)
    t[2, 3] = wrong
    with pytest.raises(IndexError, match=f"index {wrong} is outside 0..69"):
        interpreted(op, [x, t])


def test_every_primitive_of_the_notation_that_kernels_have_is_known() -> None:
    assert set(PRIMITIVES) == set(scalar.PRIMITIVES) - {"stop", "stop_grad", "check"}


@pytest.mark.parametrize("seed", [0, -1, 2**40 + 5])
def test_random_numbers_have_the_bits_that_they_have_everywhere(seed: int) -> None:
    counter = np.arange(1000, dtype=np.int64) * 2**23
    key, step = np.asarray(seed), np.asarray(7)
    for kind, expected in (("uniform", philox.uniform), ("normal", philox.normal)):
        got = draw(kind, 3, key, step, counter)
        np.testing.assert_array_equal(got, expected(counter, seed, 7, 3))


def test_the_body_of_a_cell_is_a_kernel_of_the_language() -> None:
    store = Store("cell", integer(0), Ref("value"))
    kernel = Kernel("", (Tensor("cell", "i64", "out"),), ("value",), (), (store,))
    assert serialised(kernel) == STORE_CELL_BODY


def test_names_and_notes_are_no_part_of_a_body() -> None:
    one, other = (Kernel(name, (), (), (), (), (name,)) for name in ("a", "b"))
    assert serialised(one) == serialised(other)


@pytest.mark.parametrize("statement", [["Fence"], ["Let", "x", ["Call", "gamma", []]]])
def test_what_is_not_known_is_refused(statement: list[Any]) -> None:
    body = json.dumps(["Kernel", "", [], [], [], [statement], []])
    with pytest.raises(BuildError, match="does not know"):
        interpret(body)([], [], [])


# --- a whole program -------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2])
def test_every_kernel_of_a_training_step_gives_what_c_gives(parts: int) -> None:
    options = Options(mesh=Mesh.of(data=parts))
    training = load_program(GPT).training(None, {"vocab": 17})
    fused = lower(training.module, "train", options, stage="fused")
    found = list(cases([fused]))
    assert len(found) > 20
    compiled([spec for case in found for spec in launches(case.op)])  # together, for speed
    for case in found:
        assert_same(case.op, interpreted(case.op, case.operands), run(case.op, case.operands))


def trained(plan: Plan) -> tuple[list[float], dict[str, Array]]:
    random = np.random.default_rng(0)
    with Session(plan, seed=3) as session:
        session.run("init", 1)
        losses = []
        for step in range(2):
            batch = {name: random.integers(0, 11, (8, 7)) for name in ("tokens", "targets")}
            losses.append(float(session.step("train", batch, step)["loss"]))
        return losses, {name: session.state(name) for name in session.states()}


@pytest.mark.parametrize("mesh", [{}, {"data": 2}, {"model": 2}])
def test_training_without_a_compiler_is_training(
    mesh: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = compile_training(load_program(GPT).training(), Options(mesh=Mesh.of(**mesh))).plan
    losses, states = trained(plan)
    monkeypatch.setenv("ANABRANCH_CC", "none")
    with pytest.warns(UserWarning, match="no C compiler was found") as warned:
        slow_losses, slow_states = trained(plan)
    assert len(warned) == 1
    np.testing.assert_allclose(slow_losses, losses, rtol=1e-5)
    for name, state in states.items():
        np.testing.assert_allclose(slow_states[name], state, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:no C compiler")
def test_an_index_out_of_range_ends_a_run_and_names_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = compile_training(load_program(GPT).training(), Options()).plan
    monkeypatch.setenv("ANABRANCH_CC", "none")
    with Session(plan) as session:
        session.run("init", 1)
        tokens = np.full((8, 7), 11)
        told = (r"^\S*gpt\.ab:\d+:\d+: error: index 11 is outside 0\.\.10: 'tokens' holds places "
                r"along dimension 0 of 'table', in ")
        with pytest.raises(RunError, match=told):
            session.step("eval", {"tokens": tokens, "targets": np.zeros((8, 7), np.int64)})
