"""What is derived, spelled out: that it is right is the business of test_soundness.py."""

from __future__ import annotations

import pytest

from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute
from anabranch.ir.sbp import B, Layout, P, S, Sbp, layout_on
from anabranch.lowering.signatures import Signature, legal, options, signatures
from tests.lowering.cases import compute, function
from tests.measuring import cpu_seconds

MAX, MIN, PROD = P("max"), P("min"), P("prod")


def derived(case: str, parts: int = 2) -> set[tuple[Sbp, ...]]:
    """Signatures as (arguments of the case in order..., result)."""
    written = function(case)
    op = written.body.first
    assert isinstance(op, Compute)
    order = [op.operands.index(value) for value in written.body.args]
    return {(*(s.operands[i] for i in order), s.result) for s in signatures(op, parts)}


def of_sum(case: str, parts: int = 2) -> set[tuple[Sbp, ...]]:
    """Those without P(max), P(min) and P(prod)."""
    return {s for s in derived(case, parts) if not {MAX, MIN, PROD} & set(s)}


def test_a_matrix_product_is_split_by_row_by_column_and_by_reduction() -> None:
    assert derived("matmul") == {
        (B, B, B), (S(0), B, S(0)), (B, S(1), S(1)), (S(1), S(0), P()),
        (P(), B, P()), (B, P(), P()),
    }


def test_a_bias_is_added_once_or_by_everyone() -> None:
    assert of_sum("bias") == {(B, B, B), (S(0), B, S(0)), (S(1), S(0), S(1)), (P(), P(), P())}
    assert (P(), B, P()) not in derived("bias")


def test_terms_of_an_extremum_are_added_to_literals_only() -> None:
    """The term of a rank may be -inf, and what is whole too."""
    assert {(MAX, B, MAX), (B, MAX, MAX)}.isdisjoint(derived("bias"))
    assert not {MAX, MIN} & {entry for s in derived("softmax exponential") for entry in s}
    assert (MAX, MAX) in derived("shifted")
    assert (MAX, MAX) not in derived("scaled to nothing")


def test_terms_of_a_sum_are_multiplied_with_and_divided_by_what_is_whole() -> None:
    assert (P(), P()) in derived("layer norm mean")
    assert (P(), B, P()) in derived("softmax quotient")
    assert (B, P(), P()) not in derived("softmax quotient")


def test_a_table_is_split_by_its_rows() -> None:
    assert of_sum("embedding") == {
        (B, B, B), (S(0), B, S(0)), (B, S(1), S(1)), (B, S(0), P()), (B, P(), P())}


def test_another_pad_than_zero_would_count_once_for_every_shard() -> None:
    assert (B, S(0), P()) in derived("embedding with pad")
    assert (B, S(0), P()) not in derived("embedding with another pad")


def test_a_scatter_is_split_by_its_places_and_by_what_it_reads() -> None:
    assert of_sum("scatter") == {
        (B, B, B), (B, B, S(0)), (B, S(1), S(1)), (S(0), S(0), P()), (B, P(), P())}


def test_indices_are_never_partial() -> None:
    for case in ("embedding", "scatter", "label", "bag"):
        ids = 0 if case != "label" else 1
        assert {s[ids].kind for s in derived(case)} <= {"B", "S"}


def test_argmax_has_no_partial_form() -> None:
    assert derived("argmax") == {(B, B), (S(0), S(0))}


def test_any_and_all_are_maximum_and_minimum() -> None:
    assert (S(1), MAX) in derived("any")
    assert (S(1), MIN) in derived("all")


def test_a_maximum_passes_through_what_rises_and_turns_through_what_falls() -> None:
    assert (MAX, MIN) in derived("minimum of negatives")
    assert (MAX, MAX) in derived("clamp")
    assert (MAX, MAX) in derived("negated exponential")
    assert (MAX, MAX, MAX) not in derived("bias")


def test_a_map_that_is_not_total_passes_no_maximum() -> None:
    """An empty shard holds -inf, whose logarithm is nan."""
    assert derived("logarithm") == {(B, B), (S(0), S(0))}


def test_integers_wrap_and_so_pass_only_what_chooses() -> None:
    assert (MAX, MAX, MAX) in derived("integer maximum")
    assert (MAX, MAX) not in derived("narrowing")
    assert (P(), P()) in derived("narrowing")


def test_a_product_passes_products_only() -> None:
    assert derived("product of products") == {
        (B, B, B), (S(0), S(0), S(0)), (PROD, PROD, PROD), (P(), B, P())}


def test_a_window_is_split_where_the_cuts_agree() -> None:
    assert (S(1), S(1)) in derived("disjoint windows")
    assert (B, S(2)) in derived("max pool")
    assert (S(2), S(2)) not in derived("max pool")
    assert (S(2), B, S(2)) not in derived("convolution")
    assert (B, B, S(2)) in derived("convolution")


def test_a_merged_index_is_split_by_its_outer_variable_if_the_cuts_agree() -> None:
    assert (S(0), S(0)) in derived("flatten", 2)
    assert (S(0), S(0)) not in derived("flatten", 3)
    assert (S(0), S(0)) not in derived("flatten unevenly")
    assert (S(2), S(0)) not in derived("flatten", 2)
    assert (S(0), S(1)) in derived("merge heads")
    assert (S(1), S(0)) in derived("split heads")
    assert (S(2), S(2), S(1)) in derived("scores of merged heads")


