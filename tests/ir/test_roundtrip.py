"""What prints parses back: as a property of random modules, and line by line."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from anabranch.ir.core import Function, Module
from anabranch.ir.diagnostics import Loc, UserError
from anabranch.ir.equal import difference, same
from anabranch.ir.expr import Call, Const, Expr, Read, Var
from anabranch.ir.ops import Compute, Return
from anabranch.ir.parser import parse_module
from anabranch.ir.printer import print_expr, print_function, print_module, print_op
from anabranch.ir.rewrite import clone_module
from anabranch.ir.scalar import PRIMITIVES
from anabranch.ir.types import tensor
from anabranch.ir.verifier import verify
from tests.measuring import cpu_seconds
from tests.strategies import COMPARISONS, OF_FLOATS, PHASES, modules, primitives_of, statements

quick = settings(max_examples=40, suppress_health_check=list(HealthCheck))
any_module = st.sampled_from(PHASES).flatmap(modules)


@pytest.mark.parametrize("phase", PHASES)
def test_every_module_of_a_phase_verifies_and_parses_back_to_itself(phase: str) -> None:
    @quick
    @given(modules(phase))
    def check(module: Module) -> None:
        text = print_module(module)
        note(text)
        verify(module)
        again = parse_module(text)
        assert difference(again, module) == ""
        assert print_module(again) == text

    check()


@quick
@given(any_module)
def test_a_clone_is_the_same_and_shares_no_value(module: Module) -> None:
    clone = clone_module(module)
    assert difference(clone, module) == ""
    assert not {v for f in clone.functions.values() for v in f.body.args} & {
        v for f in module.functions.values() for v in f.body.args}
    verify(clone)
    verify(module)


BASE = """\
module phase=global mesh={data: 2}

