"""Kernels in Triton's interpreter against the reference: a test file for a process of its own.

`test_triton.py` runs it, for triton decides once per process whether it interprets. No kernel runs
in many programs, each of which costs the interpreter milliseconds: blocks grow instead.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from triton import language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from anabranch.codegen import tile, triton_grid
from anabranch.codegen.emit import TARGETS, emit
from anabranch.codegen.triton import print_piece
from anabranch.ir import philox, reference
from anabranch.ir.core import Function, Op
from anabranch.ir.diagnostics import UserError
from anabranch.ir.expr import Call, walk
from anabranch.ir.launch import LaunchSpec
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute, Order, Return
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
from tests.codegen.orders import numbers, orders
from tests.codegen.scans import SCANS, all_elements_are_needed, only_scan, scan_of
from tests.codegen.scans import numbers as scanned
from tests.codegen.test_c import LARGE_AND_SMALL, data, rounded
from tests.codegen.triton_cases import SMALL, cases, steps
from tests.codegen.triton_memory import Outcome, assert_agrees, call, run
from tests.strategies import arrays, recurrences, statements

Array = np.ndarray[Any, Any]
PROGRAMS = 8
FEW = replace(TARGETS["triton"], print=partial(print_piece, most=PROGRAMS))
LOADED: list[Array] = []  # the addresses of each load of the last launch
some = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True, scope="module")
def _mended_interpreter() -> Iterator[None]:
    """The interpreter forgets that a comparison of scalars is a condition when it repeats it; and
    it tells where every load goes."""
    original = interpreter.InterpreterBuilder.create_splat
    loading = interpreter.InterpreterBuilder.create_masked_load

    def load(self: Any, places: Any, mask: Any, *more: Any, **named: Any) -> Any:
        LOADED.append(np.extract(mask.data, places.data))
        return loading(self, places, mask, *more, **named)

    def splat(self: Any, kind: Any, arg: Any) -> Any:
        return interpreter.TensorHandle(np.full(kind.shape, arg.data), arg.dtype.scalar)

    interpreter.InterpreterBuilder.create_splat = splat
    interpreter.InterpreterBuilder.create_masked_load = load
    with np.errstate(all="ignore"):
        yield
    interpreter.InterpreterBuilder.create_splat = original
    interpreter.InterpreterBuilder.create_masked_load = loading


def specs_of(op: Op) -> tuple[LaunchSpec, ...]:
    specs = emit(op, FEW)
    assert all(s.tiles <= 5 * PROGRAMS for s in specs)  # parts of a sum are programs of their own
    return specs


def interpreted(op: Op, operands: Sequence[Array], micro: int = 0) -> Outcome:
    with np.errstate(all="ignore"):
        return run(op, operands, specs_of(op), micro=micro, launch=watched)


def watched(module: Any, spec: LaunchSpec, arguments: Sequence[Any]) -> None:
    """One launch, which is to load nothing from outside of what it is given."""
    LOADED.clear()
    call(module, spec, [as_declared(x, kind) for x, kind in
                        zip(arguments, module.SIGNATURE.values(), strict=False)])
    given = [a.view(-1) for a in arguments if hasattr(a, "data_ptr")]
    for places in LOADED:
        inside = [(a.data_ptr() <= places) & (places < a.data_ptr() + a.nbytes) for a in given]
        assert np.any(inside, axis=0).all(), f"{spec.kernel.symbol} reads outside"


def as_declared(argument: Any, kind: str) -> Any:
    """An integer of 64 bits; the interpreter takes small ones for 32."""
    if kind != "i64":
        return argument
    return tl.tensor(TensorHandle(np.array([argument]), tl.int64), tl.int64)


def assert_runs(op: Op, operands: Sequence[Array], micro: int = 0) -> None:
    outcome = interpreted(op, operands, micro)
    assert outcome.status[0] == 0
    assert_agrees(op, outcome.results, reference.evaluate_op(op, operands, micro=micro))


STEPS = [(0.0, {}), (0.1, {}), (0.0, {"data": 2}), (0.1, {"model": 2}),
         (0.1, {"data": 2, "model": 2})]


@pytest.mark.parametrize(("drop", "axes"), STEPS)
def test_step_runs_kernel_by_kernel(drop: float, axes: dict[str, int]) -> None:
    count = 0
    for case in cases(steps(Mesh.of(**axes), {**SMALL, "drop": drop}, batch=3)):
        assert_runs(case.op, case.operands)
        count += 1
    assert count > 40


def test_step_runs_where_rows_are_longer_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops over blocks of lanes, and reductions in two kernels, at sizes that take no time."""
    monkeypatch.setattr(triton_grid, "WHOLE", 8)
    monkeypatch.setattr(tile, "WORTH", 1)
    monkeypatch.setattr(tile, "PART", 64)
    monkeypatch.setattr(tile, "PARTS", 4)
    monkeypatch.setattr(tile, "ROWS", 64)
    texts = []
    for case in cases(steps(Mesh(), {**SMALL, "drop": 0.1}, batch=3)):
        assert_runs(case.op, case.operands)
        texts += [s.kernel.source for s in specs_of(case.op)]
    assert any(", LANES):" in text for text in texts)
    assert any("_parts_" in text for text in texts)
    assert any("tl.max(cut)" in text for text in texts)


