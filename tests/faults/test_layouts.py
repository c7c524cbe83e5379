"""Shards that do not divide, that are empty, and layouts that change on the way."""

from __future__ import annotations

import numpy as np
import pytest

from tests.faults.cases import Case, check, counted, everywhere, run, scattered

N2, N4, N234 = ("a=2",), ("a=4",), ("a=2", "a=3", "a=4")


def unary(name: str, shape: str, pin: str, body: str, expected: object, x: object,
          meshes: tuple[str, ...], dtype: str = "f32") -> Case:
    source = f"def f(x: {dtype}[{shape}] @ {{{pin}}}):\n    return {body}\n"
    return Case(name, source, expected, {"x": x}, meshes)


UNEVEN = [
    unary("the mean of rows that do not divide", "3, 4", "a: S(0)", "mean(x)",
          5.5, counted(3, 4), N2),
    unary("the mean where a rank has nothing", "1, 4", "a: S(0)", "mean(x)",
          1.5, counted(1, 4), N2),
    unary("the mean of columns", "5, 4", "a: S(0)", "mean(x, axis=0)",
          [8, 9, 10, 11], counted(5, 4), N4),
    unary("gathered rows", "5, 10", "a: S(0)", "to(x, {a: B})",
          counted(5, 10), counted(5, 10), N4),
    unary("gathered rows, fewer than ranks", "2, 10", "a: S(0)", "to(x, {a: B})",
          counted(2, 10), counted(2, 10), N4),
    unary("flattened rows", "6, 256", "a: S(0)", "reshape(x, [1536])",
          counted(1536), counted(6, 256), N4),
    unary("a product of rows", "5, 5, 10", "a: S(0)", "x @ x.T",
          counted(5, 5, 10) @ counted(5, 5, 10).swapaxes(1, 2), counted(5, 5, 10), N4),
    unary("a product of rows by a table", "5, 5, 10", "a: S(0)", "x @ reshape(arange(40), [10, 4])",
          counted(5, 5, 10) @ counted(10, 4), counted(5, 5, 10), N4),
    unary("padded rows", "2", "a: S(0)", "pad(x, [[1, 2]])", [0, 0, 1, 0, 0], counted(2), N4),
    unary("a slice of padded rows", "2", "a: S(0)", "pad(x, [[1, 2]])[1:3]",
          [0, 1], counted(2), N4),
    unary("a reshaped split of columns", "12, 8", "a: S(1)", "reshape(x, [16, 6])",
          counted(16, 6), counted(12, 8), N4),
    unary("rotated pieces of one element", "4", "a: S(0)",
          "concat([x[3:], x[:3]], axis=0) + concat([x[1:], x[:1]], axis=0)",
          [4, 2, 4, 2], counted(4), N4),
]


@everywhere(*UNEVEN)
def test_shards_of_any_size_give_the_whole_result(case: Case, mesh: str) -> None:
    check(case, mesh)


MOVED = """
def f(x: {dtype}[{shape}] @ {{a: S(0)}}):
    p = to(sum(x, axis=0), {{a: P}})
    whole, parts = f32(to(p, {{a: B}})), f32(to(p, {{a: S(0)}}))
    return whole, parts, f32(to(x, {{a: B}})), f32(to(x, {{a: S(1)}}))
"""


def moved(dtype: str, x: np.ndarray) -> Case:
    """Terms summed to the whole and to parts, parts gathered and exchanged."""
    source = MOVED.format(dtype=dtype, shape=", ".join(map(str, x.shape)))
    stored = {"f32": "f4", "bf16": "f4", "f16": "f2", "i8": "i1", "bool": "?"}[dtype]
    return Case(f"{dtype}{list(x.shape)}", source, (x.sum(0), x.sum(0), x, x),
                {"x": x.astype(stored)}, ("a=2", "a=4"))


@everywhere(moved("f32", np.zeros((1, 0, 2))), moved("f32", np.zeros((0, 3, 2))),
            *(moved(dtype, np.ones((4, 3))) for dtype in ("f32", "bf16", "f16", "i8", "bool")))
def test_short_numbers_and_empty_tensors_move_like_any_other(case: Case, mesh: str) -> None:
    check(case, mesh)


