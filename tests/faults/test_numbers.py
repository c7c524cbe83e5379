"""Promotion, whole numbers, and precision: where a fused or a compiled program went astray."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

import anabranch as ab
from tests.faults.cases import Case, check, counted, everywhere, mesh_of, run

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


def quotients(dtype: str, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Numbers, and divisors that fit them a whole number of times but for the rounding."""
    short = FLOATS[dtype]
    y = (random.integers(1, 30, 60) / 10 * random.choice([-1, 1], 60)).astype(short)
    x = (random.integers(-40, 40, 60) * y.astype("f8")).astype(short)
    if dtype == "bf16":  # the first 8 bits of an f32
        x, y = ((each.view("u4") & 0xFFFF0000).view("f4") for each in (x, y))
    return x, y


FLOATS = {"f64": "f8", "f32": "f4", "f16": "f2", "bf16": "f4"}
WITH_REST = "def f(x: {0}[60] @ {{a: S(0)}}, y: {0}[60]):\n    return f64(x // y), f64(x % y)\n"


@pytest.mark.parametrize("mesh", ["", "a=2"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_quotient_is_rounded_down_once(dtype: str, mesh: str) -> None:
    """Against fractions, which round nothing; the rest has the sign of the divisor."""
    x, y = quotients(dtype, np.random.default_rng(0))
    whole, rest = run(WITH_REST.format(dtype), {"x": x, "y": y}, mesh)
    exact = [(Fraction(float(a)), Fraction(float(b))) for a, b in zip(x, y, strict=True)]
    np.testing.assert_array_equal(whole, [float(a // b) for a, b in exact])
    close = {"f64": 1e-15, "f32": 3e-7, "f16": 2e-3, "bf16": 2e-2}[dtype]
    np.testing.assert_allclose(rest, [float(a % b) for a, b in exact], rtol=close, atol=close)


WHOLE = [
    Case("lengths of whole numbers",
         "def f(x: u8[2] @ {a: S(0)}, y: i8[3]):\n    return norm(x), norm(y), norm(y, p=inf)\n",
         (50000**0.5, 42513**0.5, 128.0),
         {"x": np.array([200, 100], "u1"), "y": np.array([127, -128, 100], "i1")}, N2),
    Case("whole numbers without a sign that lie far apart",
         "def f(x: u8[2] @ {a: S(0)}, y: u8[2]):\n    return isclose(x, y, rtol=0.1)\n",
         [False, True], {"x": np.array([0, 250], "u1"), "y": np.array([255, 255], "u1")}, N2),
    Case("divisions by the least whole number",
         "def f(x: i8[4] @ {a: S(0)}, y: i8[4]):\n    return fmod(x, y), divide_to_zero(x, y)\n",
         ([127, -1, -1, 0], [0, -1, -2, 1]),
         {"x": np.array([127, -128, -7, -128], "i1"), "y": np.array([-128, 127, 3, -128], "i1")},
         N2),
    Case("sums of truth values",
         "def f(x: bool[2] @ {a: S(0)}, y: bool[2]):\n"
         "    return x + y, x * y, sum(x), cumsum(x, axis=0), x / y, i8(x) + y\n",
         ([True, True], [True, True], 2, [1, 2], [1.0, 1.0], [2, 2]),
         {"x": np.ones(2, bool), "y": np.ones(2, bool)}, N2),
    Case("short integers of two kinds",
         "def f(x: i8[2] @ {a: S(0)}, y: u8[2]):\n"
         "    return x + y, y * 2, y - y - 1, sum(x), sum(y), x / 8, y * 2.5, x @ x\n",
         ([300, 200], [144, 200], [255, 255], 200, 300, [12.5, 12.5], [500.0, 250.0], 32),
         {"x": np.full(2, 100, "i1"), "y": np.array([200, 100], "u1")}, N2),
    Case("quotients and remainders round down",
         "def f(x: i64[3], y: i64[3]):\n    return x // y, x % y\n", ([-4, -3, -3], [1, 2, -2]),
         {"x": np.array([-7, -7, 7]), "y": np.array([2, 3, -3])}),
    Case("an integer times a fraction",
         "def f(x: i32[1]):\n    return x * 0.8, x / 4, x * 2, x + True\n",
         ([1.6], [0.5], [4], [3]), {"x": np.array([2], "i4")}),
    Case("i8 wraps", "def f(x: i8[1], y: i8[1]):\n    return i64(x + y)\n", [-56],
         {"x": np.array([100], "i1"), "y": np.array([100], "i1")}),
    Case("a border of truth values",
         "def f(x: bool[2] @ {a: S(0)}):\n    return pad(x, [[1, 2]])\n",
         [False, True, True, False, False], {"x": np.ones(2, bool)}, N2),
    Case("truth values outside of a tensor",
         "def f(x: bool[2]):\n    y[n < 4] = x[n - 1, pad=1]\n    return y\n",
         [True, False, False, True], {"x": np.zeros(2, bool)}),
    Case("i64 over ranks",
         "def f(x: i64[2] @ {a: S(0)}):\n    return sum(x), max(x), to(x, {a: B})\n",
         (2**53 + 1, 2**53, [2**53, 1]), {"x": np.array([2**53, 1])}, N2),
    Case("a sum of f16 that overflows on the way",
         "def f(x: f16[2, 1] @ {a: S(0)}):\n    return f32(mean(x, axis=0))\n", [40000],
         {"x": np.full((2, 1), 40000, "f2")}, N2),
]


@everywhere(*WHOLE)
def test_whole_numbers_stay_whole_and_fractions_fractions(case: Case, mesh: str) -> None:
    check(case, mesh)


HALVES = """
model Halves():
    w: f16[1] = ones()

    def loss(x: f16[B, 1]) -> f32[]:
        return f32(mean(x @ w))

train Halves():
    steps     = 1
    data      = arrays(batch=4)
    optimizer = sgd(lr=1.0)
"""


@pytest.mark.parametrize(("mesh", "micro"), [("", 1), ("", 2), ("data=2", 1), ("data=2", 2),
                                             ("data=4", 1)])
def test_a_mean_gradient_of_halves_does_not_overflow_on_the_way(mesh: str, micro: int) -> None:
    """Of 40000 in each row: the sum is more than f16 has, the mean is not."""
    plan = ab.compile(ab.loads(HALVES).train, mesh=mesh_of(mesh), micro=micro)
    with ab.Session(plan) as session:
        session.step(x=np.full((4, 1), 40000, "f2"))
        assert session.state_dict()["w"] == np.float16(1 - 40000)


UNSIGNED = """
def f(x: {0}[8] @ {{a: S(0)}}, y: {0}[8] @ {{a: S(0)}}, z: f64[6]):
    arithmetic = stack([x + y, x - y, x * y, x // y, x % y, x ** 3, 0 - x, max(x, y), min(x, y)])
    bits = stack([bitwise_and(x, y), bitwise_xor(x, y), bitwise_not(x),
                  bitwise_left_shift(x, y), bitwise_right_shift(x, y)])
    compared = stack([x == y, x < y, x >= y, x > {1}, x != 0])
    whole = stack([max(x), min(x), {0}(prod(x[1:4])), {0}(sum(x)), x[argmax(x)]])
    return arithmetic, bits, compared, whole, f64(x), i32(x), {0}(z), sort(x)[0]
"""


def by_numpy(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, ...]:
    """What the program above gives, by NumPy."""
    kind, far = x.dtype.type, y >= 8 * x.dtype.itemsize
    shift = np.where(far, 0, y).astype(kind)
    with np.errstate(all="ignore"):
        return (
            np.stack([x + y, x - y, x * y, x // y, x % y, x * x * x, 0 - x, np.maximum(x, y),
                      np.minimum(x, y)]),
            np.stack([x & y, x ^ y, ~x, np.where(far, 0, x << shift).astype(kind),
                      np.where(far, 0, x >> shift).astype(kind)]),
            np.stack([x == y, x < y, x >= y, x > np.iinfo(kind).max - 1, x != 0]),
            np.stack([x.max(), x.min(), x[1:4].prod(dtype=kind), x.sum(dtype=kind), x.max()]),
            x.astype("f8"), x.astype("i4"), z.astype(kind), np.sort(x))


@pytest.mark.parametrize("mesh", ["", "a=2"])
@pytest.mark.parametrize("dtype", ["u16", "u32", "u64"])
def test_integers_without_sign_wrap_and_compare_as_numpys(dtype: str, mesh: str) -> None:
    kind = np.dtype(f"u{int(dtype[1:]) // 8}")
    top = int(np.iinfo(kind).max)
    arrays = {"x": np.array([0, 1, 7, top // 2, top // 2 + 1, top - 6, top - 1, top], kind),
              "y": np.array([1, top, 3, 2, top // 2, 15, top - 1, 9], kind),
              "z": np.array([0.0, 1.9, -1.0, 3e4, -7.5, top / 2])}
    check(Case(dtype, UNSIGNED.format(dtype, top - 1), by_numpy(**arrays), arrays), mesh)


def test_u64_has_no_common_dtype_with_what_is_below_zero() -> None:
    with pytest.raises(ab.UserError, match="no integer dtype has the numbers of u64 and of i8"):
        run("def f(x: u64[2], y: i8[2]):\n    return x + y\n",
            {"x": np.ones(2, "u8"), "y": np.ones(2, "i1")})


ROUNDED = """
def f(x: f32[8] @ {a: S(0)}, y: f32[8]):
    return div(x, y, "trunc"), div(x, y, "floor"), x % y
"""
OVER, UNDER = [7, -7, 1, -1, 0, 5, np.inf, -np.inf], [2, 2, 0.5, 0, 0, np.inf, 2, 1]
INF, NAN = np.inf, np.nan


@everywhere(Case(
    "f32", ROUNDED, ([3, -3, 2, -INF, NAN, 0, INF, -INF], [3, -4, 2, -INF, NAN, 0, NAN, NAN],
                     [1, 1, 0, NAN, NAN, 5, NAN, NAN]),
    {"x": np.array(OVER, "f4"), "y": np.array(UNDER, "f4")}, N2))
def test_quotients_of_infinities_and_zeros_are_those_of_pytorch(case: Case, mesh: str) -> None:
    check(case, mesh)
    x, y = (torch.tensor(case.arrays[name]) for name in "xy")
    theirs = torch.div(x, y, rounding_mode="trunc"), x // y, x % y
    for mine, other in zip(case.expected, theirs, strict=True):
        np.testing.assert_array_equal(np.array(mine, "f4"), other.numpy())


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


BY_ZERO = "def f(x: {0}[3] @ {{a: S(0)}}, y: {0}[3]):\n    return x // y, x % y, x / y\n"


@everywhere(*(Case(dtype, BY_ZERO.format(dtype), ([0, 0, 0], [0, 0, 0], [np.inf, np.nan, -np.inf]),
                   {"x": np.array([7, 0, -7], size), "y": np.zeros(3, size)}, N2)
              for dtype, size in (("i8", "i1"), ("i16", "i2"), ("i32", "i4"), ("i64", "i8"))),
            Case("the least by -1", "def f(x: i64[1], y: i64[1]):\n    return x // y, x % y\n",
                 ([-2**63], [0]), {"x": np.array([-2**63]), "y": np.array([-1])}))
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
