"""Kernels of recurrences, compiled and interpreted, against the reference evaluator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings

from anabranch.codegen import launches
from anabranch.codegen.kernel import Let, Load, Loop, Statement, statements
from anabranch.codegen.recurrence import plan
from anabranch.codegen.tile import tile
from anabranch.ir import reference
from anabranch.ir.core import Function
from anabranch.ir.diagnostics import UserError
from anabranch.ir.ops import Compute
from anabranch.ir.printer import print_op
from anabranch.ir.recurrence import statements as region_of
from tests.codegen.harness import attempt, run, use_cores
from tests.codegen.scans import SCANS, all_elements_are_needed, numbers, only_scan, scan_of
from tests.codegen.test_c import assert_agrees
from tests.codegen.test_reference_kernel import interpreted
from tests.strategies import arrays, recurrences

some = settings(max_examples=60, deadline=None, derandomize=True,
                suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", SCANS)
def test_a_kernel_gives_what_the_reference_gives(name: str) -> None:
    op = scan_of(SCANS[name])
    operands = numbers(op.operands)
    want = reference.evaluate_op(op, operands)
    assert_agrees(op, run(op, operands), want, slack=10)
    assert_agrees(op, interpreted(op, operands), want, slack=10)


@some
@given(recurrences())
def test_random_recurrences_of_every_dtype_run(made: Function) -> None:
    """An index out of range is reported, unless there is no element that needs it."""
    op, operands = only_scan(made), arrays(made, 1)
    given = [dict(zip(made.body.args, operands, strict=True))[v] for v in op.operands]
    note(f"{print_op(op)} of {given}")
    try:
        want = reference.evaluate_op(op, given)
    except UserError:
        _, status = attempt(op, given)
        assert status.code == 1 or not all_elements_are_needed(op)
        return
    assert_agrees(op, run(op, given), want)
    assert_agrees(op, interpreted(op, given), want)


def test_an_index_out_of_range_in_a_later_step_is_reported() -> None:
    op = scan_of(SCANS["reads of a table at places from before"])
    steps, table = numbers(op.operands)
    table[:] = 58
    steps[1, 4] = -1000
    _, status = attempt(scan_of(SCANS["reads of a table at places from before"].replace(
        ") % 60", ")")), [np.minimum(steps, 1), table])
    assert (status.code, status.bound) == (1, 60)


def test_an_index_out_of_range_is_reported_beside_one_that_has_a_pad() -> None:
    """At every step the first subscript is outside, where the pad stands; the second is checked."""
    op = scan_of("""(%x: i64[3]) {
        %y: i64[3, 5] = scan[t < 3](%a = %x; %old) {
            %n: i64[3, 5] = [t, j] %old[t - 3, check(%a[t], 5), pad=7]
            return %n
        }
        return %y""")
    places = np.array([4, 5, 0])
    _, status = attempt(op, [places])
    assert (status.code, status.value, status.bound) == (1, 5, 5)
    (seven,) = run(op, [places % 5])
    np.testing.assert_array_equal(seven, 7)


def test_threads_change_nothing() -> None:
    op = scan_of(SCANS["cell, weights by row"].replace("[5,", "[23,").replace("9, 5,", "9, 23,"))
    operands = numbers(op.operands)
    (spec,) = launches(op)
    assert spec.tiles > 2
    found = []
    for cores in (1, 2):
        use_cores(cores)
        found.append(run(op, operands)[0])
    np.testing.assert_array_equal(*found)


INDEPENDENT = {
    "cell, weights by row": {"b": 5}, "two gates of one product, two results": {"b": 3},
    "sums of elements": {"i": 3, "j": 70}, "sums along rows, from the end": {"i": 70},
    "a reduction in registers": {"i": 3}, "a neighbourhood": {}, "a path of best places": {"i": 4},
    "a merged dimension": {"g": 6, "c": 7},
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_the_axes_that_the_steps_do_not_cross_are_the_grid(name: str) -> None:
    op = scan_of(SCANS[name])
    assert plan(op).grid == INDEPENDENT[name]
    (piece,) = tile(op).pieces
    assert list(piece.extents) == list(INDEPENDENT[name])


@pytest.mark.parametrize("name", SCANS)
def test_values_of_one_step_have_room_for_one_step(name: str) -> None:
    op = scan_of(SCANS[name])
    inside = {each.result for each in region_of(op) if each.result not in op.news}
    most = sum((v.type.nbytes // max(1, op.extent) + 63) // 64 * 64 for v in inside)
    assert max(spec.scratch for spec in launches(op)) <= most
    (spec,) = launches(op)
    assert spec.tile_scratch == 0


def test_where_no_statement_has_axes_of_its_own_values_stay_in_registers() -> None:
    for name in ("three steps back, from the end", "a reduction in registers"):
        (spec,) = launches(scan_of(SCANS[name]))
        assert spec.scratch == 0


def _two_loops(name: str) -> tuple[list[Statement], list[Statement]]:
    """The statements of the first steps and of the others."""
    (piece,) = tile(scan_of(SCANS[name])).pieces
    first, rest = piece.kernel.body
    assert isinstance(first, Loop)
    assert isinstance(rest, Loop)
    assert first.ordered
    assert rest.ordered
    return list(statements(first.body)), list(statements(rest.body))


def _masked(body: list[Statement]) -> int:
    return sum(getattr(s, "mask", None) is not None for s in body)


def test_steps_that_have_what_they_read_do_not_look() -> None:
    """The loop over the first steps asks whether there is a step before; the other does not."""
    first, rest = _two_loops("three steps back, from the end")
    assert _masked(first) > 0
    assert _masked(rest) == 0


def test_the_only_step_without_one_before_reads_what_stands_there_instead() -> None:
    first, rest = _two_loops("cell, weights by column")
    assert _masked(first) == _masked(rest) == 0
    read = [{s.tensor for s in body if isinstance(s, Load)} for body in (first, rest)]
    assert "h_ptr" not in read[0]
    assert "h_ptr" in read[1]


def test_gates_are_computed_each_for_itself() -> None:
    """A tanh for the one, a product for the other."""
    _, rest = _two_loops("gates that are told apart by a number")
    lets = [s for s in rest if isinstance(s, Let)]
    assert sum("tanh" in str(s.value) for s in lets) == 1
    assert not any("where" in str(s.value) for s in lets)


def test_layers_of_one_structure_share_a_kernel() -> None:
    text = SCANS["cell, weights by row"]
    one, same, other = (launches(scan_of(t)) for t in (
        text, text.replace("%old", "%before"), text.replace("tanh", "sin")))
    assert one == same
    assert one != other


def test_directions_have_kernels_of_their_own() -> None:
    text = "(%x: f32[4]) {{\n %y: f32[4] = scan[t < 4{}](%a = %x; %o) {{\n" \
        " %n: f32[4] = [t] %a[t] + %a[0]\n return %n\n }}\n return %y"
    x = np.arange(4, dtype=np.float32)
    for order in ("", ", reverse"):
        op = scan_of(text.format(order))
        assert isinstance(next(region_of(op)), Compute)
        assert_agrees(op, run(op, [x]), [x])
    assert launches(scan_of(text.format(""))) != launches(scan_of(text.format(", reverse")))
