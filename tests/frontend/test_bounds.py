"""The judge of subscripts against trying every point, on random index expressions."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.frontend.bounds import judge, negated
from anabranch.ir.expr import Call, Const, Expr, Read, Var, integer

EXTENTS = {"i": 4, "j": 3, "k": 1}
VARIABLES = st.sampled_from([Var(name) for name in EXTENTS])
CONSTANTS = st.integers(-3, 5).map(integer)


def _joined(inner):
    pairs = st.tuples(inner, inner)
    divided = st.tuples(inner, st.integers(1, 4).map(integer))
    return st.one_of(
        st.builds(Call, st.sampled_from(["add", "sub", "min", "max"]), pairs),
        st.builds(Call, st.just("mul"), divided),
        st.builds(Call, st.sampled_from(["floordiv", "mod"]), divided),
    )


SUBSCRIPTS = st.recursive(VARIABLES | CONSTANTS, _joined, max_leaves=5)
COMPARISONS = st.builds(Call, st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]),
                        st.tuples(SUBSCRIPTS, SUBSCRIPTS))
CONDITIONS = st.lists(COMPARISONS | st.builds(
    Call, st.sampled_from(["and", "or"]), st.tuples(COMPARISONS, COMPARISONS)), max_size=2)
PYTHON = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": min, "max": max,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    "and": lambda a, b: a and b, "or": lambda a, b: a or b, "not": lambda a: not a,
}


def value(expr: Expr, point: dict[str, int]):
    match expr:
        case Const(number, _):
            return number
        case Var(name):
            return point[name]
        case Call(fn, args):
            return PYTHON[fn](*(value(arg, point) for arg in args))
    raise AssertionError(expr)


def points():
    for place in itertools.product(*(range(n) for n in EXTENTS.values())):
        yield dict(zip(EXTENTS, place, strict=True))


@given(SUBSCRIPTS, st.integers(1, 8), CONDITIONS)
@settings(max_examples=300)
def test_the_verdict_is_what_trying_every_point_says(subscript, size, conditions):
    reached = [value(subscript, p) for p in points() if all(value(c, p) for c in conditions)]
    outside = [place for place in reached if not 0 <= place < size]
    found = judge(subscript, size, EXTENTS, conditions)
    assert found.verdict == ("outside" if outside else "inside")
    if outside:
        assert found.place in outside


@given(SUBSCRIPTS, st.integers(1, 8), CONDITIONS)
@settings(max_examples=100)
def test_a_condition_on_data_never_disproves(subscript, size, conditions):
    data = Call("lt", (Read(0, (Var("i"),)), integer(0)))
    without = judge(subscript, size, EXTENTS, conditions)
    found = judge(subscript, size, EXTENTS, [*conditions, data])
    assert found.verdict == ("inside" if without.verdict == "inside" else "unknown")


@given(COMPARISONS)
def test_the_other_branch_holds_where_the_condition_does_not(condition):
    assert all(value(negated(condition), p) != value(condition, p) for p in points())


def test_nothing_is_outside_of_an_empty_range():
    assert judge(Var("i"), 0, {"i": 0}, []).verdict == "inside"
