"""Each rule of the verifier refuses what breaks it, and says which op and where it came from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.ir.core import Function, Module, Op
from anabranch.ir.diagnostics import CompilerBug, Loc
from anabranch.ir.expr import Call, Cast, Const, Expr, Rand, Read, Var, integer
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute, Fused, Return
from anabranch.ir.parser import parse_module
from anabranch.ir.types import TensorType, tensor
from anabranch.ir.verifier import verify

GLOBAL = """\
module phase=global

func @f(%x: f32[8, 4], %ids: i64[8], %b: bool[8], state %w: f32[4], step %step: i64[]) {
BODY
}
"""
PLANNED = """\
module phase=PHASE mesh={micro: 2, data: 2, stage: 2, model: 2}

func @f(
  %x: f32[8, 4] @ {micro: S(0), data: S(0), model: S(1)},
  %p: f32[8, 4] @ {micro: B, data: B, model: P(max)},
  %late: f32[8, 4] @ {micro: B, data: B, model: B} stage 1,
  state %w: f32[4] @ {micro: B, data: B, model: S(0)} pin {model: S(0)},
  step %step: i64[] @ {micro: B, data: B, model: B},
) {
BODY
}
"""
LOCAL = """\
module phase=PHASE mesh={micro: 3, data: 2}

