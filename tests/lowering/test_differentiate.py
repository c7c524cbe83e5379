"""Gradients derived from statements, against PyTorch's autograd in f64 and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from anabranch.ir import reference
from anabranch.ir.core import Function
from anabranch.ir.diagnostics import Loc
from anabranch.ir.expr import Read, Var, integer
from anabranch.ir.ops import Compute, Gradient, Pin, Return
from anabranch.ir.printer import print_module
from anabranch.ir.sbp import Layout, S
from anabranch.ir.verifier import verify
from anabranch.lowering.differentiate import differentiate
from anabranch.lowering.simplify import simplify
from tests.statements import function, module, with_gradient

Array = np.ndarray[Any, Any]


def draw(types: dict[str, str], given: dict[str, Array], seed: int = 0) -> dict[str, Array]:
    """Arguments of the given types, normal unless they are given."""
    random = np.random.default_rng(seed)
    shapes = {n: tuple(int(s) for s in t[t.index("[") + 1 : -1].split(",") if s.strip())
              for n, t in types.items()}
    return {n: given[n] if n in given else random.standard_normal(s) for n, s in shapes.items()}


def derived(made: Function, by: list[str], args: dict[str, Array], seed: int = 7
            ) -> tuple[dict[str, Array], Array]:
    """The gradients of sum(result * cotangent) by `by`, and the cotangent; extends `made`."""
    (value,) = made.body.last.operands
    cotangent = np.random.default_rng(seed).standard_normal(value.type.shape)
    with_gradient(made, by)
    differentiate(module(made))
    values = reference.evaluate(made, [*args.values(), cotangent], double=True)
    return dict(zip(by, values, strict=True)), cotangent


def float_names(types: dict[str, str]) -> list[str]:
    return [n for n, t in types.items() if t.startswith("f")]


@dataclass
class Case:
    """Statements, the PyTorch function they are equal to, and their arguments."""

    text: str
    torch: Callable[..., torch.Tensor]
    types: dict[str, str]
    sizes: dict[str, int] = field(default_factory=dict)
    given: dict[str, Array] = field(default_factory=dict)
    by: list[str] | None = None


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q[b, i, h, d], k[b, j, g, d], v[b, j, g, c], with h a multiple of g."""
    repeat = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(repeat, dim=2) for x in (k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    mask = torch.tril(torch.ones(s.shape[-2:], dtype=torch.bool))
    return (s.masked_fill(~mask, -torch.inf).softmax(-1) @ v).transpose(1, 2)


ATTENTION = """
s[b, (g, r), i, j] = sum[d](q[b, i, (g, r), d] * k[b, j, g, d])
t[b, h, i, j] = s[b, h, i, j] / sqrt(4.0)
mm[b, h, i] = max[j, given(j <= i)](t[b, h, i, j])
m[b, h, i] = stop(mm[b, h, i])
e[b, h, i, j] = where(j <= i, exp(t[b, h, i, j] - m[b, h, i]), 0.0)
z[b, h, i] = sum[j](e[b, h, i, j])
a[b, i, (g, r), c] = sum[j](e[b, (g, r), i, j] * v[b, j, g, c])
y[b, i, h, c] = a[b, i, h, c] / z[b, h, i]
"""

CASES = {
    "matmul": Case("y[i, j] = sum[k](x[i, k] * w[k, j])", torch.matmul,
                   dict(x="f32[3, 4]", w="f32[4, 5]")),
    "linear of any rank": Case(
        "h[b, s, n] = sum[k](x[b, s, k] * w[n, k])\ny[b, s, n] = h[b, s, n] + c[n]",
        F.linear, dict(x="f32[2, 3, 4]", w="f32[5, 4]", c="f32[5]")),
    "bias and gelu": Case(
        "h[i, n] = x[i, n] + c[n]\ny[i, n] = 0.5 * h[i, n] * (1.0 + erf(h[i, n] / sqrt(2.0)))",
        lambda x, c: F.gelu(x + c), dict(x="f32[3, 4]", c="f32[4]")),
    "softmax": Case(
        "m[i] = max[n](x[i, n])\ne[i, n] = exp(x[i, n] - m[i])\nz[i] = sum[n](e[i, n])\n"
        "y[i, n] = e[i, n] / z[i]", lambda x: x.softmax(-1), dict(x="f32[3, 5]")),
    "cross entropy that ignores a label": Case(
        """
m[i] = max[n](x[i, n])
m2[i] = stop(m[i])
z[i] = sum[n](exp(x[i, n] - m2[i]))
c[i] = where(t[i] >= 0, x[i, check(t[i], 5)], 0.0)
l[i] = where(t[i] >= 0, log(z[i]) + m2[i] - c[i], 0.0)
count[()] = sum[i](cast(f32, t[i] >= 0))
all[()] = sum[i](l[i])
y[()] = all / count""",
        lambda x, t: F.cross_entropy(x, t, ignore_index=-100), dict(x="f32[4, 5]", t="i64[4]"),
        given={"t": np.array([1, -100, 4, 1])}),
    "layer norm": Case(
        """
u[i] = sum[n](x[i, n])
v[i, n] = x[i, n] - u[i] / 5.0
w[i] = sum[n](v[i, n] * v[i, n])
r[i] = rsqrt(w[i] / 5.0 + 0.00001)
y[i, n] = v[i, n] * r[i] * g[n] + b[n]""",
        lambda x, g, b: F.layer_norm(x, (5,), g, b), dict(x="f32[3, 5]", g="f32[5]", b="f32[5]")),
    "embedding": Case("y[i, j, d] = w[check(t[i, j], 6), d]", lambda t, w: F.embedding(t, w),
                      dict(t="i64[2, 3]", w="f32[6, 4]"),
                      given={"t": np.array([[0, 5, 0], [2, 2, 2]])}),
    "convolution with stride and padding": Case(
        "y[b, o, h, v] = sum[c, i, j]("
        "pad(x[b, c, h*2 + i - 1, v*2 + j - 1], 0.0) * w[o, c, i, j])",
        lambda x, w: F.conv2d(x, w, stride=2, padding=1),
        dict(x="f32[2, 3, 7, 6]", w="f32[4, 3, 3, 3]"), sizes=dict(h=4, v=3)),
    "grouped convolution": Case(
        "y[b, (g, o), h] = sum[c, i](x[b, (g, c), h + i] * w[(g, o), c, i])",
        lambda x, w: F.conv1d(x, w, groups=2), dict(x="f32[2, 4, 7]", w="f32[6, 2, 3]"),
        sizes=dict(g=2, o=3, h=5)),
    "average pool": Case(
        "s[b, h] = sum[i](x[b, h*2 + i])\ny[b, h] = s[b, h] / 3.0",
        lambda x: F.avg_pool1d(x, 3, 2), dict(x="f32[2, 9]"), sizes=dict(h=4, i=3)),
    "average pool without overlap": Case(
        "s[b, h] = sum[i](x[b, (h, i)])\ny[b, h] = s[b, h] / 3.0",
        lambda x: F.avg_pool1d(x, 3), dict(x="f32[2, 9]"), sizes=dict(h=3)),
    "max pool": Case("y[b, h] = max[i](x[b, h*2 + i])", lambda x: F.max_pool1d(x, 3, 2),
                     dict(x="f32[2, 9]"), sizes=dict(h=4, i=3)),
    "attention": Case(ATTENTION, attention, dict(
        q="f32[2, 5, 4, 4]", k="f32[2, 5, 4, 4]", v="f32[2, 5, 4, 3]"), sizes=dict(r=1)),
    "attention with grouped queries": Case(ATTENTION, attention, dict(
        q="f32[2, 5, 4, 4]", k="f32[2, 5, 2, 4]", v="f32[2, 5, 2, 3]"), sizes=dict(g=2, r=2)),
    "transpose": Case("y[j, i] = x[i, j]", lambda x: x.T, dict(x="f32[3, 4]")),
    "slice": Case("y[i] = x[i*2 + 1]", lambda x: x[1:8:2], dict(x="f32[9]"), sizes=dict(i=4)),
    "flip": Case("y[i] = x[8 - i]", lambda x: x.flip(0), dict(x="f32[9]"), sizes=dict(i=9)),
    "roll": Case("y[i] = x[(i + 4) % 9]", lambda x: x.roll(-4), dict(x="f32[9]"),
                 sizes=dict(i=9)),
    "tile": Case("y[i] = x[i % 3]", lambda x: x.repeat(3), dict(x="f32[3]"), sizes=dict(i=9)),
    "repeat": Case("y[i] = x[i // 3]", lambda x: x.repeat_interleave(3), dict(x="f32[4]"),
                   sizes=dict(i=12)),
    "diagonal": Case("y[i] = x[i, i]", torch.diagonal, dict(x="f32[4, 4]")),
    "pad": Case("y[i] = pad(x[i - 2], c)", lambda x, c: torch.cat([c.repeat(2), x, c.repeat(1)]),
                dict(x="f32[4]", c="f32[]"), sizes=dict(i=7)),
    "concat": Case("y[i] = where(i < 3, a[i], b[i - 3])", lambda a, b: torch.cat([a, b]),
                   dict(a="f32[3]", b="f32[4]"), sizes=dict(i=7)),
    "split and merge heads": Case(
        "r[b, s, t, h, d] = x[b, s, (t, h, d)]\nq[b, h, s, d] = r[b, s, 1, h, d]\n"
        "y[b, s, (h, d)] = q[b, h, s, d]", lambda x: x[..., 12:24],
        dict(x="f32[2, 3, 36]"), sizes=dict(t=3, h=4, d=3)),
    "a part of a merged dimension": Case(
        "y[b, h, d] = x[b, 12 + h*3 + d]", lambda x: x[..., 12:24].reshape(2, 4, 3),
        dict(x="f32[2, 36]"), sizes=dict(h=4, d=3)),
    "an odd part of a merged dimension": Case(
        "y[b, h, d] = x[b, 5 + h*3 + d]", lambda x: x[..., 5:17].reshape(2, 4, 3),
        dict(x="f32[2, 36]"), sizes=dict(h=4, d=3)),
    "mean squared error": Case(
        "s[()] = sum[i, j]((x[i, j] - t[i, j]) ** 2.0)\ny[()] = s / 12.0", F.mse_loss,
        dict(x="f32[3, 4]", t="f32[3, 4]")),
    "product with zeros": Case(
        "y[i] = prod[j](x[i, j])", lambda x: x.prod(1), dict(x="f32[3, 4]"),
        given={"x": np.array([[1, 2, 3, 4], [1, 0, 3, 4], [0, 2, 0, 4.0]])}),
    "product of an expression": Case(
        "y[()] = prod[i, j](x[i, j] + c[j])", lambda x, c: (x + c).prod(),
        dict(x="f32[2, 3]", c="f32[3]")),
    "scatter": Case(
        "y[v, d] = sum[n, given(t[n] == v)](x[n, d])",
        lambda t, x: torch.zeros(4, 3, dtype=x.dtype).index_add(0, t, x),
        dict(t="i64[5]", x="f32[5, 3]"), sizes=dict(v=4), given={"t": np.array([3, 0, 3, 3, 1])}),
    "segment maximum": Case(
        "y[v] = max[n, given(t[n] == v)](x[n] * 2.0)",
        lambda t, x: torch.full((3,), -torch.inf, dtype=x.dtype).index_reduce(0, t, 2 * x, "amax"),
        dict(t="i64[5]", x="f32[5]"), sizes=dict(v=3), given={"t": np.array([2, 0, 2, 1, 1])}),
    "scatter that reads its places": Case(
        "y[v] = sum[n, given(t[n] == v)]((x[n] - m[v]) * w[check(s[n], 2), v] * m[v])",
        lambda t, s, x, m, w: torch.zeros(3, dtype=x.dtype).index_add(
            0, t, (x - m[t]) * w[s, t] * m[t]),
        dict(t="i64[5]", s="i64[5]", x="f32[5]", m="f32[3]", w="f32[2, 3]"), sizes=dict(v=3),
        given={"t": np.array([2, 0, 2, 0, 0]), "s": np.array([1, 1, 0, 1, 0])}),
    "segment maximum that reads its places": Case(
        "y[v] = max[n, given(t[n] == v)](x[n] * m[v])",
        lambda t, x, m: torch.full((3,), -torch.inf, dtype=x.dtype).index_reduce(
            0, t, x * m[t], "amax"),
        dict(t="i64[5]", x="f32[5]", m="f32[3]"), sizes=dict(v=3),
        given={"t": np.array([2, 0, 2, 1, 1])}),
    "argmax": Case(
        "k[i] = argmax[j](x[i, j])\ny[i] = x[i, k[i]]", lambda x: x.max(1).values,
        dict(x="f32[3, 5]")),
    "logsumexp of ties": Case("y[i] = max[j](x[i, j])", lambda x: x.amax(1), dict(x="f32[2, 4]"),
                              given={"x": np.array([[1, 7, 7, 0], [2, 2, 2, 2.0]])}),
    "relu inside a matmul": Case(
        "y[i, j] = sum[k](where(x[i, k] > 0.0, x[i, k], 0.0) * w[k, j])",
        lambda x, w: x.relu() @ w, dict(x="f32[3, 4]", w="f32[4, 5]")),
    "a distance": Case(
        "y[i, j] = sum[k](abs(x[i, k] - w[j, k]))", lambda x, w: torch.cdist(x, w, p=1),
        dict(x="f32[3, 4]", w="f32[5, 4]")),
    "three factors": Case(
        "y[i] = sum[j, k](a[i, j] * b[j, k] * c[k])", lambda a, b, c: a @ b @ c,
        dict(a="f32[3, 4]", b="f32[4, 5]", c="f32[5]")),
    "a square of one tensor": Case("y[i, j] = sum[k](x[i, k] * x[j, k])", lambda x: x @ x.T,
                                   dict(x="f32[3, 4]")),
    "elementary functions": Case(
        "y[i] = tanh(x[i]) * sin(x[i]) + exp(-x[i]) / (1.0 + x[i] * x[i]) + log1p(abs(x[i]))"
        " + atan(x[i]) + maximum[i]",
        lambda x, maximum: x.tanh() * x.sin() + torch.exp(-x) / (1 + x * x)
        + torch.log1p(x.abs()) + x.atan() + maximum, dict(x="f32[6]", maximum="f32[6]")),
    "scalar maximum and power": Case(
        "y[i] = max(x[i], w[i]) * pow(exp(x[i]), w[i])",
        lambda x, w: torch.maximum(x, w) * x.exp()**w, dict(x="f32[5]", w="f32[5]")),
}


@pytest.mark.parametrize("name", CASES)
def test_the_derived_gradient_is_that_of_pytorch(name: str) -> None:
    case = CASES[name]
    args = draw(case.types, case.given)
    names = float_names(case.types)
    made = function(case.text, sizes=case.sizes, **case.types)
    tensors = {n: torch.tensor(a).requires_grad_(n in names) for n, a in args.items()}
    expected = case.torch(*tensors.values())
    (forward,) = reference.evaluate(made, list(args.values()), double=True)
    assert_allclose(forward, expected.detach().numpy(), atol=1e-6)  # constants are f32
    gradients, cotangent = derived(made, names, args)
    theirs = torch.autograd.grad(expected, [tensors[n] for n in names], torch.tensor(cotangent))
    for n, their in zip(names, theirs, strict=True):
        assert_allclose(gradients[n], their.numpy(), atol=1e-5, err_msg=n)


# --- what the statements look like -----------------------------------------------------------


def gradient_lines(text: str, by: list[str], sizes: dict[str, int] | None = None,
                   **types: str) -> list[str]:
    """The simplified statements of a gradient."""
    made = with_gradient(function(text, sizes=sizes, **types), by)
    simplify(differentiate(module(made)))
    verify(module(made))
    return [line.strip() for line in print_module(module(made)).splitlines() if " = " in line]


def test_a_matrix_product_has_two_matrix_products_as_gradient() -> None:
    assert gradient_lines("y[b, i, j] = sum[k](x[b, i, k] * w[k, j])", ["x", "w"],
                          x="f32[2, 3, 4]", w="f32[4, 5]") == [
        "%d.x: f32[2, 3, 4] = [b, i, k] sum[j < 5](%seed[b, i, j] * %w[k, j])",
        "%d.w: f32[4, 5] = [k, j] sum[b < 2, i < 3](%seed[b, i, j] * %x[b, i, k])",
    ]


def test_the_gradient_of_a_bias_is_a_plain_sum_that_shares_its_operand() -> None:
    lines = gradient_lines("y[i, n] = erf(x[i, n] + c[n])", ["x", "c"], x="f32[3, 4]", c="f32[4]")
    assert lines[-1] == "%d.c: f32[4] = [n] sum[i < 3](%d.x[i, n])"
    assert len(lines) == 2


def test_the_value_of_a_function_is_read_where_its_derivative_needs_it() -> None:
    lines = gradient_lines("y[i] = exp(x[i])", ["x"], x="f32[3]")
    assert lines[-1] == "%d.x: f32[3] = [i] %seed[i] * %y[i]"


def test_pointwise_work_around_a_product_stays_outside_of_it() -> None:
    lines = gradient_lines(
        "y[i, j] = sum[k](exp(x[i, k]) * w[k, j] * 0.5)", ["x", "w"], x="f32[3, 4]", w="f32[4, 5]")
    assert [line.split(" = ")[1] for line in lines] == [
        "[i, k] sum[j < 5](%seed[i, j] * %w[k, j])",
        "[i, k] %d.x[i, k] * 0.5 * exp(%x[i, k])",
        "[i, k] exp(%x[i, k])",
        "[k, j] sum[i < 3](%seed[i, j] * %d.w.part[i, k])",
        "[k, j] %d.w[k, j] * 0.5",
    ]


def test_an_embedding_has_a_scatter_as_gradient_and_a_scatter_a_gather() -> None:
    assert gradient_lines("y[n, d] = w[check(t[n], 6), d]", ["w"], t="i64[5]", w="f32[6, 4]") == [
        "%d.w: f32[6, 4] = [n0, d] sum[n < 5 if %t[n] == n0](%seed[n, d])"]
    lines = gradient_lines("y[v, d] = sum[n, given(t[n] == v)](x[n, d])", ["x"],
                           t="i64[5]", x="f32[5, 3]", sizes={"v": 4})
    assert [line.split(" = ")[1] for line in lines] == ["[n, d] %seed[%t[n], d, pad=0.0]"]


def test_merged_dimensions_are_written_merged() -> None:
    (line,) = gradient_lines("y[g, c, b] = x[b, (g, c)]", ["x"], x="f32[2, 12]", sizes={"g": 3})
    assert line == "%d.x: f32[2, 12] = [b, (g < 3, c < 4)] %seed[g, c, b]"


# --- rules -----------------------------------------------------------------------------------


def slope(text: str, sizes: dict[str, int] | None = None, **args: Array) -> Array:
    """The gradient of the sum of the result by `x`."""
    types = {n: f"{'i64' if a.dtype == np.int64 else 'f32'}{list(a.shape)}"
             for n, a in args.items()}
    made = with_gradient(function(text, sizes=sizes, **types), ["x"])
    differentiate(module(made))
    ones = np.ones(made.arguments[-1].value.type.shape)
    return reference.evaluate(made, [*args.values(), ones], double=True)[0]


def test_stop_has_no_gradient_and_a_stated_gradient_replaces_the_own_one() -> None:
    x = np.array([1.0, 2.0])
    assert_allclose(slope("y[i] = x[i] * stop(x[i])", x=x), x)
    assert_allclose(slope("y[i] = stop_grad(sign(x[i]), 3.0 * x[i])", x=x), [3, 3])


def test_what_is_not_chosen_gives_zero_and_never_zero_times_nan() -> None:
    x = np.array([-1.0, 0.0, 4.0])
    assert_allclose(slope("y[i] = where(x[i] > 0.0, sqrt(x[i]), 0.0)", x=x), [0, 0, 0.25])
    assert_allclose(slope("y[()] = sum[i, given(x[i] > 0.0)](log(x[i]))", x=x), [0, 0, 0.25])
    assert_allclose(slope("y[i] = pad(x[i + 1], 0.0) / pad(x[i + 1], 1.0)", x=x, sizes={"i": 3}),
                    [0, np.nan, 0])  # 0 / 0 is the user's own
    assert_allclose(slope("y[i] = pad(x[i - 1], 1.0) ** 0.5", x=x[2:], sizes={"i": 2}), [0.25])


def test_a_sum_that_leaves_all_out_is_zero_and_never_zero_times_infinity() -> None:
    x = np.array([1.0, 2.0, 3.0])
    z = np.array([0.0, 2.0, np.inf])
    chosen = "y[j, i] = where(z[i] > 0.0 and z[i] < 3.0 and j > 0, {}, 0.0)"
    for text in ("x[i] / z[i]", "x[i] * z[i] / 4.0", "x[i] / (z[i] / 0.0)"):
        slopes = slope(chosen.format(text), x=x, z=z, sizes={"j": 3})
        assert slopes[0] == 0, text
        assert slopes[2] == 0, text
    assert_allclose(slope(chosen.format("x[i] / z[i]"), x=x, z=z, sizes={"j": 3}), [0, 1, 0])
    given = "y[j] = sum[i, k, given(z[i + k] > 1.0 and z[i + k] < j)](x[i] / z[i] * w[k, j])"
    slopes = slope(given, x=x[:2], z=z, w=np.ones((2, 4)), sizes={"j": 4, "k": 2})
    assert_allclose(slopes, [np.inf, 0.5])
    given = given.replace("i + k", "i")
    assert_allclose(slope(given, x=x, z=z, w=np.ones((2, 4))), [0, 1, 0])


def test_a_literal_stands_outside_of_a_guarded_sum_unless_it_is_zero_or_infinite() -> None:
    text = "y[j, i] = where(w[j, i] > 0.0, x[i] / {}, 0.0)"
    for divisor, inside in (("0.5", False), ("0.0", True), ("1e-9", True), ("1e9", True)):
        first, *_ = gradient_lines(text.format(divisor), ["x"], x="f32[3]", w="f32[2, 3]")
        assert ("/" in first) == inside, first


def test_a_gradient_of_something_unused_is_zero() -> None:
    made = function("y[()] = sum[i](w[i])", x="f32[3]", w="f32[3]")
    with_gradient(made, ["x", "w"])
    differentiate(module(made))
    zeros, ones = reference.evaluate(made, [np.ones(3), np.ones(3), np.ones(())])
    assert_allclose(zeros, [0, 0, 0])
    assert_allclose(ones, [1, 1, 1])


def test_rounding_and_integers_end_a_gradient() -> None:
    x = np.array([1.4, 2.6])
    assert_allclose(slope("y[i] = floor(x[i]) + cast(f32, cast(i64, x[i])) + x[i]", x=x), [1, 1])


def test_ties_of_an_extremum_share_evenly_also_if_it_is_of_an_expression() -> None:
    x = np.array([[1.0, 3, 3], [2, 2, 2]])
    assert_allclose(slope("y[i] = max[j](x[i, j] * 0.1 + 0.3)", x=x),
                    [[0, 0.05, 0.05], [0.1 / 3] * 3], rtol=1e-6)


def test_a_dropped_element_has_no_gradient_and_the_draw_is_the_same() -> None:
    text = "y[i] = where(rand(7, seed2, step, i) >= 0.5, x[i] / 0.5, 0.0)"
    made = function(text, x="f32[64]", seed2="i64[]", step="i64[]")
    args = [np.ones(64), np.int64(3), np.int64(5)]
    (forward,) = reference.evaluate(made, args)
    with_gradient(made, ["x"])
    differentiate(module(made))
    (backward,) = reference.evaluate(made, [*args, np.ones(64)])
    assert_allclose(backward, forward)
    assert set(backward) == {0, 2}


def test_a_gradient_has_the_dtype_of_its_value_whatever_it_is_cast_to() -> None:
    made = function("y[i] = cast(f32, x[i]) * w[i]", x="bf16[3]", w="f32[3]")
    with_gradient(made, ["x", "w"])
    differentiate(module(made))
    verify(module(made))
    assert [v.type.dtype for v in made.body.last.operands] == ["bf16", "f32"]


def test_second_derivatives_are_derived_from_the_derived() -> None:
    made = function("y[()] = sum[i](x[i] * x[i] * x[i])", x="f32[3]")
    x = made.arguments[0].value
    made.body.last.erase()
    first = made.body.append(Gradient(made.body.last.result, [x]))
    total = made.body.append(Compute([first.result], "f32", [("i", 3)], [], Read(0, (Var("i"),)),
                                     reduce="sum", reduced=["i"]))
    second = made.body.append(Gradient(total.result, [x]))
    made.body.append(Return(second.results))
    differentiate(module(made))
    assert_allclose(reference.evaluate(made, [np.array([1.0, 2, 3])])[0], [6, 12, 18])


def test_a_product_has_its_second_derivative_at_zeros_too() -> None:
    x = np.array([0.0, 2.0, 3.0])
    made = function("y[()] = prod[i](x[i])", x="f32[3]")
    argument = made.arguments[0].value
    made.body.last.erase()
    first = made.body.append(Gradient(made.body.last.result, [argument]))
    middle = made.body.append(Compute([first.result], "f32", [], [], Read(0, (integer(1),))))
    second = made.body.append(Gradient(middle.result, [argument]))
    made.body.append(Return(second.results))
    differentiate(module(made))
    assert_allclose(reference.evaluate(made, [x])[0], [3, 0, 0])


def test_a_value_in_the_middle_has_a_gradient_too() -> None:
    made = function("h[i] = x[i] * 2.0\ny[()] = sum[i](h[i] * h[i])", x="f32[3]")
    h = made.body.first.result
    made.body.last.erase()
    gradient = made.body.append(Gradient(made.body.last.result, [h]))
    made.body.append(Return(gradient.results))
    differentiate(module(made))
    assert_allclose(reference.evaluate(made, [np.array([1.0, 2, 3])])[0], [4, 8, 12])


def test_a_gradient_inherits_loc_and_stage_and_is_never_recomputed() -> None:
    made = function("h[i] = exp(x[i])\ny[()] = sum[i](h[i] * x[i])", x="f32[3]")
    exp, total = list(made.body)[:2]
    exp.loc, exp.stage, exp.recompute = Loc("net.ab", 3, 1, "first"), 0, 2
    total.loc, total.stage = Loc("net.ab", 4, 1, "second"), 1
    made.arguments[0].stage = 2
    with_gradient(made, ["x"])
    forward = set(made.body)
    differentiate(module(made))
    new = [op for op in made.body if op not in forward and op.operands and op.results]
    places = [(op.result.name, op.loc.path, op.stage, op.recompute) for op in new]
    assert ("d.h", "second", 1, 0) in places
    assert ("d.x", "first", 0, 0) in places
    assert places[-1] == ("d.x", "first", 2, 0)  # the sum of what x receives lives with x


def test_a_pin_hands_the_gradient_on_without_a_pin() -> None:
    made = function("y[()] = sum[i](x[i] * x[i])", x="f32[3]")
    x = made.arguments[0].value
    total = made.body.first
    pin = made.body.insert_before(Pin(x, Layout((("data", S(0)),))), total)
    total.set_operands([pin.result])
    with_gradient(made, ["x"])
    differentiate(module(made))
    assert sum(isinstance(op, Pin) for op in made.body) == 1
    assert_allclose(reference.evaluate(made, [np.array([1.0, 2, 3]), np.ones(())])[0], [2, 4, 6])


# --- random statements -----------------------------------------------------------------------

RANGES = {"i": 3, "j": 2, "k": 4}
INSIDE = ["i", "j", "k", "i + j", "i*2 + j", "5 - k", "(k + 3) % 4", "k // 2", "k // 2 + j", "2",
          "(i, j)", "check(t[k], 6)", "(i + j) % 3"]
PADDED = ["i*3 - 1", "j - k", "t[k]", "i + j*4", "(k, j)"]
SHAPES = {"tanh": "tanh({})", "square": "({}) ** 2.0", "gate": "where(k <= i, {}, 0.0)",
          "plain": "{}", "exp": "exp({})", "bend": "max({}, 0.3)"}


@st.composite
def random_statement(draw: st.DrawFn) -> str:
    """A statement over x[6, 6], w[6] and t of i64[4] that is differentiable almost everywhere."""

    def read() -> str:
        name, rank = draw(st.sampled_from([("x", 2), ("w", 1)]))
        places = [draw(st.sampled_from(INSIDE)) for _ in range(rank)]
        if draw(st.booleans()):
            places[-1] = draw(st.sampled_from(PADDED))
            return f"pad({name}[{', '.join(places)},], 0.5)"
        return f"{name}[{', '.join(places)},]"

    def term() -> str:
        shape = SHAPES[draw(st.sampled_from(sorted(SHAPES)))]
        return shape.format(" * ".join(read() for _ in range(draw(st.integers(1, 3)))))

    body = draw(st.sampled_from([" + ", " * "])).join(
        term() for _ in range(draw(st.integers(1, 2))))
    left = draw(st.lists(st.sampled_from("ijk"), unique=True))
    summed = [v for v in "ijk" if v not in left]
    merged = len(left) > 1 and draw(st.booleans())
    place = f"({', '.join(left)})," if merged else ", ".join(left) or "()"
    if not summed:
        return f"y[{place}] = {body}"
    guard = draw(st.sampled_from(["", ", given(j <= i)", ", given(t[k] > i)"]))
    reduce = draw(st.sampled_from(["sum", "sum", "sum", "max", "prod"]))
    return f"y[{place}] = {reduce}[{', '.join(summed)}{guard}]({body})"


@settings(max_examples=60)
@given(random_statement(), st.integers(0, 99))
def test_the_gradient_of_a_random_statement_is_its_slope(text: str, seed: int) -> None:
    types = dict(x="f32[6, 6]", w="f32[6]", t="i64[4]")
    args = draw(types, {"t": np.array([3, 0, 5, 3])}, seed)
    made = function(text, sizes=RANGES, **types)
    steps = draw(types, {"t": np.zeros(4)}, seed + 1)
    size = 1e-5

    def moved(by: float) -> Array:
        near = [a + by * s if a.dtype == np.float64 else a
                for a, s in zip(args.values(), steps.values(), strict=True)]
        return reference.evaluate(made, near, double=True)[0]

    high, low, middle = moved(size), moved(-size), moved(0)
    assume(np.isfinite(middle).all() and np.abs(high + low - 2 * middle).max(initial=0) < 1e-7)
    gradients, cotangent = derived(made, ["x", "w"], args)
    slope = ((high - low) / (2 * size) * cotangent).sum()
    ours = sum((gradients[n] * steps[n]).sum() for n in ("x", "w"))
    assert_allclose(ours, slope, rtol=1e-3, atol=1e-4)
    simplify(module(made))
    verify(module(made))
    again = reference.evaluate(made, [*args.values(), cotangent], double=True)
    for n, value in zip(("x", "w"), again, strict=True):
        assert_allclose(value, gradients[n], rtol=1e-6, atol=1e-7)
