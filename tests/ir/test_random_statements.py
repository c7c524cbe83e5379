"""Random statements run: each result has the dtype and shape that its type promises."""

from __future__ import annotations

import contextlib

import numpy as np
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from anabranch.ir.core import Function
from anabranch.ir.diagnostics import UserError
from anabranch.ir.parser import parse_module
from anabranch.ir.printer import print_function
from anabranch.ir.reference import evaluate, held
from tests.strategies import arrays, statements

quick = settings(max_examples=150, suppress_health_check=list(HealthCheck))


@quick
@given(statements(), st.integers(0, 99))
def test_a_statement_gives_what_its_type_promises_or_stops_at_a_checked_index(
    function: Function, seed: int
) -> None:
    note(print_function(function))
    with np.errstate(all="ignore"), contextlib.suppress(UserError):
        results = evaluate(function, arrays(function, seed))
        end = function.body.last
        assert end is not None
        types = [value.type for value in end.operands]
        assert [r.shape for r in results] == [t.shape for t in types]
        assert [r.dtype for r in results] == [held(t.dtype, False) for t in types]


@quick
@given(statements(), st.integers(0, 99))
def test_text_loses_no_meaning(function: Function, seed: int) -> None:
    text = f"module phase=global\n\n{print_function(function)}"
    note(text)
    again = parse_module(text).functions[function.name]
    with np.errstate(all="ignore"), contextlib.suppress(UserError):
        expected = evaluate(function, arrays(function, seed))
        found = evaluate(again, arrays(again, seed))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_half_precision_scalar_stays_a_scalar() -> None:
    module = parse_module("""\
module phase=global

func @f(%x: bf16[]) {
  %y: bf16[] = [] %x[] * 1.00390625:bf16
  return %y
}
""")
    (y,) = evaluate(module.functions["f"], [np.float32(1.0)])
    assert y.shape == ()
    assert y == 1.0
