"""What `anabranch check` does with a program: everything that can be tried without data.

All diagnostics first: of the file, of its recipes. Then each op and each fully typed function of
the file, with sizes that do not divide, small ones and empty ones: every signature that is derived
for one of its statements, or for a statement of its gradient, must give in parts what the statement
gives whole; and the gradient must agree with finite differences. What holds only where sizes are
equal that a signature names apart is a mistake before all this. One mistake hides no other: what
is wrong with a definition keeps nothing but itself from being tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from anabranch.derived import Derived
from anabranch.excerpts import Excerpt, states_gradient
from anabranch.frontend import syntax as s
from anabranch.frontend.check import sample
from anabranch.frontend.control import Failed
from anabranch.frontend.entries import Open
from anabranch.frontend.evaluate import Certain, Unsupported
from anabranch.frontend.program import Program, Training, loads
from anabranch.frontend.values import Function
from anabranch.gradient_check import (
    Fault,
    check_gradients,
    float_inputs,
    gradient_of,
    statement_fault,
    weighted,
)
from anabranch.ir.core import Function as IrFunction
from anabranch.ir.core import Module, Op, Value
from anabranch.ir.diagnostics import Collector, Diagnostic, Span, UserError
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute, Order, Return, Scan, nested
from anabranch.ir.printer import print_op
from anabranch.ir.recurrence import statements
from anabranch.ir.reference import evaluate, evaluate_op, held
from anabranch.ir.sbp import layout_on
from anabranch.lowering.cost import symbolic
from anabranch.lowering.scan_signatures import scan_forms
from anabranch.lowering.signatures import Signature, Structure, signatures, structure
from anabranch.lowering.simplify import simplify
from anabranch.lowering.simulate_ranks import in_parts, scan_in_parts
from anabranch.model_report import describe
from anabranch.relations import unsaid
from anabranch.trials import Trial, accepted, refusal, small, usual

Array = np.ndarray[Any, Any]

RANKS = (2, 3)
OPEN_SIZES = (8, 64, 32, 28)  # of what only data say
STATED = ("'stop(e, grad=g)' says that e has the derivative of the expression g, not that g is it: "
          "a derivative d by x is stated as grad=stop(d) * x, by several as the sum of such; if "
          "another one than that of e is meant, write g + stop(e - g)")
DRAWN = ((0, 1.0), (1, 1.0), (2, 3.0), (3, 3.0))
"""Seeds and widths of data for gradients that are stated: some are right for small numbers only, or
under one mask."""
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
    layouts: str
    ranks: int


def check_file(text: str, path: str) -> tuple[Program, Iterator[Report]]:
    """A program and everything that is wrong with it: one mistake hides no other. Raises
    `UserError` where the text is none of the language."""
    found = Collector()
    program = loads(text, path, found)
    return program, check_program(program, found.diagnostics)


def check_program(
    program: Program, known: Sequence[Diagnostic] = ()
) -> Iterator[Report]:
    """The mistakes that are known of definitions; those of recipes; then a report for each op and
    each fully typed function of the file that has none."""
    if known:
        yield Report("definitions", mistakes=list(known))
    places = {mistake.span for mistake in known}
    for name in program.recipes:
        yield _check_recipe(program, name, places)
    for name in _unmade(program):
        if not _is_hit(program.models[name], places):
            yield Report(f"model {name}", ["not tried: no recipe of this file makes one"])
    for definition in program.functions.values():
        function = program.scope.find(definition.name)
        assert isinstance(function, Function)
        if not _is_hit(definition, places) and (
                isinstance(definition, s.OpDef) or sample(function, (2,), 1) is not None):
            yield check_op(function, program.tree)


def _is_hit(definition: s.Node, places: Collection[Span | None]) -> bool:
    """Whether one of the places is inside."""
    last = max(node.span.end_line for node in s.walk(definition))
    return any(place is not None and place.file == definition.span.file
               and definition.span.line <= place.line <= last for place in places)


def _check_recipe(program: Program, name: str, known: Collection[Span | None]) -> Report:
    """With the first sizes that will do for what only the data say. If none does, others may: what
    is wrong then is shown, and no mistake."""
    report = Report(f"train {name}")
    for size in OPEN_SIZES:
        sizes: dict[str, object] = {}
        try:
            training = _elaborated(program, name, size, sizes)
        except UserError as error:
            if not sizes or isinstance(error, Certain):
                report.mistakes += [each for each in error.diagnostics if each.span not in known]
                return report
            first = error.diagnostics[0]
            at = f" (line {first.span.line})" if first.span else ""
            why = f"not tried without data; with {_listed(sizes)}: {first.message}{at}"
            report.lines = report.lines or [why]
            continue
        report.lines = [f"tried with {_listed(sizes)}, which the data will say"] if sizes else []
        report.lines += describe(training)
        report.mistakes += _stated(training.module, program.tree)
        break
    return report


def _listed(sizes: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def _elaborated(
    program: Program, name: str, size: int, sizes: dict[str, object]
) -> Training:
    """A recipe with one size for all that is open, which is put into `sizes`."""
    while True:
        try:
            return program.training(name, sizes)
        except Open as error:
            if not error.name or error.name in sizes:
                raise
            sizes[error.name] = size


def _unmade(program: Program) -> list[str]:
    """The models that no recipe makes, nor a model that one makes."""
    models, seen = program.models, set[str]()
    definitions: list[s.Node] = [*program.recipes.values(), *program.functions.values()]
    while definitions:
        for node in s.walk(definitions.pop()):
            if isinstance(node, s.Name) and node.id in models and node.id not in seen:
                seen.add(node.id)
                definitions.append(models[node.id])
    return [name for name in models if name not in seen]


def _stated(module: Module, tree: s.Module) -> list[Diagnostic]:
    """What is wrong with gradients that the functions of models state, each by itself."""
    found: dict[Span | None, Diagnostic] = {}
    for op in (op for function in module.functions.values() for op in function.body):
        place = _span(op, tree)
        if place in found or not isinstance(op, Compute) or not states_gradient(op):
            continue
        faults = (statement_fault(op, partial(_drawn, seed, width)) for seed, width in DRAWN)
        fault = next(filter(None, faults), None)
        if fault is not None:
            found[place] = _gradient_mistake(fault, tree)
    return list(found.values())


def _drawn(seed: int, width: float, tried: Excerpt) -> Sequence[Array] | None:
    return _finite(tried.function, seed, width)


def _finite(function: IrFunction, seed: int, width: float) -> Sequence[Array] | None:
    """Data with which a function is finite, if there are."""
    args = accepted(function, seed, width)
    if args is None or not all(np.all(np.isfinite(r)) for r in evaluate(function, args)):
        return None
    return args


def check_op(function: Function, tree: s.Node) -> Report:
    """Everything about one op, or fully typed function, of the file with this tree."""
    word = "op" if isinstance(function.definition, s.OpDef) else "def"
    report = Report(f"{word} {function.definition.name}")
    trial = usual(function)
    if trial is None:
        _not_tried(refusal(function), report)
        return report
    report.lines += [f"tried with {_sizes(trial)}", *_derived(trial),
                     *(f"  {line}" for line in Derived(trial).gradient)]
    if (mistake := unsaid(function, trial.sizes)) is not None:
        report.mistakes.append(mistake)
        return report
    _check_parts(function, trial, report, tree)
    _check_gradient(trial, report, tree)
    return report


def _not_tried(why: UserError | None, report: Report) -> None:
    """What keeps an op from being tried with any sizes is a mistake, but for what it leaves to its
    callers."""
    match why:
        case None:
            report.lines.append("not tried: no arguments were found with which it gives tensors")
        case Failed() | Unsupported():
            first = why.diagnostics[0]
            at = f" (line {first.span.line})" if first.span and isinstance(why, Failed) else ""
            report.lines.append(f"not tried: {first.message}{at}")
        case _:
            report.mistakes += why.diagnostics


def _sizes(trial: Trial) -> str:
    types = [f"{a.value.name}: {a.value.type}" for a in trial.function.arguments]
    last = trial.function.body.last
    assert isinstance(last, Return)
    results = ", ".join(str(v.type) for v in last.values)
    return f"{', '.join(types) or 'no arguments'} -> {results}"


def _derived(trial: Trial) -> Iterator[str]:
    """Each statement with its cost and its signatures."""
    for op in trial.function.body:
        if isinstance(op, Scan):
            yield from _statement(op).splitlines()
            yield from (f"    {line}" for line in _layouts_in_words(op))
            continue
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


def _layouts_in_words(op: Scan) -> Iterator[str]:
    for laid in scan_forms(op, Mesh.of(axis=RANKS[0]), small=True):
        operands = ", ".join(f"%{v.name} {layout['axis']}" for v, layout in zip(
            op.operands, laid.operands, strict=True))
        yield f"{operands} -> {', '.join(str(layout['axis']) for layout in laid.results)}"


def _statement(op: Op) -> str:
    return print_op(op, locations=False)


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
    """None for each simulation that is right. What may be split follows from a statement's
    structure alone, so of equal ones the first is simulated."""
    known: set[Structure] = set()
    env: dict[Value, Array] = dict(zip(trial.function.body.args, trial.arguments, strict=True))
    for op in trial.function.body:
        if isinstance(op, Return):
            return
        operands = [env[v] for v in op.operands]
        wholes = evaluate_op(op, operands, double=True)
        env.update(zip(op.results, wholes, strict=True))
        if isinstance(op, Compute | Order):
            if (kind := structure(op)) not in known:
                known.add(kind)
                yield from _simulated(op, operands, wholes[0])
        elif isinstance(op, Scan):
            yield from _simulated_scan(op, operands, wholes)


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
            yield None if right else Wrong(op, str(signature), ranks)


def _simulated_scan(
    op: Scan, operands: Sequence[Array], wholes: Sequence[Array]
) -> Iterator[Wrong | None]:
    random = np.random.default_rng(0)
    for ranks in RANKS:
        mesh = Mesh.of(axis=ranks)
        for laid in scan_forms(op, mesh, small=True):
            with np.errstate(all="ignore"):
                found = scan_in_parts(op, operands, laid, mesh, random, double=True)
            right = all(_close(part, whole, operands)
                        for part, whole in zip(found, wholes, strict=True))
            layouts = f"{', '.join(map(str, laid.operands))} -> {', '.join(map(str, laid.results))}"
            yield None if right else Wrong(op, layouts, ranks)


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
        f"on {wrong.ranks} ranks, {wrong.layouts}, the statement gives something else than whole",
        _span(wrong.op, tree), help="this is a fault of Anabranch; please report it")


def _span(op: Op, tree: s.Node) -> Span | None:
    """The statement that an op comes from, or the only `stop(e, grad=g)` in it."""
    place = (op.loc.line, op.loc.col)
    written = next((n for n in s.walk(tree) if isinstance(n, s.Statement | s.Definition)
                    and (n.span.line, n.span.col) == place), None)
    if written is None or written.span.file != op.loc.file:
        return None
    stated = [n.span for n in s.walk(written) if isinstance(n, s.Call)
              and any(k.name == "grad" for k in n.keywords)]
    return stated[0] if len(stated) == 1 else written.span


# ---- gradients


def _check_gradient(trial: Trial, report: Report, tree: s.Node) -> None:
    verdict = check_gradients(trial.function, trial.arguments)
    faults = verdict.faults or next(filter(None, _stated_elsewhere(trial.function)), ())
    report.mistakes += [_gradient_mistake(fault, tree) for fault in faults]
    if verdict.by and not faults:
        report.lines.append(f"gradient by {', '.join(verdict.by)}: within {verdict.error:.0e} of "
                            "finite differences")
    report.lines += [f"line {op.loc.line} gives a gradient to a value that has none"
                     for op in verdict.invented]


def _stated_elsewhere(function: IrFunction) -> Iterator[tuple[Fault, ...]]:
    """What is wrong with gradients that are stated, for other data."""
    for seed, width in DRAWN[1:] if any(map(states_gradient, nested(function.body))) else ():
        args = _finite(function, seed, width)
        if args is not None:
            yield tuple(f for f in check_gradients(function, args).faults if _states(f.op))


def _states(op: Op) -> bool:
    return any(map(states_gradient, statements(op) if isinstance(op, Scan) else [op]))


def _gradient_mistake(fault: Fault, tree: s.Node) -> Diagnostic:
    slope, op = fault.slope, fault.op
    message = (f"along one direction of '{slope.argument}' the derivative is {slope.derived:.6g}, "
               f"but differences of values give {slope.measured:.6g}")
    help = STATED if _states(op) else "this is a fault of Anabranch; please report it"
    return Diagnostic(message, _span(op, tree), help=help)
