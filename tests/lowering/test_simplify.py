"""Simplification keeps the meaning, is idempotent and fast, and leaves nothing but real work."""

from __future__ import annotations

import cProfile
import pstats
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from anabranch.ir import reference
from anabranch.ir.core import Function, Value
from anabranch.ir.diagnostics import UserError
from anabranch.ir.expr import TRUE, Call, Const, Expr, Read, Var, reads, transform
from anabranch.ir.ops import Compute, Gradient, Return
from anabranch.ir.printer import print_module
from anabranch.ir.types import DTYPES, tensor
from anabranch.ir.verifier import verify
from anabranch.lowering.differentiate import differentiate
from anabranch.lowering.equations import EQUATIONS, Scope, lossless, pattern, simplified
from anabranch.lowering.simplify import simplify
from tests.lowering.test_differentiate import CASES, draw, float_names
from tests.measuring import cpu_seconds
from tests.statements import function, module, with_gradient
from tests.strategies import arrays, statements

Array = np.ndarray[Any, Any]


def lines(made: Function) -> list[str]:
    """The computes of a function as text, without names of extents and the like."""
    text = print_module(module(made))
    return [line.strip() for line in text.splitlines() if " = " in line]


def simple(text: str, results: tuple[str, ...] = (), sizes: dict[str, int] | None = None,
           **types: str) -> list[str]:
    made = function(text, results=results, sizes=sizes, **types)
    simplify(module(made))
    verify(module(made))
    return lines(made)


@settings(max_examples=150)
@given(statements(), st.integers(0, 9))
def test_random_statements_keep_their_meaning(made: Function, seed: int) -> None:
    args = arrays(made, seed)
    try:
        before = reference.evaluate(made, args)
    except UserError:  # an index that is refused
        return
    simplify(module(made))
    verify(module(made))
    after = reference.evaluate(made, args)
    for x, y in zip(before, after, strict=True):
        assert x.dtype == y.dtype
        assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    text = print_module(module(made))
    simplify(module(made))
    assert text == print_module(module(made))


@pytest.mark.parametrize("name", CASES)
def test_gradients_keep_their_meaning(name: str) -> None:
    case = CASES[name]
    made = with_gradient(function(case.text, sizes=case.sizes, **case.types),
                         float_names(case.types))
    differentiate(module(made))
    args = [*draw(case.types, case.given).values(),
            np.random.default_rng(7).standard_normal(made.arguments[-1].value.type.shape)]
    before = reference.evaluate(made, args, double=True)
    simplify(module(made))
    verify(module(made))
    for x, y in zip(before, reference.evaluate(made, args, double=True), strict=True):
        assert_allclose(x, y, rtol=1e-6, atol=1e-7)
    text = print_module(module(made))
    simplify(module(made))
    assert text == print_module(module(made))


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_a_literal_is_a_number_of_its_dtype(dtype: str) -> None:
    little, none = Const(1e-5, dtype), Const(0.0, dtype)
    same = Call("eq", (Call("add", (none, little)), little))
    assert simplified(same, Scope({}, (), [])) == TRUE


# --- equations -------------------------------------------------------------------------------

NUMBERS = [0.0, 1.0, -1.0, 2.0, -2.5, 0.3, np.inf, -np.inf, np.nan]


def reading(form: Expr) -> Expr:
    """A pattern as an expression over x, y, z (floats) and c, d (bools), read at i."""
    match form:
        case Var(name):
            return Read("xyzcd".index(name), (Var("i"),))
        case Const(value, ""):
            return Const(float(value), "f32")
        case Call(fn, args):
            return Call(fn, tuple(map(reading, args)))
    return form


