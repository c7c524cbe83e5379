"""The f32 mathematics of the prelude, in units in the last place, over all kinds of arguments."""

from __future__ import annotations

import ctypes
import functools
import math
from pathlib import Path

import numpy as np
import pytest

from anabranch.codegen import PRELUDE
from anabranch.ir import scalar
from anabranch.ir.reference import convert
from anabranch.runtime import reference_math
from anabranch.runtime.build import build, find_toolchain
from anabranch.runtime.native import HEADER, load
from tests.codegen.harness import Array

ERF = np.frompyfunc(math.erf, 1, 1)
# function -> (what is right, most ulps, arguments within +-)
FUNCTIONS = {
    "exp": (np.exp, 1.5, 104.0),
    "log": (np.log, 1.5, 1e38),
    "tanh": (np.tanh, 2.0, 20.0),
    "erf": (lambda x: ERF(x).astype(np.float64), 2.5, 6.0),
    "sin": (np.sin, 1.5, 1e12),
    "cos": (np.cos, 1.5, 1e12),
    "expm1": (np.expm1, 0.51, 80.0),
    "log1p": (np.log1p, 0.51, 1e30),
    "tan": (np.tan, 0.51, 100.0),
    "asin": (np.arcsin, 0.51, 1.0),
    "acos": (np.arccos, 0.51, 1.0),
    "atan": (np.arctan, 0.51, 1e6),
    "sinh": (np.sinh, 0.51, 80.0),
    "cosh": (np.cosh, 0.51, 80.0),
}
LOOP = """
void {name}_loop(const {kind} *x, {kind} *y, int64_t n) {{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = ab_{name}(x[i]);
}}
"""


@functools.cache
def library() -> ctypes.CDLL:
    toolchain = find_toolchain()
    assert toolchain is not None
    names = [f"{f}_f32" for f in FUNCTIONS] + ["round_f16", "round_bf16"]
    loops = "".join(LOOP.format(name=name, kind="float") for name in names)
    (path,) = build(toolchain, f"{HEADER}\n{PRELUDE}", [loops])
    return load(Path(path))


def evaluate(name: str, x: Array) -> Array:
    given, result = np.ascontiguousarray(x, np.float32), np.empty(x.size, np.float32)
    call = getattr(library(), f"{name}_loop")
    call(*(ctypes.c_void_p(a.ctypes.data) for a in (given, result)), ctypes.c_int64(x.size))
    return result


def arguments(limit: float) -> Array:
    """Even steps, all magnitudes, and the neighbourhood of what is special."""
    random = np.random.default_rng(0)
    even = random.uniform(-limit, limit, 100_000)
    magnitudes = np.exp2(random.uniform(-149, np.log2(limit), 100_000))
    near = np.concatenate([1 + random.uniform(-1e-3, 1e-3, 1000), [0.0, 1.0, -1.0, 0.625]])
    found = np.concatenate([even, magnitudes, -magnitudes, near]).astype(np.float32)
    return found[np.abs(found) <= limit]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_f32_functions_are_within_their_ulps(name: str) -> None:
    function, most, limit = FUNCTIONS[name]
    x = arguments(limit)
    x = x[x > (0 if name == "log" else -1)] if name.startswith("log") else x
    with np.errstate(all="ignore"):
        want = function(x.astype(np.float64))
        got = evaluate(f"{name}_f32", x).astype(np.float64)
        size = np.abs(want.astype(np.float32))
        ulp = np.spacing(np.maximum(size, np.float32(1e-45))).astype(np.float64)
        finite = np.isfinite(want.astype(np.float32))
        error = np.abs(got - want)[finite] / ulp[finite]
    assert error.max() <= most
    np.testing.assert_array_equal(got[~finite], want.astype(np.float32)[~finite])


