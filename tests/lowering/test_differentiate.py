"""Gradients derived from statements, against PyTorch's autograd in f64 and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose

from anabranch.ir import reference
from anabranch.ir.core import Function
from anabranch.lowering.differentiate import differentiate
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
