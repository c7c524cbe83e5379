"""Costs on a mesh: parts of computes, primitive steps, and how often each is paid."""

from __future__ import annotations

import pytest
import sympy

from anabranch.ir.mesh import Mesh
from anabranch.ir.sbp import B, P, S, layout_on
from anabranch.ir.types import tensor
from anabranch.lowering.cost import (
    box_seconds,
    fires,
    part_seconds,
    seconds,
    step_prices,
    symbolic,
    work,
)
from anabranch.lowering.machine import CPU2, H100
from anabranch.lowering.signatures import split_options
from tests.lowering.cases import CASES, compute

TYPE = tensor("f32", (1024, 512))
WHOLE_BYTES = 1024 * 512 * 4


@pytest.mark.parametrize("case", CASES)
def test_symbols_give_the_same_numbers(case: str) -> None:
    """But for reads of less than their variables span: no symbol knows how long an operand is."""
    op = compute(case)
    formula, number = symbolic(op), work(op)
    assert _at(formula.flops, op.extents) == number.flops
    assert _at(formula.bytes, op.extents) >= number.bytes


def _at(formula, extents):
    return sympy.sympify(formula).subs({s: extents[s.name] for s in
                                        sympy.sympify(formula).free_symbols})


def test_a_matrix_product_costs_two_operations_a_point() -> None:
    op = compute("matmul")
    assert str(symbolic(op).flops) == "2*i*j*k"
    assert work(op).flops == 2 * 5 * 4 * 7
    assert work(op).bytes == 4 * (5 * 7 + 7 * 4 + 5 * 4)


@pytest.mark.parametrize("case", CASES)
def test_every_option_is_priced_by_the_busiest_rank(case: str) -> None:
    op, mesh = compute(case), Mesh.of(data=2, model=2)
    whole = part_seconds(op, ("", ""), mesh, CPU2)
    for (operands, result), splits in split_options(op, mesh).items():
        price = part_seconds(op, splits, mesh, CPU2)
        assert CPU2.launch <= price <= whole
        assert price == seconds(op, operands, result, mesh, CPU2)


@pytest.mark.parametrize("members", [2, 3, 8])
def test_collectives_cost_what_a_ring_does(members: int) -> None:
    mesh, link = Mesh.of(data=members), H100.inner
    hop = link.latency + WHOLE_BYTES / members / link.bandwidth
    whole, split, terms = (layout_on(mesh, [entry]) for entry in (B, S(0), P()))
    cases = {
        "all_gather": (split, whole, 1), "reduce_scatter": (terms, split, 1),
        "all_reduce": (terms, whole, 2),
    }
    for step, (source, target, rounds) in cases.items():
        paid = box_seconds(TYPE, source, target, mesh, H100, step, "data")
        moved = paid - _local(source, target, mesh)
        assert moved == pytest.approx(rounds * (members - 1) * hop, rel=0.01)


def _local(source, target, mesh):
    """Reading the one and writing the other on a rank."""
    parts = [WHOLE_BYTES / (mesh.ranks if at["data"].kind == "S" else 1) for at in (source, target)]
    return H100.work_seconds(0, sum(parts), contraction=False)


def test_what_comes_in_micro_batches_is_paid_for_in_each() -> None:
    mesh = Mesh.of(data=2).with_micro(4)
    prices = step_prices(mesh, CPU2)
    parts, whole = layout_on(mesh, [S(0), B]), layout_on(mesh, [B, B])
    assert fires((parts,), mesh) == 4
    assert fires((whole,), mesh) == 1
    once = box_seconds(TYPE, parts, layout_on(mesh, [S(0), S(1)]), mesh, CPU2, "slice", "data")
    assert prices(TYPE, parts, layout_on(mesh, [S(0), S(1)]), "slice", "data") == 4 * once


def test_time_needs_no_link() -> None:
    mesh = Mesh.of(data=2).with_micro(4)
    terms, whole = layout_on(mesh, [P(), B]), layout_on(mesh, [B, B])
    summed = box_seconds(TYPE, terms, whole, mesh, CPU2, "all_reduce", "micro")
    assert summed == CPU2.work_seconds(0, 2 * WHOLE_BYTES, contraction=False)


def test_ranks_of_one_processor_share_its_cores() -> None:
    assert CPU2.shared_by(2).contraction == CPU2.contraction / 2
    assert H100.shared_by(8) is H100


def test_axes_within_a_node_have_the_fast_link() -> None:
    mesh = Mesh.of(data=8, model=8)
    assert H100.link(mesh, "model") == H100.inner
    assert H100.link(mesh, "data") == H100.outer
