"""Reads at places in which a variable stands more than once, compiled, and what their gradients
scatter."""

from __future__ import annotations

import numpy as np
import pytest

import anabranch as ab

PLACES = {
    "n + 1 - 2*(n % 2)": [1, 0, 3, 2, 5, 4],
    "2*(n // 2) + (1 - n % 2)": [1, 0, 3, 2, 5, 4],
    "3*(n % 2) + n // 2": [0, 3, 1, 4, 2, 5],
    "n - 2*(n // 3)": [0, 1, 2, 1, 2, 3],
    "n - n % 2": [0, 0, 2, 2, 4, 4],
    "n*n % 6": [0, 1, 4, 3, 4, 1],
    "min(n, 5 - n)": [0, 1, 2, 2, 1, 0],
}


@pytest.mark.parametrize("shape", [(6,), (3, 6), (3, 6, 2)])
def test_a_variable_may_stand_in_several_terms_of_a_place(shape: tuple[int, ...]) -> None:
    before, after = "b, " * (len(shape) > 1), ", c" * (len(shape) > 2)
    lines = [f"    y{i}[{before}n < 6{after}] = x[{before}{place}{after}]\n"
             f"    s{i} = grad(sum(y{i} * y{i}), x)\n" for i, place in enumerate(PLACES)]
    results = ", ".join(f"y{i}, s{i}" for i in range(len(PLACES)))
    size = ", ".join(map(str, shape))
    program = ab.loads(f"def f(x: f32[{size}]):\n{''.join(lines)}    return {results}\n")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    with ab.Session(ab.compile(program.f)) as session:
        found = list(session(x=x))
    axis = min(len(shape) - 1, 1)
    for i, places in enumerate(PLACES.values()):
        np.testing.assert_array_equal(found[2 * i], x.take(places, axis))
        slope = np.zeros_like(x)
        for place in places:
            slope.swapaxes(0, axis)[place] += 2 * x.swapaxes(0, axis)[place]
        np.testing.assert_allclose(found[2 * i + 1], slope, rtol=1e-6)
