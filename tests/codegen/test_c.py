"""Every kind of kernel, compiled and run, against the reference evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings

from anabranch.codegen import Launches, launches
from anabranch.codegen.kernel import Loop, show
from anabranch.codegen.kernel import statements as statements_of
from anabranch.codegen.tile import tile
from anabranch.ir import reference
from anabranch.ir.core import Function, Op
from anabranch.ir.diagnostics import UserError
from anabranch.ir.expr import Call, walk
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute, Return
from anabranch.ir.printer import print_op
from anabranch.ir.types import is_float
from anabranch.lowering.fuse import fuse
from tests.codegen.cases import (
    CASES,
    PLAIN_PRODUCTS,
    PRODUCTS,
    as_one,
    local_module,
    parsed,
)
from tests.codegen.groups import groups
from tests.codegen.harness import Array, attempt, run, use_cores
from tests.strategies import arrays, statements

TOLERANCE = {"f16": 2e-3, "bf16": 2e-2, "f32": 2e-5, "f64": 1e-9}
# The same examples every time: a comparison may turn on the last bit of an exp.
few = settings(max_examples=30, derandomize=True, suppress_health_check=list(HealthCheck))


def data(op: Op | Function) -> list[Array]:
    """Floats in [-1, 1], integers that are good indices."""
    random = np.random.default_rng(0)
    values = op.body.args if isinstance(op, Function) else op.operands
    return [
        np.asarray(random.uniform(-1, 1, v.type.shape)).astype(reference.held(v.type.dtype))
        if is_float(v.type.dtype) else np.asarray(random.integers(0, 60, v.type.shape))
        for v in values
    ]


def assert_agrees(op: Op, got: list[Array], want: list[Array], slack: float = 1.0) -> None:
    for value, g, w in zip(op.results, got, want, strict=True):
        tolerance = TOLERANCE.get(value.type.dtype, 0) * slack
        assert g.shape == np.shape(w)
        np.testing.assert_allclose(
            g.astype(np.float64), np.asarray(w, np.float64), rtol=tolerance, atol=tolerance)


def rounded(op: Op, operands: list[Array]) -> list[Array]:
    return [reference.convert(a, v.type.dtype) for a, v in zip(operands, op.operands, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_what_the_reference_gives(name: str) -> None:
    op = as_one(parsed(CASES[name]))
    operands = rounded(op, data(op))
    for micro in (0, 2):
        want = reference.evaluate_op(op, operands, micro=micro)
        assert_agrees(op, run(op, operands, micro), want)


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_one_call_of_the_library(name: str) -> None:
    (op, _) = parsed(PRODUCTS[name]).body
    (spec,) = launches(op)
    assert spec.kernel.kind == "library"
    operands = data(op)
    assert_agrees(op, run(op, operands), reference.evaluate_op(op, operands))


@pytest.mark.parametrize("name", PLAIN_PRODUCTS)
def test_what_the_library_cannot_multiply_is_a_plain_kernel(name: str) -> None:
    (op, _) = parsed(PLAIN_PRODUCTS[name]).body
    assert {s.kernel.kind for s in launches(op)} == {"c"}
    operands = rounded(op, data(op))
    assert_agrees(op, run(op, operands), reference.evaluate_op(op, operands))


@few
@given(statements())
def test_random_statements_of_every_dtype_run(made: Function) -> None:
    values: dict[Any, Array] = dict(zip(made.body.args, arrays(made, 1), strict=True))
    for op in made.body:
        if isinstance(op, Return):
            return
        operands = [values[v] for v in op.operands]
        note(f"{print_op(op)} of {operands}")
        try:
            want = reference.evaluate_op(op, operands)
        except UserError:
            assert_reported(op, operands)
            return
        assert_agrees(op, run(op, operands), want)
        values.update(zip(op.results, want, strict=True))


def assert_reported(op: Op, operands: list[Array]) -> None:
    """An index out of range is reported, unless there is no element that needs it."""
    assert isinstance(op, Compute)
    gradients = any(isinstance(e, Call) and e.fn == "stop_grad" for e in walk(op.body))
    if all(n for _, n in op.ranges) and not gradients:
        assert attempt(op, operands)[1].code == 1


@few
@given(groups())
def test_random_fused_groups_run(made: Function) -> None:
    operands = data(made)
    want = reference.evaluate(made, operands)
    module = local_module(made)
    module.mesh = Mesh()
    fuse(module)
    values: dict[Any, Array] = dict(zip(made.body.args, operands, strict=True))
    for op in made.body:
        if not isinstance(op, Return):
            values.update(zip(op.results, run(op, [values[v] for v in op.operands]), strict=True))
            continue
        for value, expected in zip(op.operands, want, strict=True):
            np.testing.assert_allclose(values[value], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_sums_of_narrow_floats_are_held_wide(dtype: str) -> None:
    text = f"(%x: {dtype}[4, 3000]) {{\n %y: {dtype}[4] = [i] sum[j < 3000](%x[i, j])"
    op = as_one(parsed(text))
    ones = np.ones((4, 3000), reference.held(dtype))
    (total,) = run(op, [ones])
    assert total.tolist() == [float(reference.convert(np.float32(3000), dtype))] * 4


def test_nan_and_infinities_go_where_they_should() -> None:
    op = as_one(parsed(CASES["softmax"]))
    x = data(op)[0]
    x[0, 3], x[1, :], x[2, 5], x[3, 7] = np.nan, -np.inf, np.inf, -np.inf
    for got, want in zip(run(op, [x]), reference.evaluate_op(op, [x]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


LARGE_AND_SMALL = {
    "zero": ("(%x: f32[40], %w: f32[40])", "f32[40] = [i]", [
        "0.0 * %x[i]", "%w[i] * 0.0", "0.0 * (%x[i] * %w[i])", "%w[i] + 0.0 * (%x[i] + 1.0)"],
        [[np.inf, -np.inf, np.nan, *range(37)], np.ones(40)]),
    "order": ("(%x: f32[3], %w: f32[3], %z: f32[3])", "f32[3] = [i]", [
        "%x[i] + (%w[i] - %z[i])", "%x[i] * (%w[i] / %z[i])", "%x[i] * (%w[i] * %z[i])",
        "%x[i] + (%w[i] + -%z[i])"], [[1e-3, 3e38, 0], [1e8, 3e38, 1e30], [1e8, 3e38, 1e30]]),
    "row": ("(%x: f32[2, 3], %w: f32[2])", "f32[2] = [i]", ["sum[j < 3](%x[i, j] / %w[i])"],
            [[[0, 0, 1e-39], [0, 0, 3e38]], [1e-40, 3e38]]),
    "scale": ("(%x: f32[2, 3], %w: f32[3, 4])", "f32[2, 4] = [i, k]", [
        f"sum[j < 3]({scale} * (%x[i, j] * %w[j, k]))" for scale in ("0.0", "1e-50", "inf")],
        [[[np.inf, 1, 1], [0, 1, -1]], np.ones((3, 4))]),
}


@pytest.mark.parametrize("name", LARGE_AND_SMALL)
def test_operations_are_in_the_order_that_is_written(name: str) -> None:
    """What is large, small or infinite shows in which order numbers are added and multiplied."""
    arguments, result, bodies, numbers = LARGE_AND_SMALL[name]
    operands = [np.asarray(x, np.float32) for x in numbers]
    for body in bodies:
        made = parsed(f"{arguments} {{\n %y: {result} {body}")
        want = reference.evaluate(made, operands)
        op = as_one(made)
        assert_agrees(op, run(op, operands), want)


def test_an_index_out_of_range_is_reported_with_value_and_bound() -> None:
    op = as_one(parsed(CASES["gather"]))
    table, places = data(op)
    places[2, 3] = 70
    _, status = attempt(op, [table, places])
    assert (status.code, status.value, status.bound) == (1, 70, 70)
    places[2, 3] = -1
    _, status = attempt(op, [table, places])
    assert (status.code, status.value, status.bound) == (1, -1, 70)


def test_nothing_is_read_of_an_empty_tensor_but_its_pad() -> None:
    """No index is right, which a check tells; what takes the nearest element instead finds 0."""
    ids, table = np.array([1, 0, 3]), np.zeros((0, 2), np.float32)
    text = "(%ids: i64[3], %t: f32[0, 2]) {{\n %y: f32[3, 2] = [n, d] %t[{}]"
    for place in ("check(%ids[n], 0), d", "max(min(%ids[n], -1), 0), d",
                  "%ids[n], d, pad=7.0"):
        op = as_one(parsed(text.format(place)))
        (rows,), status = attempt(op, [table if v.type.rank == 2 else ids for v in op.operands])
        assert (status.code, status.value, status.bound) == (
            (1, 1, 0) if "check" in place else (0, 0, 0))
        assert (rows == (7 if "pad" in place else 0)).all()


def test_scatters_leave_out_what_names_no_place() -> None:
    op = as_one(parsed(CASES["scatter"]))
    x, places = data(op)
    places[:3] = -1, 70, 10**12
    assert_agrees(op, run(op, [x, places]), reference.evaluate_op(op, [x, places]))


@pytest.mark.parametrize("name", ["split full sum", "split column sums", "layer norm", "scatter"])
def test_bits_do_not_depend_on_the_number_of_cores(name: str) -> None:
    op = as_one(parsed(CASES[name]))
    operands = data(op)
    found = []
    for cores in (1, 2, 3):
        use_cores(cores)
        found.append([a.tobytes() for a in run(op, operands)])
    assert found[0] == found[1] == found[2]


def test_a_large_sum_keeps_its_precision() -> None:
    x = np.full((3001, 70), 0.1, np.float32)
    op = as_one(parsed(CASES["split full sum"]))
    _, total = run(op, [x])
    assert abs(float(total) / (x.astype(np.float64) ** 2).sum() - 1) < 5e-6


def test_random_bits_are_those_of_the_reference() -> None:
    text = """(seed %seed: i64[], step %step: i64[]) {
        %y: f32[19, 70] = [i, j] rand(3, %seed[], %step[], (i + origin(4, 2)) * 70 + j)"""
    op = as_one(parsed(text))
    for seed, step, micro in ((0, 0, 0), (-1, 7, 1), (2**62 + 5, 2**33, 3)):
        operands = [np.int64(seed), np.int64(step)]
        (want,) = reference.evaluate_op(op, operands, micro=micro)
        (got,) = run(op, operands, micro)
        assert got.tobytes() == want.astype(np.float32).tobytes()


def test_a_result_may_lie_on_an_operand_that_is_read_at_the_same_place() -> None:
    op = as_one(parsed(CASES["adamw"]))
    operands = data(op)
    operands[3] = np.abs(operands[3])
    want = reference.evaluate_op(op, operands)
    got = run(op, operands, on={0: 0, 1: 2, 2: 3})
    assert_agrees(op, got, want)


@pytest.mark.parametrize("cut", ["", "where(j <= i, %b[i, j], 0.0)"])
def test_results_that_change_places_are_stored_after_all_is_read(cut: str) -> None:
    text = f"""(%a: f32[19, 70], %b: f32[19, 70]) {{
        %x: f32[19, 70] = [i, j] {cut or "%b[i, j]"}
        %y: f32[19, 70] = [i, j] %a[i, j] - %b[i, j]
        return %x, %y"""
    op = as_one(parsed(text))
    operands = data(op)
    assert_agrees(op, run(op, operands, on={0: 0, 1: 1}), reference.evaluate_op(op, operands))


def test_layers_of_one_structure_share_their_kernels() -> None:
    first, second = (as_one(parsed(CASES["layer norm"])) for _ in range(2))
    for value in second.operands:
        value.name = f"other_{value.name}"
    of_a_program = Launches()
    assert of_a_program(first) is of_a_program(second)


def test_what_was_compiled_before_has_no_part_in_a_kernel() -> None:
    text = "(%NAME: f32[17, 71]) {\n %y: f32[17, 71] = [i, j] %NAME[i, j] * 2.5 - 7.125"
    for name in ("first", "second"):
        (spec,) = Launches()(as_one(parsed(text.replace("NAME", name))))
        assert name in spec.kernel.source


def test_a_zero_is_not_one_below_zero() -> None:
    texts = [f"(%x: f32[17, 73]) {{\n %y: f32[17, 73] = [i, j] max(%x[i, j], {zero})"
             for zero in ("0.0", "-0.0")]
    of_a_program = Launches()
    ((one,), (other,)) = (of_a_program(as_one(parsed(text))) for text in texts)
    assert one.kernel != other.kernel


def test_shapes_share_the_text_of_a_kernel() -> None:
    """Extents, strides and origins are arguments: uneven shards need no kernels of their own."""
    text = CASES["slice at an origin"]
    other = text.replace("f32[9]", "f32[12]").replace("20, 3", "40, 5").replace("5, 1", "0, 8")
    (one,), (two,) = (launches(as_one(parsed(t))) for t in (text, other))
    assert one.kernel == two.kernel
    assert one.ints != two.ints


def test_empty_shapes_launch_nothing() -> None:
    op = as_one(parsed("(%x: f32[0, 70]) {\n %y: f32[0, 70] = [i, j] %x[i, j] * 2.0"))
    assert [s.tiles for s in launches(op)] == [0]


def test_masked_columns_are_skipped() -> None:
    """The guard j <= i bounds the loop; nothing of it is left in the body."""
    (piece,) = tile(as_one(parsed(CASES["causal softmax"]))).pieces
    (spec,) = launches(as_one(parsed(CASES["causal softmax"])))
    assert piece.kernel.name == "e_t"
    loops = [s for s in statements_of(piece.kernel.body) if isinstance(s, Loop)]
    bounds = [(show(s.start), show(s.stop)) for s in loops]
    assert bounds == [("0", "cut"), ("0", "cut_2"), ("cut_2", "n_j")]
    assert "?" not in "".join(line for line in spec.kernel.source.splitlines() if "exp" in line)


def test_what_no_lane_decides_is_asked_before_the_lanes() -> None:
    """The row of a gradient of a convolution with stride 2."""
    (spec,) = launches(as_one(parsed(CASES["gradient of strided windows"])))
    line = next(x for x in spec.kernel.source.splitlines() if x.strip().startswith("if ("))
    assert "(h - i + 1, 2) == 0" in line
    assert "(v, 2)" not in line
    lanes = spec.kernel.source.split(line)[1].split("}")[0]
    assert "(v, 2) == 0" in lanes
    assert "(h - i + 1, 2) == 0" not in lanes
