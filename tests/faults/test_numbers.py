"""Promotion, whole numbers, and precision: where a fused or a compiled program went astray."""

from __future__ import annotations

import numpy as np
import pytest

from tests.faults.cases import Case, check, counted, everywhere, run

N2, N4 = ("a=2",), ("a=4",)
FLOORED = "def f(x: {0}[3] @ {{a: S(0)}}, y: {0}[3] @ {{a: S(0)}}):\n    return x // y\n"
LEFT, RIGHT = [1.0, 0.5, 6.0], [0.1, 0.1, 0.2]


@everywhere(
    Case("f32", FLOORED.format("f32"), [9, 4, 29],
         {"x": np.array(LEFT, "f4"), "y": np.array(RIGHT, "f4")}, N2),
    Case("f64", FLOORED.format("f64"), [9, 4, 29],
         {"x": np.array(LEFT), "y": np.array(RIGHT)}, N2))
def test_a_floored_quotient_is_that_of_the_exact_numbers(case: Case, mesh: str) -> None:
    check(case, mesh)


WHOLE = [
    Case("quotients and remainders round down",
         "def f(x: i64[3], y: i64[3]):\n    return x // y, x % y\n", ([-4, -3, -3], [1, 2, -2]),
         {"x": np.array([-7, -7, 7]), "y": np.array([2, 3, -3])}),
    Case("an integer times a fraction", "def f(x: i32[1]):\n    return x * 0.8\n", [1.6],
         {"x": np.array([2], "i4")}),
    Case("i8 wraps", "def f(x: i8[1], y: i8[1]):\n    return i64(x + y)\n", [-56],
         {"x": np.array([100], "i1"), "y": np.array([100], "i1")}),
    Case("a border of truth values",
         "def f(x: bool[2] @ {a: S(0)}):\n    return pad(x, [[1, 2]])\n",
         [False, True, True, False, False], {"x": np.ones(2, bool)}, N2),
    Case("i64 over ranks", "def f(x: i64[2] @ {a: S(0)}):\n    return sum(x)\n", 2**53 + 1,
         {"x": np.array([2**53, 1])}, N2),
    Case("a sum of f16 that overflows on the way",
         "def f(x: f16[2, 1] @ {a: S(0)}):\n    return f32(mean(x, axis=0))\n", [40000],
         {"x": np.full((2, 1), 40000, "f2")}, N2),
]
@everywhere(*WHOLE)
def test_whole_numbers_stay_whole_and_fractions_fractions(case: Case, mesh: str) -> None:
    check(case, mesh)


NORMED = "def f(x: f32[1, 16] @ {a: S(1)}, w: f32[16], b: f32[16]):\n" \
         "    return layer_norm(x, w, b)[0, 0]\n"


@pytest.mark.parametrize("mesh", ["", "a=2", "a=4"])
@pytest.mark.parametrize(("mean", "first", "tolerance"), [
    (0, -1.341641, 1e-4), (100, -1.341528, 1e-3), (1000, -1.341508, 0.02)])
def test_a_large_mean_does_not_spoil_a_variance(
    mean: float, first: float, tolerance: float, mesh: str
) -> None:
    x = (mean + counted(1, 16, dtype="f8") * 1e-3).astype("f4")
    (got,) = run(NORMED, {"x": x, "w": np.ones(16, "f4"), "b": np.zeros(16, "f4")}, mesh)
    assert got == pytest.approx(first, abs=tolerance)


BY_ZERO = "def f(x: i64[3] @ {a: S(0)}, y: i64[3]):\n    return x // y, x % y, x / y\n"


@everywhere(Case("i64", BY_ZERO, ([0, 0, 0], [0, 0, 0], [np.inf, np.nan, -np.inf]),
                 {"x": np.array([7, 0, -7]), "y": np.zeros(3, "i8")}, N2))
def test_whole_numbers_divided_by_zero_give_zero_everywhere(case: Case, mesh: str) -> None:
    """The one rule of the reference evaluator, the kernels and their interpreter."""
    check(case, mesh)


COPIED = """
def f(x: f32[3, 4] @ {a: S(0)}):
    y = x
    x = x + 1
    return y, x
"""


@everywhere(Case("a copy", COPIED, (counted(3, 4), counted(3, 4) + 1), {"x": counted(3, 4)}, N2))
def test_a_value_keeps_what_it_was(case: Case, mesh: str) -> None:
    check(case, mesh)
