"""A scan runs its statements place after place; what would read ahead is refused."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from anabranch.ir.core import Function, Value
from anabranch.ir.diagnostics import CompilerBug, UserError
from anabranch.ir.ops import Scan
from anabranch.ir.parser import parse_module
from anabranch.ir.printer import print_function
from anabranch.ir.recurrence import statements
from anabranch.ir.reference import evaluate, evaluate_op, held
from anabranch.ir.verifier import verify
from tests.strategies import arrays, recurrences

CELL = """\
module phase=global

func @f(%x: f64[5, 2, 3], %w: f64[3, 3], %start: f64[2, 3]) {
  %h: f64[2, 5, 3] = scan[t < 5](%a = %x, %b = %w, %s = %start; %old) {
    %p: f64[5, 2, 3] = [t, b, i] sum[k < 3](%old[b, t - 1, k, pad=%s[b, k]] * %b[k, i])
    %new: f64[2, 5, 3] = [b, t, i] tanh(%p[t, b, i] + %a[t, b, i])
    return %new
  }
  return %h
}
"""
FIBONACCI = """\
module phase=global

func @f() {
  %n: i64[9] = scan[t < 9](; %old) {
    %new: i64[9] = [t] %old[t - 1, pad=1] + %old[t - 2, pad=0]
    return %new
  }
  %m: i64[9] = scan[t < 9, reverse](; %old.1) {
    %new.1: i64[9] = [t] %old.1[t + 1, pad=1] + %old.1[t + 2, pad=0]
    return %new.1
  }
  return %n, %m
}
"""
PAIR = """\
module phase=global

func @f(%x: f64[4]) {
  %p: f64[4], %q: f64[4] = scan[t < 4](%a = %x; %p.0, %q.0) {
    %p.1: f64[4] = [t] %a[t] + %q.0[t - 1, pad=0.5:f64]
    %q.1: f64[4] = [t] %p.1[t] * %p.0[t - 2, pad=2.0:f64]
    return %p.1, %q.1
  }
  return %p, %q
}
"""


def run(text: str, *args: object) -> list[np.ndarray[Any, Any]]:
    module = parse_module(text)
    verify(module)
    return evaluate(module.functions["f"], args)


def test_a_recurrent_cell_runs_from_its_start_with_intermediates_of_any_order() -> None:
    draw = np.random.default_rng(0).standard_normal
    x, w, start = draw((5, 2, 3)), draw((3, 3)), draw((2, 3))
    expected, h = [], start
    for place in x:
        h = np.tanh(h @ w + place)
        expected.append(h)
    (found,) = run(CELL, x, w, start)
    np.testing.assert_allclose(found, np.stack(expected, 1), rtol=1e-12)


def test_two_places_back_and_from_the_end() -> None:
    forward, backward = run(FIBONACCI)
    assert forward.tolist() == [1, 1, 2, 3, 5, 8, 13, 21, 34]
    assert backward.tolist() == forward.tolist()[::-1]


def test_two_statements_that_read_each_other() -> None:
    x = np.array([1.0, -2.0, 3.0, 0.5])
    p, q = [], []
    for t in range(4):
        p.append(x[t] + (q[t - 1] if t else 0.5))
        q.append(p[t] * (p[t - 2] if t > 1 else 2.0))
    found = run(PAIR, x)
    np.testing.assert_allclose(found, [p, q])


FAULTS = [
    ("%old[b, t - 1, k, pad=%s[b, k]]", "%old[b, t, k]", "is read where it is not known"),
    ("%old[b, t - 1, k,", "%old[b, t + 1, k,", "is read where it is not known"),
    ("%old[b, t - 1, k,", "%old[b, t - b, k,", "is read where it is not known"),
    ("%old[b, t - 1, k,", "%old[b, 0, k,", "is read where it is not known"),
    ("%p[t, b, i]", "%p[4 - t, b, i]", "is read at another place"),
    ("%old) {", "%old) {\n    %o: f64[2, 5] = [u, v] 1.0:f64", "no dimension [t < 5] of its own"),
    ("return %new", "return %old", "a result is not computed in the region"),
    ("scan[t < 5]", "scan[t < 6]", "no dimension [t < 6] of its own"),
    ("scan[t < 5]", "scan[t < 5, reverse]", "is read where it is not known"),
]


@pytest.mark.parametrize(("old", "new", "message"), FAULTS)
def test_a_scan_that_reads_ahead_is_refused(old: str, new: str, message: str) -> None:
    assert CELL.count(old) == 1
    with pytest.raises(CompilerBug, match="in @f") as caught:
        verify(parse_module(CELL.replace(old, new)))
    assert message in caught.value.message


def test_a_history_is_padded() -> None:
    with pytest.raises(CompilerBug, match=r"leaves \[0, 5\)"):
        verify(parse_module(CELL.replace(", pad=%s[b, k]", "")))


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(recurrences(), st.integers(0, 99))
def test_a_scan_is_the_fixed_point_of_its_statements(function: Function, seed: int) -> None:
    """As whole tensors, repeated as often as there are places, from anything at all."""
    note(print_function(function))
    scan, args = function.body.first, arrays(function, seed)
    assert isinstance(scan, Scan)
    env: dict[Value, Any] = dict(zip(function.body.args, args, strict=True))
    with contextlib.suppress(UserError):
        expected = evaluate(function, args)
        inside = dict(zip(scan.inputs, [env[v] for v in scan.operands], strict=True))
        for history in scan.histories:
            inside[history] = np.zeros(history.type.shape, held(history.type.dtype))
        for _ in range(scan.extent):
            for op in statements(scan):
                (inside[op.result],) = evaluate_op(op, [inside[v] for v in op.operands])
            inside.update(zip(scan.histories, [inside[v] for v in scan.news], strict=True))
        found = [inside[history] for history in scan.histories]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
