"""Orders of rows on the way down: what is stated of them, shards, plans, micro-batches, costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from anabranch.ir.core import Function, Value
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Order
from anabranch.ir.parser import parse_module
from anabranch.ir.reference import evaluate, evaluate_op
from anabranch.ir.sbp import B, Layout, S, layout_on
from anabranch.ir.types import tensor
from anabranch.lowering.boxing import lower_boxes
from anabranch.lowering.cost import symbolic, work
from anabranch.lowering.differentiate import differentiate
from anabranch.lowering.machine import H100
from anabranch.lowering.planner import plan
from anabranch.lowering.signatures import legal, options, signatures
from anabranch.lowering.simplify import simplify
from anabranch.lowering.simulate_ranks import in_parts, simulate
from tests.codegen.orders import numbers, orders

few = settings(max_examples=25, deadline=None, derandomize=True,
               suppress_health_check=list(HealthCheck))


def of(shape: tuple[int, ...], axis: int, count: int, *, descending: bool = False) -> Order:
    return Order(Value(tensor("f32", shape), "x"), axis, count, descending=descending, name="y")


def test_an_order_is_split_along_any_other_dimension_and_no_other_way() -> None:
    found = {(*s.operands, s.result) for s in signatures(of((5, 7, 4), 1, 3), 2)}
    assert found == {(B, B), (S(0), S(0)), (S(2), S(2))}


def test_a_split_of_the_ordered_axis_is_not_legal() -> None:
    mesh = Mesh.of(data=2)
    split, whole = layout_on(mesh, [S(1)]), layout_on(mesh, [B])
    assert legal(of((4, 6), 1, 6), [split], split, mesh) is None
    assert legal(of((4, 6), 1, 6), [whole], split, mesh) is None
    assert legal(of((4, 6), 1, 6), [whole], whole, mesh) is not None


@few
@given(orders(longest=40))
def test_parts_give_what_the_whole_gives(op: Order) -> None:
    """On uneven and empty shards, along one axis of a mesh and along two."""
    x = numbers(op)
    (whole,) = evaluate_op(op, [x])
    for mesh in (Mesh.of(data=2), Mesh.of(data=3), Mesh.of(data=2, model=2)):
        for operands, result in options(op, mesh, small=True):
            random = np.random.default_rng(0)
            found = in_parts(op, [x], operands, result, mesh, random)
            np.testing.assert_array_equal(found, whole)


def test_the_cost_is_that_of_sorting_rows() -> None:
    op = of((8, 1000), 1, 10)
    assert work(op).flops == 8 * 1000 * 10
    assert work(op).bytes == 8 * (1000 * 4 + 10 * 8)
    formula = symbolic(op)
    assert str(formula.flops) == "i0*i1*log(i1)/log(2)"
    assert str(formula.bytes) == "i0*(4*i1 + 80)"


TOP = """\
module phase=global

func @f(%x: f32[6, 9]) {
  %p: i64[6, 3] = order(%x) {axis=1, descending=true}
  %v: f32[6, 3] = [i, j] %x[i, %p[i, j]]
  %s: f32[] = [] sum[i < 6, j < 3](%v[i, j] * %v[i, j])
  %d: f32[6, 9] = gradient(%s, %x)
  return %s, %d, %p
}
"""


def differentiated() -> Function:
    module = simplify(differentiate(parse_module(TOP)))
    return module.functions["f"]


def test_the_gradient_goes_to_the_places_that_were_read() -> None:
    x = np.random.default_rng(0).normal(size=(6, 9)).astype(np.float32)
    _, d, p = evaluate(differentiated(), [x])
    chosen = np.zeros(x.shape, bool)
    np.put_along_axis(chosen, p, True, axis=1)
    np.testing.assert_allclose(d, np.where(chosen, 2 * x, 0), rtol=1e-6)


@pytest.mark.parametrize("mesh", [Mesh.of(data=2), Mesh.of(data=4), Mesh.of(micro=2, data=2)],
                         ids=str)
def test_a_plan_of_it_computes_the_same(mesh: Mesh) -> None:
    """With three rows on two ranks, two on some of four and one on others, and in time."""
    module = simplify(differentiate(parse_module(TOP)))
    function = module.functions["f"]
    last = function.body.last
    assert last is not None
    last.set_operands(last.operands[:1])  # what is whole in time, too
    x = np.random.default_rng(0).normal(size=(6, 9)).astype(np.float32)
    (want,) = evaluate(function, [x])
    function.arguments[0].pin = Layout((("data", S(0)),))
    planned = lower_boxes(plan(module, mesh, H100, {}))
    order = next(op for op in planned.functions["f"].body if isinstance(op, Order))
    assert order.result.type.layout is not None
    assert order.result.type.layout["data"] == S(0)
    (found,) = simulate(planned, "f", {"x": x})
    np.testing.assert_allclose(found, want, rtol=1e-5)
