"""What `format_module` prints parses back to an equal tree, for any tree the parser can produce."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.frontend import syntax as s
from anabranch.frontend.parse import parse, parse_expression
from anabranch.frontend.unparse import format_expression, format_module
from anabranch.ir.diagnostics import Span

HERE = Span("generated", 1, 1, 1, 1)
NAMES = st.sampled_from(["x", "y", "model", "op", "train", "buffer", "If", "größe", "_", "index2"])
SMALL = settings(max_examples=100, deadline=None)


def node(kind, *strategies, **named):
    return st.builds(kind, *strategies, **named, span=st.just(HERE))


def several(strategy, least=0, most=3):
    return st.lists(strategy, min_size=least, max_size=most).map(tuple)


def optional(strategy):
    return st.none() | strategy


names = node(s.Name, NAMES)
targets = st.recursive(names, lambda inner: node(s.Tuple, several(inner, 2)), max_leaves=4)
strings = node(s.String, st.text(max_size=6))
leaves = st.one_of(
    names,
    strings,
    node(s.Number, st.integers(0, 10**30) | st.floats(0, math.inf)),
    node(s.Constant, st.sampled_from([None, True, False])),
)


exprs = st.deferred(lambda: st.one_of(leaves, leaves, compounds))


def distinct(strategy, key, most=2):
    return st.lists(strategy, max_size=most, unique_by=key).map(tuple)


keywords = distinct(node(s.Keyword, NAMES, exprs), lambda keyword: keyword.name)
operations = node(s.Name, st.sampled_from(["max", "min", "prod"]))
entries = st.one_of(
    node(s.LayoutEntry, NAMES, st.sampled_from("BP"), st.none()),
    node(s.LayoutEntry, NAMES, st.just("S"), exprs),
    node(s.LayoutEntry, NAMES, st.just("P"), operations),
)
element = exprs | node(s.Star, exprs)
item = st.one_of(
    element,
    node(s.Dots),
    node(s.Guard, element, exprs),
    node(s.Slice, optional(exprs), optional(exprs), optional(exprs)),
)
operators = st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "@", "|", "and", "or"])
comparators = st.sampled_from(["<", "==", "not in", "in", "is", "is not", ">="])
clauses = several(node(s.Clause, targets, exprs, several(exprs, most=2)), 1, 2)


@st.composite
def comparisons(draw):
    ops = draw(several(comparators, 1, 2))
    return s.Compare(tuple(draw(exprs) for _ in range(len(ops) + 1)), ops, span=HERE)


compounds = st.one_of(
    node(s.Tuple, several(element)),
    node(s.List, several(element)),
    node(s.Comprehension, exprs, clauses),
    node(s.Layout, distinct(entries, lambda entry: entry.axis)),
    node(s.Unary, st.sampled_from(["-", "+", "not"]), exprs),
    node(s.Binary, operators, exprs, exprs),
    comparisons(),
    node(s.Conditional, exprs, exprs, exprs),
    node(s.Call, exprs, several(element), keywords),
    node(s.Index, exprs, several(item), keywords),
    node(s.Attribute, exprs, NAMES),
)

simple = st.one_of(
    node(s.Assign, targets, exprs),
    node(s.Equation, names, several(element), exprs),
    node(s.Update, names, exprs),
    node(s.Return, optional(exprs)),
    node(s.Assert, exprs, optional(exprs)),
    node(s.Run, exprs.filter(lambda expr: not isinstance(expr, s.String))),
)
statements = st.deferred(
    lambda: st.one_of(
        simple,
        node(s.If, exprs, body, body),
        node(s.For, targets, exprs, body),
        node(s.With, several(exprs, 1), body),
        functions,
    )
)
body = several(statements)


@st.composite
def params(draw, type_of):
    """Defaults last, as the language wants them."""
    found = draw(distinct(NAMES, lambda name: name, most=3))
    plain = draw(st.integers(0, len(found)))
    types = [draw(type_of) for _ in found]
    defaults = [None if place < plain else draw(exprs) for place in range(len(found))]
    return tuple(s.Param(*parts, span=HERE) for parts in zip(found, types, defaults, strict=True))


def results(least):
    return several(exprs, least).filter(lambda found: not _is_one_tuple(found))


def _is_one_tuple(found):
    return len(found) == 1 and isinstance(found[0], s.Tuple)


docs = optional(st.sampled_from(["One line.", 'Three\n\n"lines", \\ and\n    more.', ""]))


functions = node(s.FuncDef, NAMES, params(optional(exprs)), results(0), docs, body)
member = st.one_of(
    node(s.Field, NAMES, exprs, optional(exprs), st.booleans()),
    node(s.Assign, targets, exprs),
    node(s.Assert, exprs, optional(exprs)),
    functions,
)
members = several(member | node(s.If, exprs, several(member), several(member)))
recipe = several(node(s.Setting, names, several(strings), exprs) | functions)
items = st.one_of(
    node(s.Import, st.just("a.b"), several(node(s.ImportedName, NAMES, NAMES), 1)),
    node(s.Assign, targets, exprs),
    node(s.OpDef, NAMES, params(exprs), results(1), docs, body),
    functions,
    node(s.ModelDef, NAMES, params(optional(exprs)), docs, members),
    node(s.TrainDef, names, several(exprs), keywords, docs, recipe),
)


@SMALL
@given(exprs)
def test_an_expression_survives_printing_and_parsing(expr):
    assert repr(parse_expression(format_expression(expr))) == repr(expr)


@SMALL
@given(several(items, most=2))
def test_a_module_survives_printing_and_parsing(found):
    text = format_module(s.Module(found, span=HERE))
    assert repr(parse(text, "generated").items) == repr(found), text
