"""Gradients of recurrences, first and second, against finite differences in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anabranch.gradient_check import check_gradients, gradient_of, weighted
from anabranch.ir.core import Function, Module
from anabranch.ir.ops import Compute, Scan
from anabranch.ir.reference import evaluate
from anabranch.ir.verifier import verify
from anabranch.lowering.simplify import simplify
from tests.frontend.running import module_of, program

PROGRAM = program("""
op cumulative(x: f64[A, N]) -> f64[A, N]:
    y[i, n] = y[i, n - 1, pad=0] + x[i, n]
    return y

op from_the_end_in_twos(x: f64[N, A]) -> f64[N, A]:
    y[n, i] = y[n + 2, i, pad=1] * x[n, i] + x[n, i]
    return y

op lstm(x: f64[B, S, I], w: f64[G, I], u: f64[G, H], h0: f64[B, H], c0: f64[B, H]
        ) -> f64[B, S, H], f64[B, S, H]:
    a[b, t, q, n] = (sum[i](x[b, t, i] * w[(q < 4, n), i])
                     + sum[k](h[b, t - 1, k, pad=h0[b, k]] * u[(q, n), k]))
    h[b, t, n] = sigmoid(a[b, t, 3, n]) * tanh(c[b, t, n])
    c[b, t, n] = (sigmoid(a[b, t, 1, n]) * c[b, t - 1, n, pad=c0[b, n]]
                  + sigmoid(a[b, t, 0, n]) * tanh(a[b, t, 2, n]))
    return h, c

op reductions(x: f64[S, H], u: f64[H, H]) -> f64[S, H]:
    m[t]    = max[n < H](h[t - 1, n, pad=0.1])
    e[t, n] = exp(h[t - 1, n, pad=0.1] - m[t])
    z[t]    = sum[n](e[t, n])
    h[t, n] = sum[k](e[t, k] / z[t] * u[n, k]) + x[t, n] * prod[k < H](h[t - 2, k, pad=0.9])
    return h

op product(x: f64[N]) -> f64[N]:
    y[n] = y[n - 1, pad=1] * x[n]
    return y

op highest(x: f64[N]) -> f64[N]:
    y[n] = max(y[n - 1, pad=-inf], x[n])
    return y

op scattered(x: f64[S, N], ids: i64[N], w: f64[N]) -> f64[S, N]:
    h[t, v] = (sum[n if ids[n] == v](tanh(h[t - 1, n, pad=0.3] * w[n])) + x[t, v]
               + h[t - 1, ids[v], pad=0.2])
    return h

op scattered_by_place(x: f64[S, N], ids: i64[N], w: f64[N]) -> f64[S, N]:
    h[t, v] = x[t, v] + sum[n if ids[n] == v](
        tanh(h[t - 1, n, pad=0.3] * w[n]) * w[v] * h[t - 1, v, pad=0.2])
    return h

op flat_in_between(x: f64[N, D], w: f64[N, D]) -> f64[N, D]:
    m[t]    = max[d](h[t - 1, d, pad=0] + x[t, d])
    k[t]    = sum[d](h[t - 1, d, pad=0] * w[t, d])
    h[t, d] = (floor(m[t]) + sign(k[t])) * w[t, d] + 0.3 * x[t, d]
    return h

op stopped(x: f64[N, A]) -> f64[N, A]:
    m[n]    = stop(max[i](y[n - 1, i, pad=x[0, i]]))
    y[n, i] = x[n, i] * exp(y[n - 1, i, pad=0] - m[n]) + stop(y[n - 1, i, pad=0.1]) * x[n, i]
    return y

op by_the_place(x: f64[N], s: f64[N]) -> f64[N]:
    y[n] = where(n > 1, y[n - 1, pad=s[n]] * x[n], x[n] * sum[k if k == n](s[k] * x[k]))
    return y

op where_it_is_known(x: f64[N], w: f64[N]) -> f64[N]:
    a[n] = where(n >= 2, a[n - 1] * a[n - 2], x[n]) * w[n]
    y[n] = where(n == 0, a[n], y[n - 1] + a[n])
    return y
