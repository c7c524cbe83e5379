"""Walking and rebuilding expressions, against definitions by recursion."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.ir.core import Function
from anabranch.ir.expr import (
    Cast,
    Const,
    Expr,
    Read,
    Var,
    add,
    children,
    integer,
    mul,
    reads,
    renumber,
    substitute,
    transform,
    variables,
    walk,
    with_children,
)
from anabranch.ir.ops import Compute
from tests.strategies import statements

quick = settings(max_examples=50, suppress_health_check=list(HealthCheck))


def bodies(function: Function) -> list[Expr]:
    return [op.body for op in function.body if isinstance(op, Compute)]


expressions = statements().map(bodies).flatmap(st.sampled_from)


def descend(expr: Expr) -> Iterator[Expr]:
    yield expr
    for child in children(expr):
        yield from descend(child)


@quick
@given(expressions)
def test_walking_visits_every_node_parents_first_from_left_to_right(expr: Expr) -> None:
    assert [id(node) for node in walk(expr)] == [id(node) for node in descend(expr)]


@quick
@given(expressions)
def test_a_node_over_its_own_children_is_itself(expr: Expr) -> None:
    for node in walk(expr):
        assert repr(with_children(node, children(node))) == repr(node)


@quick
@given(expressions)
def test_a_rule_that_changes_nothing_rebuilds_nothing(expr: Expr) -> None:
    assert transform(expr, lambda node: None) is expr
    assert substitute(expr, {}) is expr
    assert repr(renumber(expr, lambda n: n)) == repr(expr)


@quick
@given(expressions)
def test_a_rule_sees_rebuilt_nodes_children_first(expr: Expr) -> None:
    seen: list[str] = []
    transform(expr, lambda node: seen.append(repr(node)))

    def after(node: Expr) -> Iterator[str]:
        for child in children(node):
            yield from after(child)
        yield repr(node)

    assert seen == list(after(expr))


@quick
@given(expressions)
def test_substitution_replaces_every_occurrence_at_once(expr: Expr) -> None:
    """Not one after another: what is put in is left alone, here a swap of names."""
    names = sorted(variables(expr))
    swap = dict(zip(names, names[1:] + names[:1], strict=True))
    swapped = substitute(expr, {name: Var(other) for name, other in swap.items()})
    found = [node.name for node in walk(expr) if isinstance(node, Var)]
    assert [node.name for node in walk(swapped) if isinstance(node, Var)] == [
        swap[name] for name in found]
    back = substitute(swapped, {other: Var(name) for name, other in swap.items()})
    assert repr(back) == repr(expr)


@quick
@given(expressions)
def test_substituting_all_variables_leaves_none(expr: Expr) -> None:
    grounded = substitute(expr, {name: integer(3) for name in variables(expr)})
    assert variables(grounded) == set()


@quick
@given(expressions)
def test_renumbering_changes_the_operand_of_every_read_and_nothing_else(expr: Expr) -> None:
    shifted = renumber(expr, lambda n: n + 10)
    assert [r.operand for r in reads(shifted)] == [r.operand + 10 for r in reads(expr)]
    assert repr(renumber(shifted, lambda n: n - 10)) == repr(expr)


def test_reads_are_found_inside_of_subscripts_pads_and_random_draws() -> None:
    inner = Read(1, (Var("i"),))
    outer = Read(0, (inner, integer(0)), pad=Cast("f32", Read(2, ())))
    assert [r.operand for r in reads(add(outer, Const(1.0, "f32")))] == [0, 1, 2]


def test_a_rule_may_replace_the_root() -> None:
    expr = mul(Var("i"), integer(2))
    assert transform(expr, lambda node: integer(0) if node == expr else None) == integer(0)
