"""Programs that nest deeply: the work grows with the text, and what is too deep is refused."""

from __future__ import annotations

import numpy as np
import pytest

import anabranch as ab
from anabranch.checking import wrong_parts
from anabranch.frontend import calls
from anabranch.frontend.check import sample, sampled
from anabranch.frontend.program import loads
from anabranch.frontend.values import Function
from anabranch.ir.core import Function as IrFunction
from anabranch.ir.diagnostics import UserError
from anabranch.ir.expr import walk
from anabranch.ir.ops import Compute
from anabranch.ir.reference import evaluate
from anabranch.trials import usual


def made(text: str, name: str = "f") -> IrFunction:
    function = loads(text).scope.find(name)
    assert isinstance(function, Function)
    assert sample(function, (3,), 1) is not None
    trial = usual(function)
    assert trial is not None
    return trial.function


def nested(call: str, depth: int, inner: str) -> str:
    return f"{call}(" * depth + inner + ")" * depth


def of_elements(body: str) -> str:
    return f"op f(x: f32[3]) -> f32[3]:\n    y[i] = {body}\n    return y\n"


def whole(body: str) -> str:
    return f"def f(x: f32[3]) -> f32[3]:\n    return {body}\n"


def parts(function: IrFunction) -> list[int]:
    """How many nodes each statement has."""
    return [sum(1 for _ in walk(op.body)) for op in function.body if isinstance(op, Compute)]


def test_what_is_subscripted_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shape gives the ranges, and its elements are read: two uses of one value."""
    ops = ["op g0(x: f32[N]) -> f32[N]:\n    y[i] = x[i] + 1\n    return y\n"]
    ops += [f"op g{n}(x: f32[N]) -> f32[N]:\n    y[i] = g{n - 1}(x)[i] * 2\n    return y\n"
            for n in range(1, 8)]
    program = loads("".join(ops) + "def f(x: f32[3]) -> f32[3]:\n    return g7(x)\n")
    called: list[str] = []
    activate = calls._activate

    def counted(function: Function, *rest: object) -> object:
        called.append(function.definition.name)
        return activate(function, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(calls, "_activate", counted)
    assert sampled(Function(program.functions["f"], program.scope)) == []
    assert len(called) == 9


def test_what_a_comprehension_subscripts_is_computed_each_time() -> None:
    function = made("def last(xs):\n    return xs[1]\n"
                    "op f(x: f32[3]) -> f32[3]:\n    ws = [x, x + 10]\n"
                    "    z[i] = x[i] + last([(x * 2)[i] for x in ws])\n    return z\n")
    x = np.array([1, 2, 3], np.float32)
    assert np.array_equal(evaluate(function, (x,))[0], 3 * x + 20)


def test_a_value_that_is_read_twice_does_not_double_at_each_call() -> None:
    function = made(of_elements(nested("relu", 12, "x[i]")))
    assert sum(parts(function)) < 12 * 60
    x = np.array([-1, 0, 2], np.float32)
    assert np.array_equal(evaluate(function, (x,))[0], np.maximum(x, 0))


def test_what_no_condition_chooses_is_read_nowhere_when_it_is_large() -> None:
    function = made(of_elements(f"where(i > 0, {nested('relu', 9, 'x[i - 1]')}, 7)"))
    assert len(parts(function)) > 1
    x = np.array([-1, 5, 2], np.float32)
    assert np.array_equal(evaluate(function, (x,))[0], np.array([7, 0, 5], np.float32))


def test_a_recurrence_of_large_expressions_is_one() -> None:
    function = made(of_elements(nested("relu", 9, "y[i - 1, pad=0] + x[i]")))
    x = np.array([-1, 5, 2], np.float32)
    assert np.array_equal(evaluate(function, (x,))[0], np.array([0, 5, 7], np.float32))


@pytest.mark.parametrize("text", [
    whole(nested("sin", 130, "x")), whole("-" * 130 + "x"), whole(" + ".join(["x"] * 130)),
    of_elements(nested("sin", 130, "x[i]")),
])
def test_long_chains_are_computed_in_parts(text: str) -> None:
    assert max(parts(made(text))) <= 160


def test_deep_statements_one_after_the_other_do_not_all_become_one_kernel() -> None:
    lines = f"    x = {nested('sin', 22, 'x')} + 1.0\n" * 24
    plan = ab.compile(ab.loads(f"def f(x: f32[3]) -> f32[3]:\n{lines}    return x\n").f)
    assert len(plan.kernels) > 1


@pytest.mark.parametrize("text", [
    whole(nested("relu", 2000, "x")), whole(nested("sin", 2000, "x")),
    whole("-" * 2000 + "x"), whole(" + ".join(["x"] * 2000)), whole("x" + " ** 1.0" * 2000),
    whole(nested("relu", 400, "x")), of_elements(nested("relu", 2000, "x[i]")),
    of_elements("where(x[i] > 0, " * 200 + "x[i]" + ", 0)" * 200),
])
def test_what_nests_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="nested too deeply"):
        loads(text)


def test_thousands_of_brackets_that_say_nothing_are_read() -> None:
    assert parts(made(whole("(" * 2000 + "x + 1" + ")" * 2000))) == [4]


def test_equal_statements_are_split_once() -> None:
    def split(count: int) -> int:
        lines = "    x = sin(x)\n" * count
        function = loads(f"def f(x: f32[3]) -> f32[3]:\n{lines}    return x\n").scope.find("f")
        assert isinstance(function, Function)
        trial = usual(function)
        assert trial is not None
        return sum(1 for _ in wrong_parts(trial))

    assert split(5) == split(1) > 0
