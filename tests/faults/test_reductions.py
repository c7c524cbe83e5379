"""Reductions along axes that are split: places, ties, NaN, nothing at all, and wide rows."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.ir.diagnostics import UserError
from tests.faults.cases import Case, check, counted, everywhere, run, scattered

N2, N3, N4 = ("a=2",), ("a=3",), ("a=4",)
NAN, INF = np.nan, np.inf


def along_split(name: str, values: object, body: str, expected: object,
                meshes: tuple[str, ...]) -> Case:
    x = np.array(values, "f4")
    source = f"def f(x: f32[{len(x)}] @ {{a: S(0)}}):\n    return {body}\n"
    return Case(name, source, expected, {"x": x}, meshes)


PLACES = [
    along_split("the place of the largest", [10, 5, 3, 8], "argmax(x), argmin(x)", (0, 2), N2),
    along_split("the first of ties", [1, 7, 7, 0], "argmax(x)", 1, N2),
    along_split("a NaN wins", [NAN, 1, NAN], "argmax(x)", 0, N3),
    along_split("all equal", [0] * 6, "argmax(x), argmin(x)", (0, 0), N4),
    along_split("a NaN in one shard", [1, 2, NAN, 0], "max(x), min(x)", (NAN, NAN), N2),
]


@everywhere(*PLACES)
def test_places_are_those_of_the_whole(case: Case, mesh: str) -> None:
    check(case, mesh)


COLUMNS = "def f(x: f32[3, 5] @ {a: S(1)}):\n    return softmax(x)[0], softmax(x + 10000)[0]\n"
FIRST = [.088729, .185970, .389782, .108374, .227145]


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_softmax_over_a_split_axis_needs_the_whole_maximum_and_sum() -> None:
    for mesh in ("", "a=2", "a=4"):
        plain, shifted = run(COLUMNS, {"x": scattered(3, 5)}, mesh)
        np.testing.assert_allclose(plain, FIRST, atol=1e-6)
        np.testing.assert_allclose(shifted, FIRST, atol=1e-3)


NANS = "def f(x: f32[2, 3] @ {a: S(1)}):\n    return log_softmax(x)\n"


@everywhere(Case(
    "log softmax", NANS, [[NAN] * 3, [-1.177171, -.978710, -1.151838]],
    {"x": np.array([[NAN, INF, -INF], [-.066347, .132114, -.041014]], "f4")}, N2 + N3))
def test_a_nan_fills_its_row(case: Case, mesh: str) -> None:
    check(case, mesh)


@everywhere(Case(
    "softmax", "def f(x: f32[1, 3] @ {a: S(1)}):\n    return softmax(x)\n", [[0, 1, 0]],
    {"x": np.array([[-INF, 0, -INF]], "f4")}, N2 + N3))
def test_a_row_of_minus_infinity_but_for_one_is_that_one(case: Case, mesh: str) -> None:
    check(case, mesh)


WIDE = """
def f(x: f32[3, {width}] @ {{a: S(1)}}):
    return softmax(x), logsumexp(x, axis=1), sum(x, axis=1), max(x, axis=1), min(x, axis=1), \
mean(x, axis=1), argmax(x, axis=1), prod(x * 0.01 + 1, axis=1)
"""


@pytest.mark.parametrize("mesh", ["", "a=4"])
@pytest.mark.parametrize("width", [1, 2, 3, 31, 33, 127, 257, 1025])
def test_rows_of_any_width_are_reduced_right(width: int, mesh: str) -> None:
    x = scattered(3, width, dtype="f8")
    got = run(WIDE.format(width=width), {"x": x.astype("f4")}, mesh)
    x = x.astype("f4").astype("f8")
    want = (np.exp(log_softmax(x)), np.log(np.exp(x).sum(1)), x.sum(1), x.max(1), x.min(1),
            x.mean(1), x.argmax(1), (x * 0.01 + 1).prod(1))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


NOTHING = """
def f(x: f32[0, 3] @ {a: S(0)}):
    return sum(x, axis=0), prod(x, axis=0), mean(x, axis=0), any(x != 0), all(x != 0)
