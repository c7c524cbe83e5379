"""The arithmetic of interpreted kernels, on whole arrays: primitives, casts, reductions, draws.

What a kernel's text calls means here what it means in C: f16 and bf16 are carried in f32 and
rounded by a cast, integers keep their width, `max` and `min` give nan if either is one, division of
integers by 0 is 0, and random numbers are the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from anabranch.runtime.arrays import STORAGE, Array, narrow, widen

CARRIED: dict[str, type[np.generic]] = {**STORAGE, "f16": np.float32, "bf16": np.float32}
"""The type in which the values of a dtype are computed."""


def cast(x: Array, dtype: str) -> Array:
    """The value rounded to a dtype; anything to bool is != 0."""
    if dtype == "bool":
        return np.asarray(x != 0)
    if dtype in ("f16", "bf16"):
        return from_memory(to_memory(x, dtype), dtype)
    return x.astype(CARRIED[dtype], copy=False)


def from_memory(held: Array, dtype: str) -> Array:
    return widen(held) if dtype == "bf16" else held.astype(CARRIED[dtype], copy=False)


def to_memory(x: Array, dtype: str) -> Array:
    return narrow(x.astype(np.float32)) if dtype == "bf16" else x.astype(STORAGE[dtype])


# --- primitives ------------------------------------------------------------------------------

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    return np.asarray(_erf(x)).astype(x.dtype)


def _nonzero(b: Array) -> Array:
    """A divisor for where the quotient is not 0 by decree."""
    return np.where(b == 0, b.dtype.type(1), b)


def floordiv(a: Array, b: Array) -> Array:
    if b.dtype.kind == "f":
        return np.floor_divide(a, b)
    return np.where(b == 0, b.dtype.type(0), np.floor_divide(a, _nonzero(b)))


def mod(a: Array, b: Array) -> Array:
    if b.dtype.kind == "f":
        return np.asarray(np.mod(a, b))
    return np.where(b == 0, b.dtype.type(0), np.mod(a, _nonzero(b)))


def power(a: Array, b: Array) -> Array:
    if b.dtype.kind == "f":
        return np.asarray(np.power(a, b))
    zero, one = b.dtype.type(0), b.dtype.type(1)
    whole = np.power(a, np.where(b < 0, b & one, b))
    return np.asarray(np.where((b < 0) & (np.abs(a) != one), zero, whole))


def _shifted(shift: np.ufunc) -> Callable[..., Array]:
    """By what is negative or no less than the width, to the end: 0, or the sign."""

    def run(a: Array, b: Array) -> Array:
        width = 8 * a.dtype.itemsize
        far = (b < 0) | (b >= width)
        ended = shift(shift(a, a.dtype.type(width - 1)), a.dtype.type(1))
        return np.asarray(np.where(far, ended, shift(a, np.where(far, b.dtype.type(0), b))))

    return run


PRIMITIVES: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "floordiv": floordiv, "mod": mod, "pow": power, "neg": np.negative, "abs": np.abs,
    "sign": np.sign, "min": np.minimum, "max": np.maximum,
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "erf": erf,
    "atan2": np.arctan2, "bitand": np.bitwise_and, "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor, "shl": _shifted(np.left_shift), "shr": _shifted(np.right_shift),
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
    "isnan": np.isnan, "isinf": np.isinf, "where": np.where,
}  # fmt: skip

# --- reductions ------------------------------------------------------------------------------

COMBINE: dict[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "any": np.logical_or, "all": np.logical_and, "argmax": np.maximum, "argmin": np.minimum,
}  # fmt: skip


def identity(reduce: str, dtype: str) -> Array:
    """What a reduction over nothing gives; of argmax and argmin, the value that loses to all."""
    kind = CARRIED[dtype]
    if reduce in ("sum", "prod", "any", "all"):
        return np.asarray(reduce in ("prod", "all")).astype(kind)
    lowest = reduce in ("max", "argmax")
    if kind is np.bool_:
        return np.asarray(not lowest)
    if issubclass(kind, np.floating):
        return np.asarray(-math.inf if lowest else math.inf, kind)
    limits = np.iinfo(np.dtype(kind).name)
    return np.asarray(limits.min if lowest else limits.max, kind)


def reduced(reduce: str, x: Array, axes: tuple[int, ...]) -> Array:
    """The reduction of some axes. Sums and products of floats are held in f64."""
    wide = x.dtype.kind == "f" and reduce in ("sum", "prod")
    total = COMBINE[reduce].reduce(x, axis=axes, dtype=np.float64 if wide else x.dtype)
    return np.asarray(total)


def ordered(rows: Array, descending: bool) -> Array:
    """The places of the elements of each row in order; ties as they stand, nan as the largest."""
    if not descending:
        return np.asarray(np.argsort(rows, axis=-1, kind="stable"))
    backward = np.argsort(rows[..., ::-1], axis=-1, kind="stable")
    return np.asarray(rows.shape[-1] - 1 - backward[..., ::-1])


# --- random numbers: Philox4x32-10, as in the prelude of C kernels -----------------------------

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)


def _philox(stream: int, seed: Array, step: Array, counter: Array) -> tuple[Array, Array]:
    """The upper 24 bits of the first two words, as f64."""
    element, secret, turn = (x.astype(np.uint64) for x in (counter, seed, step))
    a, b, c, d = element & _LOW, element >> _HIGH, turn & _LOW, np.asarray(stream, np.uint64)
    k, m = secret & _LOW, secret >> _HIGH
    for _ in range(10):
        low, high = a * np.uint64(_MULTIPLIERS[0]), c * np.uint64(_MULTIPLIERS[1])
        a, b, c, d = (high >> _HIGH) ^ b ^ k, high & _LOW, (low >> _HIGH) ^ d ^ m, low & _LOW
        k, m = (k + np.uint64(_WEYL[0])) & _LOW, (m + np.uint64(_WEYL[1])) & _LOW
    first, second = ((word >> np.uint64(8)).astype(np.float64) for word in (a, b))
    return first, second


def draw(kind: str, stream: int, seed: Array, step: Array, counter: Array) -> Array:
    """f32 numbers: uniform in [0, 1), or normal."""
    first, second = _philox(stream, seed, step, counter)
    if kind == "uniform":
        return np.asarray(first * 2.0**-24, np.float32)
    radius = np.sqrt(-2.0 * np.log((first + 1.0) * 2.0**-24))
    return np.asarray(radius * np.cos(2.0 * np.pi * (second * 2.0**-24)), np.float32)