@pytest.mark.parametrize("equation", EQUATIONS, ids=lambda e: f"{e[0]} is {e[1]}")
def test_an_equation_holds(equation: tuple[str, ...]) -> None:
    left, right = (reading(pattern(side)) for side in equation[:2])
    random = np.random.default_rng(0)
    floats = [random.choice(np.array(NUMBERS, np.float32), 300) for _ in range(3)]
    args = [*floats, *(random.integers(0, 2, 300) > 0 for _ in range(2))]
    truth = equation[1] in ("c", "True", "False")
    values = []
    for side in (left, right):
        made = Function("f")
        operands = [made.add_argument(n, tensor("bool" if n in "cd" else "f32", (300,)))
                    for n in "xyzcd"]
        op = Compute(operands, "bool" if truth else "f32", [("i", 300)], [("i",)], side)
        values.append(reference.evaluate_op(op, args)[0])
    assert_allclose(values[0], values[1], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_an_equation_of_integers_holds_where_they_wrap(dtype: str) -> None:
    x, y = (part.reshape(-1) for part in np.meshgrid(*[np.arange(256).astype(np.uint8)] * 2))
    numbers = [part.view(reference.held(dtype)) for part in (x, y)]
    for left, *_ in EQUATIONS:
        of_floats = any(word in left for word in ("sqrt", "/", "c"))
        if of_floats or ("-1" in left and dtype == "u8"):
            continue
        operands = [Value(tensor(dtype, x.shape), name) for name in "xy"]
        before = _of_integers(reading(pattern(left)), dtype)
        after = simplified(before, Scope({"i": x.size}, (dtype, dtype), [x.shape] * 2))
        results = [reference.evaluate_op(
            Compute(operands, dtype, [("i", x.size)], [("i",)], side), numbers)[0]
            for side in (before, after)]
        assert_array_equal(*results, err_msg=left)


def _of_integers(expr: Expr, dtype: str) -> Expr:
    return transform(expr, lambda e: Const(int(e.value), dtype) if isinstance(e, Const) else None)


def test_integers_that_wrap_are_those_of_the_reference() -> None:
    text = """
a[i] = (i * 6364136223846793005 + 1442695040888963407) * 6364136223846793005 % 1000
b[i] = (i * 4611686018427387904) * 2 - 4611686018427387904 * 2
c[i] = (i * 4611686018427387904) // 4611686018427387904
d[i] = cast(i64, i * 4611686018427387904 >= 0) + 2 * cast(i64, i + 9223372036854775800 > 0)
e[i] = cast(i64, i * 4611686018427387904 + 4611686018427387904 > i * 4611686018427387904)
f[i] = cast(i64, x[i] // 1000 < 10000000000000000) + 2 * cast(i64, i + 9223372036854775800 < 5)
y[i] = a[i] + 3 * b[i] + 5 * c[i] + 7 * d[i] + 11 * e[i] + 13 * f[i]"""
    made = function(text, x="i64[9]", sizes={"i": 9}, results="abcdefy")
    args = [np.arange(9) - 4]
    before = reference.evaluate(made, args)
    simplify(module(made))
    verify(module(made))
    for x, y in zip(before, reference.evaluate(made, args), strict=True):
        assert_array_equal(x, y)


SCOPE = Scope({"i": 4, "j": 3, "k": 12}, ("f32", "i64"), [(12,), (4,)])


def rewritten(text: str) -> str:
    """An expression over the variables and operands x: f32[12], t: i64[4], simplified."""
    made = function(f"y[i, j, k] = {text}", sizes=dict(SCOPE.extents), x="f32[12]", t="i64[4]")
    simplify(module(made))
    return lines(made)[-1].split("] ", 2)[-1].split(" {")[0]


@pytest.mark.parametrize(("text", "expected"), [
    ("i*3 + j - 3 + i + 2 - j", "i * 4 - 1"),
    ("8 - i - 8 + i", "0"),
    ("(i*3 + j) // 3", "i"),
    ("(i*3 + j) % 3", "j"),
    ("(i*12 + k) // 3 % 4", "(i * 12 + k) // 3 % 4"),
    ("(k + 5) // 12", "(k + 5) // 12"),
    ("where(i < 4, i, j)", "i"),
    ("where(i - 3 < 1 and j >= 1, k, 0)", "where(j >= 1, k, 0)"),
    ("where(i // 2 >= 1, 1, 0)", "where(i >= 2, 1, 0)"),
    ("where((i - 1) // 2 < 1, 1, 0)", "where(i < 3, 1, 0)"),
    ("check(i, 4)", "i"),
    ("check(t[i], 4)", "check(%t[i], 4)"),
    ("pad(x[i*3 + j], 0.0)", "%x[i * 3 + j]"),
    ("pad(x[k + 1], 0.0)", "%x[k + 1, pad=0.0]"),
    ("x[k] * (2.0 - 1.0) + 0.0", "%x[k]"),
    ("-x[k] * (-x[i])", "%x[i] * %x[k]"),
    ("x[k] + -x[i]", "%x[k] - %x[i]"),
    ("x[k] * 0.0", "%x[k] * 0.0"),
    ("x[k] - x[k]", "%x[k] - %x[k]"),
    ("exp(0.0) + x[k]", "1.0 + %x[k]"),
    ("cast(f32, cast(f64, x[k]))", "%x[k]"),
    ("cast(f32, cast(f16, x[k]))", "f32(f16(%x[k]))"),
    ("cast(i64, cast(bool, t[i]))", "i64(bool(%t[i]))"),
    ("where(x[k] > 0.0, where(x[k] > 0.0, 1.0, 2.0), 3.0)", "where(%x[k] > 0.0, 1.0, 3.0)"),
])
def test_expressions_take_their_simple_form(text: str, expected: str) -> None:
    assert rewritten(text) == expected


def test_a_condition_that_guards_a_read_stays_around_it() -> None:
    guarded = "where(i >= 1, where(t[i - 1] > 0, 1.0, 0.0), 0.0)"
    assert rewritten(guarded) == "where(i >= 1, where(%t[i - 1] > 0, 1.0, 0.0), 0.0)"
    assert rewritten("where(i >= 1, where(t[i] > 0, 1.0, 0.0), 0.0)") == (
        "where(i >= 1 and %t[i] > 0, 1.0, 0.0)")


@given(st.sampled_from(sorted(DTYPES)), st.sampled_from(sorted(DTYPES)), st.integers())
def test_a_lossless_cast_keeps_every_number(source: str, target: str, seed: int) -> None:
    if not lossless(source, target):
        return
    random = np.random.default_rng(abs(seed))
    numbers = random.integers(-(2**62), 2**62, 20) >> random.integers(0, 62, 20)
    with np.errstate(over="ignore"):  # a number too large is an infinity
        x = reference.convert(numbers, source)
        there = reference.convert(x, target)
    assert_allclose(reference.convert(there, source), x, rtol=0)


# --- layouts ---------------------------------------------------------------------------------


def test_slices_transposes_and_merged_indices_vanish_into_subscripts() -> None:
    text = """
r[b, s, t, h, d] = x[b, s, (t, h, d)]
q0[b, s, h, d] = r[b, s, 0, h, d]
k0[b, s, h, d] = r[b, s, 1, h, d]
q[b, h, s, d] = q0[b, s, h, d]
k[b, h, d, s] = k0[b, s, h, d]
y[b, h, i, j] = sum[d](q[b, h, i, d] * k[b, h, d, j])
"""
    assert simple(text, x="f32[2, 5, 24]", sizes={"t": 3, "h": 2, "d": 4}) == [
        "%y: f32[2, 2, 5, 5] = [b, h, i, j] "
        "sum[d < 4](%x[b, i, h * 4 + d] * %x[b, j, h * 4 + d + 8])"]


def test_what_is_merged_afterwards_is_computed_merged() -> None:
    text = """
a[b, h, i, c] = sum[j](e[b, h, i, j] * v[b, j, h, c])
m[b, i, (h, c)] = a[b, h, i, c]
y[b, i, n] = sum[k](m[b, i, k] * w[n, k])
z[b, h, i] = sum[c](a[b, h, i, c] * a[b, h, i, c])
"""
    assert simple(text, ("y", "z"), e="f32[2, 3, 5, 5]", v="f32[2, 5, 3, 4]", w="f32[7, 12]") == [
        "%a: f32[2, 5, 12] = [b, i, (h < 3, c < 4)] "
        "sum[j < 5](%e[b, h, i, j] * %v[b, j, h, c])",
        "%y: f32[2, 5, 7] = [b, i, n] sum[k < 12](%a[b, i, k] * %w[n, k])",
        "%z: f32[2, 3, 5] = [b, h, i] sum[c < 4](%a[b, i, h * 4 + c] * %a[b, i, h * 4 + c])",
    ]


def test_what_repeats_elements_is_not_moved_into_a_product() -> None:
    text = "t[i, j, k] = x[i, k]\ny[i, j, n] = sum[k](t[i, j, k] * w[k, n])"
    assert len(simple(text, x="f32[2, 3]", w="f32[3, 4]", sizes={"j": 5})) == 2
    windows = "t[i, j] = x[i + j]\ny[i, n] = sum[j](t[i, j] * w[j, n])"
    assert len(simple(windows, x="f32[8]", w="f32[3, 4]", sizes={"i": 6, "j": 3})) == 2


def test_a_broadcast_and_a_constant_vanish_into_pointwise_work() -> None:
    text = "t[i, j] = x[i]\none[i] = 1.0\nmask[i, j] = i <= j\n"
    text += "y[i, j] = where(mask[i, j], t[i, j] * one[j], 0.0)"
    assert simple(text, x="f32[3]", sizes={"i": 3, "j": 3}) == [
        "%y: f32[3, 3] = [i, j] where(i <= j, %x[i], 0.0)"]


def test_a_padded_read_of_a_permutation_moves_the_pad_only_if_it_means_the_same() -> None:
    moved = "t[i, j] = x[j, i]\ny[i, j] = pad(t[i + 1, j], 7.0)"
    assert simple(moved, x="f32[3, 4]", sizes={"i": 4}) == [
        "%y: f32[4, 3] = [i, j] %x[j, i + 1, pad=7.0]"]
    wide = "t[(p, q), c] = x[p, q]\ny[r, s, j] = pad(t[3 * r + s, j - 1], 7.0)"
    sizes = {"p": 2, "q": 3, "c": 4, "r": 2, "s": 3, "j": 4}
    assert len(simple(wide, x="f32[2, 3]", sizes=sizes)) == 2
    cut = "t[i] = x[i]\ny[i] = pad(t[i + 1], 7.0)"
    assert len(simple(cut, x="f32[5]", sizes={"i": 3})) == 2


def test_an_indirect_read_stays_a_statement_of_its_own() -> None:
    text = "g[i, d] = w[check(t[i], 4), d]\ny[i, d] = g[i, d] * 2.0"
    assert len(simple(text, w="f32[4, 3]", t="i64[5]")) == 2


def test_a_layout_is_not_read_across_a_stage() -> None:
    made = function("h[i] = x[i + 1]\ny[i] = exp(h[i])", x="f32[4]", sizes={"i": 2})
    made.body.first.next.stage = 1
    simplify(module(made))
    assert len(lines(made)) == 2


# --- statements ------------------------------------------------------------------------------


def test_equal_statements_are_one_up_to_names_and_commutation() -> None:
    text = "a[i] = exp(x[i]) * w[i]\nb[j] = w[j] * exp(x[j])\ny[k] = a[k] / b[k]"
    assert len(simple(text, x="f32[3]", w="f32[3]")) == 2


def test_statements_of_another_stage_or_recomputed_region_are_not_one() -> None:
    for attribute in ("stage", "recompute"):
        made = function("a[i] = exp(x[i])\nb[i] = exp(x[i])\ny[i] = a[i] - b[i]", x="f32[3]")
        setattr(made.body.first, attribute, 1)
        simplify(module(made))
        assert len(lines(made)) == 3


def test_draws_of_one_stream_are_one_and_of_two_are_two() -> None:
    text = "a[i] = rand({}, s, n, i)\nb[i] = rand(2, s, n, i)\ny[i] = a[i] - b[i]"
    for stream, statements_left in ((1, 3), (2, 2)):
        found = simple(text.format(stream), s="i64[]", n="i64[]", sizes={"i": 3})
        assert len(found) == statements_left


def test_a_copy_is_its_source_and_what_nothing_reads_goes_away() -> None:
    text = "a[i, j] = x[i, j]\nb[i] = exp(x[i, 0])\ny[i, j] = a[i, j] + 1.0"
    assert simple(text, x="f32[2, 3]") == ["%y: f32[2, 3] = [i, j] %x[i, j] + 1.0"]


def test_stops_stay_until_the_gradient_is_expanded() -> None:
    made = with_gradient(function("s[i] = stop(x[i])\ny[i] = s[i] * x[i]", x="f32[3]"), ["x"])
    simplify(module(made))
    x, seed = np.array([1.0, 2, 3]), np.ones(3)
    differentiate(module(made))
    assert_allclose(reference.evaluate(made, [x, seed])[0], x)
    simplify(module(made))
    assert not [line for line in lines(made) if "stop" in line]


def test_a_value_by_which_is_differentiated_stays_a_value() -> None:
    made = function("a[i] = x[i]\nb[i] = x[i]\ny[()] = sum[i](a[i] * b[i])", x="f32[3]")
    a = made.body.first.result
    made.body.last.erase()
    gradient = made.body.append(Gradient(made.body.last.result, [a]))
    made.body.append(Return(gradient.results))
    simplify(module(made))
    differentiate(module(made))
    x = np.array([1.0, 2, 3])
    assert_allclose(reference.evaluate(made, [x])[0], x)


def test_states_keep_values_of_their_own() -> None:
    made = Function("init")
    ops = [made.body.append(Compute([], "f32", [("i", 3)], [("i",)], Const(0.0, "f32")))
           for _ in range(2)]
    made.body.append(Return([op.result for op in ops], states=["m", "v"]))
    simplify(module(made))
    assert len(set(made.body.last.operands)) == 2


def test_reduced_variables_of_extent_one_or_without_use_go_away() -> None:
    assert simple("y[i] = sum[j, k](x[i, j])", x="f32[3, 1]", sizes={"k": 4}) == [
        "%y: f32[3] = [i] %x[i, 0] * 4.0"]
    assert simple("y[i] = max[j, k](x[i, j])", x="f32[3, 2]", sizes={"k": 4}) == [
        "%y: f32[3] = [i] max[j < 2](%x[i, j])"]
    assert simple("y[i] = sum[j, given(i > 1)](x[i, j])", x="f32[3, 1]") == [
        "%y: f32[3] = [i] where(i > 1, %x[i, 0], 0.0)"]
    assert simple("y[(g, r),] = x[g]", x="f32[3]", sizes={"r": 1}) == []


# --- size ------------------------------------------------------------------------------------

BLOCK = """
h{n}[b, s, n] = sum[k](x{n}[b, s, k] * wqkv[n, k])
r{n}[b, s, t, g, d] = h{n}[b, s, (t, g, d)]
q{n}[b, s, g, d] = r{n}[b, s, 0, g, d]
k{n}[b, s, g, d] = r{n}[b, s, 1, g, d]
v{n}[b, s, g, d] = r{n}[b, s, 2, g, d]
s{n}[b, g, i, j] = sum[d](q{n}[b, i, g, d] * k{n}[b, j, g, d])
m{n}[b, g, i] = max[j, given(j <= i)](s{n}[b, g, i, j])
e{n}[b, g, i, j] = where(j <= i, exp(s{n}[b, g, i, j] - stop(m{n}[b, g, i])), 0.0)
z{n}[b, g, i] = sum[j](e{n}[b, g, i, j])
a{n}[b, i, g, c] = sum[j](e{n}[b, g, i, j] * v{n}[b, j, g, c])
o{n}[b, i, g, c] = a{n}[b, i, g, c] / z{n}[b, g, i]
f{n}[b, s, (g, c)] = o{n}[b, s, g, c]
p{n}[b, s, n] = sum[k](f{n}[b, s, k] * wproj[n, k])
y{n}[b, s, k] = x{n}[b, s, k] + p{n}[b, s, k]
u{n}[b, s, n] = sum[k](y{n}[b, s, k] * wup[n, k])
l{n}[b, s, n] = 0.5 * u{n}[b, s, n] * (1.0 + erf(u{n}[b, s, n] / sqrt(2.0)))
w{n}[b, s, k] = sum[n](l{n}[b, s, n] * wdown[k, n])
x{next}[b, s, k] = y{n}[b, s, k] + w{n}[b, s, k]
"""


def transformer(layers: int) -> Function:
    made = function(
        "".join(BLOCK.format(n=n, next=n + 1) for n in range(layers)),
        x0="f32[2, 4, 12]", wqkv="f32[36, 12]", wproj="f32[12, 12]", wup="f32[48, 12]",
        wdown="f32[12, 48]", sizes={"t": 3, "g": 3, "d": 4})
    return with_gradient(made, ["wqkv", "wproj", "wup", "wdown"])


def test_no_copy_is_left_in_a_transformer_and_its_products_are_of_two_reads() -> None:
    made = transformer(1)
    simplify(differentiate(module(made)))
    computes = [op for op in made.body if isinstance(op, Compute)]
    assert [line for line in lines(made) if re.search(r"= \[[^=]*\] %[\w.]+\[[^%]*\]$", line)] == []
    products = [op.body for op in computes if op.reduce == "sum" and len(reads(op.body)) == 2]
    assert len(products) >= 6 + 11  # the input of the layer needs no gradient
    assert all(isinstance(body, Call) and body.fn == "mul" and
               all(isinstance(arg, Read) for arg in body.args) for body in products)


def differentiated(layers: int) -> tuple[Function, int]:
    made = transformer(layers)
    differentiate(module(made))
    return made, sum(1 for _ in made.body)


def test_simplifying_three_thousand_statements_takes_less_than_two_seconds() -> None:
    made, count = differentiated(60)
    assert count > 2500
    assert cpu_seconds(lambda: simplify(module(made))) < 2 * count / 3000


def test_the_work_of_simplifying_a_statement_does_not_grow_with_the_program() -> None:
    def calls_each(layers: int) -> float:
        made, count = differentiated(layers)
        profile = cProfile.Profile()
        profile.runcall(simplify, module(made))
        return pstats.Stats(profile).total_calls / count  # type: ignore[attr-defined]

    assert calls_each(30) < 1.1 * calls_each(10)
