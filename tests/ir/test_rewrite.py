"""Rewriting against a naive model: use lists, links and dead code after random changes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.ir.core import Function, Module, Op, Value
from anabranch.ir.diagnostics import CompilerBug
from anabranch.ir.equal import same
from anabranch.ir.expr import Call, Const, Expr, Read, Var
from anabranch.ir.ops import Compute, Return, Transfer
from anabranch.ir.parser import parse_module
from anabranch.ir.printer import print_function, print_module
from anabranch.ir.rewrite import clone_function, clone_module, dce, is_dead, replace, rewrite
from anabranch.ir.types import tensor
from anabranch.ir.verifier import verify
from tests.measuring import cpu_seconds
from tests.strategies import PHASES, modules

quick = settings(max_examples=40, suppress_health_check=list(HealthCheck))
any_module = st.sampled_from(PHASES).flatmap(modules)

TYPE = tensor("f32", (4,))


def read(operand: int) -> Expr:
    return Read(operand, (Var("i"),))


def compute(operands: list[Value], body: Expr, name: str = "") -> Compute:
    return Compute(operands, "f32", [("i", 4)], [("i",)], body, name=name)


def total(operands: list[Value]) -> Compute:
    """The sum of the operands, and of one constant."""
    body: Expr = Const(1.0, "f32")
    for number in range(len(operands)):
        body = Call("add", (body, read(number)))
    return compute(operands, body)


@dataclass
class Naive:
    """A block as a list of ops with lists of operands; users are found by looking."""

    function: Function = field(default_factory=lambda: Function("f"))
    ops: list[Op] = field(default_factory=list)
    operands: dict[Op, list[Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in "xy":
            self.function.add_argument(name, TYPE)

    def values(self, before: int) -> list[Value]:
        return [*self.function.body.args, *(op.result for op in self.ops[:before])]

    def users(self, value: Value) -> list[Op]:
        return [op for op in self.ops if value in self.operands[op]]

    def insert(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.ops)))
        operands = data.draw(st.lists(st.sampled_from(self.values(place)), max_size=3))
        op, block = total(operands), self.function.body
        if place < len(self.ops) and data.draw(st.booleans()):
            block.insert_before(op, self.ops[place])
        else:
            block.insert_after(op, self.ops[place - 1] if place else None)
        self.ops.insert(place, op)
        self.operands[op] = operands

    def erase(self, data: st.DataObject) -> None:
        op = data.draw(st.sampled_from(self.ops))
        if self.users(op.result):
            with pytest.raises(CompilerBug, match="in use"):
                op.erase()
            return
        op.erase()
        self.ops.remove(op)
        del self.operands[op]

    def replace(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.ops) - 1))
        old, new = self.ops[place].result, data.draw(st.sampled_from(self.values(place)))
        old.replace_by(new)
        for op in self.ops:
            self.operands[op] = [new if v is old else v for v in self.operands[op]]

    def set_operands(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.ops) - 1))
        op = self.ops[place]
        chosen = st.sampled_from(self.values(place))
        self.operands[op] = [data.draw(chosen) for _ in op.operands]
        op.set_operands(self.operands[op])

    def check(self) -> None:
        assert list(self.function.body) == self.ops
        assert list(reversed(self.function.body)) == self.ops[::-1]
        for op in self.ops:
            assert list(op.operands) == self.operands[op]
        for value in self.values(len(self.ops)):
            assert set(value.uses) == set(self.users(value))


@quick
@given(st.data())
def test_any_sequence_of_changes_keeps_links_and_uses_right(data: st.DataObject) -> None:
    naive = Naive()
    for _ in range(data.draw(st.integers(1, 15))):
        changes = [naive.insert]
        if naive.ops:
            changes += [naive.erase, naive.replace, naive.set_operands]
        data.draw(st.sampled_from(changes))(data)
        naive.check()
    naive.function.body.append(Return([]))
    module = Module()
    module.add(naive.function)
    verify(module)


def needed(function: Function) -> list[Op]:
    """The ops that a return or a transfer reads, directly or not."""
    live: set[Op] = set()
    pending = [op for op in function.body if isinstance(op, Return | Transfer)]
    while pending:
        op = pending.pop()
        if op not in live:
            live.add(op)
            pending += [v.op for v in op.operands if v.op is not None]
    return [op for op in function.body if op in live]


@quick
@given(any_module)
def test_dead_code_elimination_keeps_what_is_needed_and_nothing_else(module: Module) -> None:
    for function in module.functions.values():
        keep, before = needed(function), len(list(function.body))
        erased = dce(function)
        assert list(function.body) == keep
        assert erased >= before - len(keep)
    verify(module)


def test_dead_ops_of_a_region_go_too() -> None:
    module = parse_module("""\
module phase=fused mesh={}

