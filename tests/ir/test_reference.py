"""The reference evaluator against NumPy and PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from anabranch.ir import philox, reference
from anabranch.ir.core import Block, Function
from anabranch.ir.diagnostics import CompilerBug, Loc, UserError
from anabranch.ir.expr import Call, Origin, Read, Var, add, integer
from anabranch.ir.ops import Compute, Fused, Gradient, Pin, Return
from anabranch.ir.sbp import Layout
from anabranch.ir.types import tensor
from tests.measuring import cpu_seconds
from tests.statements import function

Array = np.ndarray[Any, Any]


def value(text: str, *, sizes: dict[str, int] | None = None, double: bool = False,
          dtypes: dict[str, str] | None = None, **args: Any) -> Array:
    """The last statement of `text` for arguments given as arrays."""
    names = {"float32": "f32", "float64": "f64", "int64": "i64", "int32": "i32", "bool": "bool",
             "float16": "f16", "uint8": "u8", "int8": "i8"}
    arrays = {k: np.asarray(v) for k, v in args.items()}
    types = {k: f"{(dtypes or {}).get(k, names[a.dtype.name])}{list(a.shape)}"
             for k, a in arrays.items()}
    made = function(text, sizes=sizes, **types)
    return reference.evaluate(made, list(arrays.values()), double=double)[0]


def normals(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_pointwise_statement_broadcasts() -> None:
    x, b = normals(3, 4), normals(4)
    assert_array_equal(x + b, value("y[i, j] = x[i, j] + b[j]", x=x, b=b))


@pytest.mark.parametrize(("text", "spec"), [
    ("y[i, j] = sum[k](x[i, k] * w[k, j])", "ik,kj->ij"),
    ("y[j, i] = sum[k](x[i, k] * w[k, j])", "ik,kj->ji"),
    ("y[i] = sum[k, j](x[i, k] * w[k, j])", "ik,kj->i"),
    ("y[i, k] = sum[j](x[i, k] * w[k, j])", "ik,kj->ik"),
    ("y[k] = sum[i, j](x[i, k] * w[k, j])", "ik,kj->k"),
    ("y[i, k, j] = x[i, k] * w[k, j]", "ik,kj->ikj"),
])
def test_sums_of_products_are_einsums(text: str, spec: str) -> None:
    x, w = normals(5, 4), normals(4, 3, seed=1)
    assert_allclose(np.einsum(spec, x, w), value(text, x=x, w=w), rtol=1e-5, atol=1e-6)


def test_batched_sums_of_products_use_matmul_and_are_fast() -> None:
    q, k = normals(8, 256, 8, 32), normals(8, 256, 8, 32, seed=1)
    found: list[Any] = []
    text = "s[b, h, i, j] = sum[d](q[b, i, h, d] * k[b, j, h, d])"
    assert cpu_seconds(lambda: found.append(value(text, q=q, k=k))) < 5  # 134 million products
    assert_allclose(np.einsum("bihd,bjhd->bhij", q, k), found[0], rtol=1e-4, atol=1e-4)


def test_scale_factors_and_a_variable_that_the_body_lacks_are_part_of_a_contraction() -> None:
    x, w = normals(5, 4), normals(4, 3, seed=1)
    y = value("y[i, j] = sum[k, z](x[i, k] * w[k, j] * 0.5)", x=x, w=w, sizes={"z": 6})
    assert_allclose(3 * (x @ w), y, rtol=1e-5)


def test_a_guarded_contraction_leaves_elements_out_even_if_the_other_factor_is_infinite() -> None:
    e, v = normals(4, 4), normals(4, 3, seed=1)
    mask = np.tril(np.ones((4, 4), np.float32))
    text = "y[i, c] = sum[j, given(j <= i)](e[i, j] * v[j, c])"
    assert_allclose((e * mask) @ v, value(text, e=e, v=v), rtol=1e-5)
    v[3] = np.inf
    assert np.isfinite(value(text, e=e, v=v)[:3]).all()


def test_merged_indices_split_and_merge_a_dimension() -> None:
    x = normals(2, 12)
    assert_array_equal(
        x.reshape(2, 3, 4).transpose(0, 2, 1).reshape(2, 12),
        value("y[b, (c, g)] = x[b, (g, c)]", x=x, sizes={"g": 3}))


def test_affine_reads_are_views() -> None:
    x = normals(10)
    assert_array_equal(x[1::3], value("y[i] = x[i * 3 + 1]", x=x, sizes={"i": 3}))
    assert_array_equal(x[::-1], value("y[i] = x[9 - i]", x=x, sizes={"i": 10}))
    square = normals(4, 4)
    assert_array_equal(np.diag(square), value("y[i] = x[i, i]", x=square))
    assert_array_equal(np.tile(x, 2), value("y[i] = x[i % 10]", x=x, sizes={"i": 20}))


def test_pad_is_the_value_outside_and_is_lazy() -> None:
    x = normals(4)
    shifted = np.concatenate([[7], x[:-1]])
    assert_array_equal(shifted, value("y[i] = pad(x[i - 1], 7.0)", x=x, sizes={"i": 4}))
    far = value("y[i] = pad(x[i - 1000000], x[0])", x=x, sizes={"i": 4})
    assert_array_equal(np.full(4, x[0]), far)


def test_a_read_outside_that_is_not_chosen_neither_crashes_nor_poisons() -> None:
    x = np.array([1.0, np.nan], np.float32)
    y = value("y[i] = where(i < 1, x[i], 0.0)", x=x, sizes={"i": 5})
    assert_array_equal([1, 0, 0, 0, 0], y)
    empty = value("y[i] = where(i < 0, x[i], 3.0)", x=normals(0), sizes={"i": 2})
    assert_array_equal([3, 3], empty)


def test_a_read_outside_that_is_chosen_is_a_fault_of_the_compiler() -> None:
    with pytest.raises(CompilerBug, match="outside its tensor"):
        value("y[i] = x[i + 1]", x=normals(3), sizes={"i": 3})


def test_a_failing_check_names_the_place_the_index_and_the_extent() -> None:
    table, ids = normals(4, 2), np.array([0, 3, 4])
    made = function("y[i, d] = t[check(ids[i], 4), d]", t="f32[4, 2]", ids="i64[3]")
    made.body.first.loc = Loc("net.ab", 12, 5, "embed")
    assert_array_equal(table[[0, 3, 3]], reference.evaluate(made, [table, [0, 3, 3]])[0])
    with pytest.raises(UserError, match=r"index 4 .* 4 elements \(net.ab:12 embed\)") as caught:
        reference.evaluate(made, [table, ids])
    assert caught.value.diagnostics[0].span.line == 12
    with pytest.raises(UserError, match="index -1 "):
        reference.evaluate(made, [table, [0, -1, 0]])


def test_a_check_that_is_not_reached_does_not_fail() -> None:
    ids = np.array([0, -100])
    y = value("y[i] = where(ids[i] >= 0, t[check(ids[i], 4)], 9.0)", t=normals(4), ids=ids)
    assert y[1] == 9


def test_a_guarded_equality_scatters_with_work_proportional_to_what_is_read() -> None:
    ids, x = np.array([2, 0, 2, 9, -1]), normals(5, 3)
    expected = np.zeros((4, 3), np.float32)
    np.add.at(expected, ids[:3], x[:3])
    text = "y[v, d] = sum[n, given(ids[n] == v)](x[n, d])"
    assert_allclose(expected, value(text, ids=ids, x=x, sizes={"v": 4}), rtol=1e-6)
    assert cpu_seconds(lambda: value(text, ids=ids, x=x, sizes={"v": 1_000_000})) < 3


def test_a_scatter_may_use_the_place_further_guards_and_other_reductions() -> None:
    ids, x = np.array([2, 0, 2]), np.array([1.0, 5.0, 3.0], np.float32)
    y = value("y[v] = max[n, given(ids[n] == v and x[n] < 4.0)](x[n] + w[v])",
              ids=ids, x=x, w=np.array([0, 0, 10], np.float32))
    assert_array_equal([-np.inf, -np.inf, 13], y)


def test_two_places_scatter_into_a_matrix() -> None:
    a, b, x = np.array([0, 1, 1]), np.array([1, 0, 0]), np.array([1.0, 2, 3], np.float32)
    y = value("y[u, v] = sum[n, given(a[n] == u and b[n] == v)](x[n])", a=a, b=b, x=x,
              sizes={"u": 2, "v": 2})
    assert_array_equal([[0, 1], [5, 0]], y)


def test_reductions_over_nothing_give_their_identity() -> None:
    x = normals(3, 0)
    for reduce, expected in [("sum", 0), ("prod", 1), ("max", -math.inf), ("min", math.inf)]:
        assert_array_equal(np.full(3, expected), value(f"y[i] = {reduce}[j](x[i, j])", x=x))
    assert_array_equal([-math.inf] * 2, value("y[i] = max[j, given(j > 5)](x[i, j])",
                                              x=normals(2, 4)))
    none = np.zeros((2, 0), np.bool_)
    assert not value("y[i] = any[j](x[i, j])", x=none).any()
    assert value("y[i] = all[j](x[i, j])", x=none).all()
    w = np.array([np.inf, 1, np.nan])
    for body in ("x[i, j] * w[k]", "w[i] * w[k]"):
        assert not value(f"y[i, k] = sum[j]({body})", x=x, w=w, sizes={"j": 0}).any()
    least = np.iinfo(np.int32).min
    assert_array_equal([least], value("y[i] = max[j](x[i, j])", x=np.zeros((1, 0), np.int32)))


def test_argmax_gives_the_first_place_and_nan_wins() -> None:
    x = np.array([[1, 7, 7, 0], [np.nan, 1, np.nan, 2], [0, 0, 0, 0]], np.float32)
    assert_array_equal([1, 0, 0], value("y[i] = argmax[j](x[i, j])", x=x))
    assert_array_equal([3, 0, 0], value("y[i] = argmin[j](x[i, j])", x=x))
    low = np.full((1, 3), -np.inf, np.float32)
    assert_array_equal([2], value("y[i] = argmax[j, given(j == 2)](x[i, j])", x=low))


def test_maxima_propagate_nan() -> None:
    x = np.array([[1, np.nan], [np.nan, -np.inf]], np.float32)
    assert np.isnan(value("y[i] = max[j](x[i, j])", x=x)).all()
    assert np.isnan(value("y[j] = min[i](x[i, j])", x=x))[0]


def test_softmax_of_a_large_shift_and_of_minus_infinity() -> None:
    text = """
