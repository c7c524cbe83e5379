"""The pass runner: order, times, dumps, verification between passes, and reproducers."""

from __future__ import annotations

import functools

import pytest

from anabranch.ir.core import Module
from anabranch.ir.diagnostics import CompilerBug, Loc, UserError, fail
from anabranch.ir.equal import same
from anabranch.ir.ops import Compute
from anabranch.ir.parser import parse_module
from anabranch.ir.passes import name_of, run
from anabranch.ir.rewrite import dce

TEXT = """\
module phase=global

func @f(%x: f32[4]) {
  %y: f32[4] = [i] exp(%x[i])  // gpt.ab:3:4
  return %x
}
"""


def sweep_dead(module: Module) -> Module:
    for function in module.functions.values():
        dce(function)
    return module


def set_stage(stage: int, module: Module) -> Module:
    for function in module.functions.values():
        for op in function.body:
            op.stage = stage
    return module


def break_it(module: Module) -> Module:
    op = module.functions["f"].body.first
    assert isinstance(op, Compute)
    op.reduce = "sum"
    return module


def refuse(module: Module) -> Module:
    raise fail("this program has no plan")


def crash(module: Module) -> Module:
    raise KeyError("lost")


def give_up(module: Module) -> Module:
    raise CompilerBug("cannot go on", Loc("gpt.ab", 3, 4))


def test_passes_run_in_order_and_are_timed_by_name() -> None:
    timings: dict[str, float] = {}
    module = run([functools.partial(set_stage, 3), sweep_dead], parse_module(TEXT),
                 timings=timings)
    assert [op.stage for op in module.functions["f"].body] == [3]
    assert list(timings) == ["verify", "set-stage", "sweep-dead"]
    assert all(seconds >= 0 for seconds in timings.values())


def test_a_pass_is_called_as_on_the_command_line() -> None:
    assert name_of(sweep_dead) == "sweep-dead"
    assert name_of(functools.partial(set_stage, 1)) == "set-stage"


@pytest.mark.parametrize(
    ("names", "shown"),
    [((), []), (("sweep-dead",), ["sweep-dead"]), (("all",), ["set-stage", "sweep-dead"])],
)
def test_the_module_is_shown_after_the_passes_asked_for(
    names: tuple[str, ...], shown: list[str]
) -> None:
    written: list[str] = []
    run([functools.partial(set_stage, 3), sweep_dead], parse_module(TEXT), print_after=names,
        write=written.append)
    assert [text.splitlines()[0] for text in written] == [f"// after {name}" for name in shown]
    for text in written:
        assert parse_module(text).phase == "global"


def test_the_pass_that_breaks_a_rule_is_named() -> None:
    with pytest.raises(CompilerBug, match=r"in pass 'break-it': in @f .*: 'sum' over 0") as caught:
        run([functools.partial(set_stage, 0), break_it, sweep_dead], parse_module(TEXT))
    first, rest = caught.value.ir.split("\n", 1)
    assert first == "// passes: set-stage, break-it"
    assert same(parse_module(rest), parse_module(TEXT))


def test_without_verification_the_broken_module_goes_on() -> None:
    assert run([break_it], parse_module(TEXT), verify=False).phase == "global"


def test_the_module_that_enters_is_checked_first() -> None:
    broken = break_it(parse_module(TEXT))
    with pytest.raises(CompilerBug, match="before the first pass"):
        run([sweep_dead], broken)


def test_a_crash_becomes_a_fault_of_the_compiler_with_a_reproducer() -> None:
    with pytest.raises(CompilerBug, match="in pass 'crash': KeyError: 'lost'") as caught:
        run([sweep_dead, crash], parse_module(TEXT))
    assert isinstance(caught.value.__cause__, KeyError)
    assert same(parse_module(caught.value.ir), parse_module(TEXT))


def test_a_fault_keeps_its_place() -> None:
    with pytest.raises(CompilerBug, match="in pass 'give-up': cannot go on") as caught:
        run([give_up], parse_module(TEXT))
    assert caught.value.loc == Loc("gpt.ab", 3, 4)


def test_the_user_s_mistakes_pass_through() -> None:
    with pytest.raises(UserError, match="has no plan"):
        run([refuse], parse_module(TEXT))