func @f(
  %x: f32[8],  // gpt.ab:1:2-1:3
  state %w: f32[8] pin {data: S(0)} stage 1,
) {
  %y: f32[8] = [i] exp(%x[i]) {stage=1}  // gpt.ab:3:4 blocks.0
  %z: f32[8] = fused(%a = %y, %b = %w) {
    %c: f32[8] = [i] sum[k < 8 if k < i](%a[i] + %b[k])
    return %c
  }
  %p: f32[8] = pin(%z, {data: B})
  return %p, %z; state "w": %w
}
"""
CHANGES = [
    ("phase=global", "phase=local"), ("data: 2", "data: 3"), ("@f(", "@g("),
    ("gpt.ab:1:2", "gpt.ab:1:1"), ("state %w", "%w"), ("pin {data: S(0)}", "pin {data: B}"),
    ("stage 1", "stage 2"), ("exp(", "log("), ("stage=1", "stage=2"), ("stage=1", "recompute=1"),
    ("gpt.ab:3:4", "gpt.ab:3:5"), ("blocks.0", "blocks.1"), ("k < i", "k <= i"),
    ("sum[", "max["), ("%c: f32[8] = [i]", "%c: f32[8] = [n]"), ("return %c", "return %a"),
    ("%p, %z;", "%z, %p;"), ('; state "w": %w', ""), ("{data: B})", "{model: B})"),
    ("  %p: f32[8] = pin(%z, {data: B})\n  return %p,", "  return %z,"),
]


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_modules_that_differ_anywhere_are_not_the_same(old: str, new: str) -> None:
    assert BASE.count(old)
    changed = parse_module(BASE.replace(old, new, 1))
    assert not same(parse_module(BASE), changed)
    assert difference(parse_module(BASE), changed)


def test_names_of_values_do_not_matter_but_those_of_states_do() -> None:
    assert same(parse_module(BASE), parse_module(BASE.replace("%y", "%other")))
    renamed = BASE.replace("%w", "%v").replace('"w"', '"v"')
    assert not same(parse_module(BASE), parse_module(renamed))


@quick
@given(statements())
def test_without_locations_only_locations_are_missing(function: Function) -> None:
    short = print_function(function, locations=False).splitlines()
    plain = [line.partition("  // ")[0] for line in print_function(function).splitlines()]
    body = slice(-1 - len(list(function.body)), None)
    assert plain[body] == short[body]
    assert not any("  //" in line for line in short)


def test_the_strategies_use_every_primitive() -> None:
    drawn = {name for dtype in ("bool", "i64", "f32") for name in primitives_of(dtype)}
    assert drawn | {*COMPARISONS, *OF_FLOATS, "where", "check"} == set(PRIMITIVES)


# Line by line

HEADER = "module phase=global\n\nfunc @f(%x: f32[8, 8], %ids: i64[8], %b: bool[8]) {\n"


def parse_body(line: str, type: str = "f32[8]") -> Compute:
    module = parse_module(f"{HEADER}  %y: {type} = {line}\n  return %y\n}}\n")
    op = module.functions["f"].body.first
    assert isinstance(op, Compute)
    return op


@pytest.mark.parametrize(
    ("type", "line"),
    [
        ("f32[8]", "[i] %x[i, i] + 1.0 - (2.0 - %x[i, 0])"),
        ("f32[8]", "[i] %x[i, 0] / %x[i, 1] / (%x[i, 2] / %x[i, 3])"),
        ("f32[8]", "[i] -%x[i, 0] ** 2.0"),
        ("f32[8]", "[i] (-%x[i, 0]) ** -2.0"),
        ("f32[8]", "[i] 2.0 ** %x[i, 0] ** 3.0"),
        ("f32[8]", "[i] (2.0 ** %x[i, 0]) ** 3.0"),
        ("f32[8]", "[i] -2.0 ** %x[i, 0]"),
        ("f32[8]", "[i] (-2.0) ** %x[i, 0]"),
        ("f32[8]", "[i] -(1.0) * -(-1.0) + nan - -inf"),
        ("f32[8]", "[i] -(%x[i, 0] * %x[i, 1]) * -%x[i, 2]"),
        ("f32[8]", "[i] -(%x[i, 0] + 1.0)"),
        ("i64[8]", "[i] i // 3 % 2 - i % (3 * i)"),
        ("bool[8]", "[i] not %b[i] == true or i < 3 and not (i >= 2 or %b[i])"),
        ("bool[8]", "[i] (i < 3) == (i != 2)"),
        ("bool[8]", "[i] (not %b[i]) == %b[i]"),
        ("bool[8]", "[i] (%b[i] or i < 3) and %b[i]"),
        ("f32[8]", "[i] where(i < 3, %x[i, i - 1, pad=0.0], exp(f32(i)))"),
        ("f32[8]", "[i] %x[check(%ids[i], 8), 7 - i]"),
        ("f32[8]", "[i] rand(3, %ids[0], %ids[1], i) + randn(0, 1, 2, i * 8 + 3)"),
        ("i64[8]", "[i] i + origin(-4, 2) - origin(3)"),
        ("f64[8]", "[i] 0.5:f64 + inf:f64 - f64(3:i32 + -1:i32)"),
        ("bf16[8]", "[i] 1e-05:bf16"),
        ("f32[8]", "[i] sum[k < 8, n < 2 if k <= i](%x[i, k] * f32(n))"),
        ("i64[8]", "[i] argmax[k < 8](%x[i, k])"),
        ("f32[8]", "[(g < 2, c < 4)] %x[g * 4 + c, 0]"),
        ("f32[1, 8, 1]", "[(), i, ()] max(%x[i, 0], %x[0, i])"),
        ("f32[]", "[] 1.0"),
        ("f32[0]", "[i] 1.0"),
        ("f32[8]", "[i] %x[i, 0] {operands=(%x, %ids)}"),
        ("f32[8]", "[i] %x[i, 0] + #1[i, 0] {operands=(%x, %x)}"),
        ("f32[8]", "[i] 1.0 {operands=(%b), stage=1, recompute=2}  // gpt.ab:3:4 blocks.0 softmax"),
        ("i64[8]", "[sum] sum + pad.x  // :1:2"),
    ],
)
def test_a_line_prints_as_it_was_written(type: str, line: str) -> None:
    assert print_op(parse_body(line, type)) == f"%y: {type} = {line}"


X, Y, Z = (Read(n, (Var("i"),)) for n in range(3))


def text(fn: str, *args: Expr) -> str:
    return print_expr(Call(fn, args), ("%x", "%y", "%z"))


def test_trees_that_differ_print_differently() -> None:
    assert text("sub", X, Call("sub", (Y, Z))) == "%x[i] - (%y[i] - %z[i])"
    assert text("sub", Call("sub", (X, Y)), Z) == "%x[i] - %y[i] - %z[i]"
    assert text("neg", Const(1.0, "f32")) == "-(1.0)"
    assert print_expr(Const(-1.0, "f32"), ()) == "-1.0"
    assert text("not", Call("eq", (X, Y))) == "not %x[i] == %y[i]"
    assert text("eq", Call("not", (X,)), Y) == "(not %x[i]) == %y[i]"


def test_names_are_unique_and_those_of_states_are_kept() -> None:
    function = Function("f")
    first = function.add_argument("w", tensor("f32", ()))
    function.add_argument("w", tensor("f32", ()), role="state")
    function.add_argument("a b", tensor("f32", ()))
    function.add_argument("", tensor("f32", ()))
    function.body.append(Return([first]))
    assert print_function(function) == (
        "func @f(%w.1: f32[], state %w: f32[], %a_b: f32[], %0: f32[]) {\n  return %w.1\n}\n")


def test_a_header_may_be_written_on_one_line_and_comments_are_skipped() -> None:
    module = parse_module("""\