@pytest.mark.parametrize("name", CASES)
def test_case_gives_what_the_reference_gives(name: str) -> None:
    op = as_one(parsed(CASES[name]))
    operands = rounded(op, data(op))
    for micro in (0, 2):
        assert_runs(op, operands, micro)


@pytest.mark.parametrize("rows", [4, 9])
def test_case_of_a_branch_that_is_not_taken_and_not_read(rows: int) -> None:
    """Where it would be outside, and where it would be inside too."""
    text = f"""(%x: f32[{rows}, 70], %z: f32[9, 70]) {{
        %y: f32[9, 70] = [i, j] where(i < 4, %x[i, j], %z[i, j])"""
    op = as_one(parsed(text))
    assert_runs(op, data(op))
    assert sum(map(np.size, LOADED)) == 9 * 70


@pytest.mark.parametrize("name", [*PRODUCTS, *PLAIN_PRODUCTS])
def test_case_of_a_product(name: str) -> None:
    (op, _) = parsed({**PRODUCTS, **PLAIN_PRODUCTS}[name]).body
    assert_runs(op, rounded(op, data(op)))


def test_case_of_a_product_of_many_blocks() -> None:
    """Several blocks along every side, none of them full."""
    text = """(%x: f32[2, 70, 90], %w: f32[2, 90, 67]) {
        %y: f32[2, 70, 67] = [b, i, j] sum[k < 90](%x[b, i, k] * %w[b, k, j])"""
    (op, _) = parsed(text).body
    assert_runs(op, data(op))
    assert "tl.dot" in specs_of(op)[0].kernel.source


@pytest.mark.parametrize("name", ["order", "row"])
def test_case_of_operations_in_the_order_that_is_written(name: str) -> None:
    arguments, result, bodies, numbers = LARGE_AND_SMALL[name]
    for body in bodies:
        (op, _) = parsed(f"{arguments} {{\n %y: {result} {body}").body
        assert_runs(op, [np.asarray(x, np.float32) for x in numbers])


def test_case_of_two_loops_over_an_axis_of_which_one_is_cut() -> None:
    op = as_one(parsed("""(%x: f32[1, 1, 2]) {
        %z: f32[1] = [a] sum[c < 1, d < 2](%x[a, c, d])
        %y: f32[1] = [a] sum[c < 1, d < 2 if d <= a](%x[a, c, d] * %z[a])
        return %z, %y"""))
    assert_runs(op, data(op))


WIDE = [  # over i < 4, with %x: bool[4]; in 32 bits each of them wraps
    "where(%x[i], 70000, 1) * 70000", "where(%x[i], i, 65536) * 65536",
    "max(where(%x[i], 70000, 1), 7) * 70000", "where(%x[i], -2147483648, 1) - 5",
    "i64(%x[i]) * 70000 * 70000", "i * 70000 * 70000", "2147483647",
]


FORMS = ["[] = [] sum[i < 4]", "[] = [] prod[i < 4]"]


@pytest.mark.parametrize(("form", "body"), [
    *((form, body) for form in FORMS for body in WIDE),
    *(("[4] = [i] ", body) for body in WIDE if "%x" in body)])
def test_case_of_primitive_that_needs_64_bits(form: str, body: str) -> None:
    (op, _) = parsed(f"(%x: bool[4]) {{\n %y: i64{form}({body})").body
    assert_runs(op, [np.array([True, False, True, True])] * len(op.operands))


@some
@given(statements())
def test_random_statements_of_every_dtype(made: Function) -> None:
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
        assert_agrees(op, interpreted(op, operands).results, want)
        values.update(zip(op.results, want, strict=True))


def assert_reported(op: Op, operands: Sequence[Array]) -> None:
    """An index out of range is reported, unless there is no element that needs it."""
    assert isinstance(op, Compute)
    gradients = any(isinstance(e, Call) and e.fn == "stop_grad" for e in walk(op.body))
    if all(n for _, n in op.ranges) and not gradients:
        assert interpreted(op, operands).status[0] == 1


@some
@given(groups())
def test_random_fused_groups(made: Function) -> None:
    operands = data(made)
    want = reference.evaluate(made, operands)
    module = local_module(made)
    module.mesh = Mesh()
    fuse(module)
    values: dict[Any, Array] = dict(zip(made.body.args, operands, strict=True))
    for op in made.body:
        if not isinstance(op, Return):
            got = interpreted(op, [values[v] for v in op.operands]).results
            values.update(zip(op.results, got, strict=True))
            continue
        for value, expected in zip(op.operands, want, strict=True):
            np.testing.assert_allclose(values[value], expected, rtol=1e-3, atol=1e-3)


