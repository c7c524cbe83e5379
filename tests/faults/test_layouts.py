"""Shards that do not divide, that are empty, and layouts that change on the way."""

from __future__ import annotations

import numpy as np

from tests.faults.cases import Case, check, counted, everywhere, scattered

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
    unary("padded rows", "2", "a: S(0)", "pad(x, [[1, 2]])", [0, 0, 1, 0, 0], counted(2), N4),
    unary("a slice of padded rows", "2", "a: S(0)", "pad(x, [[1, 2]])[1:3]",
          [0, 1], counted(2), N4),
    unary("a reshaped split of columns", "12, 8", "a: S(1)", "reshape(x, [16, 6])",
          counted(16, 6), counted(12, 8), N4),
    unary("rotated pieces of one element", "4", "a: S(0)",
          "concat([x[3:], x[:3]], axis=0) + concat([x[1:], x[:1]], axis=0)",
          [4, 2, 4, 2], counted(4), N4),
    unary("an empty tensor gathered", "1, 0, 2", "a: S(0)", "to(x, {a: B})",
          np.zeros((1, 0, 2)), np.zeros((1, 0, 2), "f4"), N4),
    unary("an empty tensor summed", "1, 0, 2", "a: S(2)", "sum(x, axis=0)",
          np.zeros((0, 2)), np.zeros((1, 0, 2), "f4"), N4),
    unary("a sum of bf16 over ranks", "4, 3", "a: S(0)", "f32(sum(x, axis=0))",
          [4, 4, 4], np.ones((4, 3), "f4"), N4, "bf16"),
]


@everywhere(*UNEVEN)
def test_shards_of_any_size_give_the_whole_result(case: Case, mesh: str) -> None:
    check(case, mesh)


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
