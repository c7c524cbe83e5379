"""Philox4x32-10, the counter-based generator behind `rand` and `randn`.

The same element gives the same number whatever the sharding, restart or recomputation, because the
number is a pure function of (seed, step, stream, logical index). Uniform numbers are 24 bits of the
first word; normal ones are Box-Muller over 24 bits each of the first two.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key words from round to round
MASK = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)
UNIT = 2.0**-24


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Array, ...]:
    """Four random 32-bit words (held as uint64) from four counter and two key words."""
    a, b, c, d = (np.asarray(word, np.uint64) & MASK for word in counter)
    k, m = (np.asarray(word, np.uint64) & MASK for word in key)
    for _ in range(ROUNDS):
        low, high = a * np.uint64(MULTIPLIERS[0]), c * np.uint64(MULTIPLIERS[1])
        a, b, c, d = (high >> SHIFT) ^ b ^ k, high & MASK, (low >> SHIFT) ^ d ^ m, low & MASK
        k, m = (k + np.uint64(WEYL[0])) & MASK, (m + np.uint64(WEYL[1])) & MASK
    return a, b, c, d


def _words(counter: Any, seed: Any, step: Any, stream: int) -> tuple[Array, ...]:
    element, secret = (np.asarray(x, np.int64).astype(np.uint64) for x in (counter, seed))
    return philox(
        (element, element >> SHIFT, np.asarray(step, np.int64).astype(np.uint64), stream),
        (secret, secret >> SHIFT),
    )


def uniform(counter: Any, seed: Any, step: Any, stream: int) -> Array:
    """f32 numbers in [0, 1)."""
    first = _words(counter, seed, step, stream)[0]
    return ((first >> np.uint64(8)).astype(np.float64) * UNIT).astype(np.float32)


def normal(counter: Any, seed: Any, step: Any, stream: int) -> Array:
    """f32 numbers of the standard normal distribution."""
    first, second, _, _ = _words(counter, seed, step, stream)
    radius = ((first >> np.uint64(8)).astype(np.float64) + 1.0) * UNIT  # in (0, 1]
    angle = (second >> np.uint64(8)).astype(np.float64) * UNIT
    value = np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)
    return np.asarray(value, np.float32)
