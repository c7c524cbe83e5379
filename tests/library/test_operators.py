"""The table of operators: everything about every op, derived, and the page it makes."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.cli import main
from anabranch.derived import Derived, derive
from anabranch.frontend.evaluate import LIBRARY
from anabranch.frontend.program import loads
from anabranch.operators import (
    builtins,
    cost,
    details,
    document,
    find,
    layouts,
    listing,
    operators_of,
)
from anabranch.samples import sample_of
from tests.frontend.running import call
from tests.library.ops import MODELS, OPS, op

Array = np.ndarray[Any, Any]
PAGE = Path(LIBRARY) / "OPERATORS.md"
UPDATE = "pytest tests/library/test_operators.py --update-golden"


def derived(name: str) -> Derived:
    found = derive(op(name))
    assert found is not None, f"no sizes can be made up for '{name}'"
    return found


# ---- what is shown


LAYOUTS = {
    "mm": ["x S(0), y B -> S(0)", "x B, y S(1) -> S(1)", "x S(1), y S(0) -> P", "x P, y B -> P",
           "x B, y P -> P"],
    "softmax": ["x S(0) -> S(0)", "x S(1) -> S(1)   when m, y are reduced on the way"],
    "cross_entropy": ["x S(0), target S(0) -> P   when y is reduced on the way",
                      "x S(1), target B -> B   when m, lse, y are reduced on the way"],
    "embedding": ["ids S(0), table B -> S(0)", "ids B, table S(1) -> S(1)",
                  "ids B, table S(0) -> P", "ids B, table P -> P",
                  *(f"ids B, table P({k}) -> P({k})" for k in ("max", "min", "prod"))],
    "gelu": ["x S(0) -> S(0)"],
    "zeros": ["-> S(0)"],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_those_of_the_whole_op(name: str) -> None:
    assert sorted(layouts(derived(name))) == sorted(LAYOUTS[name])


COSTS = {
    "mm": ("2*K*M*N", "4*(K*M + K*N + M*N)"),
    "softmax": ("23*I*N", "8*I*(3*N + 2)"),
    "embedding": ("0", "8*I*(D + 1)"),
}


@pytest.mark.parametrize("name", COSTS)
def test_costs_are_formulas_in_the_sizes_of_the_signature(name: str) -> None:
    cost = derived(name).cost
    assert (str(cost.flops), str(cost.bytes)) == COSTS[name]


def test_gradients_are_statements() -> None:
    assert derived("mm").gradient == [
        "d.x[m, k] = sum[n](d.result[m, n] * y[k, n])",
        "d.y[k, n] = sum[m](d.result[m, n] * x[m, k])"]
    assert derived("embedding").gradient == [
        "d.table[i00, d] = sum[i0 if ids[i0] == i00](d.result[i0, d])"]
    assert derived("one_hot").gradient == []


TWICE = """
op twice(a: f32[N], b: f32[N]) -> f32[N]:
    y[n] = a[n] * b[n]
    z[n] = y[n] * a[n]
    return z