""")

draw = np.random.default_rng(5).standard_normal
CASES: dict[str, dict[str, Any]] = {
    "cumulative": {"x": (3, 4)},
    "from_the_end_in_twos": {"x": (5, 2)},
    "lstm": {"x": (2, 4, 3), "w": (8, 3), "u": (8, 2), "h0": (2, 2), "c0": (2, 2)},
    "reductions": {"x": (4, 3), "u": (3, 3)},
    "product": {"x": (5,)},
    "highest": {"x": (6,)},
    "scattered": {"x": (4, 3), "ids": np.array([2, 0, 2]), "w": (3,)},
    "scattered_by_place": {"x": (4, 3), "ids": np.array([2, 0, 2]), "w": (3,)},
    "flat_in_between": {"x": (4, 3), "w": (4, 3)},
    "stopped": {"x": (4, 3)},
    "by_the_place": {"x": (4,), "s": (4,)},
    "where_it_is_known": {"x": (5,), "w": (5,)},
}


def built(name: str) -> tuple[Function, list[np.ndarray]]:
    arrays = {k: draw(v) if isinstance(v, tuple) else v for k, v in CASES[name].items()}
    function = module_of(PROGRAM, name, arrays).functions[name]
    return function, [arrays[a.value.name] for a in function.arguments]


def gradient(function: Function) -> Function:
    """The gradient of a weighted sum of the results, by all floats."""
    made = weighted(function, None, np.random.default_rng(0))
    assert made is not None
    floats = [a.value.name for a in function.arguments if a.value.type.dtype == "f64"]
    return gradient_of(made[0], floats)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_a_recurrence_is_right(name: str) -> None:
    function, args = built(name)
    verdict = check_gradients(function, args)
    assert not verdict.faults
    assert verdict.by == tuple(n for n, v in CASES[name].items() if isinstance(v, tuple))


@pytest.mark.parametrize("name", CASES)
def test_the_second_derivative_of_a_recurrence_is_right(name: str) -> None:
    function, args = built(name)
    backward = gradient(function)
    verify(Module({name: backward}))
    simplify(Module({name: backward}))
    verify(Module({name: backward}))
    weights = []
    for argument in backward.arguments[len(args):]:
        argument.value.name = f"first.{argument.value.name}"  # the second has weights of its own
        weights.append(draw(argument.value.type.shape))
    assert check_gradients(backward, [*args, *weights]).fault is None


def test_the_backward_pass_runs_from_the_other_end_and_weights_stay_out_of_it() -> None:
    backward = gradient(built("lstm")[0])
    scans = [op for op in backward.body if isinstance(op, Scan)]
    assert [scan.reverse for scan in scans] == [False, True]
    products = [op for op in backward.body if isinstance(op, Compute) and "t" in op.reduced]
    assert {op.result.name for op in products} >= {"d.u", "d.w", "d.h0", "d.c0"}


def test_what_looks_back_without_a_gradient_has_no_loop_backward() -> None:
    source = program("""
        op still(x: f64[N]) -> f64[N]:
            y[n] = stop(y[n - 1, pad=0]) * x[n] + x[n]
            return y
        """)
    function = module_of(source, "still", {"x": draw(5)}).functions["still"]
    assert sum(isinstance(op, Scan) for op in gradient(function).body) == 1


def test_what_is_only_read_where_it_is_stopped_receives_nothing() -> None:
    source = program("""
        op scaled(x: f64[N, D]) -> f64[N, D]:
            m[t]    = max[d](h[t - 1, d, pad=0] + x[t, d])
            h[t, d] = exp(h[t - 1, d, pad=0] + x[t, d] - stop(m[t]))
            return h
        """)
    x = draw((4, 3))
    function = gradient(module_of(source, "scaled", {"x": x}).functions["scaled"])
    computed = evaluate(function, [x, weights := draw((4, 3))])[-1]
    leaf, h, total = torch.tensor(x, requires_grad=True), torch.zeros(3), torch.tensor(0.0)
    for row, weight in zip(leaf, torch.tensor(weights), strict=True):
        h = torch.exp(h + row - (h + row).max().detach())
        total = total + (h * weight).sum()
    total.backward()  # type: ignore[no-untyped-call]
    np.testing.assert_allclose(computed, leaf.grad)


def test_a_wrong_gradient_that_is_stated_in_a_recurrence_is_found() -> None:
    source = program("""
        op wrong(x: f64[N]) -> f64[N]:
            y[n] = stop(x[n] * y[n - 1, pad=1], grad=2 * x[n]) + x[n]
            return y
        """)
    function = module_of(source, "wrong", {"x": draw(5)}).functions["wrong"]
    verdict = check_gradients(function, [draw(5)])
    assert verdict.faults
    assert isinstance(verdict.faults[0].op, Scan)
