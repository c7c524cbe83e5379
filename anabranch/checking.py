"""What `anabranch check` does with a program: everything that can be tried without data.

All diagnostics first: of the file, of its recipes. Then each op of the file, with sizes that do not
divide, small ones and empty ones: every signature that is derived for one of its statements, or for
a statement of its gradient, must give in parts what the statement gives whole; and the gradient
must agree with finite differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anabranch.frontend import syntax as s
from anabranch.frontend.program import Program
from anabranch.frontend.values import Function
from anabranch.gradient_check import (
    Fault,
    check_gradients,
    float_inputs,
    gradient_of,
    weighted,
)
from anabranch.ir.core import Module, Op, Value
from anabranch.ir.diagnostics import Diagnostic, Span, UserError
from anabranch.ir.expr import Call, walk
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute, Order, Return
from anabranch.ir.printer import print_op
from anabranch.ir.reference import evaluate_op, held
from anabranch.ir.sbp import layout_on
from anabranch.lowering.cost import symbolic
from anabranch.lowering.signatures import Signature, signatures
from anabranch.lowering.simplify import simplify
from anabranch.lowering.simulate_ranks import in_parts
from anabranch.trials import Trial, small, usual

Array = np.ndarray[Any, Any]

RANKS = (2, 3)
TOLERANCE = 1e-7  # of the largest number around, in f64


@dataclass(slots=True)
class Report:
    """What was derived of an op, for people, and what is wrong with it."""

    name: str
    lines: list[str] = field(default_factory=list)
    mistakes: list[Diagnostic] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wrong:
    """A statement that gives something else in parts."""

    op: Op
    signature: Signature
    ranks: int


def check_program(program: Program) -> Iterator[Report]:
    """The mistakes of recipes, then a report for each op of the file."""
    for name in program.recipes:
        yield _check_recipe(program, name)
    for definition in program.functions.values():
        if isinstance(definition, s.OpDef):
            function = program.scope.find(definition.name)
            assert isinstance(function, Function)
            yield check_op(function, program.tree)


def _check_recipe(program: Program, name: str) -> Report:
    report = Report(f"train {name}")
    try:
        training = program.training(name)
    except UserError as error:
        report.mistakes += error.diagnostics
        return report
    count = sum(type_.elements for _, type_ in training.states)
    report.lines.append(f"{len(training.states)} states with {count} elements, "
                        f"{', '.join(training.module.functions)}")
    return report


def check_op(function: Function, tree: s.Node) -> Report:
    """Everything about one op of the file with this tree."""
    report = Report(f"op {function.definition.name}")
    trial = usual(function)
    if trial is None:
        report.lines.append("not tried: there are no sizes that can be made up for it")
        return report
    report.lines += [f"tried with {_sizes(trial)}", *_derived(trial)]
    _check_parts(function, trial, report, tree)
    _check_gradient(trial, report, tree)
    return report


def _sizes(trial: Trial) -> str:
    types = [f"{a.value.name}: {a.value.type}" for a in trial.function.arguments]
    last = trial.function.body.last
    assert isinstance(last, Return)
    results = ", ".join(str(v.type) for v in last.values)
    return f"{', '.join(types) or 'no arguments'} -> {results}"


def _derived(trial: Trial) -> Iterator[str]:
    """Each statement with its cost and its signatures."""
    for op in trial.function.body:
        if not isinstance(op, Compute | Order):
            continue
        work = symbolic(op)
        yield _statement(op)
        yield f"    {work.flops} operations, {work.bytes} bytes"
        yield from (f"    {_in_words(signature, op)}" for signature in signatures(op, RANKS[0]))


def _in_words(signature: Signature, op: Compute | Order) -> str:
    operands = ", ".join(f"%{v.name} {entry}" for v, entry in zip(
        op.operands, signature.operands, strict=True))
    return f"{operands} -> {signature.result}  ({signature.why})"


def _statement(op: Op) -> str:
    return print_op(op).split("  //")[0]


# ---- in parts


def _check_parts(
    function: Function, trial: Trial, report: Report, tree: s.Node
) -> None:
    """Every signature of every statement, forward and backward, with all sizes."""
    tried = 0
    for each in (trial, *small(function)):
        for made in (each, *backward(each)):
            for wrong in wrong_parts(made):
                if wrong is None:
                    tried += 1
                    continue
                report.mistakes.append(_parts_mistake(wrong, tree))
                return
    report.lines.append(
        f"right in parts: {tried} times a signature was simulated, on {RANKS[0]} and {RANKS[1]} "
        "ranks, forward and backward, with uneven and empty shards")


def backward(trial: Trial) -> Iterator[Trial]:
    """The gradient of the op, simplified as it will run, if it has one."""
    by = [a.value.name for a in float_inputs(trial.function)]
    found = weighted(trial.function, None, np.random.default_rng(2))
    if not by or found is None:
        return
    function, weights = found
    module = simplify(Module({function.name: gradient_of(function, by)}))
    given = [np.asarray(w, held(v.type.dtype)) for w, v in zip(
        weights, function.body.args[len(trial.arguments):], strict=True)]
    yield Trial(module.functions[function.name], (*trial.arguments, *given), trial.sizes)


def wrong_parts(trial: Trial) -> Iterator[Wrong | None]:
    """None for each simulation that is right."""
    env: dict[Value, Array] = dict(zip(trial.function.body.args, trial.arguments, strict=True))
    for op in trial.function.body:
        if isinstance(op, Return):
            return
        operands = [env[v] for v in op.operands]
        (whole,) = evaluate_op(op, operands, double=True)
        env[op.result] = whole
        if isinstance(op, Compute | Order):
            yield from _simulated(op, operands, whole)


def _simulated(
    op: Compute | Order, operands: Sequence[Array], whole: Array
) -> Iterator[Wrong | None]:
    random = np.random.default_rng(0)
    for ranks in RANKS:
        mesh = Mesh.of(axis=ranks)
        for signature in signatures(op, ranks):
            layouts = [layout_on(mesh, [entry]) for entry in signature.operands]
            result = layout_on(mesh, [signature.result])
            with np.errstate(all="ignore"):
                found = in_parts(
                    op, operands, layouts, result, mesh, random, double=True)
            right = _close(found, whole, operands)
            yield None if right else Wrong(op, signature, ranks)


def _close(found: Array, whole: Array, operands: Sequence[Array]) -> bool:
    """Equality where the whole is finite: x / 0 in terms is inf - inf."""
    scale = max((_size(x) for x in (*operands, whole)), default=1.0)
    if found.shape != whole.shape:
        return False
    finite = np.isfinite(whole)
    return bool(np.allclose(
        found[finite], whole[finite], rtol=TOLERANCE, atol=TOLERANCE * max(1.0, scale)))


def _size(array: Array) -> float:
    finite = np.abs(np.asarray(array, np.float64))
    finite = finite[np.isfinite(finite)]
    return float(finite.max()) if finite.size else 0.0


def _parts_mistake(wrong: Wrong, tree: s.Node) -> Diagnostic:
    return Diagnostic(
        f"on {wrong.ranks} ranks, {wrong.signature}, the statement gives something else than whole",
        _span(wrong.op, tree), help="this is a fault of Anabranch; please report it")


def _span(op: Op, tree: s.Node) -> Span | None:
    """The statement that an op comes from, or the `stop(e, grad=g)` in it."""
    place = (op.loc.line, op.loc.col)
    written = next((n for n in s.walk(tree) if isinstance(n, s.Statement)
                    and (n.span.line, n.span.col) == place), None)
    if written is None or written.span.file != op.loc.file:
        return None
    stated = (n.span for n in s.walk(written) if isinstance(n, s.Call)
              and any(k.name == "grad" for k in n.keywords))
    return next(stated, written.span)


# ---- gradients


def _check_gradient(trial: Trial, report: Report, tree: s.Node) -> None:
    verdict = check_gradients(trial.function, trial.arguments)
    if verdict.fault is not None:
        report.mistakes.append(_gradient_mistake(verdict.fault, tree))
    elif verdict.by:
        report.lines.append(f"gradient by {', '.join(verdict.by)}: within {verdict.error:.0e} of "
                            "finite differences")
    report.lines += [f"line {op.loc.line} gives a gradient to a value that has none"
                     for op in verdict.invented]


def _gradient_mistake(fault: Fault, tree: s.Node) -> Diagnostic:
    slope, op = fault.slope, fault.op
    message = (f"along one direction of '{slope.argument}' the derivative is {slope.derived:.6g}, "
               f"but differences of values give {slope.measured:.6g}")
    stated = isinstance(op, Compute) and any(
        isinstance(e, Call) and e.fn == "stop_grad" for e in walk(op.body))
    help = ("'stop(e, grad=g)' says that e has the derivative of g; if another one is meant, write "
            "g + stop(e - g)" if stated else "this is a fault of Anabranch; please report it")
    return Diagnostic(message, _span(op, tree), help=help)