@pytest.mark.parametrize(
    ("name", "x", "want"),
    [
        ("exp", [np.inf, -np.inf, np.nan, 0.0, 88.8, -104.0, 1000.0, -1000.0],
         [np.inf, 0.0, np.nan, 1.0, np.inf, 0.0, np.inf, 0.0]),
        ("log", [np.inf, 0.0, -0.0, -1.0, -np.inf, np.nan, 1.0],
         [np.inf, -np.inf, -np.inf, np.nan, np.nan, np.nan, 0.0]),
        ("tanh", [np.inf, -np.inf, np.nan, 0.0, 100.0], [1.0, -1.0, np.nan, 0.0, 1.0]),
        ("erf", [np.inf, -np.inf, np.nan, 0.0, 10.0], [1.0, -1.0, np.nan, 0.0, 1.0]),
        ("sin", [np.inf, -np.inf, np.nan, 0.0], [np.nan, np.nan, np.nan, 0.0]),
        ("cos", [np.inf, -np.inf, np.nan, 0.0], [np.nan, np.nan, np.nan, 1.0]),
    ],
)
def test_special_arguments_give_what_ieee_says(
    name: str, x: list[float], want: list[float]
) -> None:
    np.testing.assert_array_equal(evaluate(f"{name}_f32", np.array(x)), np.float32(want))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_floats_round_to_nearest_even(dtype: str) -> None:
    random = np.random.default_rng(0)
    x = (random.standard_normal(20_000) * np.exp2(random.uniform(-30, 18, 20_000)))
    x = np.concatenate([x, [np.inf, -np.inf, np.nan, 0.0, 65519.0, 65520.0]]).astype(np.float32)
    with np.errstate(over="ignore"):
        want = convert(x, dtype).astype(np.float32)
    np.testing.assert_array_equal(evaluate(f"round_{dtype}", x), want)


PAIRS = """
void {name}_pairs(const {kind} *a, const {kind} *b, {kind} *y, int64_t n) {{
    for (int64_t i = 0; i < n; i++) y[i] = ab_{name}(a[i], b[i]);
}}
"""


@pytest.mark.parametrize("kind", ["int8", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize(("name", "function"), [("floordiv", np.floor_divide), ("mod", np.mod)])
def test_integer_division_rounds_down_and_never_traps(
    name: str, function: np.ufunc, kind: str
) -> None:
    """The least number by -1 is no number; the processor would end the process."""
    toolchain = find_toolchain()
    assert toolchain is not None
    dtype = np.dtype(kind)
    full = f"{name}_{dtype.kind}{8 * dtype.itemsize}"
    loop = PAIRS.format(name=full, kind=f"{kind}_t")
    (path,) = build(toolchain, f"{HEADER}\n{PRELUDE}", [loop])
    least, greatest = (int(n) for n in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    numbers = np.array([least, least + 1, greatest // 2, 0, 1, 7, greatest - 1, greatest], dtype)
    numbers = np.concatenate([numbers, np.array([-7, -1], np.int64).astype(dtype)])
    a, b = (np.ascontiguousarray(x.ravel()) for x in np.meshgrid(numbers, numbers))
    got = np.empty_like(a)
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, got)]
    getattr(load(Path(path)), f"{full}_pairs")(*pointers, ctypes.c_int64(a.size))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, function(a, b))


@pytest.mark.parametrize("kind", ["int8", "uint8", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("name", ["shl", "shr", "pow"])
def test_bits_and_powers_of_integers_are_those_of_the_reference(name: str, kind: str) -> None:
    """Shifts by more than the width, and by less than 0; negative powers."""
    toolchain = find_toolchain()
    assert toolchain is not None
    dtype = np.dtype(kind)
    full = f"{name}_{'u' if kind.startswith('u') else 'i'}{8 * dtype.itemsize}"
    (path,) = build(toolchain, f"{HEADER}\n{PRELUDE}",
                    [PAIRS.format(name=full, kind=f"{kind}_t")])
    numbers = np.array([0, 1, 2, 3, 7, 8, 31, 32, 64, 100, -1, -2, -9], np.int64).astype(dtype)
    ends = np.array([np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    numbers = np.concatenate([numbers, ends])
    a, b = (np.ascontiguousarray(x.ravel()) for x in np.meshgrid(numbers, numbers))
    got = np.empty_like(a)
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, got)]
    getattr(load(Path(path)), f"{full}_pairs")(*pointers, ctypes.c_int64(a.size))
    np.testing.assert_array_equal(got, scalar.PRIMITIVES[name].evaluate(a, b))
    np.testing.assert_array_equal(got, reference_math.PRIMITIVES[name](a, b))