func @f(%x: f32[8], %y: f32[16], %i: i64[8]) {
BODY
}
"""


def found_in(text: str) -> str:
    """What the verifier says, the finding without the text of the op."""
    with pytest.raises(CompilerBug) as caught:
        verify(parse_module(text))
    return caught.value.message.splitlines()[0]


def body(frame: str, lines: str, phase: str = "") -> str:
    """A module with these lines for a body; `return` is added where there is none."""
    rows = [f"  {line}" for line in lines.split("\n")]
    if not rows[-1].startswith("  return"):
        rows.append("  return")
    return frame.replace("BODY", "\n".join(rows)).replace("PHASE", phase)


COMPUTES = [
    ("%y: f32[8] = [i] f32(k)", "variable 'k' is not bound"),
    ("%y: f32[8] = [if] 1.0", "'if' cannot name a variable"),
    ("%y: f32[8] = [i] argmax[k < 3, n < 2](f32(k))", "'argmax' over 2 variables"),
    ("%y: i64[] = [] argmax[k < 3, n < 2](k)", "'argmax' over 2 variables"),
    ("%y: f32[8] = [i] %x[i]", "1 subscripts for f32[8, 4]"),
    ("%y: f32[8] = [i] %x[i, 0, 0]", "3 subscripts for f32[8, 4]"),
    ("%y: f32[8] = [i] %x[i, 1.0]", "a subscript is f32, not an integer"),
    ("%y: f32[8] = [i] %x[i, 0, pad=1]", "the pad of a read of f32[8, 4] is i64"),
    ("%y: f32[8] = [i] %x[0, i]", "subscript i leaves [0, 4)"),
    ("%y: f32[8] = [i] %x[i - 1, 0]", "subscript i - 1 leaves [0, 8)"),
    ("%y: f32[8] = [(g < 2, c < 4)] %x[g * 5 + c, 0]", "subscript g * 5 + c leaves [0, 8)"),
    ("%y: f32[8] = [i] %x[i, 0] + 1.0:f64", "the arguments of 'add' are f32 and f64"),
    ("%y: f32[8] = [i] %x[i, 0] * i", "the arguments of 'mul' are f32 and i64"),
    ("%y: f32[8] = [i] where(i, 1.0, 2.0)", "the condition of 'where' is i64"),
    ("%y: f32[8] = [i] where(i < 3, 1.0, 2)", "the branches of 'where' are f32 and i64"),
    ("%y: i64[8] = [i] exp(i)", "'exp' does not take i64"),
    ("%y: i64[8] = [i] i / 2", "'div' does not take i64"),
    ("%y: bool[8] = [i] i and true", "the arguments of 'and' are i64 and bool"),
    ("%y: bool[8] = [i] not i", "'not' does not take i64"),
    ("%y: bool[8] = [i] %b[i] + true", "'add' does not take bool"),
    ("%y: f32[8] = [i] check(1.0, 2.0)", "'check' does not take f32"),
    ("%y: bool[8] = [i] isnan(i)", "'isnan' does not take i64"),
    ("%y: u8[8] = [i] 256:u8", "256 is no value of u8"),
    ("%y: f32[8] = [i] rand(0, 1.0, 2, 3)", "seed, step and counter of a random draw are i64"),
    ("%y: i64[8] = [i] origin(3)", "an origin stands in a program for all ranks"),
    ("%y: f32[8] = [i] i", "the body gives i64 from i64"),
    ("%y: f32[8] = [i] sum[k < 3](k)", "sum gives i64 from i64"),
    ("%y: bool[8] = [i] sum[k < 3](%b[i])", "sum gives i64 from bool"),
    ("%y: f64[8] = [i] max[k < 3](f32(k))", "max gives f32 from f32"),
    ("%y: bool[8] = [i] any[k < 3](k)", "any gives nothing from i64"),
    ("%y: f32[8] = [i] argmin[k < 3](k)", "argmin gives i64 from i64"),
    ("%y: f32[8] = [i] sum[k < 3 if k](1.0)", "the guard is i64"),
    ("%y: f32[8] = [i] sum[k < 8 if %x[k, k] < 0.0](1.0)", "subscript k leaves [0, 4)"),
]
OTHERS = [
    ("%y: f32[8, 4] = pin(%x, {data: S(2)})", "splits dimension 2, and has 2: {data: S(2)}"),
    ("%y: f32[8, 4] = pin(%x, {data: B, data: B})",
     "names an axis twice: {data: B, data: B}"),
    ("%y: f32[8, 4] = pin(%x, {data: P, model: P(max)})",
     "mixes kinds of partial: {data: P, model: P(max)}"),
    ("%y: f32[4] = gradient(%x, %w)", "a gradient is that of a float scalar by floats"),
    ("%l: f32[] = [] 1.0\n%y: i64[8] = gradient(%l, %ids)",
     "a gradient is that of a float scalar by floats"),
    ("%y: f32[8] = [i] 1.0 {operands=(%x), recompute=1}\nreturn %y; state \"v\": %w",
     "there is no state 'v'"),
    ("return %x; state \"w\": %x", "state 'w' is f32[4], its next value f32[8, 4]"),
    ("return %x; state \"w\": %w, \"w\": %w", "states ('w', 'w')"),
    ("return %x\n%y: f32[] = [] 1.0\nreturn", "'return' is not the last op"),
    ("%y: f32[4] @ {data: B} = [i] 1.0", "result %y: f32[4] @ {data: B} has a layout: "
     "f32[4] @ {data: B}"),
]
ILLEGAL = [
    (GLOBAL, "global", "%y: f32[8, 4] @ {data: B} = box(%x)"),
    (GLOBAL, "global", "%y: f32[8, 4] = transfer(%x) {step=all_reduce}"),
    (GLOBAL, "global", "%y: f32[8, 4] = fused(%a = %x) {\n  return %a\n}"),
    (PLANNED, "sbp", "%y: f32[8, 4] @ {micro: S(0), data: S(0), model: S(1)} = pin(%x, {data: B})"),
    (PLANNED, "boxed", "%y: f32[4] @ {micro: B, data: B, model: S(0)} = gradient(%x, %w)"),
    (LOCAL, "local", "%z: f32[8] = pin(%x, {data: B})"),
    (LOCAL, "local", "%z: f32[8] = fused(%a = %x) {\n  return %a\n}"),
    (LOCAL, "fused", "%z: f32[8] = gradient(%x, %x)"),
]


@pytest.mark.parametrize(("lines", "message"), [*COMPUTES, *OTHERS])
def test_a_broken_rule_of_a_global_program_is_named(lines: str, message: str) -> None:
    assert found_in(body(GLOBAL, lines)).endswith(f"in @f (phase global): {message}")


@pytest.mark.parametrize(("frame", "phase", "lines"), ILLEGAL)
def test_an_op_kind_stands_in_its_phases_only(frame: str, phase: str, lines: str) -> None:
    assert "may not stand here" in found_in(body(frame, lines, phase))


B3 = "{micro: B, data: B, model: B}"
IN_SBP = [
    ("%y: f32[] = [] 1.0", "has no layout: f32[]"),
    ("%y: f32[] @ {data: B, micro: B, model: B} = [] 1.0", "does not name the axes of the mesh"),
    ("%y: f32[] @ {micro: B, data: B} = [] 1.0", "does not name the axes of the mesh in order"),
    ("%y: f32[3] @ {micro: S(1), data: B, model: B} = [i] 1.0", "splits dimension 1, and has 1"),
    ("%y: f32[3] @ {micro: P, data: P(min), model: B} = [i] 1.0", "mixes kinds of partial"),
    (f"%y: f32[8] @ {B3} = [i] %x[i, 0] {{stage=1}}", "lives on stage 0, the op on 1"),
    (f"%y: f32[8] @ {B3} = [i] %late[i, 0]", "lives on stage 1, the op on 0"),
    (f"%y: f32[8] @ {B3} = [i] 1.0 {{stage=2}}", "there is no stage 2"),
    (f"%y: f32[4] @ {B3} = [i] %w[i]\nreturn %x; state \"w\": %y", "state 'w' is f32[4] @"),
]


@pytest.mark.parametrize(("lines", "message"), IN_SBP)
def test_a_broken_rule_of_a_planned_program_is_named(lines: str, message: str) -> None:
    for phase in ("sbp", "boxed"):
        assert message in found_in(body(PLANNED, lines, phase))


def box(source: str, target: str, attributes: str) -> str:
    return f"%y: f32[8, 4] @ {target} = box({source}) {{{attributes}}}"


STEPS = [
    ("%x", "{micro: S(0), data: S(0), model: B}", "step=all_gather, axis=model", ""),
    ("%x", "{micro: S(0), data: B, model: S(1)}", "step=all_gather, axis=data", ""),
    ("%x", "{micro: S(0), data: S(0), model: P}", "step=fill, axis=model", ""),
    ("%p", B3, "step=all_reduce, axis=model", ""),
    ("%p", "{micro: B, data: B, model: S(1)}", "step=reduce_scatter, axis=model", ""),
    ("%p", "{micro: B, data: S(0), model: P(max)}", "step=slice, axis=data", ""),
    ("%p", "{micro: B, data: P(max), model: P(max)}", "step=fill, axis=data", ""),
    ("%x", "{micro: S(0), data: S(0), model: S(0)}", "step=all_to_all, axis=model", ""),
    ("%late", B3, "step=move", ""),
    ("%p", B3, "step=all_gather, axis=model", "does not lead from"),
    ("%p", "{micro: B, data: S(0), model: B}", "step=all_reduce, axis=model", "does not lead"),
    ("%p", B3, "axis=model", "there is no step '' along 'model'"),
    ("%p", B3, "step=all_reduce, axis=expert", "there is no step 'all_reduce' along 'expert'"),
    ("%p", B3, "step=all_reduce, axis=model, stage=1", "only a move goes to another stage"),
    ("%p", B3, "step=move, stage=1", "a move goes to another stage and changes nothing"),
    ("%late", B3, "step=move, stage=1", "a move goes to another stage and changes nothing"),
    ("%x", "{micro: B, data: S(0), model: S(1)}", "step=all_gather, axis=micro",
     "axis 'data' cuts inside what 'micro' cuts"),
    ("%x", "{micro: S(1), data: S(0), model: S(1)}", "step=all_to_all, axis=micro",
     "cuts inside what 'micro' cuts"),
]


@pytest.mark.parametrize(("source", "target", "attributes", "message"), STEPS)
def test_a_boxed_program_takes_one_step_along_one_axis_at_a_time(
    source: str, target: str, attributes: str, message: str
) -> None:
    text = body(PLANNED, box(source, target, attributes), "boxed")
    if message:
        assert message in found_in(text)
    else:
        verify(parse_module(text))
    verify(parse_module(text.replace("phase=boxed", "phase=sbp")))


def test_a_pinned_argument_has_its_layout() -> None:
    text = body(PLANNED, "return", "sbp").replace("pin {model: S(0)}", "pin {model: B}")
    assert "is pinned to {model: B}" in found_in(text)
    verify(parse_module(text.replace("pin {model: B}", "pin {model: S(0), expert: S(0)}")))


IN_LOCAL = [
    ("%z: f32[8] = [i] %x[i + origin(1)]", "subscript i + origin(1) leaves [0, 8)"),
    ("%z: f32[2] = [i] %x[i + origin(0, 4)]", "subscript i + origin(0, 4) leaves [0, 8)"),
    ("%z: f32[8] = transfer(%x) {step=gather, ranks=[0, 1]}",
     "'gather' with 1 operands and 1 results"),
    ("transfer(%x, %y) {step=send, ranks=[0, 1]}", "'send' with 2 operands and 0 results"),
    ("%z: i64[16] = transfer(%x) {step=all_gather, ranks=[0, 1]}", "a transfer changes no dtype"),
    ("%z: f32[16] = transfer(%x) {step=all_reduce, ranks=[0, 1], reduce=sum}",
     "'all_reduce' changes no type"),
    ("%z: f32[16] = transfer(%x) {step=all_gather, ranks=[0, 0]}", "ranks (0, 0) of a mesh of 2"),
    ("%z: f32[16] = transfer(%x) {step=all_gather, ranks=[0, 2]}", "ranks (0, 2) of a mesh of 2"),
    ("%z: f32[16] = transfer(%x) {step=all_gather, ranks=[0, 1], counts=[8]}", "counts"),
    ("%z: f32[16] = transfer(%x) {step=all_gather, ranks=[0, 1], reduce=sum}",
     "'all_gather' with reduction 'sum'"),
    ("%z: f32[8] = transfer(%x) {step=all_reduce, ranks=[0, 1]}",
     "'all_reduce' with reduction ''"),
]


@pytest.mark.parametrize(("lines", "message"), IN_LOCAL)
def test_a_broken_rule_of_a_rank_s_program_is_named(lines: str, message: str) -> None:
    for phase in ("local", "fused"):
        assert message in found_in(body(LOCAL, lines, phase))


REGIONS = [
    ("%q: f32[8] = [i] %x[i] + %a[i]\n  return %q", "is not defined before its use"),
    ("%q: f32[8] = transfer(%a) {step=all_reduce, ranks=[0], reduce=sum}\n  return %q",
     "'transfer' may not stand here"),
    ("%q: f32[8] = [i] %a[i]\n  return %q; state \"w\": %q", "a region updates no state"),
]


@pytest.mark.parametrize(("lines", "message"), REGIONS)
def test_a_region_is_closed_and_holds_computes_only(lines: str, message: str) -> None:
    results = "%z: f32[8], %v: f32[8]" if "state" in lines else "%z: f32[8]"
    text = body(LOCAL, f"{results} = fused(%a = %x) {{\n  {lines}\n}}", "fused")
    assert message in found_in(text)


def test_values_of_a_region_are_out_of_sight_outside() -> None:
    text = body(LOCAL, "%z: f32[8] = fused(%a = %x) {\n  return %a\n}\nreturn %a", "fused")
    assert "%a: f32[8] lists 2 users, 1 of them in its block" in found_in(text)


def test_reads_that_are_not_evaluated_may_point_anywhere() -> None:
    verify(parse_module(body(GLOBAL, (
        "%y: f32[8] = [i] where(i < 4, %x[0, i], 0.0)\n"
        "%z: f32[] = [] sum[i < 8 if i < 4](%x[0, i])\n"
        "%u: f32[8] = [i] %x[i, i, pad=0.0]\n"
        "%v: f32[0] = [i] %x[i + 9, 0]\n"
        "%q: f32[8] = [i] %x[%ids[i], 0]"))))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("phase=global", "phase=late", "there is no phase 'late'"),
        ("phase=global", "phase=sbp", "a module of phase 'sbp' has a mesh"),
        ("step %step: i64[]", "step %step: i32[]", "a step or seed is i64[]"),
        ("step %step: i64[]", "seed %step: i64[1]", "a step or seed is i64[]"),
        ("state %w: f32[4]", "state %w: f32[4] pin {data: S(1)}", "splits dimension 1"),
        ("%x: f32[8, 4]", "%x: f32[8, 4] @ {data: B}", "has a layout"),
    ],
)
def test_what_a_header_says_must_be_possible(old: str, new: str, message: str) -> None:
    assert message in found_in(body(GLOBAL, "return").replace(old, new))


# What no text can say


def tiny() -> tuple[Module, Function]:
    text = body(GLOBAL, "%y: f32[4] = [i] exp(%w[i])  // gpt.ab:3:4 blocks.0\n"
                        "%z: f32[4] = [i] log(%y[i])\nreturn %z")
    module = parse_module(text)
    return module, module.functions["f"]


def first(function: Function) -> Op:
    assert function.body.first is not None
    return function.body.first


def use_before_definition(function: Function) -> None:
    y, z = list(function.body)[:2]
    function.body.unlink(y)
    function.body.insert_after(y, z)


def forget_a_use(function: Function) -> None:
    function.arguments[3].value.uses.clear()


def invent_a_use(function: Function) -> None:
    function.arguments[0].value.uses[first(function)] = None


def break_a_link(function: Function) -> None:
    list(function.body)[1].prev = None


def lose_the_end(function: Function) -> None:
    function.body.last = first(function)


def lose_the_owner(function: Function) -> None:
    first(function).result.owner = function.body


def lose_an_argument(function: Function) -> None:
    function.arguments.pop()


def lose_the_return(function: Function) -> None:
    last = function.body.last
    assert isinstance(last, Return)
    last.erase()


def share_a_state_name(function: Function) -> None:
    function.arguments[0].role = "state"
    function.arguments[0].value.name = "w"


def spoil_a_state_name(function: Function) -> None:
    function.arguments[3].value.name = "a b"


def spoil_a_role(function: Function) -> None:
    function.arguments[0].role = "weight"


def move_an_argument_nowhere(function: Function) -> None:
    function.arguments[0].stage = -1


def rename(function: Function) -> None:
    function.name = "g"


def retype(function: Function) -> None:
    first(function).result.type = tensor("f32", (5,))


def forge_a_type(function: Function) -> None:
    first(function).result.type = TensorType("f32", (4,), None, "f32[4]")


def recompute_backwards(function: Function) -> None:
    first(function).recompute = -1


def steal_an_argument(function: Function) -> None:
    function.body.args[0].owner = None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (use_before_definition, "operand %y: f32[4] is not defined before its use"),
        (forget_a_use, "operand %w: f32[4] does not list this op as a user"),
        (invent_a_use, "%x: f32[8, 4] lists 1 users, 0 of them in its block"),
        (break_a_link, "the links of the block are broken"),
        (lose_the_end, "the links of the block do not lead to its last op"),
        (lose_the_owner, "result %y: f32[4] is defined elsewhere"),
        (lose_an_argument, "the arguments are not those of the body"),
        (lose_the_return, "the last op is not 'return'"),
        (share_a_state_name, "two states have one name"),
        (spoil_a_state_name, "a state has a dotted path for a name"),
        (spoil_a_role, "has no such role: 'weight'"),
        (move_an_argument_nowhere, "there is no stage -1"),
        (rename, "function @g is filed under 'f'"),
        (retype, "the dimensions have extents (4,)"),
        (forge_a_type, "which is not interned"),
        (recompute_backwards, "a recompute region is numbered from 1"),
        (steal_an_argument, "belongs to another block"),
    ],
)
def test_damage_to_the_structure_is_found(
    damage: Callable[[Function], None], message: str
) -> None:
    module, function = tiny()
    verify(module)
    damage(function)
    with pytest.raises(CompilerBug, match="please report") as caught:
        verify(module)
    assert message in caught.value.message


X = Read(0, (Var("i"),))


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (Read(1, (Var("i"),)), "operand 1 is read, there are 1"),
        (Call("gelu", (X,)), "there is no primitive 'gelu'"),
        (Call("add", (X,)), "'add' has 1 arguments"),
        (Cast("f31", X), "'f31' is not a dtype"),
        (Const(1.0, "f31"), "'f31' is not a dtype"),
        (Const(1.5, "i64"), "1.5 is no value of i64"),
        (Const(1, "bool"), "1 is no value of bool"),
        (Const(True, "f32"), "True is no value of f32"),
        (Rand("cauchy", 0, integer(0), integer(0), integer(0)), "no random stream 'cauchy' 0"),
        (Rand("normal", -1, integer(0), integer(0), integer(0)), "no random stream 'normal' -1"),
    ],
)
def test_a_senseless_expression_is_found(expr: Expr, message: str) -> None:
    with pytest.raises(CompilerBug) as caught:
        verify(single(expr))
    assert message in caught.value.message


def single(expr: Expr) -> Module:
    function = Function("f")
    x = function.add_argument("x", tensor("f32", (4,)))
    function.body.append(Compute([x], "f32", [("i", 4)], [("i",)], expr, name="y"))
    function.body.append(Return([]))
    module = Module()
    module.add(function)
    return module


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reduce": "mean", "reduced": ["k"]}, "there is no reduction 'mean'"),
        ({"reduce": "sum"}, "ranges bind"),
        ({"reduced": ["k"]}, "reduced variables or a guard without a reduction"),
        ({"reduce": "sum", "reduced": ["k"], "dims": []}, "ranges bind"),
        ({"reduce": "sum", "reduced": ["k"], "ranges": [("k", 3), ("i", 4)]}, "ranges bind"),
        ({"reduce": "sum", "reduced": ["k"], "ranges": [("i", 4), ("k", -3)]},
         "the extent of 'k' is -3"),
        ({"reduce": "sum", "reduced": ["i"], "ranges": [("i", 4), ("i", 4)]},
         "a variable is bound twice"),
        ({"dims": [("i",), ("i",)], "ranges": [("i", 4), ("i", 4)]}, "a variable is bound twice"),
    ],
)
def test_ranges_bind_what_the_compute_names(change: dict[str, object], message: str) -> None:
    module = single(X)
    function = module.functions["f"]
    parts = {"ranges": [("i", 4), ("k", 3)], "dims": [("i",)], **change}
    ranges, dims = parts.pop("ranges"), parts.pop("dims")
    op = Compute(function.body.args, "f32", ranges, dims, X, **parts)  # type: ignore[arg-type]
    function.body.insert_before(op, first(function))
    with pytest.raises(CompilerBug) as caught:
        verify(module)
    assert message in caught.value.message


def test_a_guard_needs_a_reduction() -> None:
    module = single(X)
    op = first(module.functions["f"])
    assert isinstance(op, Compute)
    op.guard = Const(True, "bool")
    with pytest.raises(CompilerBug) as caught:
        verify(module)
    assert "a guard without a reduction" in caught.value.message


def test_a_region_must_fit_its_op() -> None:
    text = body(LOCAL, "%z: f32[8] = fused(%a = %x) {\n  return %a\n}", "fused")
    for damage, message in ((narrow_operand, "the arguments of the region are not like"),
                            (narrow_result, "the region returns other types")):
        module = parse_module(text)
        op = first(module.functions["f"])
        assert isinstance(op, Fused)
        damage(op)
        with pytest.raises(CompilerBug) as caught:
            verify(module)
        assert message in caught.value.message


def narrow_operand(op: Fused) -> None:
    op.region.args[0].type = tensor("f32", (4,))


def narrow_result(op: Fused) -> None:
    op.result.type = tensor("f32", (4,))


def test_a_report_names_the_op_its_origin_and_the_program() -> None:
    module, function = tiny()
    op = first(function)
    assert isinstance(op, Compute)
    op.body = Call("exp", (Var("k"),))
    with pytest.raises(CompilerBug) as caught:
        verify(module)
    assert caught.value.message == (
        "in @f (phase global): variable 'k' is not bound\n"
        "  %y: f32[4] = [i] exp(k) {operands=(%w)}  // gpt.ab:3:4 blocks.0")
    assert caught.value.loc == Loc("gpt.ab", 3, 4, "blocks.0")
    assert caught.value.ir.startswith("module phase=global\n\nfunc @f(")


def test_stages_are_those_of_the_mesh() -> None:
    module = parse_module(body(LOCAL, "%z: f32[8] = [i] %x[i] {stage=1}", "local"))
    with pytest.raises(CompilerBug, match="there is no stage 1"):
        verify(module)
    module.mesh = Mesh.of(stage=2)
    verify(module)