// what passes were run
module phase=global

// a function
func @f(%x: f32[2], state %w: f32[2] pin {data: S(0)} stage 1, step %step: i64[]) {

  // a comment
  %y: f32[2] = [i] %x[i]  // the origin is unknown
  return %y; state "w": %w
}
""")
    function = module.functions["f"]
    assert [a.role for a in function.arguments] == ["input", "state", "step"]
    assert str(function.arguments[1].pin) == "{data: S(0)}"
    assert function.arguments[1].stage == 1
    assert function.body.first is not None
    assert function.body.first.loc == Loc()


# Mistakes

STATEMENTS = [
    ("[i] %x[i, j", "expected ',', found the end of the line"),
    ("[i] %x[i, 0] +", "expected an expression, found the end of the line"),
    ("[i] %x[i, 0] %ids[i]", "expected an operator or the end of the line, found '%ids'"),
    ("[i] %z[i]", "%z is not defined"),
    ("[i] #1[i]", "#1 is not defined"),
    ("[i] %ids[i] {operands=(%x)}", "%ids is not among the operands"),
    ("[i] 1.0 {operands=(%z)}", "%z is not defined"),
    ("[i] sofmax(1.0)", "there is no primitive 'sofmax'"),
    ("[i] exp(1.0, 2.0)", "'exp' takes 1 arguments, found 2"),
    ("[i] f32(1.0, 2.0)", "'f32' takes 1 arguments, found 2"),
    ("[i] rand(1.0, 1, 2, 3)", "expected an integer, found '1.0'"),
    ("[i] rand(1, 2, 3)", "'rand' takes 3 arguments, found 2"),
    ("[i] origin(i)", "expected an integer, found 'i'"),
    ("[i] 1 < 2 < 3", "comparisons do not chain"),
    ("[i] 1:f31", "'1:f31' is not a literal: 'f31' is not a dtype"),
    ("[i] 1.5:i32", "'1.5:i32' is not a literal: 'i32' takes no such number"),
    ("[i] if", "expected an expression, found 'if'"),
    ("[i] sum[1 < 3](1.0)", "expected a variable, found '1'"),
    ("[i] sum[k < n](1.0)", "expected an integer, found 'n'"),
    ("[i] sum[k < 3 if k](1.0", "expected ')', found the end of the line"),
    ("[i, j] 1.0", "there are 2 dimensions here, and 1 in the type"),
    ("[(g < 2, c < 3)] 1.0", "the right side gives f32[6]"),
    ("[(g, c)] 1.0", "expected a merged dimension such as (g < 3, c < 4)"),
    ("[i] sum[i < 3](1.0)", "a variable is bound twice"),
    ("[i;] 1.0", "expected dimensions such as [i, (g < 3, c < 4), ()]"),
    ("[i] 1.0 {stage=}", "expected attributes such as {stage=1}"),
    ("[i] 1.0 {stage=x}", "expected a number, found 'x'"),
    ("[i] 1.0 {step=3}", "'compute' has no attribute 'step'"),
    ("bocks(%x)", "expected '[' and a right side, or an op kind, found 'bocks'"),
    ("box(%x)", "the result of a box needs a layout, such as f32[4] @ {data: B}"),
    ("pin(%x)", "expected a pin such as pin(%x, {model: S(0)})"),
    ("pin(%x, {model: S})", "expected a layout such as {data: S(0), model: B} or P(max)"),
    ("pin(%x, {model: P(any)})", "expected a layout such as {data: S(0), model: B} or P(max)"),
    ("pin(%x, {model: B})", "the right side gives f32[8, 8]"),
    ("gradient()", "expected gradient(%of, %by, ...)"),
    ("gradient(%x, %ids)", "the right side gives i64[8]"),
    ("transfer %x", "expected operands in parentheses, such as (%x, %y)"),
    ("transfer(%x) {ranks=0}", "expected a list such as [0, 1]"),
    ("transfer(%x) {", "'transfer' has no region"),
    ("fused(%a = %x)", "expected a region such as fused(%inside = %outside) {"),
    ("return %x", "'return' has 0 results"),
]


@pytest.mark.parametrize(("line", "message"), STATEMENTS)
def test_a_mistake_in_a_statement_is_shown_with_a_caret(line: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_body(line)
    first, source, caret, *_ = str(caught.value).splitlines()
    assert first.startswith("<ir>:4:")
    assert first.endswith(f"error: {message}")
    assert source.strip().startswith("%y: f32[8] = ")
    assert set(caret.strip()) <= {"^", "~"}
    assert caret.strip()


MODULES = [
    ("", "expected 'module phase=...'"),
    ("module\n", "expected 'module phase=...'"),
    ("module phase=sbp mesh={data}\n", "expected a mesh such as {data: 2, model: 4}"),
    ("module phase=global\nfunction @f()", "expected 'func @name('"),
    ("module phase=global\nfunc @f(", "expected ') {' before the end of the text"),
    ("module phase=global\nfunc @f(%x: f32[8]) {\n", "expected '}' before the end of the text"),
    ("module phase=global\nfunc @f(x: f32[8]) {\n",
     "expected a parameter such as 'state %w: f32[4]'"),
    ("module phase=global\nfunc @f(%x: f31[8]) {\n", "expected a type such as f32[8, 4]"),
    (HEADER + "  %x: f32[] = [] 1.0\n", "%x is defined twice"),
    (HEADER + "  %y f32[] = [] 1.0\n", "expected a result such as '%y: f32[4] = '"),
    (HEADER + "  %y: f32[], %z: f32[] = [] 1.0\n", "expected one result, found 2"),
    (HEADER + "  return %z\n", "%z is not defined"),
    (HEADER + "  return %x; state w: %x\n", "expected a return such as return %x; state"),
    (HEADER + "  %y: f32[8, 8] = fused(%a = %x) {\n    }\n",
     "the region does not end in 'return'"),
    (HEADER + "  %y: f32[8] = fused(%a = %x) {\n    return %a\n  }\n",
     "the right side gives f32[8, 8]"),
]


@pytest.mark.parametrize(("text", "message"), MODULES)
def test_a_mistake_in_the_frame_is_reported_where_it_is(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_module(text)
    assert f"error: {message}" in str(caught.value)


def test_an_error_looks_like_this() -> None:
    with pytest.raises(UserError) as caught:
        parse_module(HEADER + "  %y: f32[8] = [i] exp(%xx[i, 0])\n  return %y\n}\n", "demo.ir")
    assert str(caught.value) == """\