m[i] = max[j](x[i, j])
e[i, j] = exp(x[i, j] - m[i])
z[i] = sum[j](e[i, j])
y[i, j] = e[i, j] / z[i]
"""
    x = np.array([[-np.inf, 0, -np.inf], [1e4, 1e4, -1e4]], np.float32)
    assert_array_equal([[0, 1, 0], [0.5, 0.5, 0]], value(text, x=x))


SOFTMAX = """
m[i] = max[j](x[i, j])
e[i, j] = exp(x[i, j] - m[i])
z[i] = sum[j](e[i, j])
y[i, j] = e[i, j] / z[i]
"""
LOG_SOFTMAX = SOFTMAX + "l[i, j] = x[i, j] - m[i] - log(z[i])"


@pytest.mark.parametrize("width", [1, 2, 3, 31, 33, 127, 257, 1025])
def test_rows_of_any_width_reduce_as_in_f64(width: int) -> None:
    x = normals(3, width) * 3
    wide = torch.tensor(x, dtype=torch.float64)
    assert_allclose(value(SOFTMAX, x=x), wide.softmax(1), rtol=1e-5)
    assert_allclose(value("y[i] = sum[j](x[i, j])", x=x), wide.sum(1), rtol=1e-5, atol=1e-5)
    assert_allclose(value("y[i] = prod[j](x[i, j])", x=x), wide.prod(1).float(), rtol=1e-5)
    assert_array_equal(value("y[i] = max[j](x[i, j])", x=x), wide.amax(1))
    assert_array_equal(value("y[i] = argmax[j](x[i, j])", x=x), wide.argmax(1))


def test_a_row_with_nan_is_all_nan_and_harms_no_other() -> None:
    x = np.array([[np.nan, np.inf, -np.inf], [-0.066347, 0.132114, -0.041014]], np.float32)
    y = value(LOG_SOFTMAX, x=x)
    assert np.isnan(y[0]).all()
    assert_allclose(y[1], [-1.177171, -0.978710, -1.151838], atol=1e-6)


@pytest.mark.parametrize("mean", [0, 100, 1000])
def test_layer_norm_keeps_its_precision_under_a_large_mean(mean: float) -> None:
    x = (mean + 1e-3 * np.arange(16, dtype=np.float32)).astype(np.float32)[None]
    text = """