"""


def test_the_statement_with_the_name_of_a_gradient_is_the_whole_of_it() -> None:
    """Its parts are numbered; a reader looks for `d.a`."""
    twice = find("twice", loads(TWICE)).function
    assert twice is not None
    found = derive(twice)
    assert found is not None
    assert found.gradient == [
        "d.y[n] = d.result[n] * a[n]", "d.a.1[n] = d.result[n] * y[n]",
        "d.a.2[n] = d.y[n] * b[n]", "d.b[n] = d.y[n] * a[n]",
        "d.a[i0] = d.a.1[i0] + d.a.2[i0]"]


# ---- every op


@pytest.mark.parametrize("name", OPS)
def test_everything_is_derived_of_every_op(name: str) -> None:
    found = derived(name)
    assert layouts(found)
    shown = details(find(name, None))
    for part in (op(name).definition.doc, "layouts on an axis", "cost,", "example"):
        assert part, f"'{name}' says nothing of itself"
        assert part in shown


@pytest.mark.parametrize("name", OPS)
def test_an_example_has_the_value_that_it_shows(name: str) -> None:
    """The text is read back, as a user would."""
    sample = sample_of(op(name))
    assert sample is not None, f"no small numbers can be made up for '{name}'"
    *given, line = str(sample).splitlines()
    arrays = {name: array(value) for name, _, value in (text.partition(" = ") for text in given)}
    expression, _, value = line.rpartition(") = ")
    params = ", ".join(f"{n}: {dtype_of(x)}{list(x.shape)}" for n, x in arrays.items())
    source = loads(f"def example({params}):\n    return {expression})\n")
    found = call(source, "example", **arrays)
    shown = eval(value, {"inf": np.inf, "nan": np.nan})
    for each, expected in zip(
            found if isinstance(found, list) else [found],
            shown if isinstance(found, list) else [shown], strict=True):
        np.testing.assert_allclose(each, expected, rtol=6e-4, atol=1e-7)


def array(text: str) -> Array:
    made = np.array(ast.literal_eval(text))
    return made.astype(np.float32) if made.dtype.kind == "f" else made


def dtype_of(x: Array) -> str:
    return {"f": "f32", "i": "i64", "b": "bool"}[x.dtype.kind]


UNTYPED = {
    "gather": "x: f32[5, 7], ids: i64[5, 7], axis = 1 -> f32[5, 7]",
    "matmul": "x: f32[5, 5], y: f32[5, 5] -> f32[5, 5]",
    "hstack": "tensors0: f32[5, 7], tensors1: f32[5, 7] -> f32[5, 14]",
    "sum": "x: f32[5, 7] -> f32[]",
}


@pytest.mark.parametrize("name", UNTYPED)
def test_kinds_are_made_up_for_what_has_no_type(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = shown(capsys, name)
    assert f"for {UNTYPED[name]}\n" in said
    for part in ("gradient\n  d.", "example\n", "S(0)"):
        assert part in said


def test_schedules_are_no_functions_of_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    assert "layouts" not in shown(capsys, "cosine")


def test_an_example_is_that_of_the_compiled_op() -> None:
    sample = sample_of(op("attention"))
    assert sample is not None
    plan = ab.compile(ab.loads("").attention, **sample.inputs)
    with ab.Session(plan) as session:
        np.testing.assert_allclose(session(**sample.inputs), sample.results[0], rtol=1e-5)


# ---- the command line


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["ops", *arguments]) == 0
    return capsys.readouterr().out


def test_all_are_listed_with_their_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {line.split()[0]: line for line in shown(capsys).splitlines() if line}
    for name in (*OPS, *MODELS):
        meaning = find(name, None).meaning
        assert meaning in lines[name]
        assert meaning


def test_one_is_shown_with_its_definition(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "softmax")
    assert text.startswith("op softmax(x: T[*I, N], axis: int = -1) -> T[*I, N]\n\n  Exponentials ")
    assert "  m[*i]    = max[n](x[*i, n])\n" in text
    assert "layouts" not in shown(capsys, "Linear")


@pytest.mark.parametrize(("name", "complaint"), [
    ("softmx", "did you mean 'softmax'?"), ("Liner", "did you mean 'Linear'?"),
    ("topkk", "did you mean 'topk'?"), ("qqqqq", "anabranch ops lists them all")])
def test_what_there_is_not_is_refused(
    name: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ops", name]) == 1
    assert complaint in capsys.readouterr().err


def test_functions_of_the_language_are_shown_by_what_a_call_of_them_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "sort, argsort, topk" in shown(capsys)
    text = shown(capsys, "exp")
    assert "  16*i*j operations, 8*i*j bytes\n" in text
    assert "  exp(x) = [[1.105, 0.9048], [1.822, 1.105]]\n" in text
    assert "  x S(1) -> P\n" in shown(capsys, "sum")
    assert "x S(0) -> S(0), S(0)\n" in shown(capsys, "sort")
    assert shown(capsys, "where").startswith("def where(condition, yes, no)")


@pytest.mark.parametrize("name", builtins())
def test_every_function_of_the_language_says_what_it_is(name: str) -> None:
    meaning = find(name, None).meaning
    assert meaning.rstrip("`").endswith("."), meaning


DERIVED = """exp sqrt tanh abs where round atan2 sum max min prod mean any all argmax argmin reshape
    transpose concat stack expand flip sort argsort topk einsum"""


@pytest.mark.parametrize("name", DERIVED.split())
def test_everything_is_derived_of_functions_of_the_language(name: str) -> None:
    found = details(find(name, None))
    assert "layouts on an axis of the mesh" in found
    assert " operations, " in found
    assert "\nexample\n" in found


OWN = """
op halves(x: T[*I, N], parts: int = 2) -> T[*I, N]:
    "x over a number."
    y[*i, n] = x[*i, n] / parts
    return y