demo.ir:4:24: error: %xx is not defined
      %y: f32[8] = [i] exp(%xx[i, 0])
                           ^~~
help: did you mean '%x'?"""


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(any_module, st.data())
def test_text_with_a_slip_of_the_pen_is_read_or_refused_but_never_crashes(
    module: Module, data: st.DataObject
) -> None:
    text = print_module(module)
    at = data.draw(st.integers(0, len(text) - 1))
    gone = data.draw(st.integers(0, 3))
    put = data.draw(st.sampled_from(("", "", " ", "0", "(", ")", "[", "]", "{", "}", "%", ",", "=",
                                     "-", "x", ":", '"', "\n", "  // ", "#9", "é")))
    slip = text[:at] + put + text[at + gone :]
    note(slip)
    with contextlib.suppress(UserError):
        assert isinstance(parse_module(slip), Module)


# Speed


def long_module(count: int) -> Module:
    """Alternating products and reductions, as many as asked for."""
    lines = [HEADER[:-1]]
    last = "%x"
    for n in range(count // 2):
        at = f"  // gpt.ab:{n}:5 blocks.{n % 9} softmax"
        lines.append(f"  %m{n}: f32[8, 8] = [i, j] sum[k < 8 if k <= i]({last}[i, k] * "
                     f"%x[k, j] + where(k < 3, 1.0, %x[i, j])){at}")
        lines.append(f"  %h{n}: f32[8, 8] = [i, j] 0.5 * %m{n}[i, j] * (1.0 + tanh(0.79 * "
                     f"(%x[i, j] + 0.044 * {last}[i, j] ** 3.0))){at}")
        last = f"%h{n}"
    return parse_module("\n".join([*lines, f"  return {last}", "}", ""]))


def test_ten_thousand_ops_print_parse_and_verify_in_no_time() -> None:
    """Budgets for 10 000 computes, of which a fifth is tried; the best of three counts."""
    module = long_module(2000)
    shown = print_module(module)
    budgets = {print_module: 0.3, verify: 0.3}
    for work, budget in budgets.items():
        assert min(cpu_seconds(lambda work=work: work(module)) for _ in range(3)) < budget / 5
    assert min(cpu_seconds(lambda: parse_module(shown)) for _ in range(3)) < 1.5 / 5