func @f(%x: f32[4]) {
  %y: f32[4] = fused(%a = %x) {
    %dead: f32[4] = [i] exp(%a[i])
    %deader: f32[4] = [i] exp(%dead[i])
    return %a
  }
  return %y
}
""")
    function = module.functions["f"]
    assert dce(function) == 2
    verify(module)
    assert "dead" not in print_function(function)


@quick
@given(any_module)
def test_a_clone_can_be_changed_without_changing_the_original(module: Module) -> None:
    before = print_module(module)
    clone = clone_module(module)
    for function in clone.functions.values():
        for op in reversed(function.body):
            op.stage += 1
            if not any(r.uses for r in op.results):
                op.erase()
        assert function.body.first is None
    assert print_module(module) == before
    verify(module)


def test_a_function_can_be_cloned_under_another_name() -> None:
    naive = Naive()
    naive.function.body.append(Return(naive.function.body.args))
    clone = clone_function(naive.function, "g")
    assert print_function(clone) == print_function(naive.function).replace("@f", "@g")


def constant(function: Function, value: float) -> Value:
    return function.body.append(compute([], Const(value, "f32"))).result


def fold(op: Op) -> list[Value] | None:
    """A sum of constants is a constant."""
    if not isinstance(op, Compute) or not op.operands or op.block is None:
        return None
    terms = [v.op.body for v in op.operands if isinstance(v.op, Compute)]
    if len(terms) < len(op.operands) or not all(isinstance(t, Const) for t in terms):
        return None
    value = 1.0 + sum(t.value for t in terms if isinstance(t, Const))
    return [op.block.insert_before(compute([], Const(value, "f32")), op).result]


def test_the_driver_applies_rules_until_none_fits() -> None:
    function = Function("f")
    value = constant(function, 1.0)
    for _ in range(20):
        value = function.body.append(total([value, value])).result
    function.body.append(Return([value]))
    assert rewrite(function, [fold]) == 20
    ops = list(function.body)
    assert [op.kind for op in ops] == ["compute", "return"]
    assert isinstance(ops[0], Compute)
    assert ops[0].body == Const(2.0**21 - 1, "f32")


def applied(op: Op, fn: str) -> bool:
    return isinstance(op, Compute) and op.body == Call(fn, (read(0),))


def test_the_driver_looks_again_at_operands_and_at_users() -> None:
    """Neither rule fits when its op is first seen: the death of `c` lets the first fit `a`, which
    comes before, and that lets the second fit `b`."""

    def exp_that_is_used_once(op: Op) -> list[Value] | None:
        return [op.operands[0]] if applied(op, "exp") and len(op.result.uses) == 1 else None

    def log_of_an_argument(op: Op) -> list[Value] | None:
        return [op.operands[0]] if applied(op, "log") and op.operands[0].op is None else None

    function = Function("f")
    x = function.add_argument("x", TYPE)
    a = function.body.append(compute([x], Call("exp", (read(0),)))).result
    b = function.body.append(compute([a], Call("log", (read(0),)))).result
    function.body.append(compute([a], Call("sin", (read(0),)), "c"))
    function.body.append(Return([b]))
    assert rewrite(function, [exp_that_is_used_once, log_of_an_argument]) == 2
    assert [op.kind for op in function.body] == ["return"]
    assert list(x.uses) == [function.body.last]


def test_the_driver_erases_what_dies() -> None:
    function = Function("f")
    x = function.add_argument("x", TYPE)
    value = x
    for _ in range(5):
        value = function.body.append(compute([value], Call("exp", (read(0),)))).result
    last = function.body.append(compute([value], Call("log", (read(0),)))).result
    function.body.append(Return([last]))
    assert rewrite(function, [lambda op: [x] if op is last.op else None]) == 1
    assert [op.kind for op in function.body] == ["return"]
    assert list(x.uses) == [function.body.last]


def test_rules_that_undo_each_other_are_a_fault() -> None:
    function = Function("f")
    function.body.append(Return([constant(function, 1.0)]))

    def flip(op: Op) -> list[Value] | None:
        if not isinstance(op, Compute) or op.block is None or not isinstance(op.body, Const):
            return None
        flipped = compute([], Const(-op.body.value, "f32"))
        return [op.block.insert_before(flipped, op).result]

    with pytest.raises(CompilerBug, match="does not end"):
        rewrite(function, [flip])


def test_a_rule_that_never_fits_changes_nothing() -> None:
    naive = Naive()
    x, y = naive.function.body.args
    z = naive.function.body.append(total([x, y])).result
    naive.function.body.append(Return([z]))
    module = Module()
    module.add(naive.function)
    before = clone_module(module)
    assert rewrite(naive.function, [lambda op: None]) == 0
    assert same(module, before)


def test_replacing_moves_all_uses_and_erases() -> None:
    naive = Naive()
    x, y = naive.function.body.args
    a = naive.function.body.append(total([x, x]))
    b = naive.function.body.append(total([a.result, x, a.result]))
    naive.function.body.append(Return([a.result, b.result]))
    replace(a, [y])
    assert [v.name for v in b.operands] == ["y", "x", "y"]
    assert set(y.uses) == {b, naive.function.body.last}
    assert set(x.uses) == {b}
    assert a.block is None


def test_a_transfer_is_never_dead_and_an_unread_compute_is() -> None:
    function = Function("f")
    x = function.add_argument("x", TYPE)
    sent = function.body.append(Transfer([x], [], "send", 0, (0, 1)))
    unread = function.body.append(total([x]))
    assert not is_dead(sent)
    assert is_dead(unread)


def test_removing_a_long_dead_chain_takes_linear_time() -> None:
    def seconds(count: int) -> float:
        function = Function("f")
        value = function.add_argument("x", TYPE)
        for _ in range(count):
            value = function.body.append(total([value])).result
        function.body.append(Return([]))
        rewritten: list[int] = []
        taken = cpu_seconds(lambda: rewritten.append(rewrite(function, [])))
        assert rewritten == [0]
        assert [op.kind for op in function.body] == ["return"]
        return taken

    assert min(seconds(4000) for _ in range(3)) < 16 * min(seconds(500) for _ in range(3)) + 0.01