u[i] = sum[n](x[i, n])
c[i, n] = x[i, n] - u[i] / 16.0
v[i] = sum[n](c[i, n] * c[i, n])
y[i, n] = c[i, n] / sqrt(v[i] / 16.0 + 0.00001)
"""
    wide = torch.tensor(x, dtype=torch.float64)
    assert_allclose(value(text, x=x), torch.nn.functional.layer_norm(wide, (16,)), atol=0.03)


def test_erf_is_that_of_the_standard_library() -> None:
    x = np.concatenate([np.linspace(-7, 7, 2001), [np.inf, -np.inf, np.nan, -0.0]])
    expected = np.array([math.erf(v) for v in x])
    y = value("y[i] = erf(x[i])", x=x)
    assert_allclose(y, expected, rtol=1e-14)


def test_half_precision_is_carried_in_single_and_rounded_when_stored() -> None:
    x = np.full(4, 10000, np.float16)
    assert value("y[i] = sum[j](x[j])", x=x, sizes={"i": 1}).dtype == np.float16
    assert value("y[()] = sum[j](x[j])", x=x)[()] == np.float16(40000)
    assert_array_equal([np.inf], value("y[i] = x[i] * x[i]", x=x[:1]))
    mean = value("y[i] = x[i] * x[i] / x[i]", x=x[:1])
    assert_array_equal([10000], mean)


def test_bf16_is_rounded_to_nearest_even_as_in_pytorch() -> None:
    x = np.concatenate([normals(1000), np.array([np.inf, -np.inf, np.nan, 0, 1e-40], np.float32)])
    expected = torch.tensor(x).to(torch.bfloat16).float().numpy()
    assert_array_equal(expected, reference.round_bf16(x))
    y = value("y[i] = cast(bf16, x[i])", x=x)
    assert_array_equal(expected, y)
    a = torch.tensor(x[:9]).to(torch.bfloat16)
    stored = value("y[i] = x[i] * x[i]", x=x[:9], dtypes={"x": "bf16"})
    assert_array_equal((a * a).float().numpy(), stored)


def test_double_evaluates_every_float_in_f64() -> None:
    x = normals(100).astype(np.float64)
    y = value("y[i] = exp(x[i]) * cast(f16, x[i])", x=x.astype(np.float32), double=True,
              dtypes={"x": "f32"})
    assert y.dtype == np.float64
    x32 = x.astype(np.float32).astype(np.float64)
    assert_allclose(np.exp(x32) * x32, y, rtol=1e-12)


def test_casts_truncate_and_make_truth() -> None:
    x = np.array([1.9, -1.9, 0.0], np.float32)
    assert_array_equal([1, -1, 0], value("y[i] = cast(i64, x[i])", x=x))
    assert_array_equal([True, True, False], value("y[i] = cast(bool, x[i])", x=x))


def test_sums_of_truth_values_count() -> None:
    x = np.array([[True, True], [False, True]])
    y = value("y[i] = sum[j](cast(i64, x[i, j]))", x=x)
    assert y.dtype == np.int64
    assert_array_equal([2, 1], y)


def test_integer_arithmetic_floors_like_python() -> None:
    a, b = np.array([7, -7, 7, -7]), np.array([2, 2, -2, 0])
    assert_array_equal([3, -4, -4, 0], value("y[i] = where(b[i] == 0, 0, a[i] // b[i])", a=a, b=b))
    assert_array_equal([1, 1, -1, 0], value("y[i] = where(b[i] == 0, 0, a[i] % b[i])", a=a, b=b))


@pytest.mark.parametrize(("counter", "key", "words"), [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
])
def test_philox_gives_its_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert words == tuple(int(word) for word in philox.philox(counter, key))


def test_random_numbers_depend_on_seed_step_stream_and_element_only() -> None:
    text = "y[i] = rand(3, seed, step, i)"

    def draw(seed: int, step: int, text: str = text, n: int = 1000) -> Array:
        return value(text, seed=np.int64(seed), step=np.int64(step), sizes={"i": n})

    first = draw(1, 2)
    assert first.dtype == np.float32
    assert_array_equal(first, draw(1, 2))
    assert_array_equal(first[:10], draw(1, 2, n=10))
    stream = draw(1, 2, "y[i] = rand(4, seed, step, i)")
    others = [draw(1, 3), draw(2, 2), draw(1 + 2**32, 2), stream]
    assert all((first != other).mean() > 0.99 for other in others)
    assert ((first >= 0) & (first < 1)).all()
    assert abs(first.mean() - 0.5) < 0.05
    bits = int(philox.philox((5, 0, 2, 3), (1, 0))[0])
    assert first[5] == np.float32((bits >> 8) / 2**24)


def test_normal_numbers_are_normal() -> None:
    y = value("y[i] = randn(3, seed, step, i)", seed=np.int64(1), step=np.int64(0),
              sizes={"i": 100_000})
    assert abs(y.mean()) < 0.02
    assert abs(y.std() - 1) < 0.02
    assert abs((y**4).mean() - 3) < 0.15
    assert np.isfinite(y).all()


def test_a_space_larger_than_memory_is_cut_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = normals(7, 5), normals(6, 5, seed=1)
    texts = [
        "z[i, j] = sum[k](abs(x[i, k] - y[j, k]))", "z[i] = max[j, k](x[i, k] - y[j, k])",
        "z[i, k] = argmin[j](abs(x[i, k] - y[j, k]))", "z[()] = prod[i, j, k](x[i, k] + y[j, k])",
        "z[i, j, k] = x[i, k] + y[j, k]", "z[i, j] = sum[k](x[i, k] * y[j, k])",
        "z[v, i] = sum[j, k, given((j + k) % 3 == v)](x[i, k] * y[j, k])",
    ]
    whole = [value(t, x=x, y=y, sizes={"v": 3}) for t in texts]
    monkeypatch.setattr(reference, "PIECE", 4)
    for text, expected in zip(texts, whole, strict=True):
        assert_allclose(expected, value(text, x=x, y=y, sizes={"v": 3}), rtol=1e-5)


def test_a_local_compute_runs_at_its_origin_and_micro_batch() -> None:
    body = add(Read(0, (Var("i"),)), add(Var("i"), Origin(10, 100)))
    made = Function("f")
    x = made.add_argument("x", tensor("i64", (3,)))
    op = made.body.append(Compute([x], "i64", [("i", 3)], [("i",)], body))
    made.body.append(Return([op.result]))
    assert_array_equal([210, 211, 212], reference.evaluate(made, [np.zeros(3)], micro=2)[0])
    shifted = Read(0, (add(Var("i"), add(Origin(4), Call("neg", (Origin(4),)))),))
    same = Compute([x], "i64", [("i", 3)], [("i",)], shifted)
    assert_array_equal([5, 6, 7], reference.evaluate_op(same, [np.array([5, 6, 7])])[0])


def test_pins_are_the_identity_and_fused_ops_run_their_region() -> None:
    made = Function("f")
    x = made.add_argument("x", tensor("f32", (3,)))
    pin = made.body.append(Pin(x, Layout()))
    region = Block([("a", x.type)])
    one = region.append(Compute(
        region.args, "f32", [("i", 3)], [("i",)], add(Read(0, (Var("i"),)), Read(0, (Var("i"),)))))
    region.append(Return([one.result, region.args[0]]))
    fused = made.body.append(Fused([pin.result], region))
    made.body.append(Return(fused.results))
    twice, same = reference.evaluate(made, [np.array([1, 2, 3])])
    assert_array_equal([2, 4, 6], twice)
    assert_array_equal([1, 2, 3], same)


def test_a_gradient_that_was_not_expanded_is_refused() -> None:
    made = function("y[()] = sum[i](x[i])", x="f32[3]")
    total = made.body.first.result
    op = Gradient(total, [made.arguments[0].value])
    with pytest.raises(CompilerBug, match="cannot run 'gradient'"):
        reference.evaluate_op(op, [np.zeros(()), np.zeros(3)])


def test_an_argument_of_another_shape_is_a_mistake_of_the_user() -> None:
    made = function("y[i] = x[i]", x="f32[3]")
    with pytest.raises(UserError, match=r"argument 'x' has shape \[4\]"):
        reference.evaluate(made, [np.zeros(4)])


def test_an_empty_index_of_extent_one_is_no_variable() -> None:
    op = Compute([], "i64", [("i", 2)], [("i",), ()], add(Var("i"), integer(1)))
    assert_array_equal([[1], [2]], reference.evaluate_op(op, [])[0])


def test_nothing_is_checked_where_no_element_is_computed() -> None:
    x, ids = np.zeros((0, 3)), np.zeros((0, 3), np.int64)
    y = value("y[i, j] = x[i, check(ids[i, j] - 1, 3)]", x=x, ids=ids)
    assert y.shape == (0, 3)
