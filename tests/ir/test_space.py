"""Which statements share an iteration space, and which contractions a library can do."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.ir.contraction import is_contraction, matrix_product
from anabranch.ir.core import Function
from anabranch.ir.ops import Compute
from anabranch.ir.parser import parse_module
from anabranch.ir.space import Clause, Space, clause, unify


def clauses(text: str) -> list[Clause]:
    module = parse_module(f"module phase=global\n\nfunc @f{text}\n}}\n")
    made: Function = module.functions["f"]
    return [clause(op) for op in made.body if isinstance(op, Compute)]


def space(text: str) -> Space | None:
    return unify(clauses(text))


def test_a_reduction_and_its_elements_share_rows_and_columns() -> None:
    found = space("""(%x: f32[4, 5]) {
        %m: f32[4] = [i] max[n < 5](%x[i, n])
        %e: f32[4, 5] = [a, k] exp(%x[a, k] - %m[a])
        %s: f32[4] = [p] sum[q < 5](%e[p, q])
        return %s""")
    assert found is not None
    assert (found.parallel, found.reduced, found.lanes) == (("i",), ("n",), "n")
    assert found.waves == (0, 1, 1)
    assert [found.full(i) for i in range(3)] == [False, True, False]


def test_a_transposed_read_of_the_group_is_one_space() -> None:
    found = space("""(%x: f32[4, 5]) {
        %a: f32[4, 5] = [i, j] tanh(%x[i, j])
        %b: f32[5, 4] = [j, i] %a[i, j] * 2.0
        return %b""")
    assert found is not None
    assert set(found.parallel) == {"i", "j"}


def test_a_plain_variable_is_split_where_the_other_side_is_merged() -> None:
    found = space("""(%x: f32[3, 4], %w: f32[12]) {
        %a: f32[12] = [(g < 3, c < 4)] %x[g, c] + 1.0
        %b: f32[12] = [h] %a[h] * %w[h]
        return %b""")
    assert found is not None
    assert list(found.extents.values()) == [3, 4]


@pytest.mark.parametrize("reason", ["shifted", "other rows", "two sums", "padded"])
def test_what_shares_no_space(reason: str) -> None:
    second = {
        "shifted": "%b: f32[4, 4] = [i, j] %a[i, j + 1]",
        "other rows": "%b: f32[4] = [i] %a[i, i]",
        "two sums": "%b: f32[5] = [j] sum[i < 4](%a[i, j])\n"
                    "%c: f32[4] = [i] sum[j < 5](%a[i, j])",
        "padded": "%b: f32[4, 5] = [i, j] %a[i, j, pad=0.0]",
    }[reason]
    assert space(f"""(%x: f32[4, 5]) {{
        %a: f32[4, 5] = [i, j] tanh(%x[i, j])
        {second}
        return %b""") is None


@pytest.mark.parametrize("stride", [1, 2])
def test_lanes_run_over_the_places_of_a_window_not_inside_it(stride: int) -> None:
    found = space(f"""(%x: f32[{14 * stride + 2}], %w: f32[3]) {{
        %y: f32[14] = [v] sum[j < 3](%x[v * {stride} + j] * %w[j])
        return %y""")
    assert found is not None
    assert found.lanes == "v"


def test_lanes_are_where_most_accesses_are_dense() -> None:
    columns = space("""(%x: f32[4, 5]) {
        %t: f32[5, 4] = [j, i] %x[i, j] * 2.0
        %s: f32[5] = [j] sum[i < 4](%t[j, i])
        return %s""")
    assert columns is not None
    assert (columns.parallel, columns.lanes) == (("j",), "j")


PRODUCTS = {
    "plain": ("(%a: f32[5, 6], %b: f32[6, 7])", "f32[5, 7]",
              "[i, j] sum[k < 6](%a[i, k] * %b[k, j])"),
    "scaled": ("(%a: f32[5, 6], %b: f32[6, 7])", "f32[5, 7]",
               "[i, j] sum[k < 6](0.5 * %a[i, k] * %b[k, j])"),
    "transposed": ("(%a: f32[6, 5], %b: f32[7, 6])", "f32[5, 7]",
                   "[i, j] sum[k < 6](%a[k, i] * %b[j, k])"),
    "column first": ("(%a: f32[5, 6], %b: f32[6, 7])", "f32[7, 5]",
                     "[j, i] sum[k < 6](%a[i, k] * %b[k, j])"),
    "batched": ("(%a: f32[2, 3, 5, 6], %b: f32[2, 6, 3, 7])", "f32[2, 5, 3, 7]",
                "[b, i, h, j] sum[k < 6](%a[b, h, i, k] * %b[b, k, h, j])"),
    "shared factor": ("(%a: f32[2, 5, 6], %b: f32[6, 7])", "f32[2, 5, 7]",
                      "[b, i, j] sum[k < 6](%a[b, i, k] * %b[k, j])"),
    "slices": ("(%a: f32[5, 3, 6], %b: f32[6, 9])", "f32[5, 7]",
               "[i, j] sum[k < 6](%a[i, 2, k] * %b[k, j + 1])"),
    "one row": ("(%a: f32[1, 6], %b: f32[6, 7])", "f32[1, 7]",
                "[i, j] sum[k < 6](%a[i, k] * %b[k, j])"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_strides_of_a_product_name_the_right_elements(name: str) -> None:
    """Walking A, B and C by the strides found gives what the statement says."""
    arguments, type_, statement = PRODUCTS[name]
    (c,) = clauses(f"{arguments} {{\n %y: {type_} = {statement}\n return %y")
    p = matrix_product(c)
    assert is_contraction(c)
    assert p is not None
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, v.type.shape).astype(float) for v in c.operands)
    got = np.zeros(c.result.type.elements)
    first, second = (b.ravel(), a.ravel()) if p.swapped else (a.ravel(), b.ravel())
    for place in np.ndindex(*(n for n, _, _, _ in p.batch)):
        at = [sum(i * run[which] for i, run in zip(place, p.batch, strict=True))
              for which in (1, 2, 3)]
        for i, j, k in np.ndindex(p.m, p.n, p.k):
            left = k * p.lda + i if p.transpose_a else i * p.lda + k
            right = j * p.ldb + k if p.transpose_b else k * p.ldb + j
            got[at[2] + i * p.ldc + j] += (
                first[p.offset_a + at[0] + left] * second[p.offset_b + at[1] + right] * p.scale)
    np.testing.assert_allclose(got.reshape(c.result.type.shape), expected(name, a, b))


def expected(name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    match name:
        case "scaled":
            return np.asarray(a @ b * 0.5)
        case "transposed":
            return np.asarray(a.T @ b.T)
        case "column first":
            return np.asarray((a @ b).T)
        case "batched":
            return np.einsum("bhik,bkhj->bihj", a, b)
        case "slices":
            return np.asarray(a[:, 2] @ b[:, 1:8])
    return np.asarray(a @ b)


@pytest.mark.parametrize(("why", "arguments", "type_", "statement"), [
    ("a guard", "(%a: f32[5, 6], %b: f32[6, 7])", "f32[5, 7]",
     "[i, j] sum[k < 6 if k < i](%a[i, k] * %b[k, j])"),
    ("a vector", "(%a: f32[5, 6], %b: f32[6])", "f32[5]", "[i] sum[k < 6](%a[i, k] * %b[k])"),
    ("integers", "(%a: i32[5, 6], %b: i32[6, 7])", "i32[5, 7]",
     "[i, j] sum[k < 6](%a[i, k] * %b[k, j])"),
    ("three factors", "(%a: f32[5, 6], %b: f32[6, 7])", "f32[5, 7]",
     "[i, j] sum[k < 6](%a[i, k] * %b[k, j] * %a[i, k])"),
])
def test_what_is_no_contraction(why: str, arguments: str, type_: str, statement: str) -> None:
    (c,) = clauses(f"{arguments} {{\n %y: {type_} = {statement}\n return %y")
    assert not is_contraction(c), why


def test_a_product_without_a_dense_side_is_not_for_the_library() -> None:
    (c,) = clauses("""(%a: f32[5, 6, 2], %b: f32[6, 7]) {
        %y: f32[5, 7] = [i, j] sum[k < 6](%a[i, k, 1] * %b[k, j])
        return %y""")
    assert is_contraction(c)
    assert matrix_product(c) is None