COLUMN = """
def f(x: f32[2, 2, 3] @ {a: S(0)}):
    p = to(sum(x, axis=0), {a: P})
    column = p[:, 1]
    return to(column, {a: B}), to(column, {a: S(0)}), to(x[0, :, 1], {a: B}), p
"""
TWO = counted(2, 3) + np.arange(2, dtype="f4")[:, None, None]


@everywhere(Case("a column", COLUMN, ([3, 9], [3, 9], [1, 4], [[1, 3, 5], [7, 9, 11]]),
                 {"x": TWO}, ("a=2", "a=4")))
def test_a_column_moves_and_what_is_beside_it_does_not(case: Case, mesh: str) -> None:
    check(case, mesh)


STRIDED = {
    "a column of a table": counted(6, 3)[:, 1:2],
    "columns before rows": counted(3, 6).T,
    "backwards": counted(6, 3)[::-1, ::-1],
    "every other": counted(12, 6)[::2, ::2],
    "one row repeated": np.broadcast_to(counted(3), (6, 3)),
}


@pytest.mark.parametrize("mesh", ["", "a=2", "a=4"])
@pytest.mark.parametrize("how", STRIDED)
def test_an_array_is_what_it_shows_however_it_lies_in_memory(how: str, mesh: str) -> None:
    x = STRIDED[how]
    assert not x.flags.c_contiguous
    before = np.array(x)
    source = "def f(x: f32[6, {}] @ {{a: S(0)}}):\n    return x, sum(x, axis=0)\n"
    whole, columns = run(source.format(x.shape[1]), {"x": x}, mesh)
    np.testing.assert_array_equal(whole, before)
    np.testing.assert_array_equal(columns, before.sum(0))
    np.testing.assert_array_equal(x, before)


TERMS_THEN_SPLIT = """
def f(x: f32[6, 6, 2] @ {a: S(0), b: S(2)}):
    y = to(sum(x, axis=2), {a: S(0), b: P})
    return to(y, {a: S(0), b: S(0)})
"""

MESHES = [
    Case("terms become a second split", TERMS_THEN_SPLIT, np.full((6, 6), 1.0),
         {"x": np.full((6, 6, 2), 0.5, "f4")}, ("a=2", "b=2", "a=2,b=2")),
    Case("operands keep their places",
         "def f(p: f32[64, 32] @ {a: S(1)}, q: f32[64, 32] @ {a: S(1)}):\n"
         "    return p - q, p / q, q - p, p ** 2 - q, p // q\n",
         (scattered(64, 32) - (counted(64, 32) + 1), scattered(64, 32) / (counted(64, 32) + 1),
          (counted(64, 32) + 1) - scattered(64, 32), scattered(64, 32) ** 2 - counted(64, 32) - 1,
          scattered(64, 32) // (counted(64, 32) + 1)),
         {"p": scattered(64, 32), "q": counted(64, 32) + 1}, N4),
]


@everywhere(*MESHES)
def test_layouts_change_without_changing_values(case: Case, mesh: str) -> None:
    check(case, mesh)


PENDING = """
def f(x: f32[2, {n}] @ {{a: S(0)}}):
    p = to(sum(x, axis=0), {{a: P}})
    return {body}
"""


def pending(name: str, first: list[float], second: list[float], body: str,
            expected: object) -> Case:
    """`p` is a sum whose two terms are still on two ranks."""
    source = PENDING.format(n=len(first), body=body)
    return Case(name, source, expected, {"x": np.array([first, second], "f4")}, N2)


TERMS = [
    Case("numbers beside a pending sum",
         "def f(x: f32[10] @ {a: S(0)}):\n    s = to(sum(x), {a: P})\n"
         "    return s + 10, 10 - s, s * 2, s / 2\n",
         (55, -35, 90, 22.5), {"x": counted(10)}, N2),
    pending("the 2-norm", [1, 3], [2, 1], "norm(p)", 5.0),
    pending("the largest magnitude", [1, 3], [2, 1], "max(abs(p))", 4.0),
    pending("products and sums", [1], [2], "p + 4, p * 4, p * p, p + p", ([7], [12], [9], [6])),
    pending("relu", [-3], [2], "relu(p)", [0]),
    pending("exp", [1], [1], "exp(p)", [7.389056]),
]


@everywhere(*TERMS)
def test_what_is_not_linear_waits_for_the_sum(case: Case, mesh: str) -> None:
    check(case, mesh)
