"""The kernel language: its text, and that the verifier finds what would go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from anabranch.codegen.emit import elements_of
from anabranch.codegen.kernel import (
    Combine,
    Kernel,
    Let,
    Load,
    Loop,
    Ref,
    Statement,
    Store,
    statements,
    text,
)
from anabranch.codegen.scope import Piece
from anabranch.codegen.tile import Options, tile
from anabranch.codegen.verify import verify
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.expr import Call, Expr, add, integer, transform
from tests.codegen.cases import CASES, PLAIN_PRODUCTS, as_one, parsed

PLAIN = Options()


def pieces(case: str, options: Options = PLAIN) -> tuple[Piece, ...]:
    return tile(as_one(parsed({**CASES, **PLAIN_PRODUCTS}[case])), options).pieces


def changed(
    body: tuple[Statement, ...], rule: Callable[[Statement], Statement]
) -> tuple[Statement, ...]:
    found = []
    for s in body:
        inner = replace(s, body=changed(s.body, rule)) if isinstance(s, Loop) else s
        found.append(rule(inner))
    return tuple(found)


def check(piece: Piece, kernel: Kernel) -> None:
    verify(kernel, piece.numbers(), elements_of(piece))


def indices(piece: Piece, kind: type[Load | Store], rule: Callable[[Expr], Expr]) -> Kernel:
    """The kernel with other indices in its loads or stores."""
    def change(s: Statement) -> Statement:
        return replace(s, index=rule(s.index)) if isinstance(s, kind) else s

    return replace(piece.kernel, body=changed(piece.kernel.body, change))


def without(axis: str) -> Callable[[Expr], Expr]:
    return lambda index: transform(
        index, lambda e: integer(0) if isinstance(e, Ref) and e.name == axis else None)


@pytest.mark.parametrize("options", [PLAIN, Options(keep=False), Options(dots=True)])
@pytest.mark.parametrize("case", [*CASES, *PLAIN_PRODUCTS])
def test_what_is_built_is_safe(case: str, options: Options) -> None:
    for piece in pieces(case, options):
        check(piece, piece.kernel)


@pytest.mark.parametrize(("case", "axis"), [
    ("softmax", "i"), ("pointwise with a row", "i"), ("causal softmax", "b_h"), ("scatter", "d"),
])
def test_a_store_that_leaves_out_an_axis_is_a_race(case: str, axis: str) -> None:
    piece = next(p for p in pieces(case) if any(a.name == axis for a in p.kernel.grid))

    def change(s: Statement) -> Statement:
        written = hasattr(s, "index") and not isinstance(s, Load)
        return replace(s, index=without(axis)(s.index)) if written else s

    broken = replace(piece.kernel, body=changed(piece.kernel.body, change))
    with pytest.raises(CompilerBug, match=f"points of {axis} store to one place"):
        check(piece, broken)


def test_strides_that_overlap_are_a_race() -> None:
    (piece,) = pieces("softmax")
    broken = indices(piece, Store, lambda index: transform(
        index, lambda e: e.args[0] if isinstance(e, Call) and e.fn == "mul" else None))
    with pytest.raises(CompilerBug, match="let points share a place"):
        check(piece, broken)


def test_the_parts_of_a_split_sum_must_not_share_their_partial_results() -> None:
    piece = pieces("split full sum")[0]
    broken = indices(piece, Store, without("part"))
    with pytest.raises(CompilerBug, match="points of part store to one place"):
        check(piece, broken)


@pytest.mark.parametrize("kind", [Load, Store])
@pytest.mark.parametrize("case", ["softmax", "transpose", "adamw", "split column sums"])
def test_an_index_that_leaves_its_tensor_is_found(case: str, kind: type[Load | Store]) -> None:
    piece = pieces(case)[0]
    broken = indices(piece, kind, lambda index: add(index, integer(1)))
    with pytest.raises(CompilerBug, match="runs from"):
        check(piece, broken)


def test_a_pad_without_its_mask_is_found() -> None:
    (piece,) = pieces("pad")
    unmasked = changed(
        piece.kernel.body, lambda s: replace(s, mask=None) if isinstance(s, Load) else s)
    with pytest.raises(CompilerBug, match="runs from -2"):
        check(piece, replace(piece.kernel, body=unmasked))


def test_names_are_defined_once_and_before_use() -> None:
    (piece,) = pieces("softmax")
    body = piece.kernel.body
    with pytest.raises(CompilerBug, match="used before it is defined"):
        check(piece, replace(piece.kernel, body=body[1:][::-1]))
    twice = (Let("v", integer(1)), Let("v", integer(2)))
    with pytest.raises(CompilerBug, match="v is defined twice"):
        check(piece, replace(piece.kernel, body=twice))


def test_inputs_are_not_written() -> None:
    (piece,) = pieces("softmax")
    tensors = tuple(replace(t, role="in") for t in piece.kernel.tensors)
    with pytest.raises(CompilerBug, match="may not be written"):
        check(piece, replace(piece.kernel, tensors=tensors))


def test_a_target_without_fast_memory_keeps_no_rows() -> None:
    kept, recomputed = (pieces("softmax", Options(keep=k))[0] for k in (True, False))
    assert [t.name for t in kept.kernel.tensors if t.role == "local"] == ["e_row"]
    assert not any(t.role == "local" for t in recomputed.kernel.tensors)
    assert (kept.local_bytes, recomputed.local_bytes) == (320, 0)


def test_a_product_is_a_dot_where_the_target_has_them() -> None:
    (piece,) = pieces("bf16", Options(dots=True))
    lines = [line for line in text(piece.kernel).splitlines() if "dot(" in line]
    assert [line.strip() for line in lines] == ["y <- dot(x, w)"]
    assert {a.name for a in piece.kernel.grid} == {"i", "j"}


def test_the_text_shows_the_whole_kernel() -> None:
    (piece,) = pieces("layer norm")
    assert text(piece.kernel) == LAYER_NORM


def test_neighbouring_axes_that_are_walked_as_one_are_one() -> None:
    (piece,) = pieces("adamw")
    assert [(a.name, piece.extents[a.name]) for a in piece.kernel.grid] == [("i_j", 9 * 35)]
    assert sum(isinstance(s, Load) for s in statements(piece.kernel.body)) == 5


LAYER_NORM = """\
# t[i, s] = sum[d](x[i, s, d])
# u[i, s] = t[i, s] / 35.0
# c[i, s, d] = x[i, s, d] - u[i, s]
# q[i, s] = sum[d](c[i, s, d] * c[i, s, d])
# r[i, s] = rsqrt(q[i, s] / 35.0 + 1e-05)
# y[i, s, d] = c[i, s, d] * r[i, s] * w[d] + b[d]
kernel r_y(x_ptr: in f32, w_ptr: in f32, b_ptr: in f32, y_ptr: out f32, u_ptr: out f32, \
r_ptr: out f32; n_i_s, n_d)
  grid i_s < n_i_s
    t = start sum f32
    for d in 0 .. n_d lanes:
      x = x_ptr[(i_s * n_d) + d]
      t <- x
    q = start sum f32
    u = t / 35.0
    for d in 0 .. n_d lanes:
      x_2 = x_ptr[(i_s * n_d) + d]
      c = x_2 - u
      q <- c * c
    r = rsqrt((q / 35.0) + 1e-05)
    for d in 0 .. n_d lanes:
      x_3 = x_ptr[(i_s * n_d) + d]
      c_2 = x_3 - u
      w = w_ptr[d]
      b = b_ptr[d]
      y = ((c_2 * r) * w) + b
      y_ptr[(i_s * n_d) + d] = y
    u_ptr[i_s] = u
    r_ptr[i_s] = r
"""


def test_places_that_no_mask_keeps_in_their_row_are_a_race() -> None:
    """Of a transposed convolution with padding, where they would run into the next image."""
    piece = pieces("transposed convolution with padding")[-1]

    def change(s: Statement) -> Statement:
        return replace(s, mask=None) if isinstance(s, Combine) else s

    broken = replace(piece.kernel, body=changed(piece.kernel.body, change))
    with pytest.raises(CompilerBug, match=r"share a place|runs from"):
        check(piece, broken)