"""


@everywhere(Case("nothing", NOTHING, ([0.0] * 3, [1.0] * 3, [NAN] * 3, False, True),
                 {"x": np.zeros((0, 3), "f4")}, N4))
def test_a_reduction_of_nothing_is_its_identity(case: Case, mesh: str) -> None:
    check(case, mesh)


@pytest.mark.parametrize("mesh", ["", "a=4"])
@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_an_extremum_of_nothing_is_refused(name: str, mesh: str) -> None:
    source = f"def f(x: f32[0, 3] @ {{a: S(0)}}):\n    return {name}(x, axis=0)\n"
    with pytest.raises(UserError, match="<program>:2"):
        run(source, {"x": np.zeros((0, 3), "f4")}, mesh)


GUARDED = """
def f(x: f32[5] @ {a: S(0)}, ok: bool[5]):
    most[] = max[i if ok[i]](x[i])
    least[] = min[i if ok[i]](x[i])
    total[] = sum[i if ok[i]](x[i])
    product[] = prod[i if ok[i]](x[i])
    average[] = mean[i if ok[i]](x[i])
    place[] = argmax[i if ok[i]](x[i])
    return most, least, total, product, average, place
"""
SOME = np.array([-3, 2, -5, 7, 1], "f4")


@everywhere(
    Case("none left", GUARDED, (-INF, INF, 0.0, 1.0, NAN, 0),
         {"x": SOME, "ok": np.zeros(5, bool)}, N2 + N4),
    Case("one left", GUARDED, (-5.0, -5.0, -5.0, -5.0, -5.0, 2),
         {"x": SOME, "ok": np.arange(5) == 2}, N2 + N4))
def test_a_guard_leaves_what_holds(case: Case, mesh: str) -> None:
    """Of what is left on no rank there is the identity; ranks with nothing do not count."""
    check(case, mesh)


SHORT = "def f(x: f32[1, 2] @ {a: S(0)}):\n" \
        "    return max(x, axis=0), min(x, axis=0), argmax(x, axis=0), argmin(x, axis=0)\n"


@everywhere(Case("one row", SHORT, ([-3.0, 5.0], [-3.0, 5.0], [0, 0], [0, 0]),
                 {"x": np.array([[-3, 5]], "f4")}, N2 + N4))
def test_a_rank_without_a_row_has_no_say(case: Case, mesh: str) -> None:
    check(case, mesh)


CUMULATIVE = """
def f(x: i32[8, 1024] @ {a: S(0), b: S(1)}):
    s = cumsum(x, axis=1)
    back = flip(cumsum(flip(x, axis=1), axis=1), axis=1)
    return s, back, s - x
"""


@everywhere(Case(
    "sums so far", CUMULATIVE,
    (np.tile(counted(1024, dtype="i8") + 1, (8, 1)),
     np.tile(1024 - counted(1024, dtype="i8"), (8, 1)),
     np.tile(counted(1024, dtype="i8"), (8, 1))),
    {"x": np.ones((8, 1024), "i4")}, ("b=2", "a=4,b=2")))
def test_a_cumulative_sum_goes_on_over_shards(case: Case, mesh: str) -> None:
    check(case, mesh)


SHARES = """
def f(x: f32[5, 1, 32, 32] @ {a: S(0)}, l: f32[5]):
    t = exp(-x * reshape(l, [5, 1, 1, 1]))
    return t / sum(t, axis=(1, 2, 3), keepdims=True)
"""


@everywhere(Case("shares", SHARES, np.full((5, 1, 32, 32), 1 / 1024),
                 {"x": np.ones((5, 1, 32, 32), "f4"), "l": np.ones(5, "f4")}, N4))
def test_shares_of_a_whole_add_up(case: Case, mesh: str) -> None:
    check(case, mesh)
