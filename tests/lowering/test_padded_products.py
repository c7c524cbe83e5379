"""A pad does not keep a product from the library."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.ir.contraction import matrix_product
from anabranch.ir.ops import Compute
from anabranch.ir.parser import parse_module
from anabranch.ir.reference import evaluate
from anabranch.ir.rewrite import clone_module
from anabranch.ir.space import clause
from anabranch.lowering.simplify import simplify

TEXT = """\
module phase=global

func @f(%d: f32[4, 7, 5], %h: f32[4, 7, 3]) {{
  %u: f32[5, 3] = [n, k] sum[b < 4, t < 7]({body})
  return %u
}}
"""
SHIFTED = "%d[b, t, n] * %h[b, t - 1, k, pad=0.5]"
BOTH = "%d[b, t + 2, n, pad=0.0] * %h[b, t - 1, k, pad=0.0]"
PLAIN = "%d[b, t, n] * %h[b, t, k]"
WINDOW = "%d[b, t, n] * %h[b, t + k - 1, 0, pad=0.0]"


@pytest.mark.parametrize(("body", "count"), [(SHIFTED, 2), (BOTH, 3), (PLAIN, 1), (WINDOW, 1)])
def test_padded_factors_stand_apart_where_a_product_is_left(body: str, count: int) -> None:
    module = parse_module(TEXT.format(body=body))
    draw = np.random.default_rng(0).normal
    args = [draw(size=(4, 7, 5)), draw(size=(4, 7, 3))]
    (expected,) = evaluate(clone_module(module).functions["f"], args)
    function = simplify(module).functions["f"]
    (found,) = evaluate(function, args)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
    ops = [op for op in function.body if isinstance(op, Compute)]
    assert len(ops) == count
    assert (matrix_product(clause(ops[-1])) is not None) == (body != WINDOW)


TWO = """\
module phase=global

func @f(%d: f32[4, 7, 5], %e: f32[4, 7, 6], %h: f32[4, 7, 3]) {
  %u: f32[5, 3] = [n, k] sum[b < 4, t < 7](%d[b, t, n] * %h[b, t - 1, k, pad=0.5])
  %v: f32[6, 3] = [m, j] sum[c < 4, s < 7](%e[c, s, m] * %h[c, s - 1, j, pad=0.5])
  return %u, %v
}
"""


def test_products_that_share_a_factor_share_its_copy() -> None:
    function = simplify(parse_module(TWO)).functions["f"]
    copies = [op for op in function.body if isinstance(op, Compute) and not op.reduce]
    assert len(copies) == 1
