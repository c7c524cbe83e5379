"""Scans become smaller and say the same."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from anabranch.ir.core import Function, Module
from anabranch.ir.diagnostics import UserError
from anabranch.ir.ops import Scan
from anabranch.ir.parser import parse_module
from anabranch.ir.printer import print_function, print_module
from anabranch.ir.recurrence import statements
from anabranch.ir.reference import evaluate
from anabranch.ir.rewrite import clone_function
from anabranch.ir.verifier import verify
from anabranch.lowering.simplify import simplify
from tests.strategies import arrays, recurrences


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(recurrences(), st.integers(0, 99))
def test_a_simplified_recurrence_means_the_same(function: Function, seed: int) -> None:
    note(print_function(function))
    args = arrays(function, seed)
    with contextlib.suppress(UserError):
        expected = evaluate(function, args)
        module = Module({"f": clone_function(function)})
        verify(simplify(module))
        once = print_module(module)
        note(once)
        for a, b in zip(evaluate(module.functions["f"], args), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        assert print_module(simplify(module)) == once


def simplified(lines: str, given: str = "%x: f32[4, 3], %y: f32[4, 3]") -> Function:
    module = parse_module(f"module phase=global\n\nfunc @f({given}) {{\n{lines}}}\n")
    verify(module)
    verify(simplify(module))
    return module.functions["f"]


def scans(function: Function) -> list[Scan]:
    return [op for op in function.body if isinstance(op, Scan)]


def test_results_that_nothing_needs_go_with_their_statements() -> None:
    function = simplified("""\
  %p: f32[4, 3], %q: f32[4, 3], %r: f32[4, 3] = scan[t < 4](%a = %x, %b = %y; %p.0, %q.0, %r.0) {
    %p.1: f32[4, 3] = [t, i] %p.0[t - 1, i, pad=0.0] + %a[t, i]
    %q.1: f32[4, 3] = [t, i] %q.0[t - 1, i, pad=0.0] + %p.1[t, i]
    %r.1: f32[4, 3] = [t, i] %r.0[t - 1, i, pad=0.0] + %p.1[t, i] * %b[t, i]
    return %p.1, %q.1, %r.1
  }
  return %q
""")
    (scan,) = scans(function)
    assert [v.name for v in scan.results] == ["p", "q"]
    assert len(list(statements(scan))) == 2
    assert scan.operands == (function.body.args[0],)


def test_equal_results_are_one_and_an_operand_that_is_handed_through_is_none() -> None:
    function = simplified("""\
  %p: f32[4, 3], %q: f32[4, 3], %r: f32[4, 3] = scan[t < 4](%a = %x, %b = %x; %p.0, %q.0, %r.0) {
    %p.1: f32[4, 3] = [t, i] %r.0[t - 1, i, pad=0.0] + %q.0[t - 1, i, pad=0.0]
    %q.1: f32[4, 3] = [t, j] %r.0[t - 1, j, pad=0.0] + %q.0[t - 1, j, pad=0.0]
    %r.1: f32[4, 3] = [t, i] %b[t, i]
    return %p.1, %q.1, %r.1
  }
  return %p, %q, %r
""")
    (scan,) = scans(function)
    assert len(scan.results) == 1
    p, q, r = function.body.last.operands
    assert p is q
    assert r is function.body.args[0]


def test_statements_that_differ_in_the_place_of_the_index_stay_apart() -> None:
    function = simplified("""\
  %p: f32[4, 4], %q: f32[4, 4] = scan[t < 4](%a = %x; %p.0, %q.0) {
    %p.1: f32[4, 4] = [t, i] %a[t, i] + %p.0[t - 1, i, pad=0.0] + %q.0[i, t - 1, pad=0.0]
    %q.1: f32[4, 4] = [i, t] %a[i, t]
    return %p.1, %q.1
  }
  return %p, %q
""", "%x: f32[4, 4]")
    assert len(scans(function)) == 1


@pytest.mark.parametrize("extent", [0, 1])
def test_a_scan_of_one_place_is_no_loop(extent: int) -> None:
    function = simplified(f"""\
  %p: f32[{extent}, 3] = scan[t < {extent}](%a = %x, %b = %y; %p.0) {{
    %s: f32[{extent}] = [t] sum[k < 3](%p.0[t - 1, k, pad=%b[0, k]])
    %p.1: f32[{extent}, 3] = [t, i] %s[t] + %a[t, i] + %p.0[t - 1, i, pad=%b[0, i]]
    return %p.1
  }}
  return %p
""", f"%x: f32[{extent}, 3], %y: f32[1, 3]")
    assert not scans(function)
    x, y = np.ones((extent, 3), np.float32), np.arange(3, dtype=np.float32).reshape(1, 3)
    (p,) = evaluate(function, [x, y])
    np.testing.assert_array_equal(p, x + y + y.sum())