def test_an_inner_variable_may_be_split_once_the_outer_one_is_single() -> None:
    """(g, c) of 4 x 6 over 4 ranks, then over 2: every rank has one g and half of the c."""
    op = compute("flatten")  # 4 x 3 x 2
    mesh = Mesh.of(data=4, model=3)
    inner = layout_on(mesh, [S(0), S(1)])
    assert legal(op, [inner], layout_on(mesh, [S(0), S(0)]), mesh) is not None
    mesh = Mesh.of(data=2, model=3)
    inner = layout_on(mesh, [S(0), S(1)])
    assert legal(op, [inner], layout_on(mesh, [S(0), S(0)]), mesh) is None


def test_parts_of_different_extents_are_not_taken_for_the_same_cut() -> None:
    for case in ("concatenate", "slice", "pad", "flip"):
        assert (S(0), S(0)) not in derived(case)
        assert any(s[-1] == S(0) for s in derived(case))


def test_a_random_draw_is_whole_and_its_counter_logical() -> None:
    assert of_sum("dropout") == {
        (B, B, B, B), (S(0), B, B, S(0)), (S(1), B, B, S(1)), (P(), B, B, P())}
    assert (S(1), B, B, P()) in derived("noisy sum")


def test_a_scalar_is_whole_or_partial() -> None:
    assert of_sum("scalar") == {(B, B, B), (P(), P(), P())}


def test_the_first_signature_is_all_whole() -> None:
    for case in ("matmul", "scalar", "convolution"):
        first = signatures(compute(case), 3)[0]
        assert {*first.operands, first.result} == {B}


def test_a_signature_says_why_it_is_legal() -> None:
    found = {s.result: s for s in signatures(compute("matmul"), 2)}
    assert found[S(0)] == Signature((S(0), B), S(0), "i", "split of i")
    assert str(found[S(0)]) == "S(0), B -> S(0) (split of i)"


def test_a_value_has_one_kind_of_partial() -> None:
    mesh = Mesh.of(data=2, model=2)
    every = options(compute("softmax maximum"), mesh, small=True)
    for operands, result in every:
        for layout in (*operands, result):
            assert len({e.op for e in layout.sbps() if e.kind == "P"}) <= 1
    assert legal(compute("bias"), [layout_on(mesh, [P(), MAX]), layout_on(mesh, [P(), B])],
                 layout_on(mesh, [P(), MAX]), mesh) is None


def test_options_are_legal_and_leave_no_rank_without_work() -> None:
    mesh = Mesh.of(data=3, model=2)
    op = compute("batched matmul")  # [3, 5, 2]
    usual, every = options(op, mesh), options(op, mesh, small=True)
    assert set(usual) < set(every)
    crowded = layout_on(mesh, [S(2), S(2)])  # 2 columns on 6 ranks
    assert crowded in {result for _, result in every}
    assert crowded not in {result for _, result in usual}


def test_what_is_whole_may_stand_where_a_part_would_do() -> None:
    mesh = Mesh.of(data=2)
    whole, rows = layout_on(mesh, [B]), layout_on(mesh, [S(0)])
    assert legal(compute("matmul"), [whole, whole], rows, mesh) is not None
    assert (
        (whole, whole), rows) not in options(compute("matmul"), mesh)


def test_what_no_rule_names_is_refused() -> None:
    mesh = Mesh.of(data=2)

    def lay(*entries: Sbp) -> list[Layout]:
        return [layout_on(mesh, [entry]) for entry in entries]

    for case, operands, result in [
        ("matmul", (S(1), B), S(0)), ("matmul", (P(), P()), P()), ("bias", (P(), B), P()),
        ("transpose", (S(0),), S(0)), ("softmax maximum", (P(),), P()),
    ]:
        assert legal(compute(case), lay(*operands), lay(result)[0], mesh) is None, case


def test_an_axis_of_one_rank_makes_all_entries_equal() -> None:
    mesh = Mesh.of(data=1, model=2)
    operands = [layout_on(mesh, [S(1), S(0)]), layout_on(mesh, [B, B])]
    assert legal(compute("matmul"), operands, layout_on(mesh, [P(), S(0)]), mesh) is not None


def test_a_split_in_time_divides_what_it_splits() -> None:
    op = compute("matmul")  # 5 x 7 by 7 x 4
    in_time = Mesh.of(micro=5)
    assert {result[("micro")] for _, result in options(op, in_time, small=True)} == {
        B, S(0), P()}
    assert all(layouts[0]["micro"] != S(1) for layouts, _ in options(op, in_time, small=True))


@pytest.mark.parametrize("mesh", [Mesh.of(data=8), Mesh.of(micro=4, data=4, model=8)], ids=str)
def test_equal_layers_are_derived_once(mesh: Mesh) -> None:
    """A thousand equal ops cost what one does, and looking them up."""
    ops = [compute("batched matmul") for _ in range(300)]
    options(ops[0], mesh)
    seconds = cpu_seconds(lambda: [options(op, mesh) for op in ops])
    assert seconds / len(ops) < 5e-4