@some
@given(orders(longest=70))
def test_random_orders_of_every_dtype(op: Order) -> None:
    x = numbers(op)
    outcome = run(op, [x], emit(op, TARGETS["triton"]))
    np.testing.assert_array_equal(outcome.results[0], reference.evaluate_op(op, [x])[0])


@pytest.mark.parametrize("name", SCANS)
def test_case_of_a_recurrence(name: str) -> None:
    op = scan_of(SCANS[name])
    assert_runs(op, scanned(op.operands))


@some
@given(recurrences())
def test_random_recurrences_of_every_dtype(made: Function) -> None:
    given = dict(zip(made.body.args, arrays(made, 1), strict=True))
    op = only_scan(made)
    operands = [given[v] for v in op.operands]
    try:
        want = reference.evaluate_op(op, operands)
    except UserError:
        assert interpreted(op, operands).status[0] == 1 or not all_elements_are_needed(op)
        return
    assert_agrees(op, interpreted(op, operands).results, want)


UNARY = ("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "asin", "acos",
         "atan", "sinh", "cosh", "tanh", "erf", "floor", "ceil", "round", "trunc", "abs", "sign")
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 1e-5, -1e-5, 3.0, -3.0, 30.0, -30.0,
           float("inf"), float("-inf"), float("nan"), 0.7, 1e-20, -0.999)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_primitive_functions_are_numpys(dtype: str) -> None:
    """To a few roundings, at special numbers too."""
    x = np.array(NUMBERS, np.float32 if dtype == "f32" else np.float64)
    tolerance = 2e-6 if dtype == "f32" else 1e-12
    for fn in UNARY:
        (op, _) = parsed(f"(%x: {dtype}[20]) {{\n        %y: {dtype}[20] = [i] {fn}(%x[i])").body
        (got,), (want,) = interpreted(op, [x]).results, reference.evaluate_op(op, [x])
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * 1e-3, err_msg=fn)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i32", "u64", "u32", "u16"])
def test_primitive_operations_are_numpys(dtype: str) -> None:
    """Signs of remainders, powers of negative numbers, divisors of zero."""
    whole = not is_float(dtype)
    numbers = [-7, -2, -1, 0, 1, 2, 3, 9] if whole else [-7.5, -2, -1, 0, 0.5, 1, 2, np.inf]
    values = np.array(numbers).astype(reference.held(dtype))
    x, y = (a.flatten() for a in np.meshgrid(values, values))
    bits = ("bitand", "bitor", "bitxor", "shl", "shr")
    names = ("floordiv", "mod", "pow", "min", "max", *(bits if whole else ("div", "atan2")))
    for fn in names:
        (op, _) = parsed(f"(%x: {dtype}[64], %z: {dtype}[64]) {{\n"
                         f"        %y: {dtype}[64] = [i] {_infix(fn)}").body
        (got,), (want,) = interpreted(op, [x, y]).results, reference.evaluate_op(op, [x, y])
        tolerance = {"f32": 2e-6, "f64": 1e-12}.get(dtype, 0)
        np.testing.assert_allclose(got, want, rtol=tolerance, err_msg=fn)


def _infix(fn: str) -> str:
    signs = {"floordiv": "//", "mod": "%", "pow": "**", "div": "/"}
    return f"%x[i] {signs[fn]} %z[i]" if fn in signs else f"{fn}(%x[i], %z[i])"


def test_primitive_random_numbers_are_those_of_the_reference_bit_for_bit() -> None:
    """With a seed and an element of more than 32 bits, too."""
    text = """(seed %seed: i64[], step %step: i64[]) {
        %y: f32[300] = [i] rand(4000000000, %seed[], %step[], i * 3 + origin(20000000000, 0))"""
    (op, _) = parsed(text).body
    seed, step = np.array(2**40 + 12345), np.array(7)
    (got,) = interpreted(op, [seed, step]).results
    counter = np.arange(300) * 3 + 20_000_000_000
    np.testing.assert_array_equal(got, philox.uniform(counter, seed, step, 4000000000))
    assert "tl.program_id(0).to(tl.int64)" in specs_of(op)[0].kernel.source


def test_extremes_of_nan_and_infinities() -> None:
    text = """(%x: f32[3, 70]) {
        %a: f32[3] = [i] max[j < 70](%x[i, j])
        %b: f32[3] = [i] min[j < 70](%x[i, j])
        return %a, %b"""
    op = as_one(parsed(text))
    x = np.arange(210, dtype=np.float32).reshape(3, 70)
    x[0, 5], x[1, 6], x[2, 69] = np.nan, np.inf, -np.inf
    assert_runs(op, [x])


def test_an_index_out_of_range_is_reported_with_its_bound() -> None:
    op = as_one(parsed(CASES["gather"]))
    table, places = data(op)
    places[2, 3] = 70
    outcome = interpreted(op, [table, places])
    assert outcome.status == (1, 70, 70)
