"""Calls that make no sense end in a message with the place, what was found and what is legal."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.ir.diagnostics import UserError
from tests.faults.cases import Case, check, counted, everywhere, run

PRODUCT = "def f(x: f32[4, 5], w: f32[5, 8] @ {a: S(0)}):\n    return x @ w\n"


@everywhere(Case("a split table", PRODUCT, counted(4, 5) @ counted(5, 8),
                 {"x": counted(4, 5), "w": counted(5, 8)}, ("a=2", "a=4")))
def test_a_product_takes_its_operands_in_any_layout(case: Case, mesh: str) -> None:
    check(case, mesh)


CALLS = {
    "x @ w": ["[4, 5]", "[6, 8]"],
    "split(x, 0)": ["0"],
    "reshape(x, [3, 7])": ["20", "21|3, 7"],
    "sum(x, axis=2)": ["2"],
    "transpose(x, 0, 5)": ["5"],
    "concat([x, w], axis=0)": ["5", "8"],
    "pad(x, [[-3, -2], [0, 0]])": ["no more away than an axis has"],
    "pad_constant(x, [[-1, 0], [0, 0]])": ["-1"],
    "repeat(x, [1, -1])": ["0 times or more"],
    "x[:, 7]": ["7", "5"],
    "max_pool2d(reshape(x, [1, 1, 4, 5]), 2, stride=0)": ["0|stride"],
    "sofmax(x)": ["softmax"],
    "softmax(x, axxis=0)": ["axxis"],
    "f33(x)": ["f3"],
    "full([2], 2.0 ** 63, i64)": ["9223372036854775808 is no number of i64"],
    "i64(x) + i64(-1e300)": ["no dtype holds it"],
    "arange(2 ** 63)": ["9223372036854775808 is no number of i64"],
    "quantile(i64(x), 0.5)": ["cast with f32"],
    "quantile(x, 1.5)": ["q is from 0 to 1"],
}


@pytest.mark.parametrize("call", CALLS)
def test_a_senseless_call_is_refused_with_its_place(call: str) -> None:
    source = f"def f(x: f32[4, 5], w: f32[6, 8]):\n    return {call}\n"
    with pytest.raises(UserError) as failure:
        run(source, {"x": np.zeros((4, 5), "f4"), "w": np.zeros((6, 8), "f4")})
    message = str(failure.value)
    assert "<program>:2:" in message
    assert "^" in message
    for either in CALLS[call]:
        assert any(word in message for word in either.split("|")), message
