"""Tables and losses over a vocabulary that is split; targets that do not count; bad places."""

from __future__ import annotations

import re

import numpy as np
import pytest

from anabranch.runtime.errors import RunError
from tests.faults.cases import Case, check, counted, everywhere, run, scattered

N2, N24 = ("a=2",), ("a=2", "a=4")

SPLIT_CLASSES = """
def f(x: f32[4, 7] @ {a: S(1)}, targets: i64[4]):
    loss = cross_entropy(x, targets)
    return loss, grad(loss, x)[0]
"""
SPLIT_ROWS = """
def f(x: f32[8, 3] @ {a: S(0)}, targets: i64[8] @ {a: S(0)}):
    return cross_entropy(x, targets)
"""
LOSSES = [
    Case("classes that are split", SPLIT_CLASSES,
         (2.292845, [-.236209, .028905, .060584, .016844, .035305, .073997, .020574]),
         {"x": scattered(4, 7), "targets": np.array([0, 6, 3, 4])}, N24),
    Case("a rank without a target that counts", SPLIT_ROWS, 1.345370,
         {"x": scattered(8, 3), "targets": np.array([-100, -100, 0, 1, 2, 0, 1, 2])}, N24),
    Case("means over unlike numbers of tokens",
         "def f(x: f32[2, 5] @ {a: S(0)}, w: bool[2, 5] @ {a: S(0)}):\n"
         "    m[] = mean[b, s if w[b, s]](x[b, s])\n    return m\n", 2.0,
         {"x": np.array([[1, 1, 1, 1, 1], [7, 0, 0, 0, 0]], "f4"),
          "w": np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], bool)}, N2),
]


@everywhere(*LOSSES)
def test_a_loss_is_that_of_the_whole_batch(case: Case, mesh: str) -> None:
    check(case, mesh)


LOOK_UP = "def f(ids: i64[1], table: f32[4, 2] @ {{{pin}}}):\n    return embedding(ids, table)\n"


@pytest.mark.parametrize("mesh", ["", "a=2", "a=4"])
@pytest.mark.parametrize("pin", ["a: B", "a: S(0)", "a: S(1)"])
@pytest.mark.parametrize("place", [4, -5, -1])
def test_a_place_outside_a_table_is_named_with_its_size(place: int, pin: str, mesh: str) -> None:
    """A negative place is outside like any other, on every layout."""
    with pytest.raises(RunError) as failure:
        run(LOOK_UP.format(pin=pin), {"ids": np.array([place]), "table": counted(4, 2)}, mesh)
    assert f"index {place} is outside 0..3, at <program>:2" in str(failure.value)
    assert re.search(r"at <program>:2:\d+ ", str(failure.value))


SET = """
def f(ids: i64[16] @ {a: S(0)}, x: f32[16] @ {a: S(0)}):
    return to(segment_sum(x, ids, 16), {a: S(0)})
"""


@everywhere(
    Case("places in order", SET, np.ones(16),
         {"ids": np.arange(16), "x": np.ones(16, "f4")}, N24),
    Case("places reversed", SET, counted(16)[::-1],
         {"ids": np.arange(16)[::-1].copy(), "x": counted(16)}, N24))
def test_places_of_a_scatter_are_those_of_the_whole(case: Case, mesh: str) -> None:
    check(case, mesh)