op softmax(x: T[N]) -> T[N]:
    y[n] = x[n]   # another one
    return y
"""


def test_the_ops_of_a_file_are_shown_as_those_of_the_library_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.ab"
    path.write_text(OWN)
    assert shown(capsys, "--file", str(path)) == "own\n  halves   x over a number.\n  softmax\n"
    text = shown(capsys, "halves", "--file", str(path))
    assert "  d.x[i0, n] = d.result[i0, n] / 2.0\n" in text
    assert "  halves(x) = [[0.05, -0.05], [0.3, 0.05]]\n" in text
    assert "y[n] = x[n]   # another one" in shown(capsys, "softmax", "--file", str(path))
    assert "Rows of a table" in shown(capsys, "embedding", "--file", str(path))


RECURRENCE = """
op decay(x: T[B, S, D], a: T[D]) -> T[B, S, D]:
    "What is left of what came before."
    h[b, t, d] = a[d] * h[b, t - 1, d, pad=0] + x[b, t, d]
    return h
"""


def test_a_broken_op_keeps_no_other_from_being_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.ab"
    file.write_text("op good(x: f32[N]) -> f32[N]:\n    y[n] = 2 * x[n]\n    return y\n\n"
                    "op bad(x: f32[N]) -> f32[N]:\n    y[n] = z[n]\n    return y\n")
    for name in ("good", "relu"):
        assert main(["ops", name, "--file", str(file)]) == 0
        assert "operations" in capsys.readouterr().out
    for name in ("bad", "goood"):
        assert main(["ops", name, "--file", str(file)]) == 1
        assert "own.ab:6:12: error: 'z' is" in capsys.readouterr().err
    assert main(["ops", "--file", str(file)]) == 1
    said = capsys.readouterr()
    assert "good" in said.out
    assert "own.ab:6:12" in said.err


@pytest.mark.parametrize("number", [5, 7, 11, 13])
def test_a_number_in_an_op_is_taken_for_no_size(number: int) -> None:
    text = (f"op h(x: f32[A, C], n: int = {number}) -> f32[A, n]:\n"
            "    y[a, k < n] = sum[c](x[a, c] * k)\n    return y\n")
    (operator,) = operators_of(loads(text))
    found = derive(operator.function)
    assert cost(found) == "2*A*C*k operations, 4*A*(C + k) bytes"


def test_a_recurrence_is_shown_as_its_statements() -> None:
    """Its index is never split, and its gradient runs the other way."""
    found = derive(loads(RECURRENCE).scope.find("decay"))
    assert layouts(found) == ["x S(0), a B -> S(0)", "x S(2), a S(0) -> S(2)"]
    assert str(found.cost.flops) == "2*B*D*S"
    text = details(find("decay", loads(RECURRENCE)))
    assert "h[b, t + 1, d" in text.split("gradient")[1]
    assert "\n  d.x = d.h\n" in text
    assert "decay(x, a) = " in text


def test_an_op_for_which_no_sizes_can_be_made_up_is_shown_as_it_is() -> None:
    program = loads("op f(x: T[N]) -> T[N]:\n    assert N == 12345, \"odd\"\n"
                    "    y[n] = x[n]\n    return y\n")
    assert details(find("f", program)) == (
        'op f(x: T[N]) -> T[N]\n\n  assert N == 12345, "odd"\n  y[n] = x[n]\n  return y')
    assert listing(operators_of(program)) == "<program>\n  f"


# ---- the page


def test_the_page_of_operators_is_that_of_the_library(request: pytest.FixtureRequest) -> None:
    made = document()
    if request.config.getoption("--update-golden"):
        PAGE.write_text(made, encoding="utf-8")
    written = PAGE.read_text(encoding="utf-8")
    changes = list(difflib.unified_diff(
        written.splitlines(), made.splitlines(), "OPERATORS.md", "the library", lineterm=""))
    assert not changes, "\n".join([*changes[:40], f"({UPDATE} writes it anew)"])
