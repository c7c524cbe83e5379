"""Draws are of logical elements: layouts, ranks and restarts do not change them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.faults.cases import run

DRAWN = """
def f(key: Key):
    return to(normal([6, 10], key=key), {{a: {layout}}})
"""
DROPPED = """
op dropped(x: T[*I], p: float, key: Key) -> T[*I]:
    y[*i] = where(rand(key) >= p, x[*i] / (1 - p), 0)
    return y

def f(x: f32[8, 16] @ {{a: {layout}}}):
    return dropped(x, 0.5), dropped(x, 0.5)
"""


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("layout", ["B", "S(0)", "S(1)"])
def test_first_weights_do_not_depend_on_layouts(layout: str, ranks: int) -> None:
    source = DRAWN.replace("key: Key", "").replace(", key=key", "")
    (whole,) = run(source.format(layout="B"), {})
    (got,) = run(source.format(layout=layout), {}, f"a={ranks}")
    assert np.array_equal(whole, got)


@pytest.mark.parametrize("layout", ["B", "S(0)"])
def test_a_mask_is_one_mask_whatever_the_ranks(layout: str) -> None:
    x = np.ones((8, 16), "f4")
    first, second = run(DROPPED.format(layout=layout), {"x": x})
    again = run(DROPPED.format(layout=layout), {"x": x}, "a=4")
    assert np.array_equal(first, again[0])
    assert np.array_equal(second, again[1])
    assert not np.array_equal(first, second)
    assert set(np.unique(first)) == {0, 2}
    assert 0.35 <= (first > 0).mean() <= 0.65
    shards = [first[2 * i: 2 * i + 2] for i in range(4)]
    assert any(not np.array_equal(shards[0], other) for other in shards[1:])
