"""The kernel that orders rows, compiled and interpreted, against the reference evaluator."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings

from anabranch.codegen import launches
from anabranch.codegen.facts import fits_in_i32
from anabranch.codegen.tile import Options, tile
from anabranch.ir.core import Value
from anabranch.ir.ops import Order
from anabranch.ir.reference import evaluate_op
from anabranch.ir.types import tensor
from tests.codegen.harness import run, use_cores
from tests.codegen.orders import numbers, orders
from tests.codegen.test_reference_kernel import interpreted

some = settings(max_examples=60, deadline=None, derandomize=True,
                suppress_health_check=list(HealthCheck))


def of(shape: tuple[int, ...], axis: int, count: int, dtype: str = "f32") -> Order:
    return Order(Value(tensor(dtype, shape), "x"), axis, count, name="y")


@some
@given(orders())
def test_compiled_and_interpreted_kernels_order_as_the_reference_does(op: Order) -> None:
    x = numbers(op)
    (want,) = evaluate_op(op, [x])
    assert want.shape == op.result.type.shape
    np.testing.assert_array_equal(run(op, [x])[0], want)
    np.testing.assert_array_equal(interpreted(op, [x])[0], want)


def test_the_order_is_numpys_stable_one() -> None:
    """Against NumPy itself, with more rows than threads and longer than what is inserted."""
    op = of((17, 1000), 1, 1000)
    x = numbers(op)
    np.testing.assert_array_equal(run(op, [x])[0], np.argsort(x, kind="stable"))


def test_the_first_of_many_are_found_without_ordering_the_rest() -> None:
    for count in (1, 32, 100, 250, 300):
        whole, first = of((2, 5000), 1, 5000), of((2, 5000), 1, count)
        x = np.random.default_rng(0).normal(size=(2, 5000)).astype(np.float32)
        np.testing.assert_array_equal(run(first, [x])[0], run(whole, [x])[0][:, :count])


def test_threads_change_nothing() -> None:
    op = of((300, 70), 1, 70)
    x = numbers(op)
    found = []
    for cores in (1, 2):
        use_cores(cores)
        found.append(run(op, [x])[0])
    np.testing.assert_array_equal(*found)
    (spec,) = launches(op)
    assert spec.tiles > 1


def test_orders_that_differ_in_what_is_stated_have_kernels_of_their_own() -> None:
    x = Value(tensor("f32", (6, 6)), "x")
    sizes = {launches(Order(x, axis, count, descending=down))
             for axis in (0, 1) for count in (2, 6) for down in (False, True)}
    assert len(sizes) == 8


def test_places_far_behind_the_first_of_a_row_count_for_the_width_of_indices() -> None:
    (small,), (large,) = (tile(of((n, 4), 0, 1), Options(keep=False)).pieces
                          for n in (1 << 20, 1 << 29))
    assert fits_in_i32(small)
    assert not fits_in_i32(large)
